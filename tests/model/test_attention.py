import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.model import ViTConfig, attention
from vitreous.model.attention import Attention, attend, attention_weights, products_are_faster
from vitreous.model.positions import rotary_table, rotate


def make(**changes) -> Attention:
    options = {"image_size": (8, 12), "patch_size": 4, "dim": 24, "depth": 1, "heads": 3, "num_classes": 2}
    return Attention(ViTConfig(**options | changes))


def joined(heads: Tensor) -> Tensor:
    """(B, h, N, d) -> (B, N, D)."""
    return heads.transpose(1, 2).flatten(2)


VARIANTS = [
    {},
    {"qk_norm": True},
    {"positions": "rope"},
    {"bias": False},
    {"qk_norm": True, "norm": "rmsnorm"},
]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize(("N", "d"), [(1, 8), (5, 8), (50, 32), (197, 64)])
def test_both_forms_give_the_same_values_and_gradients(monkeypatch, dtype, tolerance, N, d):
    qkv = torch.randn(2, N, 3, 4, d).to(dtype)
    results = []
    for products in (True, False):
        monkeypatch.setattr(attention, "products_are_faster", lambda q, products=products: products)
        leaf = qkv.clone().requires_grad_()
        out = attend(*leaf.permute(2, 0, 3, 1, 4))
        assert out.dtype == dtype
        (out * torch.linspace(-1, 1, d)).sum().backward()
        results.append((out, leaf.grad))
    (out, grad), (fused_out, fused_grad) = results
    torch.testing.assert_close(out, fused_out, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(grad, fused_grad, rtol=tolerance, atol=tolerance * max(1, d**0.5))


def test_attention_is_the_written_formula():
    q, k, v = torch.randn(3, 2, 3, 5, 8)
    scores = torch.einsum("bhnd,bhmd->bhnm", q, k) / 8**0.5
    weights = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)
    torch.testing.assert_close(attention_weights(q, k), weights)
    torch.testing.assert_close(attend(q, k, v), torch.einsum("bhnm,bhmd->bhnd", weights, v))


@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_weights_equal_those_that_forward_applies(monkeypatch, options, products):
    monkeypatch.setattr(attention, "products_are_faster", lambda q: products)
    layer = make(**options)
    x = torch.randn(2, 7, 24)
    rotary = rotary_table((2, 3), 8, 1) if "positions" in options else None
    q, k, v = layer.split(x, rotary)
    weights = attention_weights(q, k)
    assert weights.shape == (2, 3, 7, 7)
    torch.testing.assert_close(layer.proj(joined(weights @ v)), layer(x, rotary), rtol=0, atol=1e-6)


def weights_of(layer, x):
    return attention_weights(*layer.split(x, None)[:2])


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_each_row_of_weights_sums_to_one(options):
    weights = weights_of(make(**options), 4 * torch.randn(2, 7, 24))
    assert weights.min() >= 0
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 7))


def test_queries_of_zero_spread_their_weight_evenly():
    layer = make()
    for part in rows(layer, 0):
        torch.nn.init.zeros_(part)
    torch.testing.assert_close(weights_of(layer, torch.randn(1, 7, 24)), torch.full((1, 3, 7, 7), 1 / 7))


def test_attention_without_positions_follows_the_order_of_its_tokens():
    layer, x, order = make(), torch.randn(2, 7, 24), torch.randperm(7)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order], rtol=0, atol=1e-6)


def test_heads_are_consecutive_channels_of_queries_keys_and_values():
    layer, x = make(), torch.randn(2, 7, 24)
    q, k, v = layer.split(x, None)
    for part, heads in enumerate((q, k, v)):
        torch.testing.assert_close(joined(heads), F.linear(x, *rows(layer, part)))


def rows(layer: Attention, part: int) -> tuple[Tensor, Tensor]:
    """Weight and bias of queries (0), keys (1) or values (2)."""
    D = layer.proj.in_features
    return layer.qkv.weight[part * D : part * D + D], layer.qkv.bias[part * D : part * D + D]


def test_rotation_turns_queries_and_keys_and_leaves_values():
    layer, x, table = make(), torch.randn(2, 7, 24), rotary_table((2, 3), 8, 1)
    q, k, v = layer.split(x, None)
    for part, expected in zip(layer.split(x, table), (rotate(q, *table), rotate(k, *table), v), strict=True):
        assert torch.equal(part, expected)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_qk_norm_takes_the_scale_out_of_the_weights(norm):
    plain, normed = make(norm=norm), make(norm=norm, qk_norm=True)
    x = torch.randn(2, 7, 24)
    before = [weights_of(layer, x) for layer in (plain, normed)]
    for layer in (plain, normed):
        layer.qkv.weight.data *= 10
        layer.qkv.bias.data *= 10
    after = [weights_of(layer, x) for layer in (plain, normed)]
    assert (before[0] - after[0]).abs().max() > 0.1
    torch.testing.assert_close(before[1], after[1], rtol=0, atol=1e-4)
    q, _, _ = normed.split(x, None)
    torch.testing.assert_close(q.square().mean(dim=-1), torch.ones(2, 3, 7), rtol=0, atol=1e-4)


def test_qk_norm_answers_in_the_precision_of_the_values():
    layer = make(qk_norm=True)
    layer.q_norm, layer.k_norm = (torch.nn.Sequential(norm, Float32()) for norm in (layer.q_norm, layer.k_norm))
    with torch.autocast("cpu", torch.bfloat16):
        assert {part.dtype for part in layer.split(torch.randn(1, 7, 24), None)} == {torch.bfloat16}


class Float32(torch.nn.Module):
    """What autocast makes of a norm on GPUs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float()


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_autocast_attention_stays_close_to_float32(positions):
    layer, x = make(positions=positions), torch.randn(2, 7, 24)
    rotary = rotary_table((2, 3), 8, 1) if positions == "rope" else None
    with torch.autocast("cpu", torch.bfloat16):
        low = layer(x, rotary)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), layer(x, rotary), rtol=0, atol=3e-2)


@pytest.mark.parametrize(
    ("device", "dtype", "wide", "learns", "most"),
    [
        ("cpu", torch.float32, True, True, 128),
        ("cpu", torch.float32, True, False, 0),
        ("cpu", torch.float32, False, True, 32),
        ("cpu", torch.float32, False, False, 0),
        ("cpu", torch.bfloat16, True, True, 1024),
        ("cpu", torch.bfloat16, False, False, 1024),
        ("meta", torch.bfloat16, True, True, 0),
        ("meta", torch.float32, True, True, 0),
    ],
)
def test_products_are_chosen_where_they_were_measured_faster(monkeypatch, device, dtype, wide, learns, most):
    monkeypatch.setattr(attention, "HAS_AVX512", wide)
    for N in (1, 32, 33, 128, 129, 1024, 1025):
        q = torch.empty(1, 1, N, 8, device=device, dtype=dtype, requires_grad=learns)
        assert products_are_faster(q) is (most >= N)
