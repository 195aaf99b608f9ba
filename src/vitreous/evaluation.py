"""Evaluate a trained model on a split: figures, and the logits they come from."""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.data.check import altered, are_among, copies_among, differs, digest_of, first_page_alone
from vitreous.data.divide import groups_if_any
from vitreous.data.images import ImageSet, Split, match_labels
from vitreous.data.loaders import Batches, Progress
from vitreous.data.sources import gone, load
from vitreous.data.stores import Images
from vitreous.files import read_json, write_csv
from vitreous.metrics import (
    ClassFigures,
    class_figures,
    classification_metrics,
    confusion,
    fit_temperature,
    pooled_metrics,
    recall_intervals,
)
from vitreous.prediction import eval_batch_size, precision_for, split_logits
from vitreous.recipe import DataOptions, read_recipe
from vitreous.weights import Bundle
from vitreous.weights.bundle import Trained, find_record

log = logging.getLogger("vitreous")

ANSWER = ("split", "row", "image", "class", "answer", "probability", "probability_of_class", "group")
EACH = 20  # classes up to which each one's probability is written, too
ON_OWN = {  # how far figures on images that a run has used can be trusted
    "train": "these are the images that the model learnt from: figures on them are too good",
    "val": "the run had these validation images, which may have helped to choose the model: figures may be too good",
}
ON_CALIBRATED = "the temperature was fitted on these images: on others the calibration error is larger"
TRAIN_HASHES = Path("train_hashes.bin")  # of a run: what `learnt_hashes` reads, if its images were decoded
RECORD = ("recipe.yaml", "data.json", TRAIN_HASHES)  # of a run: what it was trained on, and how


@dataclass(frozen=True, eq=False)
class Judged:
    """A bundle's answers on a split."""

    bundle: Bundle
    logits: Tensor
    """(N, K), as the model returns them: not divided by the temperature."""
    labels: Tensor
    """(N,)."""
    images: Images
    """(N,); decoded and fitted, unless the set is too large to keep decoded."""
    rows: np.ndarray
    """(N,), their rows in the split: all, except for images that cannot be read."""
    seconds: float
    """Time of the forward passes on decoded images; it includes reading them if they do not fit in memory."""
    name: str = ""
    """The split's name if it is part of a set; `given` for images without splits."""
    groups: np.ndarray | None = None
    """(N,), what `data.group` finds for each image; None if it finds nothing."""
    caution: str = ""
    """Why the figures are worth less than they seem, if known."""
    learnt: bool = False
    """Whether these, or most of them, are known to be images that the model learnt from."""
    calibrated_here: bool = False
    """Whether the temperature is known to have been fitted on these images."""
    data: str = ""
    """The name of the set, if known."""
    own_labels: np.ndarray | None = None
    """(N,), the labels as the set numbers them, if known: the model's classes may come in another order."""

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Those of `metrics.classification_metrics`, at the bundle's temperature."""
        return classification_metrics(self.logits, self.labels, self.bundle.temperature, self.groups)

    @cached_property
    def confusion(self) -> np.ndarray:
        """Counts (K, K): row the true class, column the answer."""
        return confusion(self.logits, self.labels)

    @cached_property
    def digest(self) -> str | None:
        """The `digest_of` the images and their labels as the model numbers them."""
        return digest_of(self.images, self.labels)

    @property
    def scaled(self) -> Tensor:
        """The logits divided by the temperature, (N, K), in float64."""
        return self.logits.double() / self.bundle.temperature


def batches_of(
    split: Split, bundle: Bundle, device: torch.device, options: DataOptions, progress: Progress | None = None
) -> Batches:
    """A split as a bundle reads it, kept and streamed as the options say; progress as for `judge`."""
    return Batches(
        split,
        bundle.preprocess,
        batch_size=eval_batch_size(bundle.model.config),
        device=device,
        memory_budget=options.resident_bytes,
        workers=options.workers,
        skip_broken=options.skip_broken,
        progress=progress,
    )


def judge(
    bundle: Bundle,
    split: Split,
    *,
    device: torch.device,
    precision: str,
    name: str = "",
    options: DataOptions | None = None,
    progress: Progress | None = None,
) -> Judged:
    """Ask a bundle about every image of a split.

    options: where its images are kept, how many workers read them, whether broken ones are left out, and what groups
    them. progress: gets the images done and the total while they are decoded.
    """
    options = options or DataOptions()
    batches = batches_of(split, bundle, device, options, progress)
    started = time.monotonic()
    logits = split_logits(bundle.model.to(device), batches, bundle.preprocess, precision)
    seconds = time.monotonic() - started
    groups = groups_if_any(batches.images, options.group)
    rows = np.arange(len(split))
    if len(batches) < len(split):
        there = {batches.images.describe(row) for row in range(len(batches))}
        rows = np.array([row for row in rows if split.images.describe(row) in there])
    return Judged(bundle, logits, batches.labels, batches.images, rows, seconds, name, groups)


def calibrated(judged: Judged) -> Bundle:
    """The bundle with a temperature fitted on what it was judged on.

    It is unchanged where that is too little to tell a better temperature from its own, or all answers are right. Raises
    ValueError for images that it is known to have learnt from: of a loaded `Bundle` nothing is known.
    """
    if judged.learnt:
        raise ValueError("the model learnt from these images, and is surer of them than of others: name others as DATA")
    factor = fit_temperature(judged.scaled, judged.labels, judged.groups)
    if factor == 1:
        return judged.bundle
    temperature = round(judged.bundle.temperature * factor, 6)
    return replace(judged.bundle, temperature=temperature, calibrated_on=judged.digest)


def pooled_figures(parts: Sequence[Judged]) -> dict[str, Any]:
    """Figures of several models with the same classes, each on its part of a set, as if one model had answered it all.

    Without `auroc`, as scores of different models have no common order, and `temperature`, as each has its own.
    """
    logits, labels = torch.cat([part.logits for part in parts]), torch.cat([part.labels for part in parts])
    return pooled_metrics(logits, torch.cat([part.scaled for part in parts]), labels, pooled_groups(parts))


def pooled_groups(parts: Sequence[Judged]) -> np.ndarray | None:
    """The groups of all parts' images, (N,); None if a part has none."""
    return None if any(part.groups is None for part in parts) else np.concatenate([part.groups for part in parts])


def write_answers(parts: Iterable[Judged], class_names: Sequence[str], path: Path) -> None:
    """One line per image, of `answer_lines`."""
    write_csv(path, answer_head(class_names), (line for judged in parts for line in answer_lines(judged)))


def answer_head(class_names: Sequence[str]) -> tuple[str, ...]:
    """The columns of `answer_lines`: those of `ANSWER` and, unless there are many classes, the probability of each."""
    return (*ANSWER, *(f"probability:{name}" for name in class_names if len(class_names) <= EACH))


def answer_lines(judged: Judged) -> Iterator[tuple[object, ...]]:
    """A line for each image, with the columns of `answer_head`."""
    probabilities = judged.scaled.softmax(dim=1)
    answers, names = judged.logits.argmax(dim=1), judged.bundle.class_names
    for i, (label, answer) in enumerate(zip(judged.labels.tolist(), answers.tolist(), strict=True)):
        row = probabilities[i].tolist()
        shares = [f"{row[k]:.6g}" for k in (answer, label)]
        group = "" if judged.groups is None else judged.groups[i]
        each = [f"{share:.6g}" for share in row] if len(names) <= EACH else []
        where = judged.name, judged.rows[i], judged.images.describe(i)
        yield *where, names[label], names[answer], *shares, group, *each


def write_classes(splits: dict[str, Sequence[Judged]], class_names: Sequence[str], path: Path) -> None:
    """One line per split and class: its `ClassFigures`, the 95% interval of its recall, and how many groups its images
    come in; what there is not is left empty."""
    lines = []
    for split, parts in splits.items():
        labels, groups = torch.cat([part.labels for part in parts]).numpy(), pooled_groups(parts)
        right = torch.cat([part.logits.argmax(dim=1) == part.labels for part in parts]).numpy()
        figures = class_figures(sum(part.confusion for part in parts))
        spread = recall_intervals(right, labels, groups, len(class_names))
        for name, *found in zip(class_names, figures, spread, strict=True):
            shown = (f"{value:.6g}" if isinstance(value, float) else value for each in found for value in each)
            lines.append((split, name, *shown))
    write_csv(path, ("split", "class", *ClassFigures._fields, "recall_low", "recall_high", "groups"), lines)


def evaluate(
    run: Trained,
    data: ImageSet | Path | str | None = None,
    *,
    split: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    skip_broken: bool = False,
) -> dict[str, Any]:
    """Figures of a run on a split of a data set, by default the run's own, as in its `results.json`.

    `top1`, `top5` (None for five classes or fewer), `f1_macro`, `ece` and the like are shares of 1; `count` is the
    number of images. Labels are matched by class name.

    split: `test`, `val` or `train`; by default the first of these that exists. The run's own data is split as it was in
    training. precision: `auto` is what the run's recipe says, unless that is float16. Raises ValueError for a split
    that does not exist, a class that the model lacks or, unless `skip_broken`, an image that cannot be read.
    """
    return judge_run(run, data, split=split, device=device, precision=precision, skip_broken=skip_broken).figures


def judge_run(
    run: Trained,
    data: ImageSet | Path | str | None = None,
    *,
    split: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    skip_broken: bool = False,
) -> Judged:
    """`evaluate`, with everything its figures come from."""
    bundle = Bundle.of(run)
    where = bundle.to(device)
    folder, options = record_of(run)
    image_set = own_data(run) if data is None else load(data, skip_broken=skip_broken)
    whole = data is not None and split is None and len(image_set.splits) == 1
    split = image_set.default_split if split is None else split
    asked = as_known(bundle, image_set, split)
    if data is not None and (stacks := first_page_alone(asked.images)):  # of a run's own, it was told in training
        log.warning("%s", stacks)
    judged = judge(
        bundle,
        asked,
        device=where,
        precision=precision_for(run, precision, where),
        name="given" if whole else split,
        options=options.model_copy(update={"skip_broken": skip_broken or image_set.skip_broken}),
    )
    if bundle.calibrated_on is None:  # not noted: an older run, images not decoded, or no temperature fitted
        calibrated_here = data is None and split == "val"
    else:
        calibrated_here = bundle.calibrated_on == judged.digest
    same = data is None or image_set.source == options.source
    own = same and split == "train"
    among = are_among(judged.images, np.empty(0, np.uint64) if own else learnt_hashes(run))
    caution = copies_among(judged.images, among, f"these {len(judged.images)}", "the model")
    if own and data is not None:
        caution = f"{image_set.source} is what the model learnt from: its figures will be too good"
    elif data is None and altered(read_json(folder / "data.json"), judged.name, judged.digest):
        caution = (
            f"these are not the {split} images of the run, or in another order: were files changed or renamed, or "
            "decoded by another version of Pillow? Some may be among those that it learnt from"
        )
    if caution:
        log.warning("%s", caution)
    elif same and split in ON_OWN:  # who asks for these may know it; who reads the report may not
        caution = ON_OWN[split]
    elif calibrated_here:
        caution = ON_CALIBRATED
    cautions = [caution] if caution else []
    if left_out := len(asked) - len(judged.labels):
        cautions.append(f"{left_out} of {len(asked)} images could not be read, and are left out")
    if options.group is not None and judged.groups is None:
        cautions.append("no groups were found, so intervals take each image for itself")
    return replace(
        judged,
        caution="; ".join(cautions),
        learnt=own or float(among.mean()) > 0.5,
        calibrated_here=calibrated_here,
        data=image_set.name,
        own_labels=image_set.split(split).labels[judged.rows],
    )


def record_evaluation(judged: Judged) -> dict[str, Any]:
    """What `compare` needs besides figures and answers to put a model beside others: for `evaluation.json`."""
    config, preprocess = judged.bundle.model.config, judged.bundle.preprocess
    fitted = {"model.image_size": list(config.image_size), "model.channels": config.channels}
    fitted |= {f"data.{key}": getattr(preprocess, key) for key in ("fit", "crop_fraction", "white")}
    fitted |= {"start.weights": None}  # a run from scratch has the same pixels
    if preprocess.interpolation != "bicubic":
        fitted["interpolation"] = preprocess.interpolation
    return {
        "sha256": judged.bundle.digest(),
        "params": sum(weight.numel() for weight in judged.bundle.model.parameters()),
        "recipe": fitted,
        "data": {
            "name": judged.data,
            "hash": {judged.name: digest_of(judged.images, judged.own_labels)},
        },
        "caution": judged.caution,
    }


def learnt_hashes(run: Trained) -> np.ndarray:
    """`image_hashes` of the images that a run, what it started from and its teacher learnt from: uint64 (N,), as far
    as is recorded."""
    if (folder := find_record(run)) is None or not (folder / TRAIN_HASHES).is_file():
        return np.empty(0, np.uint64)
    return np.fromfile(folder / TRAIN_HASHES, np.uint64)


def as_known(bundle: Bundle, image_set: ImageSet, split: str) -> Split:
    """A split with its labels mapped to the model's by class name. Raises ValueError for a class the model lacks."""
    chosen = image_set.split(split)
    if image_set.class_names == bundle.class_names:
        return chosen
    names = [image_set.class_names[label] for label in chosen.labels]
    which = f"{image_set.source}: {split}" if len(image_set.splits) > 1 else image_set.source
    return Split(chosen.images, match_labels(names, bundle.class_names, which, "the model"))


def record_of(run: Trained) -> tuple[Path | None, DataOptions]:
    """The folder with the record of a run, and its data options; None and the defaults if there is no record."""
    folder = find_record(run)
    return folder, DataOptions() if folder is None else read_recipe(folder / "recipe.yaml").data


def own_data(run: Trained, *, fetch: bool = True) -> ImageSet:
    """The data a run was trained on, split as in training. fetch: as for `load`. Raises ValueError if it is unknown or
    has changed."""
    folder, options = record_of(run)
    if folder is not None and (options.source is None or not (folder / "data.json").is_file()):
        raise ValueError(
            f"{folder} does not say what it was trained on, as of data given in Python or a shared model: name DATA or "
            "image files"
        )
    if options.source is None:
        name = "the model" if isinstance(run, Bundle) else run
        raise ValueError(f"{name} does not say what it was trained on: name DATA or image files, or the run's folder")
    if place := gone(options.source):
        raise ValueError(
            f"{place}, the images of {run}, are not there: put them or a link there, or name DATA or image files"
        )
    data = load(options.source, skip_broken=options.skip_broken, fetch=fetch).divided(options)
    if differs(data, read_json(folder / "data.json")):
        raise ValueError(
            f"{options.source} has changed since {run} was trained on it, or is divided otherwise now, so its splits "
            "are others: name the DATA to judge it on"
        )
    return data
