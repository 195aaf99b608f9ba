"""The random numbers of an epoch: one row per image, and a few columns per feature that is on."""

import numpy as np
import torch
from torch import Tensor

from vitreous.augment.config import Augment


def _widths(config: Augment) -> dict[str, int]:
    """The columns of each feature, uniform in 0..1 unless stated. Its place seeds its generator: add at the end."""
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
        "vertical_flip": int(config.vertical_flip > 0),
    }


def draw(config: Augment, count: int, seed: int, epoch: int) -> Tensor:
    """The random numbers of one epoch: a float32 table (count, columns) on the host, one row per image.

    Every feature has its own generator and fills its columns row by row, so that rows do not depend on count.
    """
    widths = _widths(config)
    table, filled = np.empty((count, sum(widths.values())), np.float32), 0
    for stream, (name, width) in enumerate(widths.items(), start=1):
        if not width:
            continue
        fixed = name == "flip" and config.alternate_flip  # the draw of epoch 0 is used in all epochs
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


def split(rows: Tensor, config: Augment) -> dict[str, Tensor]:
    """Rows (B, columns) as one float64 tensor (B, width) per feature, on the host, where changes are computed."""
    widths = _widths(config)
    columns = sum(widths.values())
    if rows.shape[1] != columns:
        raise ValueError(f"rows have {rows.shape[1]} columns, not {columns}: draw the table with the same config")
    return dict(zip(widths, rows.cpu().double().split(list(widths.values()), dim=1), strict=True))


def between(u: Tensor, limit: float) -> Tensor:
    """Scale u in 0..1 to -limit..limit."""
    return (2 * u - 1) * limit
