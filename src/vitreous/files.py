"""Files that are whole or not there, and what they must not take the place of."""

import csv
import json
import mmap
import os
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from vitreous.messages import first_line

PART = ".part"
TORCH_WRITES = ("inline_container", "PytorchStreamWriter")  # where its errors in writing come from
BESIDE_RECIPE = ("data.json", "results.json", "fold-1")  # by which a run is told from a recipe that lies somewhere


def path_of(text: Path | str) -> Path:
    """A path as the user writes it: ~ and ~name are home folders, where there are such."""
    try:
        return Path(text).expanduser()
    except RuntimeError:  # nobody is called so: a name that begins with a tilde
        return Path(text)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, flush it to the disk, and move it there.

    No reader sees half a file and no power cut leaves one; when writing fails, what was there stays. A link stays a
    link to the new file; what is no file, such as a pipe, is written to itself. Raises OSError.
    """
    if _is_stream(path):
        write(path)
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{uuid.uuid4().hex}{PART}")  # of two that write at once each has its own
    try:
        part.touch()
        mode = part.stat().st_mode  # of a new file here; that of safetensors is its owner's alone
        write(part)
        part.chmod(mode)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror or error}") from error
    except (RuntimeError, SafetensorError) as error:  # what torch and safetensors make of a full disk
        if isinstance(error, RuntimeError) and not any(sign in str(error) for sign in TORCH_WRITES):
            raise
        reason = first_line(error).removeprefix("Error while serializing: I/O error: ")
        raise OSError(f"cannot write {path}: {reason}") from error
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(target.parent, os.O_RDONLY)
    with suppress(OSError):  # some file systems of networks cannot
        os.fsync(folder)  # the move, too
    os.close(folder)


def is_part(path: Path) -> bool:
    """Whether `replace_file` left it, when the process was killed."""
    return path.name.startswith(".") and path.suffix == PART


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote. Raises OSError, ValueError."""
    return json.loads(path.read_text())


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write indented JSON, whole or not at all."""
    replace_file(path, lambda part: part.write_text(json.dumps(content, indent=2) + "\n"))


def write_csv(path: Path, head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """A table in UTF-8: its names of columns and its rows."""

    def write(part: Path) -> None:
        with part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(head)
            writer.writerows(rows)

    replace_file(path, write)


def _is_stream(path: Path) -> bool:
    """Whether it is a pipe, a device or the command's own output, which no file may replace."""
    return path.parent == Path("/dev") or (path.exists() and not path.is_file())


def check_file(path: Path, suffix: str, mark: str | None) -> None:
    """Raises ValueError for a place where a file of this suffix would take the place of something else.

    It must not be a folder, nor a file of another kind, nor one of a run's or a trained model's, nor one that is there
    without `mark`, by which what the same command wrote is known; None: the file is added to.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file, such as {path / f'new{suffix}'}")
    if _is_stream(path):
        return
    target = Path(os.path.realpath(path))
    if target.suffix.lower() != suffix:
        raise ValueError(f"{path} does not end in {suffix}, as what is written there must: name another file")
    _check_place(target.parent)
    if mark is not None and target.exists() and not _holds(target, mark):
        raise ValueError(f"{path} holds something else, which stays as it is: name another file")


def _holds(file: Path, mark: str) -> bool:
    """Whether a mark stands in a file; one that is empty holds nothing to lose."""
    if not file.stat().st_size:
        return True
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.rfind(mark.encode()) >= 0  # from the end, where a parquet file says what it is


def check_folder(path: Path) -> None:
    """Raises ValueError for a folder to write that is a file, a run's or a trained model's, or lies directly in one."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: name a folder with --out")
    _check_place(path)
    _check_place(path.resolve().parent)


def check_free(files: Iterable[Path], sign: Path, mark: str) -> None:
    """Raises ValueError where one of `files` is there, unless `sign` is one that holds `mark`: then they are ours."""
    if sign.is_file() and mark in sign.read_text(errors="replace"):
        return
    if taken := sorted(file for file in files if file.exists()):
        folder, name = taken[0].parent, taken[0].name
        raise ValueError(f"{folder} holds another {name}, which stays as it is: name another folder with --out")


def _check_place(folder: Path) -> None:
    config, kept = folder / "config.json", ""
    if (folder / "recipe.yaml").is_file() and any((folder / name).exists() for name in BESIDE_RECIPE):
        kept = "a run"
    elif config.is_file() and '"preprocess": {' in config.read_text(errors="replace"):
        kept = "a trained model"
    if kept:
        raise ValueError(f"{folder} holds {kept}, whose files stay as they are: name another place")
