"""Shared by all plots: colours, drawing images, and saving. Figures are made without matplotlib's global state."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitreous.files import replace_file

BLUE, ROSE, GREEN, SAND = "#4477aa", "#cc6677", "#117733", "#ddaa33"  # colour-blind safe (Paul Tol's)


def save(figure: Figure, path: Path) -> None:
    """Write a figure, creating its folder if needed."""
    replace_file(path, lambda part: figure.savefig(part, dpi=120, format="png"))


def show(axes: Axes, image: np.ndarray) -> None:
    """An image (C, H, W) in 0..1, each pixel as it is; gray unless it has three colours."""
    gray = image.shape[0] < 3
    pixels = image[0] if gray else image[:3].transpose(1, 2, 0)
    axes.imshow(pixels, cmap="gray" if gray else None, vmin=0, vmax=1, interpolation="nearest")


def plain(axes: Axes) -> None:
    """Light lines behind the data, no box around it, whole numbers below."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
