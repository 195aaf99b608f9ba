"""RandAugment for a whole batch: each image draws its own operations.

The operations are those of PIL, and their ranges are those of timm's `rand-m9-n2-mstd0.5-inc1`, in which a larger
magnitude always changes more. `draw_ops`, `warp` and `recolorings` work on the host; a colour operation takes float32
images (B, C, H, W) in 0..1 on any device, and an argument (B, 1, 1, 1) in PIL's unit.
Source: Cubuk et al. 2020, and timm/data/auto_augment.py.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vitreous.augment.geometry import affine

OPS = (
    "autocontrast", "equalize", "invert", "rotate", "posterize", "solarize", "solarize_add", "color",
    "contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip


def draw_ops(uniform: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """Which operations each image gets, and how strongly.

    uniform: (B, n, 3) in 0..1; strength: (B, n), of 10.
    Returns op (B, n) int64, the index in `OPS`, or -1 for none (half the time, as in timm), and level (B, n) in -1..1,
    with a random sign.
    """
    which, apply, sign = uniform.unbind(-1)
    op = torch.where(apply < 0.5, (which * len(OPS)).long(), -1)
    level = (strength / 10).clamp(0, 1)
    return op, torch.where(sign < 0.5, -level, level)


def warp(op: Tensor, level: Tensor, H: int, W: int) -> Tensor:
    """The output -> input maps (B, 3, 3), in pixels from the image centre, of one operation per image.

    op, level: (B,). Rotation by up to 30 degrees, shear by 0.3, translation by 0.45 of the side; the identity for
    colour operations.
    """

    def amount(name: str, most: float) -> Tensor:  # (B,), zero for every other operation
        return (op == OPS.index(name)) * level * most

    angle = amount("rotate", math.radians(30))
    shear_x, shear_y = amount("shear_x", 0.3), amount("shear_y", 0.3)
    cos, sin = angle.cos(), angle.sin()
    x = amount("translate_x", 0.45 * W) + shear_x * H / 2  # PIL shears about the top left corner
    y = amount("translate_y", 0.45 * H) + shear_y * W / 2
    return affine(cos, shear_x - sin, x, shear_y + sin, cos, y)


class Recolor(NamedTuple):
    """One colour operation of a batch, and the images that drew it."""

    name: str
    chosen: Tensor
    """(b,) int64, their rows in the batch."""
    argument: Tensor
    """(b, 1, 1, 1) float32, in PIL's unit."""


def recolorings(op: Tensor, level: Tensor, batch_size: int, device: torch.device) -> list[list[Recolor]]:
    """The colour operations of `draw_ops` for each batch, in order of application. op, level: (N, n)."""
    names, groups = [], []
    for slot_op, slot_level in zip(op.unbind(1), level.unbind(1), strict=True):
        for name, (_, argument) in COLOR_OPS.items():
            rows = (slot_op == OPS.index(name)).nonzero().flatten()
            names.append(name)
            groups.append((rows, argument(slot_level[rows]).view(-1, 1, 1, 1)))
    dealt = deal(groups, -(-len(op) // batch_size), batch_size, device)
    return [
        [Recolor(name, *pair) for name, pair in zip(names, pairs, strict=True) if len(pair[0])]
        for pairs in zip(*dealt, strict=True)
    ]


def deal(
    groups: list[tuple[Tensor, Tensor]], batches: int, batch_size: int, device: torch.device
) -> list[list[tuple[Tensor, Tensor]]]:
    """For each group and each batch, the rows of its images in the group, (b,) int64, and their values, (b, ...).

    groups: rows (n,), ascending, on the host, so that counting them does not wait for the device; and values (n, ...).
    """
    counts = [count for rows, _ in groups for count in (rows // batch_size).bincount(minlength=batches).tolist()]
    chosen = to_device(torch.cat([rows % batch_size for rows, _ in groups]), device).split(counts)
    values = to_device(torch.cat([values for _, values in groups]), device).split(counts)
    pairs = list(zip(chosen, values, strict=True))
    return [pairs[start : start + batches] for start in range(0, len(pairs), batches)]


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Move host numbers to a device, floats as float32. To a GPU the copy is asynchronous, from pinned memory."""
    values = values.float() if values.is_floating_point() else values
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def recolor(images: Tensor, operations: list[Recolor]) -> Tensor:
    """Apply colour operations, one after the other, to the images that drew them.

    images: float32 (B, C, H, W) in 0..1, changed in place and returned.
    """
    for name, chosen, argument in operations:
        images.index_copy_(0, chosen, COLOR_OPS[name][0](images.index_select(0, chosen), argument))
    return images


def gray(x: Tensor) -> Tensor:
    """(B, 1, H, W): PIL's luma for RGB images, else the mean over channels."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return 0.299 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]


def levels(x: Tensor) -> Tensor:
    """The 256 grey levels 0..255 that PIL's tables count in."""
    return (x * 255).round()


def autocontrast(x: Tensor, _: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)  # (B, C, 1, 1)
    return torch.where(high > low, (x - low) / (high - low), x)


def equalize(x: Tensor, _: Tensor) -> Tensor:
    B, C, H, W = x.shape
    level = levels(x).long().flatten(2)  # (B, C, H W)
    count = torch.zeros(B, C, 256, device=x.device).scatter_add_(2, level, torch.ones_like(x).flatten(2))
    last = count.gather(2, level.amax(2, keepdim=True))  # pixels of the brightest level
    step = ((H * W - last) / 255).floor()  # (B, C, 1)
    table = ((count.cumsum(2) - count + (step / 2).floor()) / step.clamp(min=1)).floor().clamp(max=255)
    return torch.where(step[..., None] > 0, table.gather(2, level).view_as(x) / 255, x)


def invert(x: Tensor, _: Tensor) -> Tensor:
    return 1 - x


def posterize(x: Tensor, bits: Tensor) -> Tensor:
    width = 2 ** (8 - bits)
    return (levels(x) / width).floor() * width / 255


def solarize(x: Tensor, threshold: Tensor) -> Tensor:
    return torch.where(levels(x) < threshold, x, 1 - x)


def solarize_add(x: Tensor, add: Tensor) -> Tensor:
    return torch.where(levels(x) < 128, (x + add / 255).clamp(max=1), x)


def color(x: Tensor, factor: Tensor) -> Tensor:
    return gray(x).lerp(x, factor).clamp(0, 1)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    return gray(x).mean((2, 3), keepdim=True).lerp(x, factor).clamp(0, 1)


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor).clamp(0, 1)


def sharpness(x: Tensor, factor: Tensor) -> Tensor:
    across = x[..., :-2] + x[..., 1:-1] + x[..., 2:]
    box = across[..., :-2, :] + across[..., 1:-1, :] + across[..., 2:, :]  # sums of 3 x 3, of all but the border
    smooth = x.clone()  # PIL's SMOOTH: 1 1 1, 1 5 1, 1 1 1, over 13; the border stays
    smooth[..., 1:-1, 1:-1] = (box + 4 * x[..., 1:-1, 1:-1]) / 13
    return smooth.lerp(x, factor).clamp(0, 1)


def _factor(level: Tensor) -> Tensor:
    return (1 + 0.9 * level).clamp(min=0.1)


# name: the operation, and its argument from the level
COLOR_OPS = {
    "autocontrast": (autocontrast, lambda level: level),  # which these three ignore
    "equalize": (equalize, lambda level: level),
    "invert": (invert, lambda level: level),
    "posterize": (posterize, lambda level: (4 - (4 * level.abs()).floor()).clamp(min=1)),  # 0 bits are black
    "solarize": (solarize, lambda level: 256 - (256 * level.abs()).floor()),
    "solarize_add": (solarize_add, lambda level: (110 * level.abs()).floor()),
    "color": (color, _factor),
    "contrast": (contrast, _factor),
    "brightness": (brightness, _factor),
    "sharpness": (sharpness, _factor),
}
