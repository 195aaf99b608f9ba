"""The parity receipt: whether an exported model is the same function."""

import logging
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous.data.images import ImageSet
from vitreous.data.loaders import decode
from vitreous.data.sources import load
from vitreous.data.stores import Images
from vitreous.evaluation import as_known, own_data
from vitreous.export.graphs import Answer
from vitreous.weights import Bundle
from vitreous.weights.bundle import Trained

log = logging.getLogger("vitreous")

BATCHES = (1, 2, 7, 32, 200)
MANY = 1000  # images, where accuracy is compared and not logits


class Inputs(NamedTuple):
    """The inputs that both models are run on."""

    pixels: Tensor
    """uint8 (n, C, H, W)."""
    labels: Tensor | None
    """Of the distinct images, which come first; None if unknown."""
    name: str
    first: Images | None = None
    """The first image in its original form, before resizing; None for noise."""

    @property
    def different(self) -> int:
        """How many of them there are, those that come again left out."""
        return len(self.pixels if self.labels is None else self.labels)


def find_inputs(
    run: Trained, bundle: Bundle, at_least: int, most: int, data: ImageSet | Path | str | None = None
) -> Inputs:
    """Images spread evenly over `data`, or else over the split that a run is judged on; noise, with a warning that says
    why, if the run's are unknown or cannot be read."""
    try:
        image_set = own_data(run, fetch=False) if data is None else load(data)
        split = as_known(bundle, image_set, image_set.default_split).evenly(most)
        split = decode(split, bundle.preprocess, skip_broken=True)
    except (ValueError, OSError) as error:
        if data is not None:
            raise
        log.warning("%s; compared on noise", error)
        shape = (at_least, *bundle.preprocess.shape)
        pixels = torch.randint(256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        return Inputs(pixels, None, f"{at_least} images of noise")
    count = len(split)
    rows = np.resize(np.arange(count), max(count, at_least))  # repeated if there are too few
    labels = torch.from_numpy(np.asarray(split.labels))
    pixels = torch.from_numpy(np.ascontiguousarray(split.images.read(rows, bundle.preprocess)))
    name = f"{count} images of {image_set.name}, {image_set.default_split}"
    name += f", repeated to {len(rows)}" if len(rows) > count else ""
    return Inputs(pixels, labels, name, split.images.original(0))


@torch.inference_mode()
def compare(before: Answer, after: Answer, inputs: Inputs, most: int = BATCHES[-1]) -> dict[str, Any]:
    """Run both models on the same inputs, alternating by batch, and report how far they differ and how long they take.

    most: images in the largest batch, to bound memory.
    """
    sizes = [min(size, most) for size in BATCHES]
    while sum(sizes) < len(inputs.pixels):
        sizes.append(min(sizes[-1], len(inputs.pixels) - sum(sizes)))
    logits: dict[str, list[Tensor]] = {"before": [], "after": []}
    seconds = dict.fromkeys(logits, 0.0)
    calls = {"before": before, "after": after}
    for call in calls.values():
        call(inputs.pixels[:1])  # warm-up
    for batch in inputs.pixels.split(sizes):
        for name, call in calls.items():
            start = time.perf_counter()
            logits[name].append(call(batch))
            seconds[name] += time.perf_counter() - start
    a, b = (torch.cat(found) for found in logits.values())
    answers, others = (x[: inputs.different].argmax(dim=1) for x in (a, b))
    figures = {
        "inputs": inputs.name,
        "batches": sizes,
        "max_abs_difference": (a - b).abs().max().item() if a.shape == b.shape else float("inf"),
        "top1_agreement": (answers == others).double().mean().item(),
        "milliseconds_per_image": {name: 1000 * taken / len(inputs.pixels) for name, taken in seconds.items()},
    }
    if inputs.labels is not None:
        named = {"before": answers, "after": others}
        figures["top1"] = {name: (own == inputs.labels).double().mean().item() for name, own in named.items()}
    return figures


def faults(figures: dict[str, Any], tolerance: float, *, rounded: bool) -> str:
    """What is wrong, in one line; empty if nothing is.

    tolerance: the largest difference allowed between two logits; for a model rounded to int8, the share of images by
    which top-1 may fall or, without labels, for which predictions may differ.
    """
    if rounded:
        top1 = figures.get("top1")
        lost = top1["before"] - top1["after"] if top1 else 1 - figures["top1_agreement"]
        what = "top-1 falls by" if top1 else "the share of other answers is"
        return "" if lost <= tolerance + 1e-9 else f"{what} {lost:.2%} on {figures['inputs']}, beyond {tolerance:.2%}"
    difference = figures["max_abs_difference"]
    if not difference <= tolerance:  # also catches NaN; within it, answers differ in ties alone
        return f"logits differ by {difference:.2g} on {figures['inputs']}, beyond {tolerance:g}"
    return ""
