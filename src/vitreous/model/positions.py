"""Position encodings: tables added to the tokens, or rotations of queries and keys."""

import torch
import torch.nn.functional as F
from torch import Tensor


def sincos_1d(length: int, dim: int) -> Tensor:
    """Sine-cosine table over a sequence, (length, dim): even channel j sin(i / 10000^(j / dim)), j + 1 its cosine.

    Source: Vaswani et al. 2017, section 3.5.
    """
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, dim, 2) / dim)  # (length, dim / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def sincos_2d(grid: tuple[int, int], dim: int) -> Tensor:
    """Sine-cosine table over a grid, (rows * columns, dim): half of the channels for the row, half for the column.

    Source: Chen et al. 2021 (MoCo v3), section 5.
    """
    rows = sincos_1d(grid[0], dim // 2).repeat_interleave(grid[1], dim=0)
    columns = sincos_1d(grid[1], dim // 2).repeat(grid[0], 1)
    return torch.cat([rows, columns], dim=1)


def rotary_table(
    grid: tuple[int, int], head_dim: int, prefix: int, old: tuple[int, int] | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (prefix + rows * columns, head_dim / 2), that `rotate` applies to queries and keys.

    Half of a head's pairs rotate with the row, half with the column, at frequencies 100^(-i / pairs); the `prefix`
    tokens before the patches are not rotated. old: the grid whose positions are resampled to `grid`, such as that of a
    larger image. Source: Su et al. 2021; on images Heo et al. 2024 ("axial").
    """
    pairs = head_dim // 4
    frequencies = 100.0 ** (-torch.arange(pairs) / pairs)
    sides = [(torch.arange(n) + 0.5) * (whole / n) - 0.5 for n, whole in zip(grid, old or grid, strict=True)]
    row, column = torch.meshgrid(*sides, indexing="ij")
    places = torch.stack([row.flatten(), column.flatten()], dim=1)  # (rows * columns, 2)
    angles = (places[:, :, None] * frequencies).flatten(1)  # (rows * columns, head_dim / 2)
    angles = F.pad(angles, (0, 0, prefix, 0))
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_{i + d/2}) of x (B, h, N, d) by the angles of `rotary_table`."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


def resample_positions(pos: Tensor, grid: tuple[int, int], old: tuple[int, int] | None = None) -> Tensor:
    """Resize a grid of positions, learned or fixed, so that the model accepts another image size.

    pos: (1, N, D), without class token and registers. grid: (rows, columns), in patches; old: those of pos
    (default: a square). Returns (1, rows * columns, D). Raises ValueError when N is not rows * columns of `old`.
    Source: Dosovitskiy et al. 2021, section 3.2 (2-D interpolation).
    """
    N, D = pos.shape[1:]
    rows, columns = old or (round(N**0.5),) * 2
    if rows * columns != N:
        kind = f"a {rows} x {columns} grid" if old else "a square grid"
        raise ValueError(f"{N} positions are not {kind}: pass them without class token or registers")
    table = pos.view(1, rows, columns, D).permute(0, 3, 1, 2)
    if pos.device.type == "mps":  # has no gradient for this
        table = table.cpu()
    resized = F.interpolate(table, size=grid, mode="bicubic", antialias=True, align_corners=False)
    return resized.permute(0, 2, 3, 1).reshape(1, -1, D).to(pos.device)
