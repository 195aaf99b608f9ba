"""Plots of a run: learning curves, confusion matrix, images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from vitreous.messages import channels_shown
from vitreous.plots.canvas import BLUE, ROSE, plain, save, short, show

TRAIN, VAL = BLUE, ROSE


def learning_curves(
    history: Sequence[dict[str, float]],
    best_epoch: int,
    path: Path,
    *,
    chosen_by: tuple[str, str] = ("top1", "top-1"),
    training: str = "training",
) -> None:
    """Loss and top-1 by epoch, training and validation, with the epoch whose weights were kept.

    chosen_by: the metric that chose it, and its name; it is plotted, too. training: what to call the training images.
    """
    shown = {"loss": "loss", "top1": "top-1"} | dict([chosen_by])
    figure = Figure(figsize=(5 * len(shown), 4), layout="constrained")
    epochs = [row["epoch"] for row in history]
    marker = "o" if len(history) < 3 else None
    for axes, (key, label) in zip(figure.subplots(1, len(shown)), shown.items(), strict=True):
        if f"train_{key}" in history[0]:
            train = [row[f"train_{key}"] for row in history]
            axes.plot(epochs, train, TRAIN, marker=marker, label=training)
        if f"val_{key}" in history[0]:
            axes.plot(epochs, [row[f"val_{key}"] for row in history], VAL, marker=marker, label="validation")
        axes.axvline(best_epoch, color="gray", linestyle=":", label=f"kept: epoch {best_epoch}")
        axes.set(xlabel="epoch", ylabel=label)
        plain(axes)
    figure.axes[1].legend(frameon=False)
    save(figure, path)


def confusion_matrix(counts: np.ndarray, class_names: Sequence[str], path: Path) -> None:
    """counts (K, K), row the true class: each row as shares; numbers and names if they fit."""
    K = len(class_names)
    side = min(max(4.5, 0.5 * K + 2), 14)
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shown = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(shown, ax=axes, label="share of the true class", shrink=0.8)
    axes.set(xlabel="answered", ylabel="true")
    if K <= 40:
        names = [short(name) for name in class_names]
        axes.set_xticks(range(K), names, rotation=90 if max(map(len, names)) > 2 else 0, parse_math=False)
        axes.set_yticks(range(K), names, parse_math=False)
    if K <= 20:
        for row, column in np.argwhere(counts > 0):
            color = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{counts[row, column]}", ha="center", va="center", color=color, fontsize=8)
    save(figure, path)


def image_grid(images: np.ndarray, titles: Sequence[str], path: Path) -> None:
    """images (B, C, H, W) in 0..1, with a title above each, its lines cut after 24 letters; above all, which of the
    channels are shown if these are not all."""
    columns = 8
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(1.5 * columns, 1.75 * rows), layout="constrained")
    if shown := channels_shown(images.shape[1]):
        figure.suptitle(shown, fontsize=9)
    for axes in figure.subplots(rows, columns, squeeze=False).flat:
        axes.axis("off")
    for axes, image, title in zip(figure.axes, images, titles, strict=False):
        show(axes, image)
        axes.set_title("\n".join(line[:24] for line in title.split("\n")), fontsize=7, parse_math=False)
    save(figure, path)
