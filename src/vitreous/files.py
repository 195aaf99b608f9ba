"""Files that are whole or not there."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, flush it to the disk, and move it there.

    No reader sees half a file and no power cut leaves one; when writing fails, what was there stays. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        write(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror or error}") from error
    except RuntimeError as error:  # what torch and safetensors make of a full disk
        if "memory" in str(error):  # of what was to be written
            raise
        raise OSError(f"cannot write {path}: {str(error).splitlines()[0]}") from error
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)  # the move, too
    os.close(folder)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Indented."""
    replace_file(path, lambda part: part.write_text(json.dumps(content, indent=2) + "\n"))
