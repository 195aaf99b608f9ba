"""Augmentation of a whole batch on its device: every image gets its own randomness.

`draw` makes an epoch's random numbers on the host, one row for each image of the set; `augment` (geometry,
colour, erasing) and `mix` (mixup, cutmix) are given the rows of their batch:

    table = draw(config, len(labels), seed, epoch)
    images = augment(images, table[index], config, epoch, fill)
    images, targets = mix(images, labels, num_classes, table[index], config, progress)

A row depends on seed, epoch and image alone. So an image is treated alike whatever the order and size of the
batches, the device and the number of processes; and switching one option leaves the draws of others alone.
"""

import math
from functools import reduce
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, model_validator
from torch import Tensor

from vitreous.randaugment import draw_ops, gray, recolor, to_device, warp

ERASED_AREA = (0.02, 0.33)
ERASED_RATIO = (0.3, 1 / 0.3)

Share = Annotated[float, Field(ge=0, le=1)]
Area = Annotated[float, Field(gt=0, le=1)]
Ratio = Annotated[float, Field(gt=0)]


class Augment(BaseModel, frozen=True, extra="forbid"):
    """The `augment:` section of a recipe; everything is off by default.

    The geometry of an image (crop, flip, rotation, scale, shear, shift, RandAugment's, in this order) is one
    map, so that pixels are interpolated once. Then come color, RandAugment's colours, erasing and mixing.
    """

    model_config = ConfigDict(allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True)

    flip: Share = 0.0
    """Probability of a horizontal flip."""
    alternate_flip: bool = False
    """Flip by probability in epoch 0 only, then each image turns over every epoch (Jordan 2024, airbench)."""
    shift: NonNegativeInt = 0
    """Largest move across and down, in whole pixels."""
    crop_scale: tuple[Area, Area] | None = None
    """Random resized crop: smallest and largest area, as a share of the image."""
    crop_ratio: tuple[Ratio, Ratio] = (3 / 4, 4 / 3)
    """Random resized crop: smallest and largest width / height."""
    rotation: Annotated[float, Field(ge=0, le=180)] = 0.0
    """Largest rotation either way, in degrees."""
    scale: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Largest zoom: 0.2 magnifies by 0.8 to 1.2."""
    shear: Annotated[float, Field(ge=0, lt=90)] = 0.0
    """Largest horizontal shear either way, in degrees."""
    padding: Literal["zeros", "mean", "border", "reflection"] = "zeros"
    """What lies beyond the image: black, the mean colour, its outermost pixels, or its mirror image."""
    color: Share = 0.0
    """Largest change of brightness, contrast and saturation: 0.4 multiplies each by 0.6 to 1.4."""
    randaugment_ops: NonNegativeInt = 0
    """RandAugment: operations drawn for each image; each is then done half the time, as in timm."""
    randaugment_magnitude: Annotated[float, Field(ge=0, le=10)] = 9.0
    """RandAugment: mean strength, of 10."""
    randaugment_sd: NonNegativeFloat = 0.5
    """RandAugment: standard deviation of the strength, of 10."""
    erase: Share = 0.0
    """Probability that a box of 2 to 33% of the area becomes the mean colour (Zhong et al. 2020)."""
    mixup: NonNegativeFloat = 0.0
    """Alpha of the Beta(alpha, alpha) of mixup weights (Zhang et al. 2018)."""
    cutmix: NonNegativeFloat = 0.0
    """Alpha of the Beta(alpha, alpha) of cutmix areas (Yun et al. 2019). With mixup: half and half."""
    mix_probability: Share = 1.0
    """Share of the images that are mixed."""
    mix_until: Share = 1.0
    """Share of the training after which nothing is mixed."""

    @model_validator(mode="after")
    def _check(self) -> "Augment":
        for name in ("crop_scale", "crop_ratio"):
            pair = getattr(self, name)
            if pair and pair[0] > pair[1]:
                raise ValueError(f"{name} {pair} runs from large to small: write it as {pair[::-1]}")
        if self.alternate_flip and not self.flip:
            raise ValueError("alternate_flip needs flip, which is 0: set flip to 0.5")
        return self


def _widths(config: Augment) -> dict[str, int]:
    """The features in their order, and the columns that each takes: uniform in 0..1 where not said."""
    n = config.randaugment_ops
    return {
        "flip": int(config.flip > 0),
        "crop": 4 * (config.crop_scale is not None),  # area, ratio, x, y
        "rotation": int(config.rotation > 0),
        "scale": int(config.scale > 0),
        "shear": int(config.shear > 0),
        "shift": 2 * (config.shift > 0),  # x, y
        "color": 3 * (config.color > 0),  # brightness, contrast, saturation
        "randaugment": 3 * n,  # each operation: which, whether, sign
        "randaugment_normal": n,  # standard normal
        "erase": 5 * (config.erase > 0),  # whether, area, ratio, x, y
        "mix": 2 * (config.mixup > 0 or config.cutmix > 0),  # whether, mixup or cutmix
        "mixup": int(config.mixup > 0),  # Beta
        "cutmix": int(config.cutmix > 0),  # Beta
        "cutmix_center": 2 * (config.cutmix > 0),  # x, y
    }


def draw(config: Augment, count: int, seed: int, epoch: int) -> Tensor:
    """The random numbers of one epoch: a float32 table (count, K) on the host, a row for each image.

    Every feature has a generator of its own and fills its columns row by row, so that count changes no row.
    """
    widths = _widths(config)
    table, filled = np.empty((count, sum(widths.values())), np.float32), 0
    for stream, (name, width) in enumerate(widths.items(), start=1):
        if not width:
            continue
        fixed = name == "flip" and config.alternate_flip  # the coin of epoch 0 serves them all
        rng = np.random.default_rng((seed, 0 if fixed else epoch, stream))
        if name in ("mixup", "cutmix"):
            part = rng.beta(getattr(config, name), getattr(config, name), (count, width))
        elif name == "randaugment_normal":
            part = rng.standard_normal((count, width), np.float32)
        else:
            part = rng.random((count, width), np.float32)
        table[:, filled : filled + width] = part
        filled += width
    return torch.from_numpy(table)


def _split(rows: Tensor, config: Augment) -> dict[str, Tensor]:
    """Rows (B, K) as one float64 (B, width) for each feature, on the host, where the small sums are done."""
    widths = _widths(config)
    K = sum(widths.values())
    if rows.shape[1] != K:
        raise ValueError(f"rows have {rows.shape[1]} columns, not {K}: draw the table with the same config")
    return dict(zip(widths, rows.cpu().double().split(list(widths.values()), dim=1), strict=True))


def _between(u: Tensor, limit: float) -> Tensor:
    """u in 0..1 as -limit..limit."""
    return (2 * u - 1) * limit


def augment(images: Tensor, rows: Tensor, config: Augment, epoch: int, fill: Tensor) -> Tensor:
    """Flip, move, recolour and erase each image by its own row.

    images: float32 (B, C, H, W) in 0..1, not changed. rows: (B, K) of `draw`'s table, on the host, where they
    are read without waiting for the device. epoch: turns alternating flips. fill: (C,), the mean colour.
    Returns float32 (B, C, H, W) in 0..1, or `images` itself when nothing is on.
    """
    given, (H, W) = images, images.shape[2:]
    if config.shift >= min(H, W):
        raise ValueError(f"shift {config.shift} is too far for {H} x {W} px: make it less than {min(H, W)}")
    draws = _split(rows, config)
    fill = to_device(fill, images).view(1, -1, 1, 1)
    maps = _maps(draws, config, epoch, H, W)
    if config.randaugment_ops:
        strength = config.randaugment_magnitude + config.randaugment_sd * draws["randaugment_normal"]
        op, level = draw_ops(draws["randaugment"].unflatten(1, (-1, 3)), strength)  # each (B, n)
        maps += [warp(op[:, i], level[:, i], H, W) for i in range(config.randaugment_ops)]

    if maps:
        images = _resample(images, maps, config, fill)
    if config.color:
        images = _jitter(images, draws["color"], config.color)
    if config.randaugment_ops:
        images = recolor(images, op, level)
    if config.erase:
        images = _erase(images.clone() if images is given else images, _erased_box(draws["erase"], config, H, W), fill)
    return images


# Geometry. A map takes an output pixel (x, y, 1) to the input place that its colour is read from, in pixels
# from the image centre, x to the right and y down. Of operations done in the order 1, 2, 3 the whole map is
# M1 @ M2 @ M3: an output pixel of the last comes from its input, the output of the one before. Dividing by
# half the side gives grid_sample's coordinates, -1..1 from edge to edge (align_corners=False).
# Source: Jaderberg et al. 2015, section 3.2.


def _map(*entries: Tensor | float) -> Tensor:
    """[[a, b, x], [c, d, y], [0, 0, 1]] (B, 3, 3) float64 from a b x c d y, each a number or (B,)."""
    columns = [torch.as_tensor(entry, dtype=torch.float64) for entry in (*entries, 0, 0, 1)]
    return torch.stack(torch.broadcast_tensors(*columns), dim=-1).view(-1, 3, 3)


def _maps(draws: dict[str, Tensor], config: Augment, epoch: int, H: int, W: int) -> list[Tensor]:
    """The map (B, 3, 3) of each geometric operation that is on, in the order in which they are done."""
    maps = []
    if config.crop_scale:
        area, ratio, x, y = draws["crop"].unbind(1)
        height, width = _box_size(area, ratio, config.crop_scale, config.crop_ratio, H, W)
        maps.append(_map(width / W, 0, (x - 0.5) * (W - width), 0, height / H, (y - 0.5) * (H - height)))
    if config.flip:
        flipped = draws["flip"][:, 0] < config.flip
        if config.alternate_flip and epoch % 2:
            flipped = ~flipped
        maps.append(_map(1 - 2 * flipped.double(), 0, 0, 0, 1, 0))
    if config.rotation:
        angle = _between(draws["rotation"][:, 0], math.radians(config.rotation))  # > 0: counter-clockwise
        maps.append(_map(angle.cos(), -angle.sin(), 0, angle.sin(), angle.cos(), 0))
    if config.scale:
        zoom = 1 + _between(draws["scale"][:, 0], config.scale)
        maps.append(_map(1 / zoom, 0, 0, 0, 1 / zoom, 0))
    if config.shear:
        angle = _between(draws["shear"][:, 0], math.radians(config.shear))
        maps.append(_map(1, angle.tan(), 0, 0, 1, 0))
    if config.shift:
        x, y = (draws["shift"] * (2 * config.shift + 1)).floor().sub(config.shift).unbind(1)  # whole pixels
        maps.append(_map(1, 0, -x, 0, 1, -y))
    return maps


def _box_size(
    area: Tensor, ratio: Tensor, areas: tuple[float, float], ratios: tuple[float, float], H: int, W: int
) -> tuple[Tensor, Tensor]:
    """Height and width (B,), in pixels, of a box inside the image.

    area, ratio: (B,) in 0..1. The area is uniform in `areas`, shares of the image; the logarithm of width /
    height is uniform in the part of `ratios` at which a box of that area fits.
    """
    area = areas[0] + (areas[1] - areas[0]) * area
    narrow, wide = area * W / H, W / (area * H)  # as high and as wide as the image
    low, high = (torch.full_like(area, r).clamp(narrow, wide).log() for r in ratios)
    ratio = torch.lerp(low, high, ratio).exp()
    return (area * H * W / ratio).sqrt(), (area * H * W * ratio).sqrt()


def _resample(images: Tensor, maps: list[Tensor], config: Augment, fill: Tensor) -> Tensor:
    """Read every output pixel from where the maps send it: one grid_sample, or copies of rows and columns."""
    B, _, H, W = images.shape
    whole = reduce(torch.matmul, maps)  # (B, 3, 3)
    bends = bool(config.rotation or config.scale or config.shear or config.randaugment_ops)
    if not bends and not config.crop_scale:
        return _move(images, whole, config, fill)
    half = torch.tensor([W / 2, H / 2, 1], dtype=torch.float64)
    whole = whole * half / half[:, None]  # in grid_sample's coordinates
    a, b, dx, c, d, dy, *_ = to_device(whole, images).flatten(1).T[..., None, None]  # each (B, 1, 1)

    # the products are written out: under autocast or TF32 a matmul would lose digits
    x = (2 * torch.arange(W, device=images.device) + 1) / W - 1  # (W,), pixel centres
    y = ((2 * torch.arange(H, device=images.device) + 1) / H - 1)[:, None]  # (H, 1)
    grid = images.new_empty(B, H, W, 2)
    torch.add(a * x, b * y + dx, out=grid[..., 0])
    torch.add(c * x, d * y + dy, out=grid[..., 1])
    images = F.grid_sample(
        images,
        grid,
        mode="bilinear",
        padding_mode="reflection" if config.padding == "reflection" else "border",
        align_corners=False,
    )
    if config.padding in ("border", "reflection") or not (bends or config.shift):
        return images
    x, y = grid.unbind(-1)  # each (B, H, W)
    return _keep(images, (torch.maximum(x.abs(), y.abs()) <= 1)[:, None], config, fill)


def _keep(images: Tensor, inside: Tensor, config: Augment, fill: Tensor) -> Tensor:
    """Black or the mean colour where `inside`, (B, 1, H, W) bool, is false: grid_sample's zeros darken edges."""
    return images.mul_(inside) if config.padding == "zeros" else torch.where(inside, images, fill)


def _move(images: Tensor, whole: Tensor, config: Augment, fill: Tensor) -> Tensor:
    """Flips and shifts hit pixel centres: rows are copied whole, then columns picked. whole: (B, 3, 3)."""
    B, C, H, W = images.shape
    column = whole[:, 0, :1] * (torch.arange(W) - (W - 1) / 2) + whole[:, 0, 2:] + (W - 1) / 2  # (B, W), to read
    row = torch.arange(H) + whole[:, 1, 2:]  # (B, H)
    inside = ((column >= 0) & (column < W))[:, None, None], ((row >= 0) & (row < H))[:, None, :, None]

    def within(place: Tensor, side: int) -> Tensor:  # on the device, without waiting for it
        if config.padding == "reflection":
            place = torch.minimum(place.remainder(2 * side), (2 * side - 1) - place.remainder(2 * side))
        return place.clamp(0, side - 1).long().to(images.device, non_blocking=images.is_cuda)

    if config.shift:
        start = torch.arange(0, B * C * H, H, device=images.device).view(B, C, 1)  # of each plane, in rows
        images = images.flatten(0, 2).index_select(0, (start + within(row, H)[:, None]).flatten()).view(B, C, H, W)
    images = images.gather(3, within(column, W)[:, None, None].expand(B, C, H, W))
    if config.shift and config.padding in ("zeros", "mean"):
        columns, rows = (part.to(images.device, non_blocking=images.is_cuda) for part in inside)
        return _keep(images, columns & rows, config, fill)
    return images


def _jitter(images: Tensor, u: Tensor, limit: float) -> Tensor:
    """Brightness, contrast about the mean luma, then saturation, each by a factor of 1 +- limit. u: (B, 3).

    Each is linear in the pixel x and its luma, so with factors b, c, s all three are one sum:
    x b c s + luma b c (1 - s) + mean luma b (1 - c).
    """
    b, c, s = to_device(1 + _between(u, limit), images).T[..., None, None, None]  # each (B, 1, 1, 1)
    luma = gray(images)  # (B, 1, H, W)
    rest = luma * (b * c * (1 - s)) + luma.mean((2, 3), keepdim=True) * (b * (1 - c))
    return torch.addcmul(rest, images, b * c * s).clamp_(0, 1)


def _inside(box: Tensor, images: Tensor) -> Tensor:
    """Pixels (B, 1, H, W) bool in boxes (B, 4) of whole pixels: from left, top up to right, bottom."""
    H, W = images.shape[2:]
    left, top, right, bottom = to_device(box, images).T[..., None, None, None]  # each (B, 1, 1, 1)
    x = torch.arange(W, device=images.device)
    y = torch.arange(H, device=images.device)[:, None]
    return ((y >= top) & (y < bottom)) & ((x >= left) & (x < right))


def _erase(images: Tensor, box: Tensor, fill: Tensor) -> Tensor:
    """Fill the boxes (B, 4) of whole pixels, on the host, of those images in place that have one."""
    chosen = (box[:, 2] > box[:, 0]).nonzero().flatten()  # (b,)
    on_device = chosen.to(images.device, non_blocking=images.is_cuda)
    part = images.index_select(0, on_device)
    return images.index_copy_(0, on_device, torch.where(_inside(box[chosen], part), fill, part))


def _erased_box(draws: Tensor, config: Augment, H: int, W: int) -> Tensor:
    """Boxes (B, 4) for `_inside`; empty where nothing is erased. draws: (B, 5)."""
    chance, area, ratio, x, y = draws.unbind(1)
    height, width = (side.round() for side in _box_size(area, ratio, ERASED_AREA, ERASED_RATIO, H, W))
    left, top = (x * (W - width + 1)).floor(), (y * (H - height + 1)).floor()
    return torch.stack([left, top, left + width, top + height], dim=1) * (chance < config.erase)[:, None]


def mix(
    images: Tensor, labels: Tensor, num_classes: int, rows: Tensor, config: Augment, progress: float
) -> tuple[Tensor, Tensor]:
    """Mixup or cutmix of each image with its partner, the batch in reversed order.

    images: float32 (B, C, H, W); labels: (B,) int64; rows: (B, K) as in `augment`; progress: share of the
    training done. Returns images and targets (B, num_classes) float32, whose rows sum to 1. While nothing is
    mixed, returns images and labels as they are.
    """
    if not (config.mixup or config.cutmix) or progress >= config.mix_until:
        return images, labels
    H, W = images.shape[2:]
    draws = _split(rows, config)
    chance, which = draws["mix"].unbind(1)
    mixed = chance < config.mix_probability
    cut = mixed & (which < (0.5 if config.mixup and config.cutmix else float(config.cutmix > 0)))

    own = torch.ones_like(chance)  # (B,): the image's own part of each pixel
    if config.mixup:
        own = torch.where(mixed & ~cut, draws["mixup"][:, 0], own)
    box = torch.zeros(len(own), 4, dtype=own.dtype)
    if config.cutmix:
        side = torch.where(cut, 1 - draws["cutmix"][:, 0], 0).sqrt()[:, None]  # (B, 1), a share of H and W
        size = torch.tensor([W, H], dtype=own.dtype)
        center, reach = draws["cutmix_center"] * size, side * size / 2  # (B, 2): x, y
        box = torch.cat([center - reach, center + reach], dim=1).round()  # the image clips it

    own = to_device(own, images).view(-1, 1, 1, 1) * ~_inside(box, images)  # (B, 1, H, W)
    share = own.mean((1, 2, 3))[:, None]  # (B, 1): the same for mixup, the exact pixel count for cutmix
    one_hot = F.one_hot(labels, num_classes).float()
    return images.flip(0).lerp_(images, own), one_hot.flip(0).lerp(one_hot, share)
