"""Answers to the exercise of chapter 8."""

import pytest

import vitreous as vt
from vitreous.model.summary import summarise


def tokens_of_equal_cost(D: int, r: float) -> float:
    """4 N^2 D = 2 N (4 + 2 r) D^2, solved for N."""
    return (2 + r) * D


def descend(rate: float, c: float, steps: int) -> float:
    """w after so many steps from 1, on the loss c w^2 / 2."""
    w = 1.0
    for _ in range(steps):
        w -= rate * c * w
    return w


@pytest.mark.parametrize("r", [2, 4])
def test_attention_costs_as_much_as_the_matrices_at_two_plus_r_times_the_width(r):
    D = 32
    N = tokens_of_equal_cost(D, r)
    config = vt.ViTConfig(
        image_size=(16, N // 4), patch_size=4, dim=D, depth=1, heads=1, mlp_ratio=r, pool="mean", num_classes=2
    )
    assert config.tokens == N // 4
    config = config.model_copy(update={"image_size": (16, N)})
    assert config.tokens == N
    rows = {row.name: row for row in summarise(config).rows}
    matrices = 2 * N * (4 + 2 * r) * D**2
    assert rows["blocks.0"].flops == 2 * matrices
    assert rows["blocks.0.attention"].flops - 2 * N * 4 * D**2 == matrices


def test_a_rate_of_one_over_the_curvature_takes_a_single_step():
    for c in (0.5, 4.0):
        assert descend(1 / c, c, steps=1) == 0
        assert abs(descend(1.99 / c, c, steps=2000)) < 1e-3 < 1e3 < abs(descend(2.01 / c, c, steps=2000))
