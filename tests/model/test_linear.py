import pytest
import torch
import torch.nn.functional as F

from vitreous.device import autocast
from vitreous.model import linear
from vitreous.model.linear import Linear, as_convolution, convolution_is_faster

LARGE = (32, 64, 128)  # the fewest tokens, and the least width, that a convolution is taken for


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_both_forms_give_the_same_values_and_gradients(dtype, tolerance, bias):
    x, weight = torch.randn(8, 16, 64, dtype=dtype), torch.randn(24, 64, dtype=dtype)
    inputs = [x, weight, *([torch.randn(24, dtype=dtype)] if bias else [])]
    gradient = torch.randn(8, 16, 24, dtype=dtype)
    results = []
    for form in (F.linear, as_convolution):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        out = form(*leaves) if bias else form(*leaves, None)
        results.append((out, *torch.autograd.grad(out, leaves, gradient)))
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("faster", [True, False])
def test_the_layer_computes_the_form_that_is_faster(monkeypatch, faster):
    monkeypatch.setattr(linear, "convolution_is_faster", lambda x: faster)
    monkeypatch.setattr(linear, "as_convolution", lambda x, weight, bias: "convolution")
    assert (Linear(4, 6)(torch.randn(2, 3, 4)) == "convolution") is faster


@pytest.mark.parametrize(
    ("shape", "faster"),
    [
        (LARGE, True),
        ((1, 2048, 128), True),
        ((31, 64, 128), False),
        ((32, 64, 127), False),
        ((2048, 1, 128), False),  # images of one pixel, whose layout torch cannot tell
        ((2048, 128), False),
    ],
)
def test_a_convolution_is_for_many_wide_tokens(monkeypatch, shape, faster):
    monkeypatch.setattr(linear, "IS_AMD", True)
    monkeypatch.setattr(linear, "HAS_AVX512", True)
    assert convolution_is_faster(torch.empty(shape)) is faster


def test_a_convolution_is_for_processors_on_which_it_was_measured_alone(monkeypatch):
    monkeypatch.setattr(linear, "IS_AMD", False)
    assert not convolution_is_faster(torch.empty(LARGE))
    monkeypatch.setattr(linear, "IS_AMD", True)
    monkeypatch.setattr(linear, "HAS_AVX512", True)
    assert not convolution_is_faster(torch.empty(LARGE, device="meta"))


@pytest.mark.parametrize("avx512", [True, False])
def test_with_avx2_alone_a_convolution_is_for_answers_and_not_for_training(monkeypatch, avx512):
    monkeypatch.setattr(linear, "IS_AMD", True)
    monkeypatch.setattr(linear, "HAS_AVX512", avx512)
    assert convolution_is_faster(torch.empty(LARGE)) is avx512
    with torch.inference_mode():
        assert convolution_is_faster(torch.empty(LARGE))


def test_under_autocast_it_computes_in_bfloat16(monkeypatch):
    monkeypatch.setattr(linear, "IS_AMD", True)
    monkeypatch.setattr(linear, "HAS_AVX512", True)
    layer = Linear(128, 8)
    with autocast(torch.device("cpu"), "bf16"):
        out = layer(torch.randn(LARGE))
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_an_exported_graph_has_a_linear_map(monkeypatch):
    monkeypatch.setattr(linear, "IS_AMD", True)
    monkeypatch.setattr(linear, "HAS_AVX512", True)
    program = torch.export.export(Linear(128, 8), (torch.randn(LARGE),))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called == ["aten.linear.default"]
