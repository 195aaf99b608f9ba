"""When a run reports and saves, as its clock says; what it makes of a time limit is tested with whole runs."""

from types import SimpleNamespace

import pytest
from tiny import tiny_recipe

from vitreous.train import state as state_module
from vitreous.train.state import Clock, State

ALONE = SimpleNamespace(max=lambda *values: list(values))  # an engine of one process


@pytest.fixture
def at(monkeypatch):
    """Sets the clock to so many seconds."""
    now = [0.0]
    monkeypatch.setattr(state_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return lambda seconds: now.__setitem__(0, seconds)


def test_a_report_is_due_half_a_second_after_the_last(at):
    clock, seconds = Clock(State(), tiny_recipe(), ALONE), (0.4, 0.6, 1.0, 1.2, 1.7, 1.8)
    assert [[at(now), clock.tick(False)[2]][1] for now in seconds] == [False, True, False, True, False, True]


def test_a_checkpoint_is_due_a_minute_after_the_last_and_later_after_a_slow_one(at):
    clock = Clock(State(), tiny_recipe(), ALONE)

    def due(now):
        at(now)
        return clock.tick(False)[1]

    assert [due(now) for now in (59, 61, 62)] == [False, True, True]
    with clock.saving():
        at(65)  # as long as is not slow yet
    assert [due(now) for now in (124, 126)] == [False, True]
    with clock.saving():
        at(132)  # twice as long
    assert [due(now) for now in (132 + 119, 132 + 121)] == [False, True]


def test_a_process_that_compiles_nothing_waits_for_those_that_do(at):
    asked = []
    clock = Clock(State(), tiny_recipe(), SimpleNamespace(max=lambda *values: asked.append(values) or [7.0]))
    at(1)
    clock.start_step()
    at(4)
    clock.warmed(False)
    clock.warmed(True)
    assert asked == [(0,), (3,)] and clock.state.compile_seconds == 14


def test_compiling_is_told_when_it_takes_more_than_a_third_of_the_time(at, caplog):
    clock = Clock(State(), tiny_recipe(time_limit=60.0), ALONE)
    for begun, ended, told in ((0, 5, False), (10, 25, False), (30, 31, True)):  # 5, 20 and 21 s in all
        at(begun)
        clock.start_step()
        at(ended)
        clock.warmed(True)
        assert ("compiling took" in caplog.text) is told
    assert "compiling took 21 of the 60 s of time_limit" in caplog.text


def test_the_other_processes_decide_with_this_one(at):
    """Which has seen no signal, and whose clock is behind theirs."""
    clock = Clock(State(), tiny_recipe(time_limit=10.0), SimpleNamespace(max=lambda *_: [1.0, 61.0, 0.6, 10.0]))
    assert not clock.late
    assert clock.tick(False) == (True, True, True) and clock.late
