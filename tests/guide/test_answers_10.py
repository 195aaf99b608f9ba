"""Answers to the exercise of chapter 10."""

import math

import pytest
import torch
import torch.nn.functional as F

import vitreous as vt
from vitreous.model.positions import resample_positions


@pytest.mark.parametrize("K", [2, 10])
def test_a_head_of_zeros_costs_log_k_and_sends_nothing_into_the_body(K):
    """All K probabilities are 1 / K, so the loss is log K; the gradient of y is (...) W^T, and W is 0."""
    torch.manual_seed(0)
    model = vt.ViT(vt.ViTConfig(image_size=8, patch_size=4, channels=1, num_classes=K, dim=16, depth=1, heads=2))
    loss = F.cross_entropy(model(torch.randn(6, 1, 8, 8)), torch.arange(6) % K)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(K))
    assert model.head.weight.grad.abs().max() > 0
    assert all(weight.grad.abs().max() == 0 for name, weight in model.named_parameters() if not name.startswith("head"))


def test_positions_stay_on_the_same_grid_and_keep_their_order_on_a_finer_one():
    same = torch.randn(1, 12, 8)
    torch.testing.assert_close(resample_positions(same, grid=(3, 4), old=(3, 4)), same)
    rising = torch.arange(4.0).repeat(4).view(1, 16, 1)  # each row of the grid holds 0, 1, 2, 3
    finer = resample_positions(rising, grid=(8, 8)).view(8, 8)
    assert (finer.diff(dim=1) > 0).all() and finer.diff(dim=0).abs().max() < 1e-5
