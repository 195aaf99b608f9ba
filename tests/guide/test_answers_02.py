"""Answers to the exercise of chapter 2, the class token."""

import pytest
import torch
from torch import Tensor

import vitreous as vt
from vitreous.model.vit import Pool


def tiny(pool: str) -> vt.ViTConfig:
    return vt.ViTConfig(image_size=8, patch_size=2, channels=1, num_classes=3, dim=8, depth=1, heads=2, pool=pool)


def shuffled(tokens: Tensor, prefix: int = 0) -> Tensor:
    """The tokens (B, N, D) in another order, but for the first `prefix`."""
    order = torch.arange(tokens.shape[1])
    order[prefix:] = order[prefix:].flip(0)
    return tokens[:, order]


def test_zeros_would_do_because_a_learned_position_is_added_to_the_class_token():
    model = vt.ViT(tiny("cls"))
    assert model.class_token.count_nonzero() == 0
    with torch.no_grad():
        assert torch.equal(model.embed(torch.rand(1, 1, 8, 8))[0, 0], model.positions[0, 0])  # 0 + its position


def test_the_class_token_is_trained_all_the_same_and_by_the_gradient_of_its_position():
    model = vt.ViT(tiny("cls"))
    torch.nn.init.normal_(model.head.weight)  # at 0, as it starts, it would let no gradient through
    model(torch.rand(4, 1, 8, 8)).square().sum().backward()
    assert model.class_token.grad.abs().max() > 0
    assert torch.allclose(model.class_token.grad[0, 0], model.positions.grad[0, 0])


@pytest.mark.parametrize("pool", ["mean", "attention"])
def test_a_mean_does_not_see_the_order(pool):
    torch.manual_seed(0)
    layer, tokens = Pool(tiny(pool)), torch.randn(2, 16, 8)
    assert torch.allclose(layer(tokens), layer(shuffled(tokens)), atol=1e-6)


def test_the_class_token_must_stay_first_and_the_rest_may_move():
    layer, tokens = Pool(tiny("cls")), torch.randn(2, 17, 8)
    assert not torch.allclose(layer(tokens), layer(shuffled(tokens)))
    assert torch.equal(layer(tokens), layer(shuffled(tokens, prefix=1)))
