"""For all tests: no cache outside the test's own folder, and one thread, so that tests beside each other stay fast."""

import itertools
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch starts its threads, and for commands started by tests

import psutil
import pytest
import torch
from tiny import sealed_set, tiny_recipe, tiny_set

from vitreous.cli import STOPS, main

SHELL = ("VITREOUS_DEBUG", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "RANK", "WORLD_SIZE")


def pytest_configure(config):
    for name in SHELL:  # what a shell or a CI may have set
        os.environ.pop(name, None)
    if "gpu" not in config.option.markexpr.replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # so that `auto` is the CPU


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def caches(tmp_path_factory):
    return map(tmp_path_factory.mktemp("caches").joinpath, map(str, itertools.count()))


@pytest.fixture(autouse=True)
def cache(caches, monkeypatch):
    """Decoded images are kept where the test can see them, and nowhere else: in a folder that is not there yet."""
    place = next(caches)
    monkeypatch.setenv("VITREOUS_CACHE", str(place))
    return place


@pytest.fixture(autouse=True)
def same_random_numbers():
    """Whichever tests ran before."""
    torch.manual_seed(0)


@pytest.fixture
def real_data():
    """A folder under $VITREOUS_DATA, such as that of a named set."""

    def find(name: str) -> Path:
        root = os.environ.get("VITREOUS_DATA")
        if not root or not Path(root, name).is_dir():
            pytest.skip(f"$VITREOUS_DATA/{name} is not there")
        return Path(root, name)

    return find


@pytest.fixture
def image_set():
    """Three learnable classes of 8 x 8 gray images: 48 to train on, 12 to test."""
    return tiny_set()


@pytest.fixture
def sealed():
    """The same, but nobody may look at the test images before `Sealed.open`."""
    return sealed_set()


@pytest.fixture
def recipe():
    """Two epochs of a model of one block."""
    return tiny_recipe()


@pytest.fixture
def undrawn(monkeypatch):
    """Explanations are saved without drawing their pictures, which takes a third of a second each."""
    monkeypatch.setattr("vitreous.plots.explanation", lambda *_, path, **__: path.write_bytes(b"drawn"))


@pytest.fixture
def vitreous(monkeypatch, capsys):
    """Run a command: exit code, output, errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["vitreous", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, *capsys.readouterr()

    before = {number: signal.getsignal(number) for number in STOPS}
    yield run
    for number, handler in before.items():  # `main` sets its own, with which the tests could not be stopped
        signal.signal(number, handler)


@pytest.fixture
def ends():
    """Note a process: one that still runs when the test is over is killed, with all that it has started."""
    started = []

    def note(process):
        started.append(process)
        return process

    yield note
    for process in started:
        if process.poll() is None:
            for each in (*psutil.Process(process.pid).children(recursive=True), process):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            process.communicate()
