"""The training loop; a step is: augment -> normalise -> model -> loss -> backward -> clip -> step -> average."""

import math
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.augment import Changes, augment, mix, plan
from vitreous.data.loaders import Batches
from vitreous.device import autocast, compiled, widest_float
from vitreous.metrics import NAMES, watched
from vitreous.prediction import split_logits
from vitreous.preprocess import Preprocess
from vitreous.recipe import Recipe
from vitreous.train.engine import Engine
from vitreous.train.optim import EMA, optimizer_step, rate_factor, set_rates
from vitreous.train.order import class_weights, epoch_rows, steps_per_epoch
from vitreous.train.teacher import Teacher, answering, distilled
from vitreous.weights.bundle import not_finite

CHECKPOINT_SECONDS = 60  # between checkpoints; more after a slow one
TOGETHER = 4096 * 32 * 32  # pixels of the images that a GPU augments together
SLOW_SAVE = 3  # seconds: after one that takes longer, the next waits as many times longer
AGAIN = "start again, into another --out, with lower rates (optim.learning_rate, optim.muon_learning_rate) or "
KEPT = ", or judge what was learnt until the last checkpoint by --finish (finish=True)"


@dataclass
class State:
    """The progress of a run; a checkpoint holds this, weights and their average, optimisers, float16's scale and
    random generators."""

    epoch: int = 0
    """Epochs completed."""
    step: int = 0
    """Steps done in the current epoch. `images` is the sum over these steps and all processes; so are `loss` and
    `correct`, of the images' losses and of the correct answers, when it is saved."""
    loss: float = 0.0
    correct: float = 0.0
    images: int = 0
    seen: int = 0
    """Images seen over the whole run."""
    step_seconds: float = 0.0
    """Time in training steps over the whole run."""
    total_seconds: float = 0.0
    """`head_seconds`, and the time of all epochs: training steps, validation, checkpoints and hooks."""
    head_seconds: float = 0.0
    """Time of fitting the head first, where that is done."""
    compile_seconds: float = 0.0
    """Part of `step_seconds`: the first step at each image size after each start, if the model was compiled in it."""
    val_seconds: float = 0.0
    """Time of the longest validation."""
    best_epoch: int = 0
    """The epoch whose weights are kept, counted from 1; 0: none yet."""
    best: tuple[float, float] = (-math.inf, 0.0)
    """The best epoch's validation figure by `best_by`, and its negative validation loss: higher is better."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One row per epoch: the columns of `metrics.csv`."""
    tracker_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Identifies a resumed run to its trackers."""


@dataclass
class Hooks:
    """What the loop calls; each does nothing unless given."""

    on_step: Callable[[State, Tensor], None] = lambda state, loss: None
    """After each step: the state and the loss of this process's share of the batch, still on the device."""
    report: Callable[[State, float, float], None] = lambda state, loss, top1: None
    """At the end of an epoch, before a save, and at most twice a second in between: the state, and the epoch's mean
    loss and top-1 so far."""
    on_epoch: Callable[[dict[str, float]], None] = lambda row: None
    """After each epoch: its row of `metrics.csv`."""
    keep: Callable[[nn.Module], None] = lambda model: None
    """Keep these weights, as they are now, as the run's model."""
    save: Callable[[], None] = lambda: None
    """Write a checkpoint and the weights last kept. Like `keep` and `on_epoch`, called by all processes after the same
    step."""
    stop_requested: Callable[[], bool] = lambda: False
    """Asked after each step; the loop saves and returns when true."""


def views(
    train: Batches, rows: Tensor, draws: Tensor, recipe: Recipe, epoch: int, first: int, fill: Tensor
) -> Iterator[tuple[Tensor, Tensor, Changes]]:
    """The batches of an epoch from batch `first` on: augmented images in 0..1, not mixed yet, labels, and changes.

    train: its batch size is this process's. rows, draws: of this process, from `epoch_rows`. fill: (C,), the mean
    colour.
    """
    config, size, B = recipe.augment, recipe.model.image_size, train.batch_size
    together = batches_together(train)
    begin = first // together  # as in an epoch that was not interrupted
    batches = train.in_batches_of(together * B).epoch(rows[begin * together * B :])
    plans = plan(draws, config, epoch, size, together * B, train.device, first=begin)
    for i, ((images, labels), changes) in enumerate(zip(batches, plans, strict=True), start=begin):
        images = augment(images.float().div_(255), changes, config, fill)
        for start in range(max(first - i * together, 0) * B, len(images), B):
            part = slice(start, start + B)
            yield images[part], labels[part], changes.left_to_mix(part)


def batches_together(train: Batches) -> int:
    """How many batches to augment at once: a GPU's operations on few pixels take less time than their calls."""
    if train.device.type != "cuda" or not train.resident:
        return 1
    return max(TOGETHER // (train.batch_size * math.prod(train.preprocess.image_size)), 1)


def shrunk(images: Tensor, recipe: Recipe, progress: float) -> Tensor:
    """Augmented images (B, C, H, W) at the size that they have at this share of the training (`augment.shrink`)."""
    shrink = recipe.augment.shrink
    if shrink == 1 or progress >= recipe.augment.shrink_until:
        return images
    sides = zip(images.shape[2:], recipe.model.patch_size, strict=True)
    size = [max(round(shrink * side / patch), 1) * patch for side, patch in sides]
    return F.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)


def train_loop(
    *,
    model: nn.Module,
    average: EMA | None,
    optimizers: list,
    scaler: torch.amp.GradScaler,
    train: Batches,
    val: Batches | None,
    recipe: Recipe,
    teacher: Teacher | None,
    preprocess: Preprocess,
    precision: str,
    engine: Engine,
    state: State,
    hooks: Hooks,
) -> bool:
    """Train from `state` to the end of the recipe. Returns False when interrupted, with everything saved.

    teacher: its answers to the same views are learnt beside the labels.

    Randomness is a function of (seed, epoch, image), except for dropout and stochastic depth, which use torch's
    generator. Raises FloatingPointError when the loss or the weights are no longer finite. Between two reports nothing
    waits for the device, so the host runs ahead of a GPU, but for the second step, in which Muon's is recorded, and in
    float16: gradients are scaled so that small ones are not lost, and each step waits to check them for overflow, and
    is skipped if there is any.

    Each batch is divided among the processes. They agree on every decision about how to continue, as each has its own
    clock and signals.
    """
    optim, B = recipe.optim, recipe.optim.batch_size
    steps, image_size = steps_per_epoch(len(train), B), recipe.model.image_size
    mine = slice(engine.rank, steps * B, engine.processes)  # of an epoch
    total, size = recipe.epochs * steps, min(B, len(train))  # steps in all, images per step
    weights = None
    if recipe.data.balance == "weights":
        weights = class_weights(train.labels, recipe.model.num_classes).to(engine.device)
    so_far = [state.loss, state.correct] if engine.main else [0.0, 0.0]
    totals = torch.tensor(so_far, dtype=widest_float(engine.device), device=engine.device)  # of this process
    fill = torch.tensor(preprocess.mean, device=engine.device)
    call, bare = compiled(model, recipe.compile, engine.device, total), engine.unwrap(model)
    ask = None if teacher is None else answering(teacher, recipe, engine.device, precision, total)
    warm: set[tuple[int, ...]] = set()  # image sizes already compiled, each in its first step
    last_save = last_report = time.monotonic()
    begun, saved = last_save - state.total_seconds, state.epoch  # epochs completed at the last checkpoint
    slow = 1.0  # for how many times `CHECKPOINT_SECONDS` the next one waits
    judged = bare if average is None else average.module

    while not stop_reason(state, recipe):
        model.train()
        started, spent, deadline = time.monotonic(), state.total_seconds, _deadline(state, recipe)
        order, draws = epoch_rows(train.labels, recipe, state.epoch)

        for images, labels, changes in views(train, order[mine], draws[mine], recipe, state.epoch, state.step, fill):
            begun_step = time.monotonic()
            done = state.epoch * steps + state.step
            aside = state.head_seconds + state.compile_seconds
            progress = max(done / total, min((spent - aside) / max(deadline - aside, 1e-9), 1))
            images, targets = mix(images, labels, recipe.model.num_classes, changes, recipe.augment, progress)
            answers = None if ask is None else ask(images)
            images = preprocess.normalise(shrunk(images, recipe, progress))
            side = tuple(images.shape[2:])
            bare.set_image_size(side)

            sums = forward_backward(
                model, call, images, targets, answers, size, weights, recipe, precision, scaler, engine
            )
            totals += sums
            set_rates(optimizers, rate_factor(optim, progress * total, total))
            if not optimizer_step(model, optimizers, scaler, optim.clip) and scaler.get_scale() < 1:  # halved each time
                where = f"step {state.step + 1} of epoch {state.epoch + 1}"
                said = f"the gradients overflow float16 at {where}, however they are scaled"
                raise _broken(said, saved, "precision=float32")
            if average is not None:
                average.update(done)

            state.step += 1
            state.images += size
            state.seen += size
            hooks.on_step(state, sums[0] / len(images))
            now = time.monotonic()
            stop, unsaved, unsaid, spent, took = engine.max(
                hooks.stop_requested(), now - last_save, now - last_report, now - begun, now - begun_step
            )
            if call is not model and side not in warm:
                state.compile_seconds += took
                warm.add(side)
            last = state.step == steps or spent >= deadline
            save = (stop or unsaved > CHECKPOINT_SECONDS * slow) and not last
            if save or last or unsaid > 0.5:  # reading the loss waits for the device to finish this step
                last_report, whole = now, engine.sum(totals)
                loss, top1 = (whole / state.images).tolist()
                _check_finite(loss, state, saved)
                hooks.report(state, loss, top1)
            if save:
                _add_time(state, started, begun)
                state.loss, state.correct = whole.tolist()
                slow = _save(judged, saved, hooks, engine)
                last_save = started = time.monotonic()
                saved = state.epoch
                if stop:
                    return False
            if last:
                break

        ended = _add_time(state, started, begun)
        row = {
            "epoch": state.epoch + 1,
            "train_loss": loss,
            "train_top1": top1,
            "learning_rate": optimizers[0].param_groups[0]["lr"],
        }
        bare.set_image_size(image_size)
        if val is not None:
            logits = shared_logits(judged, val, preprocess, precision, engine)
            row |= engine.from_main(partial(watched, logits, val.labels, "val"))
            _check_finite(row["val_loss"], state, saved)  # the last update may have broken the weights
            figure = -row["val_loss"] if recipe.best_by == "loss" else row[f"val_{recipe.best_by}"]
            if (figure, -row["val_loss"]) > state.best:
                state.best, state.best_epoch = (figure, -row["val_loss"]), state.epoch + 1
        now = time.monotonic()
        state.val_seconds, state.total_seconds = engine.max(max(state.val_seconds, now - ended), now - begun)
        row["images_per_second"] = state.seen / state.step_seconds
        row["seconds"] = state.total_seconds
        state.history.append(row)
        state.epoch, state.step, state.images = state.epoch + 1, 0, 0
        totals.zero_()
        state.loss = state.correct = 0.0
        if state.best_epoch == state.epoch:
            hooks.keep(judged)
        hooks.on_epoch(row)

        stop, unsaved = engine.max(hooks.stop_requested(), time.monotonic() - last_save)
        over = bool(stop_reason(state, recipe))
        if over and val is None:
            state.best_epoch = state.epoch
            hooks.keep(judged)
        if stop or over or unsaved > CHECKPOINT_SECONDS * slow:
            slow = _save(judged, saved, hooks, engine)
            last_save, saved = time.monotonic(), state.epoch
        if stop and not over:
            return False
    return True


def mean_loss(logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
    """Cross-entropy with each class's share of the targets scaled by its weight, as the mean over the images.

    Smoothing spreads an image's own weight evenly. torch's scales the smoothed part by the weight of each class, so
    that every image would favour a rare class; and its mean divides by the weights in the batch.
    """
    if weights is None:
        return F.cross_entropy(logits, targets, label_smoothing=smoothing)
    own = weights[targets] if targets.ndim == 1 else targets @ weights  # (B,)
    hard = F.cross_entropy(logits, targets, weights, reduction="sum")
    even = -(own * logits.log_softmax(dim=1).mean(dim=1)).sum()
    return ((1 - smoothing) * hard + smoothing * even) / len(logits)


def forward_backward(
    model: nn.Module,
    call: Callable[[Tensor], Tensor],
    images: Tensor,
    targets: Tensor,
    answers: Tensor | None,
    size: int,
    weights: Tensor | None,
    recipe: Recipe,
    precision: str,
    scaler: torch.amp.GradScaler,
    engine: Engine,
) -> Tensor:
    """Accumulate the gradients of this process's share of a batch, part by part, for the mean over the whole batch.

    call: the model, plain or compiled. scaler: scales the gradients. size: images in the batch over all processes.
    weights: (K,), of the classes. answers: a teacher's logits (B, K).
    Returns (2,): over these images, the sum of the loss and the number of correct answers.
    """
    count = recipe.optim.accumulate
    parts = list(zip(images.chunk(count), targets.chunk(count), strict=True))
    taught = [None] * len(parts) if answers is None else answers.chunk(count)
    kind = widest_float(images.device)
    sums = torch.zeros(2, dtype=kind, device=images.device)
    for i, ((part, target), answer) in enumerate(zip(parts, taught, strict=True)):
        with engine.gradients(model, last=i == len(parts) - 1):
            with autocast(images.device, precision):
                logits = call(part).float()  # (B, K)
            loss = mean_loss(logits, target, weights, recipe.optim.label_smoothing)
            if answer is not None:
                loss = distilled(loss, logits, answer, recipe.distill)
            engine.backward(scaler.scale(loss * (len(part) * engine.processes / size)))  # averaged over processes
        labels = target if target.ndim == 1 else target.argmax(dim=1)
        correct = (logits.detach().argmax(dim=1) == labels).sum()
        sums += torch.stack([loss.detach().to(kind) * len(part), correct.to(kind)])
    return sums


def shared_logits(model: nn.Module, val: Batches, preprocess: Preprocess, precision: str, engine: Engine) -> Tensor:
    """Logits (N, K) of a split in its own order, returned in all processes; each computes a share of the images."""
    engine.copy_buffers(model)
    N, P = len(val), engine.processes
    share = torch.arange(engine.rank, -(-N // P) * P, P) % N  # wraps around, so that shares are equal
    logits = engine.gather(split_logits(model, val, preprocess, precision, share))  # (P * n, K), process by process
    return logits.unflatten(0, (P, -1)).transpose(0, 1).flatten(0, 1)[:N]


def _check_finite(loss: float, state: State, saved: int) -> None:
    if not math.isfinite(loss):
        raise _broken(f"the loss is {loss} at step {state.step} of epoch {state.epoch + 1}", saved)


def _save(model: nn.Module, saved: int, hooks: Hooks, engine: Engine) -> float:
    """Save everything, and return how many times `CHECKPOINT_SECONDS` the next one has to wait.

    The last update is not in the loss yet: raises if it broke the weights.
    """
    begun = time.monotonic()
    if broken := not_finite(model.state_dict()):
        raise _broken(f"the last step broke the weights, of which '{broken}' is not finite", saved)
    hooks.save()
    (took,) = engine.max(time.monotonic() - begun)  # the main process writes
    return max(1.0, took / SLOW_SAVE)


def _broken(said: str, saved: int, instead: str = "optim.clip") -> FloatingPointError:
    """saved: epochs completed at the last checkpoint; if there are any, `--finish` can judge it."""
    return FloatingPointError(f"{said}: {AGAIN}{instead}{KEPT * (saved > 0)}")


def stop_reason(state: State, recipe: Recipe) -> str:
    """Why training is over, in words; "" while it is not."""
    fruitless = state.epoch - state.best_epoch
    if state.epoch == recipe.epochs:
        return "all epochs are done"
    if recipe.patience is not None and fruitless >= recipe.patience:
        return f"{fruitless} epochs without a better {NAMES[recipe.best_by]}"
    between = state.epoch > 0 and state.step == 0  # within a pass, the loop checks it; there is one step at least
    late = between and state.total_seconds >= _deadline(state, recipe)
    return f"the time limit of {recipe.time_limit:,g} s" if late else ""


def _deadline(state: State, recipe: Recipe) -> float:
    """Seconds after which training ends, so that one more validation stays within the limit."""
    return math.inf if recipe.time_limit is None else recipe.time_limit - state.val_seconds


def _add_time(state: State, started: float, begun: float) -> float:
    """Add the time since `started` to training, set the total to the time since `begun`, and return the time now."""
    now = time.monotonic()
    state.step_seconds += now - started
    state.total_seconds = now - begun
    return now
