"""What a run logs is shown and kept; `test_run.py` has what it shows of its epochs."""

import io
import logging

import pytest
from rich.console import Console

from vitreous.train import progress
from vitreous.train.progress import show_log

log = logging.getLogger("vitreous")


def test_a_long_decoding_is_told_and_a_short_one_is_not(monkeypatch):
    text, clock = io.StringIO(), iter([0, 1, 6, 6, 7, 12, 12, 99])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    report = progress.decoding(Console(file=text))
    for done in (100, 1200, 1300, 2400, 5000):
        report(done, 5000)
    assert text.getvalue() == "decoded 1,200 of 5,000 images\ndecoded 2,400 of 5,000 images\n"


def test_what_is_logged_is_printed_and_kept(tmp_path):
    text, before = io.StringIO(), list(log.handlers)
    with show_log(tmp_path / "run", Console(file=text)):
        assert not (tmp_path / "run" / "train.log").exists()  # before there is something to keep
        log.warning("%d of [3] images", 2)
    log.warning("too late")
    assert text.getvalue() == "warning: 2 of [3] images\n"
    assert (tmp_path / "run" / "train.log").read_text().endswith(" WARNING 2 of [3] images\n")
    assert log.handlers == before


def test_a_failing_run_leaves_no_handler(tmp_path):
    before = list(log.handlers)
    with pytest.raises(MemoryError), show_log(tmp_path, Console(file=io.StringIO())):
        raise MemoryError
    assert log.handlers == before
