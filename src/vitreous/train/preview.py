"""Before training: what a run is told to be, its first augmented batch, and how long it would take."""

import logging
import math
import time

import numpy as np
import torch
from torch import Tensor

from vitreous.augment import mix
from vitreous.data.check import are_among, check, copies_among
from vitreous.device import NO_MPS
from vitreous.messages import duration, shorten
from vitreous.recipe import Recipe, effective, written
from vitreous.train.folder import FIRST_BATCH, optional
from vitreous.train.job import Job
from vitreous.train.loop import Hooks, shrunk, views
from vitreous.train.order import epoch_rows
from vitreous.train.progress import say
from vitreous.train.state import State

log = logging.getLogger("vitreous")

FIRST = 32  # images of the first batch that are shown


def describe(job: Job, seen: dict[str, str], new: bool) -> None:
    """Print a summary of data and model, and draw the first batch as the model will see it.

    seen: findings about images that were learnt from before, by the weights that did. new: whether the run begins here;
    then these and those about the data also go to `train.log`.
    """
    for line in job.start.lines if job.start else ():
        say(job.console, line)
    if job.start and job.preprocess.channels < job.data.train.images.channels:
        say(job.console, "these weights read gray images: colours are not seen")
    if job.teacher is not None:
        share, name = job.recipe.distill.share, job.recipe.distill.teacher
        say(job.console, f"{share:.0%} of the loss is by what {name} answers to the same augmented images")
    val = len(job.val_batches) if job.val_batches else 0
    names, test, channels = job.data.class_names, job.data.test, job.data.train.images.channels
    unusual = "" if channels in (1, 3) else f" of {channels} channels"
    say(
        job.console,
        f"{job.data.name}: {len(job.train_batches):,} training images{unusual}, {val:,} for validation, "
        f"{len(names)} classes ({shorten(names, 10)}){f'; {len(test):,} test images' if test else ''}; "
        f"{job.parameters:,} parameters; {job.engine.device.type}"
        f"{f' x {job.engine.processes}' if job.engine.processes > 1 else ''}, precision {job.precision}",
    )
    if not job.train_batches.resident:
        batches, workers = job.train_batches, job.recipe.data.workers
        size = len(batches) * math.prod(batches.preprocess.shape) / 2**30
        say(
            job.console,
            f"{size:,.3g} GiB of training images are streamed (data.workers={workers}): "
            f"data.memory_budget={math.ceil(size)} keeps them on the device, if it has room",
        )
    probe, options = job.recipe.start.probe, job.recipe.data
    findings = check(
        job.data,
        job.plain_batches,
        job.val_batches,
        options.group,
        best_by=None if probe else job.recipe.best_by,
        white=job.preprocess.white,
        balance=options.balance,
    )
    findings = [*seen.values(), *findings]
    if job.teacher is not None and job.data.train.images.channels == 1:
        findings.append(_other_white(job))
    if job.engine.device.type == "mps":
        findings.append(NO_MPS)
    for name, learnt in job.learnt_before().items() if job.val_batches else ():
        if name not in seen:
            images = job.val_batches.images
            findings.append(copies_among(images, are_among(images, learnt), f"{val} validation", name))
    for finding in filter(None, findings):
        if new:
            log.warning(finding)
        else:
            say(job.console, f"warning: {finding}")
    if new and (limit := job.recipe.time_limit) is not None:
        longer = f"into which the schedule is fitted if all {job.recipe.epochs} epochs take longer"
        say(job.console, f"at most {limit:,g} s, {longer} (time_limit=null: no limit)")
    if job.pictures:
        _draw_first_batch(job)


def _other_white(job: Job) -> str:
    """A line if the teacher learnt with another `data.white`, which only files of more than 8 bits show; else ""."""
    theirs, ours = (written(preprocess.white) for preprocess in (job.teacher.preprocess, job.preprocess))
    if theirs == ours:
        return ""
    return (
        f"{job.recipe.distill.teacher} learnt with data.white={theirs}, and this run has {ours}: to the teacher images "
        f"of more than 8 bits are too dark or too bright; for such set data.white={theirs}"
    )


def _draw_first_batch(job: Job) -> None:
    images, targets = first_batch(job)
    with optional(job.folder / FIRST_BATCH) as file:
        from vitreous.plots import image_grid
        from vitreous.report.pictures import target_text

        names = [target_text(target, job.data.class_names).replace(" + ", "\n+ ") for target in targets.cpu()]
        image_grid(images.cpu().numpy(), names, file)


def first_batch(job: Job) -> tuple[Tensor, Tensor]:
    """The first images of the first epoch, augmented: up to `FIRST`, (B, C, H, W) in 0..1, and their targets."""
    order, draws = epoch_rows(job.train_batches.labels, job.recipe, 0)
    first = slice(0, job.recipe.optim.batch_size, job.engine.processes)  # images are mixed within a batch
    fill = torch.tensor(job.preprocess.mean, device=job.engine.device)
    images, labels, changes = next(views(job.train_batches, order[first], draws[first], job.recipe, 0, 0, fill))
    images, targets = mix(images, labels, job.recipe.model.num_classes, changes, job.recipe.augment, 0.0)
    return shrunk(images[:FIRST], job.recipe, 0.0), targets[:FIRST]


def estimate(job: Job) -> None:
    """Print what the recipe sets, and how long training would take, from a few real steps."""
    times = [time.monotonic()]
    if job.recipe.start.probe:
        job.features(job.plain_batches, job.recipe.optim.batch_size)
        times.append(time.monotonic())
    else:
        whole = job.recipe.with_options("augment", shrink=1.0)  # early images may be smaller

        def done(_: State, loss: Tensor) -> None:
            loss.item()  # waits for the GPU, which the loop does not
            times.append(time.monotonic())

        job.loop(Hooks(on_step=done, stop_requested=lambda: len(times) > 8), whole)
    first, *others = np.diff(times)  # the first one warms up
    typical = np.median if job.steps > 8 else np.mean  # between the steps of short epochs there are validations
    step = float(typical(others or first))
    say(job.console, "settings other than their defaults, which `vitreous settings` lists:")
    for line in _changes(job.recipe):
        say(job.console, f"  {line}")
    epochs, limit = job.recipe.epochs, job.recipe.time_limit
    seconds = step * job.steps * epochs
    if limit is not None and limit < seconds:
        epochs, seconds = float(f"{limit / (step * job.steps):.3g}"), limit
    shown = f"; first augmented batch: {job.folder / FIRST_BATCH}" if job.pictures else ""
    counts = {"epoch": epochs, "step": job.steps}
    epochs, steps = (f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())
    after = ", after the head is fitted" if job.recipe.start.probe_first else ""
    say(job.console, f"about {duration(seconds)} for {epochs} of {steps}{after}{shown}")


def _changes(recipe: Recipe) -> list[str]:
    """The `effective` settings as key=value, a line for each section."""
    fields = effective(recipe)
    sections = {f"{name}.": value for name, value in fields.items() if isinstance(value, dict)}
    own = {name: value for name, value in fields.items() if not isinstance(value, dict)}
    return [
        " ".join(f"{prefix}{key}={written(value)}" for key, value in values.items())
        for prefix, values in {"": own, **sections}.items()
        if values
    ]
