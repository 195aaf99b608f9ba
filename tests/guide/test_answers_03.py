"""Answers to the exercise of chapter 3, positions."""

import torch

from vitreous.model.positions import sincos_1d


def similarity(distance: int, dim: int) -> float:
    """Dot product of two rows of the sine-cosine table that are `distance` apart.

    Channels j and j + 1 of rows a and b, with w = 10000^(-j / dim):
    sin(a w) sin(b w) + cos(a w) cos(b w) = cos((a - b) w), summed over the dim / 2 frequencies w.
    """
    frequencies = 10000 ** (-torch.arange(0, dim, 2) / dim)
    return torch.cos(distance * frequencies).sum().item()


def test_the_dot_product_of_two_positions_is_a_sum_of_cosines_of_their_distance():
    table = sincos_1d(60, 64)
    for distance in (0, 1, 7, 30):
        for place in (0, 5, 29):
            product = (table[place] @ table[place + distance]).item()
            assert abs(product - similarity(distance, 64)) < 1e-3


def test_a_row_with_itself_gives_half_of_the_width():
    for dim in (8, 64, 768):  # each of the dim / 2 pairs gives sin^2 + cos^2 = 1
        table = sincos_1d(50, dim)
        assert torch.allclose((table * table).sum(dim=1), torch.full((50,), dim / 2))
