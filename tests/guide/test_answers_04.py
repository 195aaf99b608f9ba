"""Answers to the exercise of chapter 4, attention."""

import torch

import vitreous as vt
from vitreous.model.attention import Attention
from vitreous.model.summary import summarise


def multiply_adds(tokens: int, dim: int) -> tuple[int, int]:
    """(the maps to q, k, v and back, the products q k^T and A v) of one block's attention."""
    return 4 * tokens * dim**2, 2 * tokens**2 * dim


def test_shuffled_tokens_give_shuffled_outputs():
    torch.manual_seed(0)
    attention = Attention(vt.ViTConfig(dim=16, heads=4))
    z, order = torch.randn(2, 10, 16), torch.randperm(10)
    assert torch.allclose(attention(z)[:, order], attention(z[:, order]), atol=1e-6)


def test_the_products_cost_more_than_the_maps_from_twice_the_width_on():
    for dim in (64, 768):  # 2 N^2 D > 4 N D^2 is N > 2 D
        maps, products = multiply_adds(2 * dim, dim)
        assert products == maps
        maps, products = multiply_adds(2 * dim + 1, dim)
        assert products > maps


def test_the_formula_counts_what_the_summary_counts():
    config = vt.ViTConfig(size="B/16", depth=1)  # all blocks are alike
    (row,) = [row for row in summarise(config).rows if row.name == "blocks.0.attention"]
    assert row.flops == 2 * sum(multiply_adds(config.tokens, config.dim))
