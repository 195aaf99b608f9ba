"""Ctrl-C, SIGTERM and SIGHUP during training."""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

log = logging.getLogger("vitreous")


@contextmanager
def stop_flag() -> Iterator[Callable[[], bool]]:
    """While inside, the first Ctrl-C, SIGTERM or SIGHUP (from a closing terminal) only makes the yielded function
    return True; a second one stops at once. SIGHUP stays ignored if it already is, as under nohup."""
    asked: list[float] = []  # when
    before = {}

    def ask(number: int, _: Any) -> None:
        if asked and time.monotonic() - asked[0] > 0.5:
            raise KeyboardInterrupt
        if not asked:
            asked.append(time.monotonic())
            with suppress(RuntimeError):  # it came while a line was being written, into which none can be
                log.warning("stopping after this step; once more stops at once, with what was saved last")

    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(number)  # None: not Python's, and not to be put back by it
            if handler is not None and (number != signal.SIGHUP or handler != signal.SIG_IGN):
                before[number] = signal.signal(number, ask)
    except ValueError:  # only the main thread can set handlers: elsewhere they stay as they are
        pass
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
