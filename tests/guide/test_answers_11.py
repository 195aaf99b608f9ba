"""Answers to the exercise of chapter 11."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


def gradient(weights: Tensor, x: Tensor, y: Tensor, share: float = 1.0) -> Tensor:
    """The gradient of the mean cross-entropy of a linear model, times a share."""
    weights = weights.clone().requires_grad_()
    (share * F.cross_entropy(x @ weights, y)).backward()
    return weights.grad


def lowest_loss_after_softmax(K: int) -> float:
    """The softmax gives at best 1 for the true class and 0 elsewhere; of these, the loss takes a softmax again."""
    return math.log(math.e + K - 1) - 1


def test_parts_weighted_by_their_images_give_the_whole_batchs_gradient():
    torch.manual_seed(0)
    weights, x, y = torch.randn(5, 3), torch.randn(10, 5), torch.randint(3, (10,))
    whole = gradient(weights, x, y)
    weighted = gradient(weights, x[:7], y[:7], 0.7) + gradient(weights, x[7:], y[7:], 0.3)
    averaged = gradient(weights, x[:7], y[:7], 0.5) + gradient(weights, x[7:], y[7:], 0.5)
    torch.testing.assert_close(weighted, whole)
    assert (averaged - whole).abs().max() > 0.01


@pytest.mark.parametrize("K", [2, 10, 100])
def test_after_a_softmax_the_loss_stays_far_from_zero(K):
    labels = torch.arange(K)
    certain = 1000 * F.one_hot(labels, K).float()
    assert F.cross_entropy(certain, labels).item() == 0
    assert F.cross_entropy(certain.softmax(dim=1), labels).item() == pytest.approx(lowest_loss_after_softmax(K))
