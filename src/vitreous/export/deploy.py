"""`export_run`: export a trained model to another format, and verify that it is the same function."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from vitreous.data.images import ImageSet
from vitreous.doctor import installed
from vitreous.export.checkpoints import write_huggingface, write_timm
from vitreous.export.example import EXAMPLE, PICTURE, write_example
from vitreous.export.graphs import NEEDED, ONNX, ONNX_DATA, PT2, PixelModel, write_int8, write_onnx, write_pt2
from vitreous.export.receipt import BATCHES, MANY, compare, faults, find_inputs
from vitreous.extras import need
from vitreous.files import check_folder, check_free, path_of, write_json
from vitreous.prediction import eval_batch_size
from vitreous.weights import Bundle
from vitreous.weights.bundle import CONFIG, WEIGHTS, Trained, is_shipped
from vitreous.weights.load import PREPROCESSING

RECEIPT = "parity.json"
GRAPHS = {"onnx": write_onnx, "pt2": write_pt2, "int8": write_int8}
CHECKPOINTS = {"timm": write_timm, "huggingface": write_huggingface}
NAMES = {  # of what is written beside the receipt; examples and the weights of very large graphs come besides
    "onnx": (ONNX,),
    "pt2": (PT2,),
    "int8": (ONNX,),
    "timm": (WEIGHTS, CONFIG),
    "huggingface": (WEIGHTS, CONFIG, PREPROCESSING),
}
TOLERANCE, LOST = 1e-4, 0.005  # between two logits; of top-1, by rounding to int8
FORMATS = (*GRAPHS, *CHECKPOINTS)


def export_run(
    run: Trained,
    form: str,
    *,
    data: ImageSet | Path | str | None = None,
    out: Path | str | None = None,
    preprocess_inside: bool = False,
    tolerance: float | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Write a run's model as one of FORMATS, by default into RUN/export/<form>/; returns that folder and the receipt.

    run: as for `predict`; a shipped model and a loaded `Bundle` need `out`. data: images to compare both models on, by
    default the run's own, or noise if they are not available. A graph comes with `example.json` and `example.png`, one
    of these images and its output, unless they are noise. preprocess_inside: graphs take uint8 pixels and normalise
    them themselves. tolerance: the largest difference allowed between two logits; for int8 the share of images by which
    top-1 may fall (default: TOLERANCE; for int8 LOST, but at least one image).

    Raises ValueError, leaving the folder's contents unchanged, for a model that the format cannot express and for an
    export that computes another function; ImportError if the format needs a package that is not installed.
    """
    check_form(form, preprocess_inside)
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance}: it must be at least 0")
    own = None if isinstance(run, Bundle) or is_shipped(run) else path_of(run)
    if out is None and own is None:
        name = "the model" if isinstance(run, Bundle) else f"{run} is a shipped model and"
        raise ValueError(f"{name} has no run folder here: name a folder with --out")
    folder = path_of(out) if out is not None else own / "export" / form
    bundle = Bundle.of(run)
    if bundle is run:  # its model may be in training mode, or on a GPU
        bundle = replace(bundle, model=copy.deepcopy(bundle.unwrapped).cpu().eval())
    check_folder(folder)
    besides, mark = {EXAMPLE, PICTURE, ONNX_DATA} if form in GRAPHS else set(), f'"format": "{form}"'
    check_free([folder / name for name in {*NAMES[form], RECEIPT} | besides], folder / RECEIPT, mark)

    with _made(folder), TemporaryDirectory(dir=folder, prefix=".") as scratch, torch.no_grad():
        part = Path(scratch)
        rounded = form == "int8"
        inputs = find_inputs(run, bundle, sum(BATCHES), MANY if rounded else sum(BATCHES), data)
        after = GRAPHS[form](bundle, part, preprocess_inside) if form in GRAPHS else CHECKPOINTS[form](bundle, part)
        figures = compare(PixelModel(bundle), after, inputs, eval_batch_size(bundle.model.config))
        if tolerance is None:  # that one answer of a few images is lost says nothing
            tolerance = max(LOST, 1 / inputs.different) if rounded else TOLERANCE
        if fault := faults(figures, tolerance, rounded=rounded):
            name = "the model" if isinstance(run, Bundle) else run
            way_out = "; allow it by --tolerance" if math.isfinite(figures["max_abs_difference"]) else ""
            if rounded and inputs.different < MANY:
                way_out = "; name more images with --data, or allow it by --tolerance"
            raise ValueError(f"the {form} export of {name} is another function and was not kept: {fault}{way_out}")
        packages = ("vitreous", "torch", "pillow", *NEEDED.get(form, ()))
        receipt = {"format": form, "preprocess_inside": preprocess_inside, "tolerance": tolerance, **figures}
        receipt |= {"sha256": bundle.digest(), "threads": torch.get_num_threads()}
        receipt["packages"] = {name: installed(name) for name in packages}
        write_json(part / RECEIPT, receipt)
        if form in GRAPHS:
            write_example(part, bundle, after, inputs)
        new = {file.name for file in part.iterdir()}
        check_free([folder / name for name in new | besides], folder / RECEIPT, mark)
        for name in new - {RECEIPT}:  # else, cut short, an earlier graph would stand beside the receipt of this one
            (folder / name).unlink(missing_ok=True)
        for name in sorted(new, key=lambda name: name != RECEIPT):  # it comes first, as it tells that the rest is ours
            (part / name).replace(folder / name)
        for name in besides - new:  # from an earlier export, with other outputs or more weights
            (folder / name).unlink(missing_ok=True)
    return folder, receipt


def check_form(form: str, preprocess_inside: bool) -> None:
    """Raises ValueError for a format that there is not, or that can hold no preprocessing; ImportError if it needs a
    package that is not installed."""
    if form not in FORMATS:
        raise ValueError(f"unknown format '{form}': use {', '.join(FORMATS)}")
    if preprocess_inside and form not in GRAPHS:
        raise ValueError(f"{form} holds weights and no graph to preprocess in: leave out --preprocess-inside")
    need(form, NEEDED.get(form, ()), "export")


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder, and take it, and those above it, away again if they are empty in the end and were not there
    before."""
    ours = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            for place in ours:
                place.rmdir()
