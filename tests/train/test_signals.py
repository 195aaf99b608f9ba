"""What Ctrl-C, SIGTERM and SIGHUP do to a run; `test_run.py` has the runs that they interrupt."""

import logging
import os
import select
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from vitreous.train import signals
from vitreous.train.signals import stop_flag


@pytest.fixture(autouse=True)
def hangups():
    """SIGHUP as a process gets it from a terminal, however the tests were started."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_and_says_so(number, caplog):
    before = handlers()
    with caplog.at_level(logging.WARNING), stop_flag() as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
    said = "stopping after this step; once more stops at once, with what was saved last"
    assert [record.message for record in caplog.records] == [said]
    assert handlers() == before


def test_a_signal_that_comes_while_a_line_is_written_asks_all_the_same(monkeypatch):
    ends = os.pipe()
    reader, line = ends[0], "a line of progress\n" * (1 << 14)  # more than a pipe holds
    handler = logging.Handler()
    monkeypatch.setattr(signals.log, "handlers", [handler])
    monkeypatch.setattr(signals.log, "propagate", False)

    def interrupt(stop):
        deadline = time.monotonic() + 60
        while select.select([], [ends[1]], [], 0)[1] and time.monotonic() < deadline:
            time.sleep(0.001)  # until the pipe is full, and the main thread waits for the reader
        os.kill(os.getpid(), signal.SIGINT)
        while not stop() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.01)  # the handler speaks right after it has asked
        while os.read(reader, 1 << 16):
            pass

    with os.fdopen(ends[1], "w") as screen, stop_flag() as stop:
        handler.emit = lambda record: print(record.getMessage(), file=screen, flush=True)  # as `show_log` does
        thread = threading.Thread(target=interrupt, args=(stop,), daemon=True)
        thread.start()
        print(line, file=screen, flush=True)
        assert stop()
    thread.join()
    os.close(reader)


def test_a_second_signal_stops_at_once_and_one_that_arrives_twice_does_not(monkeypatch):
    before, clock = handlers(), iter((7.0, 7.5, 7.6))
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with stop_flag() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)  # as when a parent passes it on
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert handlers() == before


def test_a_hangup_that_is_ignored_stays_so():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with stop_flag() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop()


def test_a_handler_that_is_not_pythons_stays_so(monkeypatch):
    before, real = handlers(), signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGTERM else real(number))
    with stop_flag():
        changed = [real(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert changed[0] != before[0] and changed[1] == before[1]
    monkeypatch.undo()
    assert handlers() == before


def test_outside_the_main_thread_signals_stay_as_they_are():
    before, seen = handlers(), []

    def work():
        with stop_flag() as stop:
            seen.append((handlers(), stop()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, False)]
