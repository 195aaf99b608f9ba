import importlib.util
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from pydantic import ValidationError
from tiny import EVERYTHING

from vitreous import augment as augmentation
from vitreous.augment import Augment, Changes, draw, plan, randaugment
from vitreous.augment.draws import split
from vitreous.augment.geometry import maps_of
from vitreous.augment.randaugment import COLOR_OPS, OPS, draw_ops, warp

FILL = torch.tensor([0.2, 0.5, 0.8])


def pictures(count: int, channels: int = 3, side: int = 32, size: tuple[int, int] | None = None) -> torch.Tensor:
    """Noise on a diagonal ramp: float32 (count, channels, *size), by default a square; each a grey level / 255."""
    rng = np.random.default_rng(7)
    height, width = size or (side, side)
    ramp = np.add.outer(np.arange(height), np.arange(width)) * 90 // max(height, width) + 20
    noise = rng.integers(-20, 21, (count, channels, height, width))
    tint = rng.integers(0, 40, (count, channels, 1, 1))
    return torch.from_numpy((ramp + noise + tint).clip(0, 255)).float() / 255


def changes_of(rows: torch.Tensor, config: Augment, images: torch.Tensor, epoch: int = 0) -> Changes:
    """The changes of these images as one batch."""
    (changes,) = plan(rows, config, epoch, tuple(images.shape[2:]), len(images), images.device)
    return changes


def augment(images: torch.Tensor, rows: torch.Tensor, config: Augment, epoch: int, fill: torch.Tensor) -> torch.Tensor:
    return augmentation.augment(images, changes_of(rows, config, images, epoch), config, fill)


def mix(images: torch.Tensor, labels: torch.Tensor, classes: int, rows: torch.Tensor, config: Augment, progress: float):
    return augmentation.mix(images, labels, classes, changes_of(rows, config, images), config, progress)


def run(images: torch.Tensor, epoch: int = 0, **options) -> torch.Tensor:
    config = Augment(**options)
    rows = draw(config, len(images), seed=0, epoch=epoch)
    return augment(images, rows, config, epoch, FILL[: images.shape[1]])


def given(images: torch.Tensor, *row: float, **options) -> torch.Tensor:
    """`augment` with chosen numbers, instead of random ones, in every row."""
    rows = torch.tensor([row]).expand(len(images), -1)
    return augment(images, rows, Augment(**options), 0, FILL[: images.shape[1]])


# --- randomness ---


def test_an_image_is_treated_alike_in_any_batch():
    images, labels = pictures(12), torch.arange(12)
    table = draw(EVERYTHING, 12, seed=3, epoch=2)
    whole = augment(images, table, EVERYTHING, 2, FILL)
    order = torch.tensor([7, 2, 11, 0])
    part = augment(images[order], table[order], EVERYTHING, 2, FILL)
    torch.testing.assert_close(part, whole[order], atol=1e-6, rtol=0)
    lone = mix(images[:1], labels[:1], 12, table[:1], EVERYTHING, 0.0)[0]
    torch.testing.assert_close(lone, images[:1])  # its own partner


@pytest.mark.parametrize("ahead", [1, 7, 24, 10_000])
def test_batches_planned_together_are_those_planned_alone(monkeypatch, ahead):
    """32 images in batches of 7, the last of 4, of which none, one, three or all are worked out at a time."""
    images, labels, rows = pictures(32), torch.arange(32), draw(EVERYTHING, 32, seed=3, epoch=2)
    alone = [augment(part, row, EVERYTHING, 2, FILL) for part, row in zip(images.split(7), rows.split(7), strict=True)]
    monkeypatch.setattr("vitreous.augment.batch.AHEAD", ahead)
    planned = list(plan(rows, EVERYTHING, 2, (32, 32), 7))
    assert len(planned) == 5
    for part, label, row, changes, expected in zip(
        images.split(7), labels.split(7), rows.split(7), planned, alone, strict=True
    ):
        ours = augmentation.augment(part, changes, EVERYTHING, FILL)
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=0)
        ours, theirs = (
            augmentation.mix(part, label, 32, changes, EVERYTHING, 0.0),
            mix(part, label, 32, row, EVERYTHING, 0),
        )
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("first", [0, 1, 2, 3, 5, 6])
def test_a_plan_that_goes_on_has_the_very_numbers_of_a_whole_one(monkeypatch, first):
    monkeypatch.setattr("vitreous.augment.batch.AHEAD", 14)  # two batches
    rows = draw(EVERYTHING, 40, seed=3, epoch=2)
    whole = list(plan(rows, EVERYTHING, 2, (32, 32), 7))
    rest = list(plan(rows, EVERYTHING, 2, (32, 32), 7, first=first))
    assert len(whole) == 6 and len(rest) == 6 - first
    for ours, theirs in zip(rest, whole[first:], strict=True):
        for name in ("map", "color", "own", "cut"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))
        assert all(torch.equal(*pair) for pair in zip(ours.erased, theirs.erased, strict=True))
        assert [each.name for each in ours.recolor] == [each.name for each in theirs.recolor]
        for one, other in zip(ours.recolor, theirs.recolor, strict=True):
            assert torch.equal(one.chosen, other.chosen) and torch.equal(one.argument, other.argument)


def test_the_table_depends_on_seed_epoch_and_image_alone():
    table = draw(EVERYTHING, 100, seed=3, epoch=2)
    assert table.dtype == torch.float32 and table.shape == (100, 32)
    assert torch.equal(table[:10], draw(EVERYTHING, 10, seed=3, epoch=2))
    assert not (table == draw(EVERYTHING, 100, seed=3, epoch=1)).any(1).any()
    assert not (table == draw(EVERYTHING, 100, seed=4, epoch=2)).any(1).any()


def test_one_option_leaves_the_draws_of_others_alone():
    alone, both = Augment(erase=0.5), Augment(erase=0.5, flip=0.5, mixup=0.3)
    erase = [split(draw(config, 50, 0, 0), config)["erase"] for config in (alone, both)]
    assert torch.equal(*erase)


def test_images_and_columns_are_independent():
    table = draw(EVERYTHING, 5000, seed=0, epoch=0)
    correlation = torch.corrcoef(table.T) - torch.eye(table.shape[1])
    assert correlation.abs().max() < 0.06  # 4 standard errors
    assert (table[1:] != table[:-1]).all()
    same = pictures(1).expand(64, -1, -1, -1)
    assert run(same, rotation=20).flatten(1).unique(dim=0).shape[0] == 64


def test_nothing_on_costs_nothing():
    images, labels = pictures(4), torch.arange(4)
    rows = draw(Augment(), 4, 0, 0)
    assert rows.shape == (4, 0)
    assert augment(images, rows, Augment(), 0, FILL) is images
    assert mix(images, labels, 4, rows, Augment(), 0.0) == (images, labels)


def test_boxes_are_erased_in_a_copy():
    images = torch.ones(8, 3, 16, 16)
    assert not torch.equal(run(images, erase=1.0), images) and torch.equal(images, torch.ones(8, 3, 16, 16))


def test_the_arguments_are_left_as_they_are():
    images, rows = pictures(16), draw(EVERYTHING, 16, 0, 0)
    kept, kept_rows = images.clone(), rows.clone()
    out = augment(images, rows, EVERYTHING, 0, FILL)
    mix(images, torch.arange(16), 16, rows, EVERYTHING, 0.0)
    assert torch.equal(images, kept) and torch.equal(rows, kept_rows)
    assert out.dtype == torch.float32 and out.shape == images.shape
    assert out.min() >= 0 and out.max() <= 1


def test_rows_of_another_config_are_refused():
    with pytest.raises(ValueError, match="rows have 1 columns, not 3: draw the table with the same config"):
        augment(pictures(2), draw(Augment(flip=0.5), 2, 0, 0), Augment(flip=0.5, shift=1), 0, FILL)


def test_autocast_changes_nothing():
    images, rows = pictures(32), draw(EVERYTHING, 32, 0, 0)
    with torch.autocast("cpu", torch.bfloat16):
        cast = augment(images, rows, EVERYTHING, 0, FILL)
        mixed, targets = mix(cast, torch.arange(32), 32, rows, EVERYTHING, 0.0)
    assert torch.equal(cast, augment(images, rows, EVERYTHING, 0, FILL))
    assert mixed.dtype == targets.dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_gpu_is_never_waited_for_and_agrees_with_the_cpu():
    images, labels, rows = pictures(64), torch.arange(64), draw(EVERYTHING, 64, 0, 0)
    on_gpu = images.cuda(), labels.cuda(), FILL.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = augment(on_gpu[0], rows, EVERYTHING, 0, on_gpu[2])
        mixed = mix(on_gpu[0], on_gpu[1], 64, rows, EVERYTHING, 0.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # a pixel on a threshold of solarize or equalize, or on the image's edge, may fall either way
    far = (out.cpu() - augment(images, rows, EVERYTHING, 0, FILL)).abs() > 1e-4
    assert far.float().mean() < 0.01
    for ours, theirs in zip(mixed, mix(images, labels, 64, rows, EVERYTHING, 0.0), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-5, rtol=0)


# --- geometry ---


@pytest.mark.parametrize(("name", "axis"), [("flip", 3), ("vertical_flip", 2)])
def test_flips_are_exact_and_as_probable_as_said(name, axis):
    images = pictures(1, side=7).expand(4000, -1, -1, -1)
    out = run(images, **{name: 0.3})
    flipped = (out == images.flip(axis)).flatten(1).all(1)
    same = (out == images).flatten(1).all(1)
    assert (flipped ^ same).all()
    assert abs(flipped.float().mean() - 0.3) < 0.03  # 4 standard errors


def test_alternating_flips_show_both_sides_in_any_two_successive_epochs():
    images = pictures(200, side=8)
    epochs = [run(images, epoch=epoch, flip=0.5, alternate_flip=True) for epoch in range(4)]
    for one, other in pairwise(epochs):
        assert torch.equal(one, other.flip(3))
    flipped = (epochs[0] == images.flip(3)).flatten(1).all(1)
    assert 70 < flipped.sum() < 130


@pytest.mark.parametrize("side", [28, 32])
def test_a_shift_moves_a_pixel_by_whole_pixels(side):
    image = torch.zeros(1, 1, side, side)
    image[..., 10, 20] = 1
    out = given(image, 0.99, 0.0, shift=4)  # 4 to the right, 4 up
    assert out.nonzero().tolist() == [[0, 0, 6, 24]] and out.max() == 1


def test_shifts_reach_every_offset_alike():
    image = torch.zeros(1, 1, 16, 16)
    image[..., 8, 8] = 1
    where = run(image.expand(2500, -1, -1, -1), shift=2).nonzero()[:, 2:] - 8
    places, counts = where.unique(dim=0, return_counts=True)
    assert len(where) == 2500
    assert len(places) == 25 and places.abs().max() == 2
    assert counts.min() > 60 and counts.max() < 140


@pytest.mark.parametrize(
    "padding, left",
    [("zeros", [0] * 4), ("mean", [0.2] * 4), ("border", [0.1] * 4), ("reflection", [0.4, 0.3, 0.2, 0.1])],
)
def test_padding(padding, left):
    image = (torch.arange(8) / 10 + 0.1).expand(1, 1, 8, 8)
    expected = torch.tensor([*left, 0.1, 0.2, 0.3, 0.4])
    torch.testing.assert_close(given(image, 0.99, 0.5, shift=4, padding=padding)[0, 0, 3], expected)
    whole = {"crop_scale": (1, 1), "crop_ratio": (1, 1)}  # cut from nothing, but no longer copied
    torch.testing.assert_close(
        given(image, 0.5, 0.5, 0.5, 0.5, 0.99, 0.5, **whole, shift=4, padding=padding)[0, 0, 3], expected
    )


@pytest.mark.parametrize("padding", ["zeros", "mean", "border", "reflection"])
def test_flips_and_shifts_copy_what_interpolation_would_compute(padding):
    images = torch.rand(50, 3, 24, 40, generator=torch.Generator().manual_seed(0))
    options = dict(flip=0.5, vertical_flip=0.5, shift=7, padding=padding)
    copied, bent = (Augment(**options, rotation=most) for most in (0, 10))
    rows = draw(copied, 50, 0, 0)
    straight = torch.cat([rows[:, :1], torch.full((50, 1), 0.5), rows[:, 1:]], dim=1)  # turned by 0 degrees
    expected = augment(images, straight, bent, 0, FILL)
    torch.testing.assert_close(augment(images, rows, copied, 0, FILL), expected, atol=1e-4, rtol=0)


def test_a_shift_as_large_as_the_image_is_refused():
    with pytest.raises(ValueError, match="shift 9 is too far for 9 x 32 px: make it less than 9"):
        run(torch.zeros(1, 3, 9, 32), shift=9)


@pytest.mark.parametrize("padding", ["zeros", "mean", "border", "reflection"])
@pytest.mark.parametrize("side", [28, 32])
def test_a_draw_of_no_change_returns_the_image(side, padding):
    images = pictures(3, side=side)
    options = dict(flip=0.5, crop_scale=(1, 1), rotation=30, scale=0.5, shear=20, shift=3, color=0.5)
    row = [1.0] + [0.5] * 12  # no flip, and the middle of everything else
    torch.testing.assert_close(given(images, *row, padding=padding, **options), images, atol=2e-5, rtol=0)


@pytest.mark.parametrize("u, turns", [(1.0, 1), (0.0, -1)])
def test_rotation_by_90_degrees(u, turns):
    images = pictures(2, side=28)
    out = given(images, u, rotation=90)
    torch.testing.assert_close(out, images.rot90(turns, (2, 3)), atol=1e-4, rtol=0)


def test_rotation_keeps_shapes_in_an_oblong_image():
    image = torch.zeros(1, 1, 20, 40)
    image[..., 8:12, 10:30] = 1  # a bar, 20 wide and 4 high
    out = given(image, 1.0, rotation=90)
    expected = torch.zeros(1, 1, 20, 40)
    expected[..., 18:22] = 1  # it stands upright in the middle and fills the height
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=0)


def test_a_large_scale_magnifies():
    image = torch.zeros(1, 1, 32, 32)
    image[..., 12:20, 12:20] = 1
    assert given(image, 1.0, scale=0.5).sum() == pytest.approx(64 * 1.5**2, rel=0.02)
    assert given(image, 0.0, scale=0.5).sum() == pytest.approx(64 * 0.5**2, rel=0.02)


def test_shear_leans_by_its_angle():
    image = torch.zeros(1, 1, 32, 32)
    image[..., 15:17] = 1
    out = given(image, 1.0, shear=45)[0, 0]
    columns = (out * (torch.arange(32.0) - 15.5)).sum(1) / 2  # centre of each row
    torch.testing.assert_close(columns[4:28], 15.5 - torch.arange(4.0, 28), atol=0.01, rtol=0)


@pytest.mark.parametrize("H, W", [(32, 32), (24, 48)])
def test_crops_have_the_stated_areas_and_ratios_and_lie_inside(H, W):
    config = Augment(crop_scale=(0.2, 0.9), crop_ratio=(0.5, 2))
    crops = maps_of(split(draw(config, 10_000, 0, 0), config), config, 0, H, W)[0]
    wide, high = crops[:, 0, 0], crops[:, 1, 1]
    area, ratio = wide * high, wide * W / (high * H)
    assert 0.2 - 1e-9 < area.min() < 0.21 and 0.89 < area.max() < 0.9 + 1e-9
    assert area.mean() == pytest.approx(0.55, abs=0.01)
    assert ratio.min() > 0.5 - 1e-9 and ratio.max() < 2 + 1e-9
    if H == W:
        assert ratio.log().mean() == pytest.approx(0, abs=0.02)
    assert ((crops[:, 0, 2].abs() + wide * W / 2) <= W / 2 + 1e-9).all()
    assert ((crops[:, 1, 2].abs() + high * H / 2) <= H / 2 + 1e-9).all()


def test_a_crop_shows_its_place_and_keeps_its_edge_bright():
    image = torch.zeros(1, 1, 32, 32)
    image[..., :16, 16:] = 1  # the upper right quarter
    out = given(image, 0.5, 0.5, 1.0, 0.0, crop_scale=(0.25, 0.25))
    assert out[..., 1:].min() > 0.7 and out[..., :-1, 1:].min() == 1


def test_a_crop_of_larger_images_keeps_their_detail():
    large, row = pictures(3, side=64), torch.tensor([[0.5, 0.5, 1.0, 0.0]]).expand(3, -1)  # upper right corner

    def cropped(area: float) -> torch.Tensor:
        config = Augment(crop_scale=(area, area), crop_ratio=(1, 1))
        (changes,) = plan(row, config, 0, (32, 32), 3)
        return augmentation.augment(large, changes, config, FILL)

    torch.testing.assert_close(cropped(1), F.avg_pool2d(large, 2))  # two by two pixels for one
    torch.testing.assert_close(cropped(0.25), large[..., :32, 32:])


def test_without_a_crop_images_of_another_size_are_refused():
    config = Augment(flip=0.5, rotation=10)
    (changes,) = plan(draw(config, 2, 0, 0), config, 0, (32, 32), 2)
    with pytest.raises(ValueError, match=r"images of \(64, 64\) px, planned for \(32, 32\)"):
        augmentation.augment(pictures(2, side=64), changes, config, FILL)


def test_geometry_is_composed_in_the_stated_order():
    images = pictures(1)
    # flip, then rotate by 90 degrees, then shift by 4 to the right
    out = given(images, 0.0, 1.0, 0.99, 0.5, flip=0.5, rotation=90, shift=4)
    expected = torch.zeros_like(images)
    expected[..., 4:] = images.flip(3).rot90(1, (2, 3))[..., :-4]
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=0)


# --- colour and erasing ---


def test_color_multiplies_brightness_contrast_and_saturation():
    images = pictures(4) * 0.6 + 0.1
    out = given(images, 0.75, 0.25, 0.75, color=0.4)
    expected = randaugment.brightness(images, torch.tensor(1.2))
    expected = randaugment.contrast(expected, torch.tensor(0.8))
    expected = randaugment.color(expected, torch.tensor(1.2))
    torch.testing.assert_close(out, expected)
    assert not torch.allclose(out, images, atol=0.02)


def test_color_of_a_gray_image_leaves_saturation_out():
    images = pictures(4, channels=1)
    torch.testing.assert_close(given(images, 0.5, 0.5, 0.9, color=0.4), images)


@pytest.mark.parametrize(
    ("size", "shape"),
    [((64, 64), 0), ((24, 72), -0.27)],  # where a box of the area cannot be as high as it likes, it is wider
)
def test_erased_boxes_have_the_stated_area_and_the_mean_colour(size, shape):
    images = torch.ones(4000, 3, *size)
    out = run(images, erase=0.25)
    gone = (out != 1).all(1)  # (B, H, W)
    assert torch.equal(out.movedim(1, -1)[gone], FILL.expand(int(gone.sum()), 3))
    area = gone.float().mean((1, 2))
    touched = area > 0
    assert abs(touched.float().mean() - 0.25) < 0.03
    assert 0.018 < area[touched].min() < 0.03 and 0.31 < area[touched].max() < 0.345
    widths, heights = gone.any(1).sum(1), gone.any(2).sum(1)
    assert torch.equal(widths * heights, gone.sum((1, 2)))  # it is one rectangle
    ratio = (heights[touched] / widths[touched]).log()
    assert ratio.min() < -1 and ratio.max() > 1 and abs(ratio.mean() - shape) < 0.1  # from 0.3 to 1 / 0.3
    for edge in (gone[:, 0], gone[:, -1], gone[:, :, 0], gone[:, :, -1]):
        assert 0 < edge.any(1)[touched].float().mean() < 0.2  # anywhere, at an edge now and then


# --- RandAugment ---


def solarize_add(image: Image.Image, add: float) -> Image.Image:
    table = [min(255, i + int(add)) if i < 128 else i for i in range(256)]
    return image.point(table * len(image.getbands()))


PIL_OPS = {
    "autocontrast": (lambda image, _: ImageOps.autocontrast(image), [0.0]),
    "equalize": (lambda image, _: ImageOps.equalize(image), [0.0]),
    "invert": (lambda image, _: ImageOps.invert(image), [0.0]),
    "posterize": (lambda image, bits: ImageOps.posterize(image, int(bits)), [1, 2, 4]),
    "solarize": (lambda image, threshold: ImageOps.solarize(image, int(threshold)), [0, 26, 128, 256]),
    "solarize_add": (solarize_add, [0, 50, 110]),
    "color": (lambda image, factor: ImageEnhance.Color(image).enhance(factor), [0.1, 1.0, 1.9]),
    "contrast": (lambda image, factor: ImageEnhance.Contrast(image).enhance(factor), [0.1, 1.0, 1.9]),
    "brightness": (lambda image, factor: ImageEnhance.Brightness(image).enhance(factor), [0.1, 1.0, 1.9]),
    "sharpness": (lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor), [0.1, 1.0, 1.9]),
}


def through_pil(function, image: torch.Tensor) -> torch.Tensor:
    """(C, H, W) in 0..1 -> the same, as PIL would have it."""
    pixels = (image * 255).round().byte().movedim(0, -1).squeeze(-1).numpy()
    out = np.asarray(function(Image.fromarray(pixels)))
    return torch.from_numpy(out.reshape(*image.shape[1:], -1).copy()).movedim(-1, 0) / 255


@pytest.mark.parametrize("name", PIL_OPS)
@pytest.mark.parametrize("channels, side", [(3, 32), (1, 28), (3, 224)])
def test_colour_operations_equal_pil(name, channels, side):
    images = pictures(4, channels, side)
    images[1] = images[1] * 0.4 + 0.3
    images[2] = (images[2] > 0.5).float()  # two levels
    images[3] = 100 / 255  # one level
    images = (images * 255).round() / 255
    function, arguments = PIL_OPS[name]
    for argument in arguments:
        ours = COLOR_OPS[name][0](images, torch.tensor(float(argument)).view(1, 1, 1, 1))
        theirs = torch.stack([through_pil(lambda i: function(i, argument), image) for image in images])  # noqa: B023
        off = (ours * 255 - theirs * 255).abs().max().item()
        exact = name in ("equalize", "invert", "posterize", "solarize", "solarize_add")
        assert off < (1e-3 if exact else 1.6), f"{name}({argument}) is {off:.2f} grey levels from PIL"


def column(name: str) -> float:
    """The number that draws this operation."""
    return (OPS.index(name) + 0.5) / len(OPS)


WIDE = (24, 40)  # no square, which would hide height taken for width
PIL_MOVES = dict(resample=Image.Resampling.BILINEAR, fillcolor=tuple(int(v * 255) for v in FILL))


def sheared_or_shifted(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, **PIL_MOVES)


PIL_GEOMETRY = {
    "rotate": lambda image: image.rotate(24, **PIL_MOVES),
    "shear_x": lambda image: sheared_or_shifted(image, (1, 0.24, 0, 0, 1, 0)),
    "shear_y": lambda image: sheared_or_shifted(image, (1, 0, 0, 0.24, 1, 0)),
    "translate_x": lambda image: sheared_or_shifted(image, (1, 0, 0.36 * 40, 0, 1, 0)),
    "translate_y": lambda image: sheared_or_shifted(image, (1, 0, 0, 0, 1, 0.36 * 24)),
}


@pytest.mark.parametrize("name", PIL_GEOMETRY)
def test_geometric_operations_equal_pil(name):
    images = pictures(2, size=WIDE)
    options = dict(randaugment_ops=1, randaugment_magnitude=8, randaugment_sd=0, padding="mean")
    ours = given(images, column(name), 0, 0.9, 0, **options)
    far = (ours - torch.stack([through_pil(PIL_GEOMETRY[name], image) for image in images])).abs() > 1.6 / 255
    assert far.float().mean() < 0.002  # a pixel on the very edge may fall either way


def test_geometric_operations_follow_each_other():
    """By 9 whole pixels to the left, then by 15 degrees about the centre."""
    images = pictures(2, size=WIDE)
    options = dict(randaugment_ops=2, randaugment_magnitude=5, randaugment_sd=0, padding="mean")
    ours = given(images, column("translate_x"), 0, 0.9, column("rotate"), 0, 0.9, 0, 0, **options)

    def move(image: Image.Image) -> Image.Image:
        return sheared_or_shifted(image, (1, 0, 9, 0, 1, 0)).rotate(15, **PIL_MOVES)

    far = (ours - torch.stack([through_pil(move, image) for image in images])).abs() > 1.6 / 255
    assert far.float().mean() < 0.06  # where the first one's fill begins, PIL mixes it with the image


def test_operations_are_drawn_alike_and_done_half_the_time():
    config = Augment(randaugment_ops=2)
    draws = split(draw(config, 20_000, 0, 0), config)
    op, level = draw_ops(draws["randaugment"].unflatten(1, (-1, 3)), 9 + 0.5 * draws["randaugment_normal"])
    counts = (op + 1).flatten().bincount()
    assert len(counts) == 16
    assert abs(counts[0] / 40_000 - 0.5) < 0.01
    assert (counts[1:] / 20_000 - 1 / 15).abs().max() < 0.007
    assert (op[:, 0] == op[:, 1]).float().mean() < 0.3  # the two are independent
    assert level.abs().mean() == pytest.approx(0.9, abs=0.01) and level.mean() == pytest.approx(0, abs=0.02)
    assert level.abs().max() == 1 and level.abs().std() == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("level", [0.0, 0.3, 0.9, -0.9])
def test_arguments_have_timms_ranges(level):
    timm = importlib.util.find_spec("timm")
    if timm is None:
        pytest.skip("timm is not installed")
    source = Path(timm.origin).parent / "data/auto_augment.py"  # this file alone: timm itself needs torchvision
    spec = importlib.util.spec_from_file_location("timm_auto_augment", source)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)

    def timm_argument(name: str) -> float:
        return theirs.LEVEL_TO_ARG[name](abs(level) * 10, {})[0]

    for name in ("posterize", "solarize", "solarize_add"):
        ours = COLOR_OPS[name][1](torch.tensor(level, dtype=torch.float64)).item()
        timm_name = {"posterize": "PosterizeIncreasing", "solarize": "SolarizeIncreasing"}.get(name, "SolarizeAdd")
        assert ours == timm_argument(timm_name)
    for name in ("color", "contrast", "brightness", "sharpness"):
        ours = COLOR_OPS[name][1](torch.tensor(level)).item()
        assert min(abs(ours - 1), 0.9) == pytest.approx(abs(timm_argument(f"{name.title()}Increasing") - 1))
    for name, timm_name, place in [
        ("shear_x", "ShearX", (0, 1)),
        ("shear_y", "ShearY", (1, 0)),
        ("translate_x", "TranslateXRel", (0, 2)),
        ("translate_y", "TranslateYRel", (1, 2)),
    ]:
        ours = warp(torch.tensor([OPS.index(name)]), torch.tensor([abs(level)]), 1, 1)[0][place]
        assert ours.item() == pytest.approx(abs(timm_argument(timm_name)))
    assert abs(timm_argument("Rotate")) == pytest.approx(30 * abs(level))
    assert sorted(OPS) == sorted(snake(name) for name in theirs._RAND_INCREASING_TRANSFORMS)


def snake(name: str) -> str:
    """timm's `TranslateXRel` -> our `translate_x`."""
    name = name.removesuffix("Increasing").removesuffix("Rel").replace("AutoContrast", "Autocontrast")
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def test_posterize_keeps_a_bit_at_full_strength():
    assert COLOR_OPS["posterize"][1](torch.tensor([0.0, 0.9, 1.0])).tolist() == [4, 1, 1]


@pytest.mark.parametrize("channels", [1, 3])
def test_each_image_gets_its_own_operations_in_their_order(channels):
    config = Augment(randaugment_ops=2, randaugment_sd=0)
    images = pictures(40, channels)
    rows = torch.zeros(40, 8)  # which, whether, sign; the same for the second; two normals
    rows[:, [1, 4]] = 1.0  # nothing is done
    rows[3, :6] = torch.tensor([column("invert"), 0, 0.9, column("brightness"), 0, 0.1])
    rows[7, :6] = torch.tensor([column("brightness"), 0, 0.1, column("invert"), 0, 0.9])
    out = augment(images, rows, config, 0, FILL[:channels])
    expected = images.clone()
    expected[3] = (1 - images[3]) * (1 - 0.81)
    expected[7] = 1 - images[7] * (1 - 0.81)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)


def test_the_strength_of_operations_follows_magnitude_and_deviation():
    config = Augment(randaugment_ops=1, randaugment_magnitude=4, randaugment_sd=1)
    images = pictures(2)
    row = torch.tensor([column("brightness"), 0, 0.1, 2])  # which, whether, sign; normal
    out = augment(images, row.expand(2, -1), config, 0, FILL)
    torch.testing.assert_close(out, images * (1 - 0.9 * 0.6), atol=1e-5, rtol=0)  # a level of (4 + 1 * 2) / 10


# --- mixing ---


def mixed(images: torch.Tensor, labels: torch.Tensor, num_classes: int, progress: float = 0.0, **options):
    config = Augment(**options)
    return mix(images, labels, num_classes, draw(config, len(images), 0, 0), config, progress)


def test_mixup_is_a_convex_sum_with_the_reversed_batch():
    images, labels = pictures(50), torch.arange(50)
    out, targets = mixed(images, labels, 50, mixup=0.8)
    own = targets[labels, labels].view(-1, 1, 1, 1)
    torch.testing.assert_close(out, own * images + (1 - own) * images.flip(0))
    torch.testing.assert_close(targets[labels, labels.flip(0)], 1 - own.flatten())
    torch.testing.assert_close(targets.sum(1), torch.ones(50))
    assert own.unique().numel() == 50 and own.min() > 0 and own.max() < 1


def test_mixup_weights_have_their_beta_distribution():
    labels = torch.arange(20_000) % 2
    _, targets = mixed(torch.zeros(20_000, 1, 1, 1), labels, 2, mixup=0.4)
    own = targets[torch.arange(20_000), labels]
    assert own.mean() == pytest.approx(0.5, abs=0.01)
    assert own.var() == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.005)


def test_cutmix_areas_have_a_beta_distribution_of_their_own():
    config = Augment(mixup=0.8, cutmix=0.2)
    areas = split(draw(config, 20_000, 0, 0), config)["cutmix"]
    assert areas.mean() == pytest.approx(0.5, abs=0.015)
    assert areas.var() == pytest.approx(1 / (4 * (2 * 0.2 + 1)), abs=0.005)


def test_cutmix_targets_equal_the_share_of_pixels():
    count = 400
    first = torch.arange(count) < count // 2
    images = first.float().view(-1, 1, 1, 1).expand(-1, 3, 24, 72)  # every partner is of the other kind
    out, targets = mixed(images, first.long(), 2, cutmix=1)
    assert set(out.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(targets[:, 1], out.mean((1, 2, 3)))
    torch.testing.assert_close(targets.sum(1), torch.ones(count))
    foreign = (out[:, 0] != images[:, 0]).float()
    rectangle = foreign.amax(1).sum(1) * foreign.amax(2).sum(1)  # it is one
    assert torch.equal(rectangle, foreign.sum((1, 2)))
    assert foreign.mean() > 0.25 and foreign.mean((1, 2)).std() > 0.15  # clipped, so somewhat below 0.5
    for corner in (foreign[:, 0, 0], foreign[:, 0, -1], foreign[:, -1, 0], foreign[:, -1, -1]):
        assert 0.05 < corner.mean() < 0.5  # its centre is anywhere


def test_mixup_and_cutmix_share_the_images():
    count = 2000
    first = torch.arange(count) < count // 2
    images = first.float().view(-1, 1, 1, 1).expand(-1, 1, 16, 16)
    out, _ = mixed(images, first.long(), 2, mixup=1, cutmix=1)
    blended = ((out > 0) & (out < 1)).flatten(1)
    assert torch.equal(blended.any(1), blended.all(1))  # never both on one image
    assert abs(blended.any(1).float().mean() - 0.5) < 0.05


@pytest.mark.parametrize("how", [{"mixup": 1}, {"cutmix": 1}, {"mixup": 1, "cutmix": 1}])
def test_mix_probability_is_the_share_of_mixed_images(how):
    images, labels = pictures(1000, channels=1, side=32), torch.arange(1000)
    out, targets = mixed(images, labels, 1000, mix_probability=0.3, **how)
    kept = (out == images).flatten(1).all(1)
    assert abs(kept.float().mean() - 0.7) < 0.05
    assert torch.equal(targets[kept], torch.eye(1000)[kept])


def test_mixing_stops():
    images, labels = pictures(6), torch.arange(6)
    assert mixed(images, labels, 6, progress=0.79, cutmix=1, mix_until=0.8)[1].shape == (6, 6)
    assert mixed(images, labels, 6, progress=0.8, cutmix=1, mix_until=0.8) == (images, labels)


# --- config ---


@pytest.mark.parametrize(
    "options, rule",
    [
        (dict(flip=1.1), "less than or equal to 1"),
        (dict(flip=-0.1), "greater than or equal to 0"),
        (dict(alternate_flip=True), "alternate_flip needs flip, which is 0: set alternate_flip=false, or flip=0.5"),
        (dict(shift=-1), "greater than or equal to 0"),
        (dict(shift=0.1), "valid integer"),
        (dict(crop_scale=(0.9, 0.3)), r"crop_scale \[0.9,0.3\] runs from large to small"),
        (dict(crop_scale=(0, 1)), "greater than 0"),
        (dict(crop_scale=(0.5, 1.5)), "less than or equal to 1"),
        (dict(crop_ratio=(2, 0.5)), r"crop_ratio \[2,0.5\] runs from large to small"),
        (dict(crop_ratio=(0, 1)), "greater than 0"),
        (dict(rotation=181), "less than or equal to 180"),
        (dict(scale=1), "less than 1"),
        (dict(shear=90), "less than 90"),
        (dict(padding="wrap"), "'zeros', 'mean', 'border' or 'reflection'"),
        (dict(color=1.5), "less than or equal to 1"),
        (dict(randaugment_ops=-1), "greater than or equal to 0"),
        (dict(randaugment_magnitude=11), "less than or equal to 10"),
        (dict(randaugment_sd=math.inf), "finite"),
        (dict(erase=2), "less than or equal to 1"),
        (dict(mixup=-1), "greater than or equal to 0"),
        (dict(cutmix=math.nan), "finite"),
        (dict(mix_probability=2), "less than or equal to 1"),
        (dict(mix_until=-1), "greater than or equal to 0"),
        (dict(mix_up=1), "Extra inputs"),
    ],
)
def test_bad_values_are_refused(options, rule):
    with pytest.raises(ValidationError, match=rule):
        Augment(**options)
