"""Answers to the exercise of chapter 7."""

import pytest
import torch
from torch import nn

import vitreous as vt


def variance_of_dropped(x: float, p: float) -> float:
    """E[y^2] - E[y]^2 = (1 - p) (x / (1 - p))^2 - x^2."""
    return x * x * p / (1 - p)


def dropouts(depth: int) -> int:
    """One after the positions; in each block one after attention and two in the MLP."""
    return 1 + 3 * depth


def mean_depth(depth: int, p: float) -> float:
    """The sum of 1 - p (l - 1) / (L - 1) over l = 1 ... L."""
    return depth * (1 - p / 2)


def model_of(depth: int, **options: float) -> vt.ViT:
    return vt.ViT(vt.ViTConfig(image_size=8, patch_size=4, channels=1, dim=8, heads=2, depth=depth, **options))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_the_variance_of_a_dropped_number_grows_without_bound_as_p_nears_one(p):
    torch.manual_seed(0)
    sample = nn.Dropout(p)(torch.full((1_000_000,), 3.0))
    assert sample.mean().item() == pytest.approx(3, abs=0.03)
    assert sample.var().item() == pytest.approx(variance_of_dropped(3, p), rel=0.01)


@pytest.mark.parametrize("depth", [1, 5])
def test_a_model_has_one_dropout_and_three_in_each_block(depth):
    modules = model_of(depth, dropout=0.1).modules()
    assert sum(isinstance(module, nn.Dropout) for module in modules) == dropouts(depth)


def test_an_image_passes_all_blocks_but_half_of_p_of_them():
    rates = [block.drop_path.rate for block in model_of(6, drop_path=0.3).blocks]
    assert sum(1 - rate for rate in rates) == pytest.approx(mean_depth(6, 0.3))
