"""Shared by the reproductions: an experiment and its fixes, how it is trained, and what is kept of a run."""

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitreous.augment import Augment, augment, draw, plan
from vitreous.data.images import ImageSet, Split
from vitreous.data.loaders import Batches
from vitreous.data.sources import load
from vitreous.data.stores import ArrayImages, even_rows
from vitreous.device import pick_device, widest_float
from vitreous.metrics import classification_metrics, watched
from vitreous.model.attention import Attention
from vitreous.prediction import split_logits
from vitreous.preprocess import Preprocess
from vitreous.recipe import OptimOptions, Recipe
from vitreous.train.optim import rate_factor, set_rates
from vitreous.train.order import epoch_order
from vitreous.train.progress import Display
from vitreous.train.state import State

CONSTANT = OptimOptions(schedule="constant", warmup=0.0)
COSINE = OptimOptions(schedule="cosine", warmup=0.05, final_rate=0.01)
NOTHING: frozenset[str] = frozenset()

Counted = Callable[[Tensor, Tensor], dict[str, float]]


@dataclass
class Setup:
    """What an experiment trains and how, some of its mistakes being fixed. Images are pixels / 255 in float32."""

    model: nn.Module
    image_size: int
    """Pixels a side; images of another size are squashed, bilinear."""
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    schedule: OptimOptions = CONSTANT
    """Whose `schedule`, `warmup` and `final_rate` say how the rate goes."""
    schedule_images: int | None = None
    """Images that a pass is taken to have when the schedule's steps are counted; None: those it has."""
    augment: Augment = field(default_factory=Augment)
    shuffle: bool = True
    """Each pass has an order of its own, not always the first one's."""
    normalise: bool = False
    """By mean and standard deviation of the training images."""
    validation: float = 0.0
    """Share of the training images held out."""
    watch: Literal["val", "test"] | None = None
    """What is evaluated after each epoch."""
    keep_best: bool = False
    """Keep the weights of the best epoch by the watched metric, not the last."""
    rises: int | None = None
    """Stop when the watched loss has risen so many times in a row."""
    sittings: int = 1
    """Times the training begins, each time but the first with the kept weights and a fresh optimiser."""


@dataclass(frozen=True)
class Experiment:
    """One of the originals: what it trained on, what it reported, and each of its mistakes with what fixes it."""

    name: str
    source: str
    """DATA as `vitreous train` takes it, or a folder of $VITREOUS_DATA."""
    parameters: int
    epochs: int
    batch_size: int
    reported: dict[str, float | str]
    """The author's figures; accuracies as shares of 1."""
    fixes: dict[str, str]
    """What `--fix NAME` puts in the place of which mistake."""
    make: Callable[[frozenset[str]], Setup]
    """The setup with these mistakes fixed."""
    counted: Counted | None = None
    """Outputs (N, K) and labels (N,) -> figures as the author counted them, where that is not over the whole split."""

    def named(self, fixes: Iterable[str]) -> frozenset[str]:
        """The fixes that are meant; `all` means all. Raises ValueError for an unknown one."""
        fixes = frozenset(fixes)
        if unknown := sorted(fixes - {*self.fixes, "all"}):
            raise ValueError(f"{self.name} has no fix '{unknown[0]}': use all, {', '.join(self.fixes)}")
        return frozenset(self.fixes) if "all" in fixes else fixes


def run(
    experiment: Experiment,
    fixed: frozenset[str] = NOTHING,
    *,
    seed: int = 0,
    epochs: int | None = None,
    images: int | None = None,
    data: str | None = None,
    device: str = "auto",
    console: Console | None = None,
) -> dict[str, Any]:
    """Train an experiment with some mistakes fixed and judge it on the test images. Returns what is kept of it.

    epochs: other than the author's. images: only so many of each split, for a quick try. data: in another place.
    """
    epochs, where = epochs or experiment.epochs, pick_device(device)
    torch.manual_seed(seed)
    setup = experiment.make(fixed)
    model = setup.model
    cost = multiply_adds(model, setup.image_size)
    image_set = load(data or experiment.source).with_validation(setup.validation)
    preprocess = plain(image_set, setup.image_size)
    splits = {
        name: Batches(
            split if images is None else few(split, images, preprocess),
            preprocess,
            batch_size=experiment.batch_size,
            device=where,
        )
        for name, split in image_set.splits.items()
    }
    if setup.normalise:
        preprocess = splits["train"].measured()
    model.to(where)

    state, kept, best = State(), None, -1.0
    steps = -(-len(splits["train"]) // experiment.batch_size)
    begins = {epochs * sitting // setup.sittings for sitting in range(setup.sittings)}
    over = False
    with Display(console or Console(), Recipe(epochs=epochs), steps, where, state) as display:
        while not over:
            if state.epoch in begins:
                if kept is not None:
                    model.load_state_dict(kept)
                optimizer, best = setup.optimizer(model), -1.0
            row = train_epoch(setup, optimizer, splits["train"], preprocess, seed, epochs, state, display)
            if setup.watch:
                labels = splits[setup.watch].labels
                outputs = split_logits(model, splits[setup.watch], preprocess, "float32")
                row |= watched(outputs, labels, "val")
                if setup.keep_best and row["val_top1"] > best:
                    best, state.best_epoch = row["val_top1"], state.epoch + 1
                    kept = copy.deepcopy(model.state_dict())
            state.history.append(row)
            state.epoch, state.step, state.images = state.epoch + 1, 0, 0
            over = state.epoch == epochs or _rose(state.history, setup.rises)
            display.epoch(row, best=state.best_epoch == state.epoch, last=over)
    if kept is not None:
        model.load_state_dict(kept)

    labels = splits["test"].labels
    outputs = split_logits(model, splits["test"], preprocess, "float32")
    return {
        "experiment": experiment.name,
        "fixed": sorted(fixed),
        "command": command(experiment, fixed, seed, epochs, images),
        "seed": seed,
        "epochs": state.epoch,
        "kept_epoch": state.best_epoch or state.epoch,
        "params": sum(weight.numel() for weight in model.parameters()),
        "multiply_adds": cost,
        "train_images": len(splits["train"]),
        "train_seconds": state.step_seconds,
        "images_per_second": state.seen / state.step_seconds,
        "test": classification_metrics(outputs, labels),
        "as_counted": experiment.counted(outputs, labels) if experiment.counted else None,
        "history": state.history,
        "machine": hardware(where),
    }


def train_epoch(
    setup: Setup,
    optimizer: torch.optim.Optimizer,
    train: Batches,
    preprocess: Preprocess,
    seed: int,
    epochs: int,
    state: State,
    display: Display,
) -> dict[str, float]:
    """One pass over all images, the last batch as large as what is left. Returns its row of figures."""
    model, B = setup.model.train(), train.batch_size
    steps = -(-len(train) // B)
    scheduled = epochs * (steps if setup.schedule_images is None else setup.schedule_images // B)
    order = epoch_order(len(train), seed, state.epoch if setup.shuffle else 0)
    draws = draw(setup.augment, len(train), seed, state.epoch)[order]
    plans = plan(draws, setup.augment, state.epoch, preprocess.image_size, B, train.device)
    black = torch.zeros(preprocess.channels, device=train.device)
    wide = widest_float(train.device)
    totals = torch.zeros(2, dtype=wide, device=train.device)  # loss and hits, summed over images
    started = reported = time.monotonic()
    for group in optimizer.param_groups:
        group.setdefault("peak", group["lr"])

    for (pixels, labels), changes in zip(train.epoch(order), plans, strict=True):
        images = preprocess.normalise(augment(pixels.float() / 255, changes, setup.augment, black))
        outputs = model(images)
        loss = F.cross_entropy(outputs, labels)
        loss.backward()
        set_rates([optimizer], rate_factor(setup.schedule, state.epoch * steps + state.step, scheduled))
        optimizer.step()
        optimizer.zero_grad()

        hits = (outputs.argmax(dim=1) == labels).sum()
        totals += torch.stack([loss.detach().to(wide) * len(labels), hits.to(wide)])
        state.step, state.images, state.seen = state.step + 1, state.images + len(labels), state.seen + len(labels)
        if state.step == steps or time.monotonic() - reported > 0.5:
            loss, top1 = (totals / state.images).tolist()
            if not np.isfinite(loss):
                raise FloatingPointError(f"the loss is {loss} at step {state.step} of epoch {state.epoch + 1}")
            display.step(state, loss, top1)
            reported = time.monotonic()
    state.step_seconds += time.monotonic() - started
    return {
        "epoch": state.epoch + 1,
        "train_loss": loss,
        "train_top1": top1,
        "images_per_second": state.seen / state.step_seconds,
        "seconds": state.step_seconds,
    }


def command(experiment: Experiment, fixed: frozenset[str], seed: int, epochs: int, images: int | None = None) -> str:
    """The command that reproduces the run."""
    words = ["python -m reproductions", experiment.name]
    if fixed:
        words += ["--fix", *(["all"] if fixed == frozenset(experiment.fixes) else sorted(fixed))]
    if epochs != experiment.epochs:
        words += ["--epochs", str(epochs)]
    if images is not None:
        words += ["--images", str(images)]
    return " ".join([*words, "--seed", str(seed)])


def hardware(device: torch.device) -> dict[str, Any]:
    """What a run was trained on."""
    return {
        "processor": torch.cpu.get_capabilities().get("cpu_name", "unknown"),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__,
    }


def plain(image_set: ImageSet, side: int) -> Preprocess:
    """Pixels / 255 of squashed images, and nothing else."""
    channels = image_set.train.images.channels
    return Preprocess(
        image_size=side, mean=(0.0,) * channels, std=(1.0,) * channels, interpolation="bilinear", fit="squash"
    )


def few(split: Split, count: int, preprocess: Preprocess) -> Split:
    """An even sample of a split, only whose images are decoded."""
    rows = even_rows(len(split), count)
    return Split(ArrayImages(split.images.read(rows, preprocess)), split.labels[rows])


def multiply_adds(model: nn.Module, side: int) -> int:
    """Of one image's forward pass, in matrix products and convolutions."""
    channels = model.config.channels
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model.eval()(torch.zeros(1, channels, side, side))
    return counter.get_total_flops() // 2


def start_as_torch_does(attention: Attention) -> None:
    """Start as `nn.MultiheadAttention` does: q, k and v Xavier uniform over their one matrix, all biases 0."""
    nn.init.xavier_uniform_(attention.qkv.weight)
    nn.init.zeros_(attention.qkv.bias)
    nn.init.zeros_(attention.proj.bias)


def _rose(history: list[dict[str, float]], times: int | None) -> bool:
    """Whether the watched loss has risen in each of the last `times` passes."""
    if times is None or len(history) <= times:
        return False
    losses = [row["val_loss"] for row in history[-times - 1 :]]
    return all(after > before for before, after in pairwise(losses))
