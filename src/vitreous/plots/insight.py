"""Plots of what a model looks at, and of the model itself."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitreous.messages import channels_shown
from vitreous.plots.canvas import BLUE, GREEN, ROSE, plain, save, short, show

HEAT = "inferno"  # dark to bright: readable without telling colours apart


def explanation(
    image: np.ndarray,
    *,
    patch_size: tuple[int, int],
    bars: Sequence[tuple[str, float]],
    target: str,
    against: str | None,
    empty: float,
    of_class: bool,
    maps: Mapping[str, np.ndarray],
    heads: Mapping[int, tuple[np.ndarray, float]],
    layer: int,
    patch: tuple[int, int] | None,
    reader: str,
    curves: Mapping[str, Sequence[np.ndarray]] | None,
    path: Path,
) -> None:
    """What a prediction rests on. image: (C, H, W) in 0..1; bars: classes with their probabilities, the likeliest
    first; target: the class explained, against: the one it is contrasted with, empty: the target's probability for an
    empty image, of_class: whether the method depends on the class.

    maps: (rows, columns) by title, the first of them the explanation. heads: the attention of block `layer` by head
    number, as a map and the share of attention that is not in it; patch: (row, column), from 1, of the patch whose
    attention it is; None: it is that of `reader`, which says what the answer is read from. curves: deletion and
    insertion, each (shares, probabilities, those of random orders).
    """
    figure = Figure(figsize=(3.2 * (1 + len(maps)), 7.2), layout="constrained")
    share = dict(reversed(bars))  # of classes that share a name the likeliest
    asked = f"speaks for {short(target)} ({share[target]:.1%})" if of_class else "the model looks at, for any class"
    asked += "" if against is None else f" rather than {short(against)} ({share[against]:.1%})"
    figure.suptitle(f"What {asked}", fontsize=14, parse_math=False)
    upper, lower = figure.subfigures(2, 1)
    axes, *map_axes = upper.subplots(1, 1 + len(maps))
    show(axes, image)
    if patch is not None:
        _outline(axes, patch, patch_size)
    for axis, step, side in ((axes.yaxis, patch_size[0], image.shape[1]), (axes.xaxis, patch_size[1], image.shape[2])):
        axis.set_ticks(np.arange(step, side, step) - 0.5, labels=[])
        axis.set_tick_params(length=0)
    axes.grid(color="#888888", linewidth=0.5)
    size = f"{image.shape[1]} x {image.shape[2]} pixels, patches {patch_size[0]} x {patch_size[1]}"
    axes.set_title(size + channels_shown(len(image), "\n"), fontsize=9)
    outside = any(share for _, share in heads.values())
    whole = "of what falls on patches" if outside else "of the whole"
    for axes, (title, values) in zip(map_axes, maps.items(), strict=True):
        axes.imshow(overlay(image, values), interpolation="nearest")
        axes.axis("off")
        axes.set_title(f"{title}\ndark: 0, bright: {values.max():.1%} {whole}", fontsize=9)

    cells = iter(lower.subfigures(1, 2 if curves is None else 3, width_ratios=[1, 2] if curves is None else None))
    _answer(next(cells).subplots(), bars, target, against, empty)
    if curves is not None:
        of = short(target) if against is None else f"{short(target)}, of the two classes,"
        _curves(next(cells).subplots(), curves, of)
    small = next(cells)
    shares = "share of the brightest patch" + (" + of class token or registers" if outside else "")
    whose = reader if patch is None else f"patch {patch[0]},{patch[1]}"
    lines = f"attention in block {layer}, head by head, of {whose}", f"({shares})"
    width = 92 if curves is None else 46  # letters
    small.suptitle("\n".join(textwrap.fill(line, width) for line in lines), fontsize=9)
    rows = max(1, round((len(heads) / (2 if curves is None else 1)) ** 0.5))
    for axes in small.subplots(rows, math.ceil(len(heads) / rows), squeeze=False).flat:
        axes.axis("off")
    edges = -0.5, image.shape[2] - 0.5, image.shape[1] - 0.5, -0.5  # of its pixels: left, right, bottom, top
    for axes, (number, (values, elsewhere)) in zip(small.axes, heads.items(), strict=False):
        axes.imshow(overlay(image, values), interpolation="nearest", extent=edges)
        if patch is not None:
            _outline(axes, patch, patch_size)
        brightest = f"{number}: {values.max() * (1 - elsewhere):.0%}"
        axes.set_title(brightest + (f" + {elsewhere:.0%}" if outside else ""), fontsize=7, pad=2)
    save(figure, path)


def _outline(axes: Axes, patch: tuple[int, int], patch_size: tuple[int, int]) -> None:
    """Mark a patch, by its row and column from 1, in a plot of an image's pixels."""
    bottom, right = (number * side - 0.5 for number, side in zip(patch, patch_size, strict=True))
    top, left = bottom - patch_size[0], right - patch_size[1]
    axes.plot([left, right, right, left, left], [top, top, bottom, bottom, top], color="#ff00aa", linewidth=1.5)


def overlay(image: np.ndarray, values: np.ndarray, side: int = 224) -> np.ndarray:
    """A map (rows, columns) >= 0 laid over a gray image (C, H, W) in 0..1, each patch of one colour: uint8 (h, w, 3).

    Bright patches have the largest values; small images are enlarged to about `side` pixels.
    """
    gray = image[:3].mean(axis=0)
    times = max(1, round(side / max(gray.shape)))
    gray = gray.repeat(times, axis=0).repeat(times, axis=1)  # (h, w)
    rows = np.arange(gray.shape[0]) * values.shape[0] // gray.shape[0]
    columns = np.arange(gray.shape[1]) * values.shape[1] // gray.shape[1]
    share = (values / max(values.max(), 1e-12))[rows][:, columns]  # (h, w)
    colors = colormaps[HEAT](share)[..., :3]
    return np.rint(255 * (0.75 * colors + 0.25 * gray[..., None])).astype(np.uint8)


def heat(values: np.ndarray) -> np.ndarray:
    """A table of numbers (rows, columns) as colours, dark for the lowest and bright for the highest: uint8 (..., 3)."""
    low, high = values.min(), values.max()
    return np.rint(255 * colormaps["viridis"]((values - low) / max(high - low, 1e-12))[..., :3]).astype(np.uint8)


def filters(components: np.ndarray, shares: np.ndarray, title: str, path: Path) -> None:
    """Principal components of a patch embedding's filters, (n, C, P, Q), each with its share of the variance."""
    peak = np.abs(components).max(axis=(1, 2, 3), keepdims=True)
    images = 0.5 + 0.5 * components / np.maximum(peak, 1e-12)
    columns = min(len(images), 7)
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(max(1.25 * columns, 7), 1.45 * rows + 0.6), layout="constrained")  # the title takes 7
    figure.suptitle(title + channels_shown(components.shape[1], "\n"), fontsize=11)
    for axes in figure.subplots(rows, columns, squeeze=False).flat:
        axes.axis("off")
    for axes, image, share in zip(figure.axes, images, shares, strict=False):
        show(axes, image)
        axes.set_title(f"{share:.1%}", fontsize=8)
    save(figure, path)


def position_similarity(similarity: np.ndarray, title: str, path: Path) -> None:
    """similarity (rows, columns, rows, columns) in -1..1: for each patch, a tile of its similarity to all patches."""
    rows, columns = similarity.shape[:2]
    apart = np.pad(similarity, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)  # a gap after each tile
    tiles = apart.transpose(0, 2, 1, 3).reshape(rows * (rows + 1), columns * (columns + 1))[:-1, :-1]
    height = 6 * min(max(rows / columns, 0.5), 3)  # of a strip there would be metres, or no room for the labels
    figure = Figure(figsize=(7, 0.7 + height), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(tiles, cmap="viridis", vmax=1, interpolation="nearest")
    axes.set_xticks(np.arange(columns) * (columns + 1) + (columns - 1) / 2, range(1, columns + 1))
    axes.set_yticks(np.arange(rows) * (rows + 1) + (rows - 1) / 2, range(1, rows + 1))
    axes.set(xlabel="column of the patch", ylabel="row of the patch")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=11)
    figure.colorbar(shown, ax=axes, label="similarity to each patch (one tile a patch)", shrink=0.8)
    save(figure, path)


def attention_distance(distances: np.ndarray, uniform: float, path: Path) -> None:
    """distances (L, h): how far each head looks on average, in pixels; uniform: the same for equal weights."""
    L, heads = distances.shape
    figure = Figure(figsize=(max(5.5, 0.45 * L + 3), 4), layout="constrained")
    axes = figure.subplots()
    axes.axhline(uniform, color="gray", linestyle=":", label="if all patches weighed the same")
    layers = np.repeat(np.arange(1, L + 1), heads)
    axes.scatter(layers, distances.ravel(), color=BLUE, alpha=0.7, label="one head")
    axes.plot(
        np.arange(1, L + 1), distances.mean(axis=1), color=ROSE, marker="_", markersize=14, label="mean of the heads"
    )
    axes.set(xlabel="block", ylabel="mean attention distance, pixels", ylim=(0, None))
    axes.legend(frameon=False)
    plain(axes)
    save(figure, path)


def early_answers(shares: np.ndarray, path: Path) -> None:
    """shares (L + 1,): of the images, those whose final answer can be read at each depth, 0 being the embedding."""
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(shares, color=BLUE, marker="o")
    axes.set(xlabel="after block (0: embedding)", ylabel="share of images", ylim=(0, 1.02))
    axes.set_title("read out there, the answer is already the final one (logit lens)", fontsize=9)
    plain(axes)
    save(figure, path)


def depth_similarity(similarity: np.ndarray, title: str, path: Path) -> None:
    """similarity (L + 1, L + 1) in -1..1 between depths, 0 being the embedding."""
    depths = len(similarity)
    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(similarity, cmap="viridis", vmin=min(0, similarity.min()), vmax=1)
    axes.set(xlabel="after block (0: embedding)", ylabel="after block (0: embedding)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    if depths <= 13:
        for row, column in np.ndindex(depths, depths):
            color = "black" if similarity[row, column] > 0.6 else "white"
            axes.text(column, row, f"{similarity[row, column]:.2f}", ha="center", va="center", fontsize=7, color=color)
    axes.set_title(title, fontsize=11)
    figure.colorbar(shown, ax=axes, label="cosine similarity, mean over images", shrink=0.85)
    save(figure, path)


def token_norms(norms: Mapping[str, np.ndarray], path: Path) -> None:
    """Norms of the tokens by kind, each (L + 1, 3): minimum, median and maximum over all images."""
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    for (kind, values), color, marker in zip(norms.items(), (BLUE, ROSE, GREEN), "os^", strict=False):
        low, middle, high = values.T
        axes.fill_between(range(len(values)), low, high, color=color, alpha=0.2, linewidth=0)
        axes.plot(middle, color=color, marker=marker, label=kind)
    axes.set(xlabel="after block (0: embedding)", ylabel="length of a token", ylim=(0, None))
    axes.set_title("middle line: median; band: from the shortest to the longest", fontsize=9)
    axes.legend(frameon=False)
    plain(axes)
    save(figure, path)


def _answer(axes: Axes, bars: Sequence[tuple[str, float]], target: str, against: str | None, empty: float) -> None:
    """Classes as bars, the explained one and its rival each in a colour of its own."""
    colors = [{target: ROSE, against: GREEN}.get(name, BLUE) for name, _ in bars]
    drawn = axes.barh(range(len(bars)), [share for _, share in bars], color=colors)
    axes.bar_label(drawn, [f"{share:.1%}" for _, share in bars], padding=3, fontsize=9)
    axes.set_yticks(range(len(bars)), [short(name) for name, _ in bars], fontsize=9, parse_math=False)
    axes.set(xlim=(0, 1.3), xticks=[], box_aspect=0.8)
    title = f"the model's answer\n(to an empty image, {short(target)}: {empty:.1%})"
    axes.set_title(title, fontsize=9, parse_math=False)
    axes.invert_yaxis()
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _curves(axes: Axes, curves: Mapping[str, Sequence[np.ndarray]], of: str) -> None:
    """Deletion and insertion of one image, with random orders for comparison. of: what the probability is of."""
    for (kind, (shares, values, random)), color in zip(curves.items(), (ROSE, BLUE), strict=True):
        for order, line, name in ((values, "-", kind), (random, ":", "random orders")):
            area = ((order[1:] + order[:-1]) / 2 * np.diff(shares)).sum()
            axes.plot(shares, order, line, color=color, label=f"{name}, area {area:.2f}")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="share of patches", box_aspect=0.9)
    title = f"probability of {of} as patches go\n(mean colour) or come (into a blurred image)"
    axes.set_title(title, fontsize=9, parse_math=False)
    axes.figure.legend(fontsize=7, frameon=False, handlelength=1.5, ncols=2, loc="outside lower center")
    axes.spines[["top", "right"]].set_visible(False)
