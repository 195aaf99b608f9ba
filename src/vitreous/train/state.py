"""Where a run is: its progress, and the time that it has taken."""

import logging
import math
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from vitreous.metrics import NAMES
from vitreous.recipe import Recipe
from vitreous.train.engine import Engine

log = logging.getLogger("vitreous")

REPORT_SECONDS = 0.5  # between reports
CHECKPOINT_SECONDS = 60  # between checkpoints; more after a slow one
SLOW_SAVE = 3  # seconds: after one that takes longer, the next waits as many times longer


@dataclass
class State:
    """The progress of a run; a checkpoint holds this, weights and their average, optimisers, float16's scale and
    random generators."""

    epoch: int = 0
    """Epochs completed."""
    step: int = 0
    """Steps done in the current epoch."""
    images: int = 0
    """Images of these steps, in all processes."""
    loss: float = 0.0
    """The sum of their losses, at a checkpoint within the epoch."""
    correct: float = 0.0
    """How many of them were answered correctly, likewise."""
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

    @property
    def place(self) -> str:
        return f"step {self.step} of epoch {self.epoch + 1}"


def stop_reason(state: State, recipe: Recipe) -> str:
    """Why training is over, in words; "" while it is not."""
    fruitless = state.epoch - state.best_epoch
    if state.epoch == recipe.epochs:
        return "all epochs are done"
    if recipe.patience is not None and fruitless >= recipe.patience:
        return f"{fruitless} epochs without a better {NAMES[recipe.best_by]}"
    between = state.epoch > 0 and state.step == 0  # within a pass, the loop checks it; there is one step at least
    late = between and state.total_seconds >= deadline(state, recipe)
    return f"the time limit of {recipe.time_limit:,g} s" if late else ""


def deadline(state: State, recipe: Recipe) -> float:
    """Seconds after which training ends, so that one more validation stays within the limit."""
    return math.inf if recipe.time_limit is None else recipe.time_limit - state.val_seconds


class Clock:
    """The time of a run, kept in its `State`: how far it has come, and when to report, to save and to stop.

    Each process has its own clock and signals, so they agree on what these say (`Engine.max`).
    """

    def __init__(self, state: State, recipe: Recipe, engine: Engine):
        self.state, self.recipe, self.engine = state, recipe, engine
        self.last_save = self.last_report = self.training_since = self.step_begun = time.monotonic()
        self.begun = self.last_save - state.total_seconds
        self.spent = state.total_seconds  # at the last tick
        self.slow = 1.0  # for how many times `CHECKPOINT_SECONDS` the next checkpoint waits

    def start_epoch(self) -> None:
        self.training_since = time.monotonic()

    def start_step(self) -> None:
        self.step_begun = time.monotonic()

    def progress(self, share: float) -> float:
        """How much of the training is done, 0..1: this share of its steps, or that of its time if it is larger.

        Fitting the head first and compiling use up time, but not the schedule.
        """
        aside = self.state.head_seconds + self.state.compile_seconds
        return max(share, min((self.spent - aside) / max(deadline(self.state, self.recipe) - aside, 1e-9), 1))

    def warmed(self, compiled: bool) -> None:
        """This step was the first at its image size. compiled: whether this process compiled the model in it."""
        (took,) = self.engine.max(compiled * (time.monotonic() - self.step_begun))
        self.state.compile_seconds += took
        spent, limit = self.state.compile_seconds, self.recipe.time_limit
        if took and limit is not None and spent > limit / 3:
            log.warning("compiling took %.0f of the %g s of time_limit: too few may be left to train", spent, limit)

    def tick(self, stop: bool) -> tuple[bool, bool, bool]:
        """Whether any process is to stop, and whether it is time to save and to report."""
        now = time.monotonic()
        stop, unsaved, unsaid, self.spent = self.engine.max(
            stop, now - self.last_save, now - self.last_report, now - self.begun
        )
        if report := unsaid > REPORT_SECONDS:
            self.last_report = now
        return bool(stop), unsaved > CHECKPOINT_SECONDS * self.slow, report

    @property
    def late(self) -> bool:
        """Whether the time was over at the last tick."""
        return self.spent >= deadline(self.state, self.recipe)

    def trained(self) -> None:
        """Count the time since the epoch began, or since its last checkpoint, as that of training steps."""
        now = time.monotonic()
        self.state.step_seconds += now - self.training_since
        self.state.total_seconds = now - self.begun
        self.training_since = now

    def validated(self) -> None:
        """Count the time since `trained` as that of a validation."""
        now, state = time.monotonic(), self.state
        longest = max(state.val_seconds, now - self.training_since)
        state.val_seconds, state.total_seconds = self.engine.max(longest, now - self.begun)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around a checkpoint, which the main process writes: it is no training, and after a slow one the next waits
        longer."""
        begun = time.monotonic()
        yield
        (took,) = self.engine.max(time.monotonic() - begun)
        self.slow = max(1.0, took / SLOW_SAVE)
        self.last_save = self.training_since = time.monotonic()
