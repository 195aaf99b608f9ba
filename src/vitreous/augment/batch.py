"""Augmentation of a batch: planned on the host, applied on the device."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.augment.config import Augment
from vitreous.augment.draws import between, split
from vitreous.augment.geometry import box_size, maps_of, resample, whole_map
from vitreous.augment.randaugment import Recolor, deal, draw_ops, gray, recolor, recolorings, to_device, warp

AHEAD = 4096  # images whose changes are computed together, to spread the overhead of each operation
ERASED_AREA = (0.02, 0.33)
ERASED_RATIO = (0.3, 1 / 0.3)


class Changes(NamedTuple):
    """What is done to each image of one batch, on the images' device; None for nothing."""

    size: tuple[int, int]
    """(H, W) of the images that come out."""
    map: Tensor | None = None
    """(B, 6) float32, from `whole_map`."""
    color: Tensor | None = None
    """(B, 3) float32: factors of brightness, contrast and saturation."""
    recolor: Sequence[Recolor] = ()
    """RandAugment's colour operations, in order."""
    erased: tuple[Tensor, Tensor] | None = None
    """The images with an erased box, (b,) int64, and the boxes, (b, 4), for `_inside`."""
    own: Tensor | None = None
    cut: Tensor | None = None
    """Both from `_mixtures`, (B, 1) and (B, 4) float32."""

    def left_to_mix(self, rows: slice) -> "Changes":
        """For `mix`, of some of these images, which have been augmented."""
        return Changes(self.size) if self.own is None else Changes(self.size, own=self.own[rows], cut=self.cut[rows])


def plan(
    rows: Tensor,
    config: Augment,
    epoch: int,
    size: tuple[int, int],
    batch_size: int,
    device: torch.device | str = "cpu",
    first: int = 0,
) -> Iterator[Changes]:
    """Yield the changes of an epoch's batches, one by one, from batch `first` on.

    rows: (N, columns) of `draw`'s table, on the host, in the order of the images. epoch: for alternating flips. size:
    (H, W) of the output images. The changes are computed in float64, for many batches at a time, and sent to the device
    together, so that host and GPU do not wait for each other. How batches are grouped does not depend on `first`: a
    resumed epoch has exactly the numbers of an uninterrupted one.
    """
    device, (H, W) = torch.device(device), size
    if config.shift >= min(H, W):
        raise ValueError(f"shift {config.shift} is too far for {H} x {W} px: make it less than {min(H, W)}")
    several, start = max(AHEAD // batch_size, 1) * batch_size, first * batch_size
    for begin in range(start - start % several, len(rows), several):
        draws = split(rows[begin : begin + several], config)
        maps = maps_of(draws, config, epoch, H, W)
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
            numbers["map"] = whole_map(maps, config, H, W)
        if config.color:
            numbers["color"] = 1 + between(draws["color"], config.color)
        if config.mixup or config.cutmix:
            numbers |= _mixtures(draws, config, H, W)
        widths = [values.shape[1] for values in numbers.values()]
        nothing = draws["flip"][:, :0]  # so that there is a table even if nothing is on
        table = to_device(torch.cat([nothing, *numbers.values()], dim=1), device)
        for i, part in enumerate(table.split(batch_size)):
            if begin + i * batch_size >= start:
                own = dict(zip(numbers, part.split(widths, dim=1), strict=True))
                yield Changes((H, W), recolor=recolors[i], erased=erased[i], **own)


def augment(images: Tensor, changes: Changes, config: Augment, fill: Tensor) -> Tensor:
    """Apply the planned geometry, colour changes and erasing to each image.

    images: float32 (B, C, H, W) in 0..1, not changed; of the planned size, or larger for a sharper random crop. fill:
    (C,), the mean colour, on the images' device. Returns float32 (B, C, *changes.size) in 0..1, or `images` itself if
    nothing is on. Raises ValueError for another size without a random crop.
    """
    given, fill = images, fill.view(1, -1, 1, 1)
    if images.shape[2:] != changes.size and config.crop_scale is None:
        raise ValueError(f"images of {tuple(images.shape[2:])} px, planned for {changes.size}: crop_scale would resize")
    if changes.map is not None:
        images = resample(images, changes.map, config, fill, changes.size)
    if changes.color is not None:
        images = _jitter(images, changes.color)
    if changes.recolor:
        images = recolor(images, changes.recolor)
    if changes.erased is not None:
        images = _erase(images.clone() if images is given else images, *changes.erased, fill)
    return images


def _jitter(images: Tensor, factors: Tensor) -> Tensor:
    """Scale brightness, contrast about the mean luma, then saturation. factors: (B, 3).

    Each is linear in the pixel x and its luma, so with factors b, c, s all three are one sum:
    x b c s + luma b c (1 - s) + mean luma b (1 - c).
    """
    b, c, s = factors.T[..., None, None, None]  # each (B, 1, 1, 1)
    luma = gray(images)  # (B, 1, H, W)
    rest = luma * (b * c * (1 - s)) + luma.mean((2, 3), keepdim=True) * (b * (1 - c))
    return torch.addcmul(rest, images, b * c * s).clamp_(0, 1)


def _inside(box: Tensor, images: Tensor) -> Tensor:
    """Mask (B, 1, H, W) bool of pixels inside boxes (B, 4): left, top, right, bottom in whole pixels, end exclusive."""
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
    height, width = (side.round() for side in box_size(area, ratio, ERASED_AREA, ERASED_RATIO, H, W))
    left, top = (x * (W - width + 1)).floor(), (y * (H - height + 1)).floor()
    return torch.stack([left, top, left + width, top + height], dim=1) * (chance < config.erase)[:, None]


def _mixtures(draws: dict[str, Tensor], config: Augment, H: int, W: int) -> dict[str, Tensor]:
    """`own` (B, 1), the image's share of each pixel outside the box `cut` (B, 4), which shows its partner."""
    chance, which = draws["mix"].unbind(1)
    mixed = chance < config.mix_probability
    cutmix = 0.5 if config.mixup and config.cutmix else float(config.cutmix > 0)  # its share of what is mixed
    cut = mixed & (which < cutmix)

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
    targets (B, num_classes) float32, whose rows sum to 1, or images and labels unchanged if nothing is mixed.
    """
    if changes.own is None or progress >= config.mix_until:
        return images, labels
    own = changes.own.view(-1, 1, 1, 1) * ~_inside(changes.cut, images)  # (B, 1, H, W)
    share = own.mean((1, 2, 3))[:, None]  # (B, 1): the same for mixup, the exact pixel count for cutmix
    one_hot = F.one_hot(labels, num_classes).float()
    return images.flip(0).lerp_(images, own), one_hot.flip(0).lerp(one_hot, share)
