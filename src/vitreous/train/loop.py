"""The training loop; a step is: augment -> normalise -> model -> loss -> backward -> clip -> step -> average."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.augment import Changes, augment, mix, plan
from vitreous.data.loaders import Batches
from vitreous.device import autocast, compiled, widest_float
from vitreous.metrics import watched
from vitreous.prediction import split_logits
from vitreous.preprocess import Preprocess
from vitreous.recipe import Recipe
from vitreous.train.engine import Engine
from vitreous.train.optim import EMA, optimizer_step, rate_factor, set_rates
from vitreous.train.order import class_weights, epoch_rows, steps_per_epoch
from vitreous.train.state import Clock, State, stop_reason
from vitreous.train.teacher import Teacher, answering, distilled
from vitreous.weights.bundle import not_finite

TOGETHER = 4096 * 32 * 32  # pixels of the images that a GPU augments together


class Diverged(FloatingPointError):
    """The gradients, the weights or the loss are no longer finite."""


@dataclass
class Parts:
    """What a run trains, and with what."""

    recipe: Recipe
    engine: Engine
    precision: str
    preprocess: Preprocess
    model: nn.Module
    """As `Engine.prepare` has wrapped it."""
    average: EMA | None
    """Of the model's weights; where there is one, it is what is judged and kept."""
    optimizers: list
    scaler: torch.amp.GradScaler
    """Scales the gradients in float16."""
    train: Batches
    val: Batches | None
    teacher: Teacher | None
    """Its answers to the same views are learnt beside the labels."""
    state: State = field(default_factory=State)

    @property
    def eval_model(self) -> nn.Module:
        """The model that is evaluated and kept: the moving average, if there is one."""
        return self.engine.unwrap(self.model) if self.average is None else self.average.module


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


def train_loop(parts: Parts, hooks: Hooks) -> bool:
    """Train from `parts.state` to the end of the recipe. Returns False when interrupted, with everything saved.

    Randomness is a function of (seed, epoch, image), except for dropout and stochastic depth, which use torch's
    generator. Raises `Diverged` when the gradients, the weights or the loss are no longer finite. Between two reports
    nothing waits for the device, so the host runs ahead of a GPU, with two exceptions: the second step, which records
    Muon's update, and float16, in which gradients are scaled so that small ones are not lost, and each step waits to
    check them for overflow and is skipped if there is any.

    Each batch is divided among the processes, which agree on every decision about how to continue.
    """
    recipe, engine, state, model, train = parts.recipe, parts.engine, parts.state, parts.model, parts.train
    optimizers, device, B, K = parts.optimizers, engine.device, recipe.optim.batch_size, recipe.model.num_classes
    steps = steps_per_epoch(len(train), B)
    total = recipe.epochs * steps
    size = min(B, len(train))  # images in a step
    mine = slice(engine.rank, steps * B, engine.processes)  # of an epoch's images
    bare = engine.unwrap(model)
    fill = torch.tensor(parts.preprocess.mean, device=device)
    call = compiled(model, recipe.compile, device, total)
    ask = None if parts.teacher is None else answering(parts.teacher, recipe, device, parts.precision, total)
    weights = class_weights(train.labels, K).to(device) if recipe.data.balance == "weights" else None
    so_far = [state.loss, state.correct] if engine.main else [0.0, 0.0]
    totals = torch.tensor(so_far, dtype=widest_float(device), device=device)  # of this process
    (compiles,) = engine.max(call is not model)  # of any process
    warm: set[tuple[int, ...]] = set()  # image sizes seen before: the model is compiled in the first step of each
    clock = Clock(state, recipe, engine)

    while not stop_reason(state, recipe):
        model.train()
        clock.start_epoch()
        order, draws = epoch_rows(train.labels, recipe, state.epoch)

        for images, labels, changes in views(train, order[mine], draws[mine], recipe, state.epoch, state.step, fill):
            clock.start_step()
            done = state.epoch * steps + state.step
            progress = clock.progress(done / total)
            images, targets = mix(images, labels, K, changes, recipe.augment, progress)
            answers = None if ask is None else ask(images)
            if done or not compiles:  # the first step compiles the full size, before the schedule is fitted to the time
                images = shrunk(images, recipe, progress)
            images = parts.preprocess.normalise(images)
            side = tuple(images.shape[2:])
            bare.set_image_size(side)

            sums = forward_backward(parts, call, images, targets, answers, weights, size)
            set_rates(optimizers, rate_factor(recipe.optim, progress * total, total))
            stepped = optimizer_step(model, optimizers, parts.scaler, recipe.optim.clip)
            if parts.average is not None:
                parts.average.update(done)

            totals += sums
            state.step, state.images, state.seen = state.step + 1, state.images + size, state.seen + size
            if not stepped and parts.scaler.get_scale() < 1:  # halved each time
                raise Diverged(f"the gradients overflow float16 at {state.place}, however they are scaled")
            hooks.on_step(state, sums[0] / len(images))
            if side not in warm:  # the same in all processes, of which some may not compile
                clock.warmed(call is not model)
                warm.add(side)
            stop, save, report = clock.tick(hooks.stop_requested())
            last = state.step == steps or clock.late
            save = (stop or save) and not last
            if save or last or report:  # reading the loss waits for the device to finish this step
                whole = engine.sum(totals)
                loss, top1 = (whole / state.images).tolist()
                _check_finite(loss, state)
                hooks.report(state, loss, top1)
            if save:
                clock.trained()
                state.loss, state.correct = whole.tolist()
                _save(parts, hooks, clock)
                if stop:
                    return False
            if last:
                break

        clock.trained()
        bare.set_image_size(recipe.model.image_size)
        row = {
            "epoch": state.epoch + 1,
            "train_loss": loss,
            "train_top1": top1,
            "learning_rate": optimizers[0].param_groups[0]["lr"],
        }
        if parts.val is not None:
            row |= validate(parts)
        clock.validated()
        row["images_per_second"] = state.seen / state.step_seconds
        row["seconds"] = state.total_seconds
        state.history.append(row)
        state.epoch, state.step, state.images, state.loss, state.correct = state.epoch + 1, 0, 0, 0.0, 0.0
        totals.zero_()
        over = bool(stop_reason(state, recipe))
        if over and parts.val is None:
            state.best_epoch = state.epoch
        if state.best_epoch == state.epoch:
            hooks.keep(parts.eval_model)
        hooks.on_epoch(row)
        stop, save, _ = clock.tick(hooks.stop_requested())
        if stop or over or save:
            _save(parts, hooks, clock)
        if stop and not over:
            return False
    return True


def forward_backward(
    parts: Parts,
    call: Callable[[Tensor], Tensor],
    images: Tensor,
    targets: Tensor,
    answers: Tensor | None,
    weights: Tensor | None,
    size: int,
) -> Tensor:
    """Accumulate the gradients of this process's share of a batch, piece by piece, for the mean over the whole batch.

    call: the model, plain or compiled. answers: a teacher's logits (B, K). weights: (K,), of the classes. size: images
    in the batch over all processes.
    Returns (2,): over these images, the sum of the loss and the number of correct answers.
    """
    recipe, engine, count = parts.recipe, parts.engine, parts.recipe.optim.accumulate
    pieces = images.chunk(count)
    taught = [None] * len(pieces) if answers is None else answers.chunk(count)
    kind = widest_float(images.device)
    sums = torch.zeros(2, dtype=kind, device=images.device)
    for i, (piece, target, answer) in enumerate(zip(pieces, targets.chunk(count), taught, strict=True), start=1):
        with engine.gradients(parts.model, last=i == len(pieces)):
            with autocast(images.device, parts.precision):
                logits = call(piece).float()  # (B, K)
            loss = mean_loss(logits, target, weights, recipe.optim.label_smoothing)
            if answer is not None:
                loss = distilled(loss, logits, answer, image_weights(target, weights), recipe.distill)
            share = len(piece) * engine.processes / size  # the processes' gradients are averaged
            parts.scaler.scale(loss * share).backward()
        labels = target if target.ndim == 1 else target.argmax(dim=1)
        correct = (logits.detach().argmax(dim=1) == labels).sum()
        sums += torch.stack([loss.detach().to(kind) * len(piece), correct.to(kind)])
    return sums


def validate(parts: Parts) -> dict[str, float]:
    """Judge the model on the validation images, and note the best epoch: -> these columns of `metrics.csv`."""
    state, best_by = parts.state, parts.recipe.best_by
    logits = shared_logits(parts)
    row = parts.engine.from_main(partial(watched, logits, parts.val.labels, "val"))
    _check_finite(row["val_loss"], state)  # the last update may have broken the weights
    found = (-row["val_loss"] if best_by == "loss" else row[f"val_{best_by}"], -row["val_loss"])
    if found > state.best:
        state.best, state.best_epoch = found, state.epoch + 1
    return row


def mean_loss(logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
    """Cross-entropy with each class's share of the targets scaled by its weight, as the mean over the images.

    Smoothing spreads an image's own weight evenly. torch's scales the smoothed part by the weight of each class, so
    that every image would favour a rare class; and its mean divides by the weights in the batch.
    """
    own = image_weights(targets, weights)
    if own is None:
        return F.cross_entropy(logits, targets, label_smoothing=smoothing)
    hard = F.cross_entropy(logits, targets, weights, reduction="sum")
    even = -(own * logits.log_softmax(dim=1).mean(dim=1)).sum()
    return ((1 - smoothing) * hard + smoothing * even) / len(logits)


def image_weights(targets: Tensor, weights: Tensor | None) -> Tensor | None:
    """The weights of the classes (K,) as those of images, (B,), by their labels (B,) or mixed targets (B, K)."""
    if weights is None:
        return None
    return weights[targets] if targets.ndim == 1 else targets @ weights


def shared_logits(parts: Parts) -> Tensor:
    """Logits (N, K) of the validation images in their own order, returned in all processes; each computes a share."""
    model, val, engine = parts.eval_model, parts.val, parts.engine
    engine.copy_buffers(model)
    N, P = len(val), engine.processes
    share = torch.arange(engine.rank, -(-N // P) * P, P) % N  # wraps around, so that shares are equal
    logits = engine.gather(split_logits(model, val, parts.preprocess, parts.precision, share))  # (P * n, K), by process
    return logits.unflatten(0, (P, -1)).transpose(0, 1).flatten(0, 1)[:N]


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


def _check_finite(loss: float, state: State) -> None:
    if not math.isfinite(loss):
        raise Diverged(f"the loss is {loss} at {state.place}")


def _save(parts: Parts, hooks: Hooks, clock: Clock) -> None:
    """Save everything, unless the last step, which is not in the loss yet, has broken the weights."""
    if broken := not_finite(parts.eval_model.state_dict()):
        raise Diverged(f"the last step broke the weights, of which '{broken}' is not finite")
    with clock.saving():
        hooks.save()
