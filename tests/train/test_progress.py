"""What a run logs is shown and kept; `test_run.py` has what it shows of its epochs."""

import errno
import io
import logging
from contextlib import nullcontext

import pytest
import torch
from rich.console import Console

from vitreous.recipe import Recipe
from vitreous.train import progress
from vitreous.train.progress import show_log
from vitreous.train.state import State

log = logging.getLogger("vitreous")


def test_a_long_decoding_is_told_and_a_short_one_is_not(monkeypatch):
    text, clock = io.StringIO(), iter([0, 1, 6, 6, 7, 12, 12, 99])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    report = progress.decoding(Console(file=text))
    for done in (100, 1200, 1300, 2400, 5000):
        report(done, 5000)
    assert text.getvalue() == "decoded 1,200 of 5,000 images\ndecoded 2,400 of 5,000 images\n"


def test_what_a_pass_had_seen_before_is_not_counted_as_speed(monkeypatch):
    text, clock = io.StringIO(), iter([0, 40])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    console, state = Console(file=text, width=200), State(images=40_000)
    display = progress.Display(console, Recipe(epochs=2), 500, torch.device("cpu"), state)
    display.step(State(step=320, images=40_800), loss=1.0, top1=0.5)
    assert "epoch 1/2 step 320/500  20 images/s" in text.getvalue()
    assert text.getvalue().endswith("  85 s left\n")  # after 40 s and 320 of 1,000 steps


def test_a_further_epoch_is_counted_from_its_first_image(monkeypatch):
    text, clock = io.StringIO(), iter([0, 40, 80])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    display = progress.Display(Console(file=text, width=200), Recipe(epochs=2), 500, torch.device("cpu"), State())
    display.step(State(step=500, images=4_000), loss=1.0, top1=0.5)
    display.step(State(epoch=1, step=100, images=800), loss=1.0, top1=0.5)
    assert "epoch 2/2 step 100/500  20 images/s" in text.getvalue()


def test_the_bar_is_full_when_the_time_is_up(monkeypatch):
    clock = iter([100, 110, 130, 170])
    console = Console(file=io.StringIO(), force_terminal=True)
    display = progress.Display(console, Recipe(epochs=2, time_limit="1m"), 500, torch.device("cpu"), State())
    display.task = display.bar.add_task("", total=1, figures="")
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    display.begun = next(clock)
    for step, share in ((320, 0.32), (330, 0.5), (340, 1)):
        display.step(State(step=step), loss=1.0, top1=0.5)
        assert display.bar.tasks[0].completed == share


def test_what_is_logged_is_printed_and_kept(tmp_path):
    text, before = io.StringIO(), list(log.handlers)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").touch()  # a run has begun
    with show_log(tmp_path / "run", Console(file=text)):
        assert not (tmp_path / "run" / "train.log").exists()  # before there is something to keep
        log.warning("%d of [3] images of a:cat:", 2)
    log.warning("too late")
    assert text.getvalue() == "warning: 2 of [3] images of a:cat:\n"
    assert (tmp_path / "run" / "train.log").read_text().endswith(" WARNING 2 of [3] images of a:cat:\n")
    assert log.handlers == before


def test_a_terminal_that_is_gone_ends_no_run(monkeypatch):
    class Gone(io.StringIO):
        def write(self, text):
            raise OSError(errno.EIO, "Input/output error")

    terminal = Console(file=Gone(), force_terminal=True)
    progress.say(terminal, "more")
    monkeypatch.setattr(progress.Progress, "start", lambda bar: None)  # which began before
    with progress.Display(terminal, Recipe(epochs=2), 500, torch.device("cpu"), State()) as display:
        monkeypatch.setattr(display.bar, "stop", lambda: terminal.print("the end"))
        display.step(State(step=320, images=40_800), loss=1.0, top1=0.5)


@pytest.mark.parametrize(("code", "ends"), [(1, False), (143, True)])
def test_a_closed_pipe_ends_no_run_and_a_signal_does(monkeypatch, code, ends):
    def leave(*_, **__):
        raise SystemExit(code)  # as rich does, and the handler of SIGTERM

    console = Console(file=io.StringIO())
    monkeypatch.setattr(console, "print", leave)
    with pytest.raises(SystemExit) if ends else nullcontext():
        progress.say(console, "more")


def test_a_failing_run_leaves_no_handler(tmp_path):
    before = list(log.handlers)
    with pytest.raises(MemoryError), show_log(tmp_path, Console(file=io.StringIO())):
        raise MemoryError
    assert log.handlers == before
