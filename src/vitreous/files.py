"""Paths, reading and atomic writing of files, and checks that nothing else is overwritten."""

import codecs
import csv
import json
import mmap
import os
import re
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from vitreous.messages import first_line

PART = ".part"
EXPLANATION = "target_probability"  # the key that marks the JSON file of an explanation
BESIDE_RECIPE = ("data.json", "results.json", "fold-1")  # one of these tells a run from a lone recipe


def path_of(text: os.PathLike[str] | str) -> Path:
    """A path as the user writes it: ~ and ~name are expanded to home folders that exist."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - which leaves an unknown ~name as it is


def full_path(path: Path) -> Path:
    """A path made absolute. A linked file is not resolved, as the files that it needs are next to the link."""
    return path.parent.resolve() / path.name if path.is_file() else path.resolve()


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file next to `path`, flush it to disk, and move it there.

    Neither a reader nor a power cut ever sees half a file; if writing fails, the old file stays. A link stays a link,
    to the new file; something that is no file, such as a pipe, is written directly. Raises OSError.
    """
    if _is_stream(path):
        write(path)
        return
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{uuid.uuid4().hex}{PART}")  # unique, as two may write at once
    try:
        part.touch()
        mode = (target if target.exists() else part).stat().st_mode  # safetensors would make it owner-only
        write(part)
        part.chmod(mode)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        reason = first_line(error).removeprefix("Error while serializing: I/O error: ")
        code = re.search(r" \(os error (\d+)\)$", reason)
        raise OSError(f"cannot write {path}: {reason}") from (OSError(int(code[1]), reason) if code else error)
    except RuntimeError as error:  # torch's, while it handles one of the file
        if not isinstance(cause := error.__context__, OSError):
            raise
        raise OSError(f"cannot write {path}: {cause.strerror}") from cause
    finally:
        part.unlink(missing_ok=True)
    with suppress(OSError):  # some network file systems cannot, nor a folder that may not be read
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the move, too
        finally:
            os.close(folder)


def is_part(path: Path) -> bool:
    """Whether it is a leftover of `replace_file` in a process that was killed."""
    return path.name.startswith(".") and path.suffix == PART


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote. Raises OSError, ValueError."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error


def write_json(path: Path, content: dict[str, Any], indent: int | None = 2) -> None:
    """Write JSON atomically, indented or, for None, in one line."""
    replace_file(path, lambda part: part.write_text(json.dumps(content, indent=indent) + "\n"))


def write_csv(path: Path, head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV table in UTF-8: its column names and its rows."""

    def write(part: Path) -> None:
        with part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(head)
            writer.writerows(rows)

    replace_file(path, write)


def read_csv(path: Path, head: Iterable[str]) -> list[dict[str, str]]:
    """The rows of a table of ours. Raises ValueError for one without these columns, in another encoding or with rows of
    other lengths, as a spreadsheet may leave it."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns, rows = reader.fieldnames or (), list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no table in UTF-8 ({error}): save it as one, as it was") from error
    if missing := [name for name in head if name not in columns]:
        raise ValueError(f"{path} has no column {missing[0]}: save it with commas between columns, as it was")
    if any(None in row or None in row.values() for row in rows):  # where `DictReader` finds more, or fewer
        raise ValueError(f"{path} has a row that is not of {len(columns)} columns: save it as it was")
    return rows


def read_history(run: Path) -> list[dict[str, float]]:
    """The rows of a run's metrics.csv, one per epoch; empty if there is no such file. Raises ValueError for others."""
    file = run / "metrics.csv"
    rows = read_csv(file, ("epoch", "seconds")) if file.is_file() else []
    try:
        return [{key: float(value) for key, value in row.items()} for row in rows]
    except ValueError as error:
        raise ValueError(f"{file} has something else than numbers ({error}): save it as it was") from error


def _is_stream(path: Path) -> bool:
    """Whether it is a pipe, a device or the command's own output, which must not be replaced by a file."""
    return path.parent == Path("/dev") or (path.exists() and not path.is_file())


def check_file(path: Path, suffix: str, mark: str | None) -> None:
    """Raises ValueError if writing a file with this suffix to `path` would overwrite something else.

    The path must not be a folder, a file of another kind or in the folder of a run, trained model or evaluation. An
    existing file must contain `mark`, which shows that one of our commands wrote it; a .csv has it as its first line.
    mark None: the file is appended to, so what it holds does not matter. The place must be one that can be written to.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file, such as {path / f'new{suffix}'}")
    if _is_stream(path):
        return
    target = Path(os.path.realpath(path))
    if target.suffix.lower() != suffix:
        raise ValueError(f"{path} does not end in {suffix}, as what is written there must: name another file")
    _check_place(target.parent)
    if (target.parent / "evaluation.json").is_file():
        raise ValueError(f"{target.parent} holds an evaluation, whose files stay as they are: name another place")
    if mark is not None or not target.exists():
        _check_writable(target.parent)
    if mark is not None and target.exists() and not _holds(target, mark):
        raise ValueError(f"{path} holds something else, which stays as it is: name another file")


def _holds(file: Path, mark: str) -> bool:
    """Whether a file contains a mark; an empty file counts, as it holds nothing to lose."""
    if not file.stat().st_size:
        return True
    if file.suffix.lower() == ".csv":
        with file.open("rb") as opened:
            return opened.readline().removeprefix(codecs.BOM_UTF8).strip() == mark.encode()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.rfind(mark.encode()) >= 0  # from the end, where parquet has its metadata


def check_folder(path: Path) -> None:
    """Raises ValueError for an output folder that is a file, or is or lies directly in a run's or trained model's, or
    that cannot be written to."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: name a folder with --out")
    _check_place(path)
    _check_place(path.resolve().parent)
    _check_writable(path)


def check_free(files: Iterable[Path], sign: Path | None = None, mark: str = "") -> None:
    """Raises ValueError if one of `files` exists, unless the file `sign` contains `mark`: then they are ours."""
    if sign is not None and sign.is_file() and mark in sign.read_text(errors="replace"):
        return
    if taken := sorted(file for file in files if file.exists()):
        folder, name = taken[0].parent, taken[0].name
        raise ValueError(f"{folder} holds another {name}, which stays as it is: name another folder with --out")


def _check_writable(folder: Path) -> None:
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir():
        raise ValueError(f"{there} is a file, and no folder to write into: name another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{there} may not be written into: allow it, as by chmod, or name another place")


def _check_place(folder: Path) -> None:
    config, kept = folder / "config.json", ""
    if (folder / "recipe.yaml").is_file() and any((folder / name).exists() for name in BESIDE_RECIPE):
        kept = "a run"
    elif config.is_file() and '"preprocess": {' in config.read_text(errors="replace"):
        kept = "a trained model"
    if kept:
        raise ValueError(f"{folder} holds {kept}, whose files stay as they are: name another place")
