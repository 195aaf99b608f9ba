"""Geometric augmentation: all geometry of an image as one affine map.

A map takes an output pixel (x, y, 1) to the input position that its colour is read from, in pixels from the image
centre, x to the right and y down. Operations applied in the order 1, 2, 3 compose to M1 @ M2 @ M3: an output pixel of
the last comes from its input, the output of the one before. Dividing by half the side gives grid_sample's coordinates,
-1..1 from edge to edge (align_corners=False). Source: Jaderberg et al. 2015, section 3.2.
"""

import math
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.augment.config import Augment
from vitreous.augment.draws import between


def affine(*entries: Tensor | float) -> Tensor:
    """[[a, b, x], [c, d, y], [0, 0, 1]] (B, 3, 3) float64 from a b x c d y, each a number or (B,)."""
    columns = [torch.as_tensor(entry, dtype=torch.float64) for entry in (*entries, 0, 0, 1)]
    return torch.stack(torch.broadcast_tensors(*columns), dim=-1).view(-1, 3, 3)


def maps_of(draws: dict[str, Tensor], config: Augment, epoch: int, H: int, W: int) -> list[Tensor]:
    """The map (B, 3, 3) of each geometric operation that is on, in order of application."""
    maps = []
    if config.crop_scale:
        area, ratio, x, y = draws["crop"].unbind(1)
        height, width = box_size(area, ratio, config.crop_scale, config.crop_ratio, H, W)
        maps.append(affine(width / W, 0, (x - 0.5) * (W - width), 0, height / H, (y - 0.5) * (H - height)))
    if config.flip:
        flipped = draws["flip"][:, 0] < config.flip
        if config.alternate_flip and epoch % 2:
            flipped = ~flipped
        maps.append(affine(1 - 2 * flipped.double(), 0, 0, 0, 1, 0))
    if config.vertical_flip:
        upside_down = draws["vertical_flip"][:, 0] < config.vertical_flip
        maps.append(affine(1, 0, 0, 0, 1 - 2 * upside_down.double(), 0))
    if config.rotation:
        angle = between(draws["rotation"][:, 0], math.radians(config.rotation))  # > 0: counter-clockwise
        maps.append(affine(angle.cos(), -angle.sin(), 0, angle.sin(), angle.cos(), 0))
    if config.scale:
        zoom = 1 + between(draws["scale"][:, 0], config.scale)
        maps.append(affine(1 / zoom, 0, 0, 0, 1 / zoom, 0))
    if config.shear:
        angle = between(draws["shear"][:, 0], math.radians(config.shear))
        maps.append(affine(1, angle.tan(), 0, 0, 1, 0))
    if config.shift:
        x, y = (draws["shift"] * (2 * config.shift + 1)).floor().sub(config.shift).unbind(1)  # whole pixels
        maps.append(affine(1, 0, -x, 0, 1, -y))
    return maps


def box_size(
    area: Tensor, ratio: Tensor, areas: tuple[float, float], ratios: tuple[float, float], H: int, W: int
) -> tuple[Tensor, Tensor]:
    """Height and width (B,), in pixels, of a box inside the image.

    area, ratio: (B,) in 0..1. The area is uniform in `areas`, shares of the image; the logarithm of width / height is
    uniform in the part of `ratios` for which a box of that area fits.
    """
    area = areas[0] + (areas[1] - areas[0]) * area
    narrow, wide = area * W / H, W / (area * H)  # as high and as wide as the image
    low, high = (torch.full_like(area, r).clamp(narrow, wide).log() for r in ratios)
    ratio = torch.lerp(low, high, ratio).exp()
    return (area * H * W / ratio).sqrt(), (area * H * W * ratio).sqrt()


def _bends(config: Augment) -> bool:
    """Whether a map may read beyond the image's edges other than by a shift."""
    return bool(config.rotation or config.scale or config.shear or config.randaugment_ops)


def _copies(config: Augment) -> bool:
    """Whether pixels are only copied: flips and shifts hit pixel centres, so nothing is interpolated."""
    return not (_bends(config) or config.crop_scale)


def whole_map(maps: list[Tensor], config: Augment, H: int, W: int) -> Tensor:
    """The product of all maps: the upper two rows, as (B, 6), in grid_sample's coordinates unless it `_copies`."""
    half = torch.tensor([1, 1, 1] if _copies(config) else [W / 2, H / 2, 1], dtype=torch.float64)
    return (reduce(torch.matmul, maps) * half / half[:, None])[:, :2].flatten(1)


def resample(images: Tensor, whole: Tensor, config: Augment, fill: Tensor, size: tuple[int, int]) -> Tensor:
    """Read every output pixel from where `whole_map` maps it: one grid_sample, or copies of rows and columns."""
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
    """Copy whole rows, then pick columns. whole: (B, 6), multiples of half a pixel, exact in float32."""
    B, C, H, W = images.shape
    a, _, dx, _, d, dy = whole.T[..., None]  # each (B, 1)
    column = a * (torch.arange(W, device=images.device) - (W - 1) / 2) + dx + (W - 1) / 2  # (B, W), to read
    row = d * (torch.arange(H, device=images.device) - (H - 1) / 2) + dy + (H - 1) / 2  # (B, H)

    def within(place: Tensor, side: int) -> Tensor:
        if config.padding == "reflection":
            place = torch.minimum(place.remainder(2 * side), (2 * side - 1) - place.remainder(2 * side))
        return place.clamp(0, side - 1).long()

    if config.shift or config.vertical_flip:
        start = torch.arange(0, B * C * H, H, device=images.device).view(B, C, 1)  # of each plane, in rows
        images = images.flatten(0, 2).index_select(0, (start + within(row, H)[:, None]).flatten()).view(B, C, H, W)
    images = images.gather(3, within(column, W)[:, None, None].expand(B, C, H, W))
    if config.shift and config.padding in ("zeros", "mean"):
        inside = ((column >= 0) & (column < W))[:, None, None] & ((row >= 0) & (row < H))[:, None, :, None]
        return _keep(images, inside, config, fill)
    return images
