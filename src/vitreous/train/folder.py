"""The run folder: claiming and locking it, what a resumed run may change, and a record of the environment."""

import fcntl
import itertools
import logging
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vitreous.data.images import composed
from vitreous.doctor import BASE, installed
from vitreous.files import is_part, read_json
from vitreous.messages import shorten
from vitreous.recipe import Recipe, flat

log = logging.getLogger("vitreous")

RUNS = Path("runs")
FIRST_BATCH = Path("plots/first_batch.png")
LOG = Path("train.log")
NO_RUN = {Path("plots"), FIRST_BATCH, LOG}  # what a dry run or a failed start may leave behind
# keys that may differ when a run is resumed; of data, weights and teacher the content is compared, not the place
FREE = {"data.source", "data.skip_broken", "data.memory_budget", "data.workers", "track", "compile"}
FREE |= {"start.weights", "start.revision", "distill.teacher"}


@contextmanager
def optional(file: Path) -> Iterator[Path]:
    """For drawing or writing `file`: an error is logged as a warning and never loses a run."""
    try:
        yield file
    except Exception as error:
        log.warning("could not write %s: %s", file, str(error).removeprefix(f"cannot write {file}: "))


def next_folder(name: str) -> Path:
    """Make the next free `runs/<name>`: digits, digits-2, digits-3, ... Runs that start at once get different names."""
    RUNS.mkdir(exist_ok=True)
    for number in itertools.count(1):
        folder = RUNS / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder


def check_claim(folder: Path, resume: bool) -> None:
    """Make sure that nothing in `folder` would be lost, or raise ValueError."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: name another run folder with --out")
    is_run = (folder / "recipe.yaml").is_file()
    if resume:
        if not is_run:
            raise ValueError(
                f"there is no run in {folder} to go on with: name its folder with --out, or leave out --resume "
                "(resume=True) or --finish to start one"
            )
        if (folder / "results.json").exists():
            raise ValueError(f"the run in {folder} is finished: start another one, with --out and without --resume")
    elif is_run:
        raise ValueError(
            f"{folder} already holds a run: go on with it by --resume (resume=True), or name another folder with --out"
        )
    elif folder.exists() and {path.relative_to(folder) for path in folder.rglob("*") if not is_part(path)} - NO_RUN:
        raise ValueError(f"{folder} is not empty and holds no run: name another folder with --out")


def claimed(out: Path | None, name: str, resume: bool, dry_run: bool = False) -> Path:
    """The run folder, by default the next free `runs/<name>`, checked to hold nothing that would be lost.

    A dry run uses `runs/<name>-dry-run` instead, so that the name stays free.
    """
    if out is None and resume:
        raise ValueError("resume needs the run folder: give it as out")
    if out is None and not dry_run:
        return next_folder(name)
    folder = RUNS / f"{name}-dry-run" if out is None else out
    check_claim(folder, resume)
    return folder


@contextmanager
def alone(folder: Path) -> Iterator[Path]:
    """Lock `folder` against other runs while inside, if the file system has locks. Raises ValueError, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)  # the lock is released when the process ends, however it does
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ValueError(f"another process trains into {folder}: wait for it, or name another --out") from None
    except OSError:  # a file system without locks
        pass
    try:
        yield folder
    finally:
        os.close(handle)


def check_same_recipe(recipe: Recipe, saved: Recipe, folder: Path) -> None:
    """Raises ValueError naming the first setting, but for those of `FREE`, that a resumed run would change.

    saved: the run's own recipe.
    """
    own = flat(saved.model_dump(mode="json"))
    for key, value in flat(recipe.model_dump(mode="json")).items():
        if own.get(key) != value and key not in FREE:
            raise ValueError(
                f"{folder} was started with {key}={own.get(key)}, not {value}: resume it as it was, or start another "
                "run with --out"
            )


def check_same_classes(folder: Path, class_names: tuple[str, ...]) -> None:
    """Raises ValueError if the run in `folder`, if there is one, is of other classes."""
    record = folder / "data.json"
    if record.is_file() and composed(classes := read_json(record)["classes"]) != composed(class_names):
        raise ValueError(
            f"the data is not what {folder} was trained on, whose {len(classes)} classes are {shorten(classes)}: "
            "resume with the same images"
        )


def environment(device: torch.device, precision: str, processes: int) -> dict[str, Any]:
    """Versions, hardware and the command: what is needed to reproduce the figures."""
    program = Path(sys.argv[0]).name.replace("__main__.py", "vitreous")  # when run by python -m
    return {
        "command": shlex.join([program, *sys.argv[1:]]),
        "python": platform.python_version(),
        "packages": {name: installed(name) for name in BASE},
        "commit": commit(),
        "platform": platform.platform(),
        "processor": torch.cpu.get_capabilities().get("cpu_name", platform.processor()),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "precision": precision,
        "processes": processes,
    }


def commit() -> str | None:
    """The commit of the checkout that runs, with `-dirty` where its files differ from it; None outside of one."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    asked = ("git", "--no-optional-locks", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*")
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):  # there is no git
        return None
