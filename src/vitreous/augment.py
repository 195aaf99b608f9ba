"""Augmentation of a whole batch on its device: every image gets its own randomness.

`draw` makes an epoch's random numbers on the host, one row for each image of the set; `plan` works out from them,
still on the host, what is done to the images of each batch; `augment` (geometry, colour, erasing) and `mix` (mixup,
cutmix) do it on the device:

    table = draw(config, len(labels), seed, epoch)
    for changes in plan(table[order], config, epoch, (H, W), batch_size, device):
        images = augment(images, changes, config, fill)
        images, targets = mix(images, labels, num_classes, changes, config, progress)

A row depends on seed, epoch and image alone. So an image is treated alike whatever the order and size of the
batches, the device and the number of processes; and switching one option leaves the draws of others alone.
"""

import math
from collections.abc import Iterator
from functools import reduce
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, model_validator
from torch import Tensor

from vitreous.randaugment import Recolor, deal, draw_ops, gray, recolor, recolorings, to_device, warp

AHEAD = 4096  # images whose changes are worked out together, since every sum has a cost of its own
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
    shrink: Area = 1.0
    """Side of the images in the first part of the training, as a share of the model's, to whole patches: fewer tokens,
    and so more passes in the same time (Howard 2018, progressive resizing; Tan and Le 2021)."""
    shrink_until: Share = 0.5
    """Share of the training after which images have their size."""
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


class Changes(NamedTuple):
    """What is done to each image of one batch, on the images' device."""

    numbers: dict[str, Tensor]
    """Of the features that are on, each (B, width) float32: `map`, of `_whole`; `color`, factors of brightness,
    contrast and saturation; `own` and `cut`, of `_mixtures`."""
    recolor: list[Recolor]
    """RandAugment's colour operations, in their order."""
    erased: tuple[Tensor, Tensor] | None
    """The images that lose a box, (b,) int64, and these boxes, (b, 4), for `_inside`."""
    size: tuple[int, int]
    """(H, W) of the images that come out."""


def plan(
    rows: Tensor,
    config: Augment,
    epoch: int,
    size: tuple[int, int],
    batch_size: int,
    device: torch.device | str = "cpu",
    first: int = 0,
) -> Iterator[Changes]:
    """The changes of one batch of an epoch after the other, from number `first` on.

    rows: (N, K) of `draw`'s table, on the host, in the order in which the images come. epoch: turns alternating
    flips. size: (H, W) of the images that come out. The sums are done in float64, for many batches at a time, and sent
    to the device together, so that a GPU is neither waited for nor kept waiting. Which batches these are does not
    depend on `first`: an epoch that goes on has the very numbers of a whole one.
    """
    device, (H, W) = torch.device(device), size
    if config.shift >= min(H, W):
        raise ValueError(f"shift {config.shift} is too far for {H} x {W} px: make it less than {min(H, W)}")
    several, start = max(AHEAD // batch_size, 1) * batch_size, first * batch_size
    for begin in range(start - start % several, len(rows), several):
        draws = _split(rows[begin : begin + several], config)
        maps = _maps(draws, config, epoch, H, W)
        batches = -(-len(draws["flip"]) // batch_size)
        recolors: list[list[Recolor]] = [[]] * batches
        if config.randaugment_ops:
            strength = config.randaugment_magnitude + config.randaugment_sd * draws["randaugment_normal"]
            op, level = draw_ops(draws["randaugment"].unflatten(1, (-1, 3)), strength)  # each (several, n)
            maps += [warp(op[:, i], level[:, i], H, W) for i in range(config.randaugment_ops)]
            recolors = recolorings(op, level, batch_size, device)
        erased: list[tuple[Tensor, Tensor] | None] = [None] * batches
        if config.erase:
            boxes = _erased_box(draws["erase"], config, H, W)
            chosen = (boxes[:, 2] > boxes[:, 0]).nonzero().flatten()
            (erased,) = deal([(chosen, boxes[chosen])], batches, batch_size, device)

        numbers = {}  # each (several, width) float64
        if maps:
            numbers["map"] = _whole(maps, config, H, W)
        if config.color:
            numbers["color"] = 1 + _between(draws["color"], config.color)
        if config.mixup or config.cutmix:
            numbers |= _mixtures(draws, config, H, W)
        widths = [values.shape[1] for values in numbers.values()]
        table = to_device(torch.cat([draws["flip"][:, :0], *numbers.values()], dim=1), device)
        for i, part in enumerate(table.split(batch_size)):
            if begin + i * batch_size >= start:
                own = dict(zip(numbers, part.split(widths, dim=1), strict=True))
                yield Changes(own, recolors[i], erased[i], (H, W))


def augment(images: Tensor, changes: Changes, config: Augment, fill: Tensor) -> Tensor:
    """Flip, move, recolour and erase each image as planned.

    images: float32 (B, C, H, W) in 0..1, not changed; of the plan's size, or larger for a sharper random crop. fill:
    (C,), the mean colour, on the images' device. Returns float32 (B, C, *changes.size) in 0..1, or `images` itself when
    nothing is on. Raises ValueError for another size without a random crop.
    """
    given, fill = images, fill.view(1, -1, 1, 1)
    if images.shape[2:] != changes.size and config.crop_scale is None:
        raise ValueError(f"images of {tuple(images.shape[2:])} px, planned for {changes.size}: crop_scale would resize")
    if "map" in changes.numbers:
        images = _resample(images, changes.numbers["map"], config, fill, changes.size)
    if "color" in changes.numbers:
        images = _jitter(images, changes.numbers["color"])
    if changes.recolor:
        images = recolor(images, changes.recolor)
    if changes.erased is not None:
        images = _erase(images.clone() if images is given else images, *changes.erased, fill)
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


def _bends(config: Augment) -> bool:
    """Whether a map may read beyond the image's edges in other ways than a shift does."""
    return bool(config.rotation or config.scale or config.shear or config.randaugment_ops)


def _copies(config: Augment) -> bool:
    """Flips and shifts hit pixel centres: nothing is interpolated."""
    return not (_bends(config) or config.crop_scale)


def _whole(maps: list[Tensor], config: Augment, H: int, W: int) -> Tensor:
    """One map of all: the upper rows of (B, 3, 3), as (B, 6), in grid_sample's coordinates unless it `_copies`."""
    half = torch.tensor([1, 1, 1] if _copies(config) else [W / 2, H / 2, 1], dtype=torch.float64)
    return (reduce(torch.matmul, maps) * half / half[:, None])[:, :2].flatten(1)


def _resample(images: Tensor, whole: Tensor, config: Augment, fill: Tensor, size: tuple[int, int]) -> Tensor:
    """Read every output pixel from where `_whole` sends it: one grid_sample, or copies of rows and columns."""
    if _copies(config):
        return _move(images, whole, config, fill)
    B, (H, W) = len(images), size
    a, b, dx, c, d, dy = whole.T[..., None, None]  # each (B, 1, 1)

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
    if config.padding in ("border", "reflection") or not (_bends(config) or config.shift):
        return images
    x, y = grid.unbind(-1)  # each (B, H, W)
    return _keep(images, (torch.maximum(x.abs(), y.abs()) <= 1)[:, None], config, fill)


def _keep(images: Tensor, inside: Tensor, config: Augment, fill: Tensor) -> Tensor:
    """Black or the mean colour where `inside`, (B, 1, H, W) bool, is false: grid_sample's zeros darken edges."""
    return images.mul_(inside) if config.padding == "zeros" else torch.where(inside, images, fill)


def _move(images: Tensor, whole: Tensor, config: Augment, fill: Tensor) -> Tensor:
    """Copy rows whole, then pick columns. whole: (B, 6), halves of pixels, which float32 holds exactly."""
    B, C, H, W = images.shape
    a, _, dx, _, _, dy = whole.T[..., None]  # each (B, 1)
    column = a * (torch.arange(W, device=images.device) - (W - 1) / 2) + dx + (W - 1) / 2  # (B, W), to read
    row = torch.arange(H, device=images.device) + dy  # (B, H)

    def within(place: Tensor, side: int) -> Tensor:
        if config.padding == "reflection":
            place = torch.minimum(place.remainder(2 * side), (2 * side - 1) - place.remainder(2 * side))
        return place.clamp(0, side - 1).long()

    if config.shift:
        start = torch.arange(0, B * C * H, H, device=images.device).view(B, C, 1)  # of each plane, in rows
        images = images.flatten(0, 2).index_select(0, (start + within(row, H)[:, None]).flatten()).view(B, C, H, W)
    images = images.gather(3, within(column, W)[:, None, None].expand(B, C, H, W))
    if config.shift and config.padding in ("zeros", "mean"):
        inside = ((column >= 0) & (column < W))[:, None, None] & ((row >= 0) & (row < H))[:, None, :, None]
        return _keep(images, inside, config, fill)
    return images


def _jitter(images: Tensor, factors: Tensor) -> Tensor:
    """Brightness, contrast about the mean luma, then saturation, each by its factor. factors: (B, 3).

    Each is linear in the pixel x and its luma, so with factors b, c, s all three are one sum:
    x b c s + luma b c (1 - s) + mean luma b (1 - c).
    """
    b, c, s = factors.T[..., None, None, None]  # each (B, 1, 1, 1)
    luma = gray(images)  # (B, 1, H, W)
    rest = luma * (b * c * (1 - s)) + luma.mean((2, 3), keepdim=True) * (b * (1 - c))
    return torch.addcmul(rest, images, b * c * s).clamp_(0, 1)


def _inside(box: Tensor, images: Tensor) -> Tensor:
    """Pixels (B, 1, H, W) bool in boxes (B, 4) of whole pixels: from left, top up to right, bottom."""
    H, W = images.shape[2:]
    left, top, right, bottom = box.T[..., None, None, None]  # each (B, 1, 1, 1)
    x = torch.arange(W, device=images.device)
    y = torch.arange(H, device=images.device)[:, None]
    return ((y >= top) & (y < bottom)) & ((x >= left) & (x < right))


def _erase(images: Tensor, chosen: Tensor, boxes: Tensor, fill: Tensor) -> Tensor:
    """Fill the boxes (b, 4) of the chosen images (b,), in place."""
    part = images.index_select(0, chosen)
    return images.index_copy_(0, chosen, torch.where(_inside(boxes, part), fill, part))


def _erased_box(draws: Tensor, config: Augment, H: int, W: int) -> Tensor:
    """Boxes (B, 4) for `_inside`; empty where nothing is erased. draws: (B, 5)."""
    chance, area, ratio, x, y = draws.unbind(1)
    height, width = (side.round() for side in _box_size(area, ratio, ERASED_AREA, ERASED_RATIO, H, W))
    left, top = (x * (W - width + 1)).floor(), (y * (H - height + 1)).floor()
    return torch.stack([left, top, left + width, top + height], dim=1) * (chance < config.erase)[:, None]


def _mixtures(draws: dict[str, Tensor], config: Augment, H: int, W: int) -> dict[str, Tensor]:
    """`own` (B, 1), the image's own part of each pixel outside of the box `cut` (B, 4), which is its partner's."""
    chance, which = draws["mix"].unbind(1)
    mixed = chance < config.mix_probability
    cut = mixed & (which < (0.5 if config.mixup and config.cutmix else float(config.cutmix > 0)))

    own = torch.ones_like(chance)
    if config.mixup:
        own = torch.where(mixed & ~cut, draws["mixup"][:, 0], own)
    box = torch.zeros(len(own), 4, dtype=own.dtype)
    if config.cutmix:
        side = torch.where(cut, 1 - draws["cutmix"][:, 0], 0).sqrt()[:, None]  # (B, 1), a share of H and W
        size = torch.tensor([W, H], dtype=own.dtype)
        center, reach = draws["cutmix_center"] * size, side * size / 2  # (B, 2): x, y
        box = torch.cat([center - reach, center + reach], dim=1).round()  # the image clips it
    return {"own": own[:, None], "cut": box}


def mix(
    images: Tensor, labels: Tensor, num_classes: int, changes: Changes, config: Augment, progress: float
) -> tuple[Tensor, Tensor]:
    """Mixup or cutmix of each image with its partner, the batch in reversed order.

    images: float32 (B, C, H, W); labels: (B,) int64; progress: share of the training done. Returns images and
    targets (B, num_classes) float32, whose rows sum to 1. While nothing is mixed, returns images and labels as they
    are.
    """
    if "own" not in changes.numbers or progress >= config.mix_until:
        return images, labels
    own, cut = changes.numbers["own"], changes.numbers["cut"]
    own = own.view(-1, 1, 1, 1) * ~_inside(cut, images)  # (B, 1, H, W)
    share = own.mean((1, 2, 3))[:, None]  # (B, 1): the same for mixup, the exact pixel count for cutmix
    one_hot = F.one_hot(labels, num_classes).float()
    return images.flip(0).lerp_(images, own), one_hot.flip(0).lerp(one_hot, share)
