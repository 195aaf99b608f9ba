"""What a run shows while it trains: a live bar on a terminal, plain lines elsewhere; and its warnings."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from vitreous.messages import duration
from vitreous.metrics import NAMES
from vitreous.recipe import Recipe
from vitreous.train.engine import is_main
from vitreous.train.folder import LOG
from vitreous.train.state import State

log = logging.getLogger("vitreous")

DECODING_SECONDS = 5  # between two lines


def say(console: Console, text: str | Table) -> None:
    """Print a line as it is, without wrapping, or a table. A closed pipe or terminal does not end the run."""
    try:
        console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=isinstance(text, str))
    except OSError:
        pass
    except SystemExit as error:
        if error.code != 1:  # a signal's; with 1 rich exits on a closed pipe, and prints nothing from then on
            raise


def decoding(console: Console) -> Callable[[int, int], None]:
    """A progress callback for `decode`: prints a line every few seconds, and none if decoding is faster than that."""
    said = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said > DECODING_SECONDS and done < total:
            said = time.monotonic()
            say(console, f"decoded {done:,} of {total:,} images")

    return report


@contextmanager
def show_log(folder: Path, console: Console, earlier: Sequence[str] = ()) -> Iterator[None]:
    """While inside, print what the main process logs, above a live bar, and also write it to `train.log`, which is
    removed again if no run began. earlier: warnings given before, which are only written."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = not (folder / LOG).exists()
    screen = logging.Handler()
    screen.emit = lambda record: say(console, f"{record.levelname.lower()}: {record.getMessage()}")
    file = logging.FileHandler(folder / LOG, delay=True, encoding="utf-8", errors="backslashreplace")
    file.handleError = lambda record: None  # a full disk ends the run elsewhere, in one line
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(screen)  # the console is quiet in other processes
    if is_main():
        log.addHandler(file)
        for warning in earlier:
            file.handle(log.makeRecord(log.name, logging.WARNING, "", 0, warning, (), None))
    try:
        yield
    finally:
        log.removeHandler(screen)
        log.removeHandler(file)
        with suppress(OSError):  # on a full disk
            file.close()
        with suppress(OSError):
            if fresh and is_main() and not (folder / "recipe.yaml").exists():
                (folder / LOG).unlink(missing_ok=True)
            folder.rmdir()  # where a start failed and left nothing


class Display:
    """Shows epoch, step, images/s, loss, accuracies, memory in use and time left.

    steps: in an epoch. state: where the run begins or goes on.
    """

    def __init__(self, console: Console, recipe: Recipe, steps: int, device: torch.device, state: State):
        self.console, self.steps, self.device = console, steps, device
        self.epochs, self.best_by, self.limit = recipe.epochs, recipe.best_by, recipe.time_limit or math.inf
        self.bar = None
        if console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[figures]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=console,
                expand=True,
            )
        now = time.monotonic()
        self.begun = now - state.total_seconds
        self.last = (now, state.images)  # the last report: its time, and images seen in the epoch by then
        self.last_line = now

    def __enter__(self) -> "Display":
        if self.bar:
            self.task = self.bar.add_task("starting", total=1, figures="")
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            with suppress(OSError):  # the terminal is gone
                self.bar.stop()

    def step(self, state: State, loss: float, top1: float) -> None:
        """Show progress: on the bar, or as a line every half minute. loss, top1: means of the epoch so far."""
        now = time.monotonic()
        rate = max(state.images - self.last[1], 0) / max(now - self.last[0], 1e-9)
        self.last = (now, state.images if state.step < self.steps else 0)
        where = f"epoch {state.epoch + 1}/{self.epochs} step {state.step}/{self.steps}"
        figures = f"{rate:,.0f} images/s  loss {loss:.3f}  top-1 {top1:.1%}"
        if state.history and "val_top1" in state.history[-1]:
            figures += f"  val {state.history[-1]['val_top1']:.2%}"
        figures += f"  {memory(self.device)}"
        done, spent = (state.epoch * self.steps + state.step) / (self.epochs * self.steps), now - self.begun
        done = max(done, min(spent / self.limit, 1))
        if self.bar:
            self.bar.update(self.task, completed=done, description=where, figures=figures)
        elif now - self.last_line > 30:
            self.last_line = now
            say(self.console, f"{where}  {figures}  {duration(spent * (1 - done) / done)} left")

    def epoch(self, row: dict[str, float], best: bool, last: bool) -> None:
        """Print a lasting line for an epoch's row of `metrics.csv`: for each of 30 epochs, for every tenth of 300, and
        for the last."""
        if row["epoch"] % -(-self.epochs // 30) and not last:
            return
        self.last_line = time.monotonic()
        val = ""
        if "val_top1" in row:
            chooses = self.best_by not in ("loss", "top1")
            val = f" {NAMES[self.best_by]} {row[f'val_{self.best_by}']:.2%}" if chooses else ""
            val = f"  val loss {row['val_loss']:.3f} top-1 {row['val_top1']:.2%}{val}{' *' if best else ''}"
        say(
            self.console,
            f"epoch {row['epoch']:>{len(str(self.epochs))}}/{self.epochs}  "
            f"train loss {row['train_loss']:.3f} top-1 {row['train_top1']:.2%}{val}  "
            f"{row['images_per_second']:,.0f} images/s  {memory(self.device)}  {row['seconds']:.0f} s",
        )


def memory(device: torch.device) -> str:
    """Memory in use: the GPU's peak and its share if it computes, else the process's RAM and the machine's share."""
    if device.type == "cuda":
        used, total = torch.cuda.max_memory_reserved(device), torch.cuda.mem_get_info(device)[1]
        return f"GPU {used / 2**30:.1f} GiB ({used / total:.0%})"
    return f"RAM {psutil.Process().memory_info().rss / 2**30:.1f} GiB ({psutil.virtual_memory().percent:.0f}%)"
