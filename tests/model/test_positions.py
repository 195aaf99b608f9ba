import math

import pytest
import torch

from vitreous.model import ViT, ViTConfig
from vitreous.model.positions import resample_positions, rotary_table, rotate, sincos_1d, sincos_2d


def model(positions: str, **changes) -> ViT:
    options = {"image_size": (8, 12), "patch_size": 4, "dim": 16, "depth": 2, "heads": 2, "num_classes": 3}
    return ViT(ViTConfig(**options | {"positions": positions} | changes))


def test_sincos_is_the_formula():
    table = sincos_1d(3, 4)
    rows = [[math.sin(i), math.cos(i), math.sin(i / 100), math.cos(i / 100)] for i in range(3)]
    torch.testing.assert_close(table, torch.tensor(rows))


def test_sincos_2d_is_half_row_and_half_column():
    table = sincos_2d((2, 3), 8).view(2, 3, 8)
    for row in range(2):
        for column in range(3):
            torch.testing.assert_close(table[row, column, :4], sincos_1d(2, 4)[row])
            torch.testing.assert_close(table[row, column, 4:], sincos_1d(3, 4)[column])


@pytest.mark.parametrize(("prefix", "grid"), [(0, (3, 4)), (2, (4, 3))])
def test_rotary_table_turns_pairs_by_row_and_column(prefix, grid):
    cos, sin = rotary_table(grid, 8, prefix)
    assert cos.shape == sin.shape == (prefix + grid[0] * grid[1], 4)
    row, column = 1, 2
    angles = torch.tensor([row, row / 10, column, column / 10])  # frequencies 100^0 and 100^(-1/2)
    place = prefix + row * grid[1] + column
    torch.testing.assert_close(cos[place], angles.cos())
    torch.testing.assert_close(sin[place], angles.sin())


def test_a_smaller_grid_has_the_places_of_the_larger_one_it_is_resampled_from():
    whole, half = rotary_table((4, 8), 8, 1), rotary_table((2, 4), 8, 1, old=(4, 8))
    whole, half = (torch.atan2(sin, cos)[1:] for cos, sin in (whole, half))  # angles below a turn, without the prefix
    middle = whole.view(2, 2, 4, 2, 4).mean(dim=(1, 3))  # of 2 x 2 patches
    torch.testing.assert_close(half[:, 1].view(2, 4), middle[..., 1])  # of the slow pair, which never turns halfway
    torch.testing.assert_close(half[:, 3].view(2, 4), middle[..., 3])


def test_rotation_turns_pairs_of_channels():
    x = torch.tensor([1.0, 0.0, 0.0, 2.0]).view(1, 1, 1, 4)  # pairs (1, 0) and (0, 2)
    quarter = torch.full((1, 2), math.pi / 2)
    turned = rotate(x, quarter.cos(), quarter.sin()).flatten()
    torch.testing.assert_close(turned, torch.tensor([0.0, -2.0, 1.0, 0.0]))


def test_rotation_keeps_the_length():
    x = torch.randn(2, 3, 12, 8)
    turned = rotate(x, *rotary_table((3, 4), 8, 0))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_rotated_products_depend_on_relative_place_only():
    grid = (5, 6)
    q, k = torch.randn(1, 1, 1, 8).expand(-1, -1, 30, -1), torch.randn(1, 1, 1, 8).expand(-1, -1, 30, -1)
    table = rotary_table(grid, 8, 0)
    products = (rotate(q, *table) @ rotate(k, *table).mT).view(*grid, *grid)
    for rows in range(3):  # the key stands `rows` below and `columns` right of the query
        for columns in range(3):
            shifted = torch.stack([products[r, c, r + rows, c + columns] for r in range(3) for c in range(4)])
            torch.testing.assert_close(shifted, shifted[:1].expand(12), rtol=0, atol=1e-5)
    assert (products[0, 0, 1, 0] - products[0, 0, 0, 1]).abs() > 1e-3  # rows and columns differ
    assert (products[0, 0, 1, 0] - products[1, 0, 0, 0]).abs() > 1e-3  # and so does the direction


def test_rotation_leaves_class_token_and_registers_alone():
    x = torch.randn(1, 2, 3 + 12, 8)
    turned = rotate(x, *rotary_table((3, 4), 8, 3))
    torch.testing.assert_close(turned[:, :, :4], x[:, :, :4], rtol=0, atol=0)  # nor the patch at (0, 0)
    assert ((turned - x)[:, :, 4:].abs().amax(dim=(0, 1, 3)) > 1e-3).all()


@pytest.mark.parametrize("positions", ["learned", "sincos", "sincos_learned", "sincos2d", "rope"])
def test_model_sees_where_a_patch_stands(positions):
    net = model(positions, pool="mean")
    images = torch.randn(2, 3, 8, 12)
    swapped = images.roll(4, dims=-1)  # the same patches elsewhere
    mean, mean_swapped = (net.pool(net.forward_features(x)) for x in (images, swapped))
    assert (mean - mean_swapped).abs().max() > 1e-3


def test_model_without_positions_does_not():
    net = model("learned", pool="mean")
    net.positions.data.zero_()
    images = torch.randn(2, 3, 8, 12)
    mean, mean_swapped = (net.pool(net.forward_features(x)) for x in (images, images.roll(4, dims=-1)))
    torch.testing.assert_close(mean, mean_swapped, rtol=0, atol=1e-5)


@pytest.mark.parametrize("positions", ["sincos", "sincos2d", "rope"])
def test_fixed_positions_are_neither_trained_nor_saved(positions):
    net = model(positions)
    assert not any("positions" in name or "rotary" in name for name, _ in net.named_parameters())
    assert not any("positions" in name or "rotary" in name for name in net.state_dict())


def test_sincos_learned_starts_at_sincos_and_learns():
    fixed, learned = model("sincos"), model("sincos_learned")
    assert isinstance(learned.positions, torch.nn.Parameter)
    assert torch.equal(learned.positions, fixed.positions)
    assert torch.equal(fixed.positions[0], sincos_1d(7, 16))  # class token at 0, then 2 x 3 patches


def test_sincos2d_leaves_the_class_token_at_zero():
    table = model("sincos2d").positions[0]
    assert torch.equal(table[0], torch.zeros(16))
    assert torch.equal(table[1:], sincos_2d((2, 3), 16))
    assert torch.equal(model("sincos2d", pool="mean").positions[0], sincos_2d((2, 3), 16))


@pytest.mark.parametrize("positions", ["learned", "sincos", "sincos_learned", "sincos2d"])
def test_class_token_and_patches_get_their_positions_and_registers_none(positions):
    net = model(positions, registers=2)
    images = torch.randn(2, 3, 8, 12)
    tokens = net.embed(images)
    torch.testing.assert_close(tokens[:, :1], (net.class_token + net.positions[:, :1]).expand(2, -1, -1))
    torch.testing.assert_close(tokens[:, 1:3], net.registers.expand(2, -1, -1))
    torch.testing.assert_close(tokens[:, 3:], net.patches(images) + net.positions[:, 1:])


@pytest.mark.parametrize(("kind", "placed"), [("patches", 0), ("class", 1), ("all", 3)])
def test_position_tokens_says_which_tokens_have_a_position(kind, placed):
    net = model("learned", registers=2, position_tokens=kind)
    images = torch.randn(2, 3, 8, 12)
    assert net.positions.shape == (1, placed + 6, 16)
    tokens = torch.cat([net.class_token, net.registers], dim=1).expand(2, -1, -1).clone()
    tokens[:, :placed] += net.positions[:, :placed]
    torch.testing.assert_close(net.embed(images)[:, :3], tokens)
    torch.testing.assert_close(net.embed(images)[:, 3:], net.patches(images) + net.positions[:, placed:])


def test_resampling_to_the_same_grid_is_the_identity():
    pos = torch.randn(1, 16, 8)
    torch.testing.assert_close(resample_positions(pos, (4, 4)), pos, rtol=0, atol=1e-6)


@pytest.mark.parametrize("grid", [(2, 2), (7, 7), (3, 5), (1, 9)])
def test_resampled_positions_have_the_new_grid(grid):
    assert resample_positions(torch.randn(1, 16, 8), grid).shape == (1, grid[0] * grid[1], 8)


def test_resampling_keeps_rows_and_columns_apart():
    row, column = torch.meshgrid(torch.arange(6.0), torch.arange(6.0), indexing="ij")
    pos = torch.stack([row, column], dim=-1).view(1, 36, 2)
    resized = resample_positions(pos, (12, 6)).view(12, 6, 2)
    inner = torch.arange(3, 9)  # the cubic looks two places beyond the edge for the others
    torch.testing.assert_close(resized[inner, :, 0], (inner / 2 - 0.25)[:, None].expand(-1, 6))
    torch.testing.assert_close(resized[..., 1], torch.arange(6.0).expand(12, -1))


def test_resampling_refuses_what_is_not_a_square():
    with pytest.raises(ValueError, match="17 positions are not a square grid: pass them without class token"):
        resample_positions(torch.randn(1, 17, 8), (4, 4))
    with pytest.raises(ValueError, match="17 positions are not a 2 x 8 grid"):
        resample_positions(torch.randn(1, 17, 8), (4, 4), (2, 8))


def test_a_rectangular_grid_is_resampled_as_its_transpose_is():
    pos = torch.randn(1, 12, 8)
    turned = pos.view(1, 3, 4, 8).transpose(1, 2).reshape(1, 12, 8)
    resized = resample_positions(pos, (5, 2), (3, 4)).view(1, 5, 2, 8)
    torch.testing.assert_close(resample_positions(turned, (2, 5), (4, 3)), resized.transpose(1, 2).reshape(1, 10, 8))
