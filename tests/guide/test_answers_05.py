"""Answers to the exercise of chapter 5, the MLP and GELU."""

import math

import torch
from torch import Tensor

import vitreous as vt
from vitreous.model.attention import Attention
from vitreous.model.vit import MLP


def gelu_slope(x: Tensor) -> Tensor:
    """(x Phi(x))' = Phi(x) + x phi(x)."""
    bell = torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * bell


def mlp_parameters(dim: int, ratio: int) -> int:
    """Two matrices of dim x ratio dim, and a bias for each output of either."""
    return 2 * ratio * dim**2 + ratio * dim + dim


def count(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def test_the_slope_is_that_of_autograd():
    x = torch.linspace(-5, 5, 101, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(torch.nn.functional.gelu(x).sum(), x)
    assert torch.allclose(slope, gelu_slope(x.detach()))


def test_the_slope_is_negative_left_of_the_lowest_point():
    x = torch.linspace(-8, 8, 16_001, dtype=torch.float64)
    lowest = x[torch.nn.functional.gelu(x).argmin()]
    assert abs(lowest.item() + 0.752) < 1e-3
    assert (gelu_slope(x[x < lowest - 1e-3]) < 0).all() and (gelu_slope(x[x > lowest + 1e-3]) > 0).all()


def test_the_formula_counts_the_parameters():
    for dim, ratio in ((64, 2), (128, 4)):
        assert count(MLP(vt.ViTConfig(dim=dim, heads=2, mlp_ratio=ratio))) == mlp_parameters(dim, ratio)


def test_at_twice_the_width_mlp_and_attention_differ_by_biases_only():
    config = vt.ViTConfig(dim=64, heads=2, mlp_ratio=2)  # 4 D^2 each; biases 4 D in attention, 3 D in the MLP
    assert count(Attention(config)) - count(MLP(config)) == config.dim
