"""Read the tensors of a weight file without running any code in it."""

import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from vitreous.messages import first_line, lacks_memory

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".npz")
POINTER = b"version https://git-lfs"
PREFIXES = ("_orig_mod.", "module.", "model.")  # of torch.compile, of DataParallel, of a class around the model


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a .safetensors, .pt, .pth, .bin or .npz file, on the host, as they are stored.

    torch's files are read only with `weights_only=True`, numpy's only with `allow_pickle=False`. Raises ValueError for
    a file that needs more, is damaged, or contains anything but tensors.
    """
    if file.suffix not in SUFFIXES:
        raise ValueError(f"{file} is not a weight file: give one of {', '.join(SUFFIXES)}")
    check_fetched(file)
    try:
        if file.suffix == ".safetensors":
            content = load_file(file, device="cpu")
        elif file.suffix == ".npz":
            content = _read_npz(file)
        else:
            with warnings.catch_warnings(action="ignore"):  # about the protocol of a pickle, which is refused anyway
                content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"Unsupported (?:global|operand|class)[^\n]*?(?= was not| is not|\.\s|\n|$)", str(error))
        reason = found.group() if found else first_line(error)
        raise ValueError(
            f"{file} is refused: it holds more than tensors, and loading it could run code ({reason}): "
            f"save the weights alone, best as .safetensors"
        ) from error
    except Exception as error:  # whatever a damaged file makes its reader raise
        if lacks_memory(error):
            raise
        reason = first_line(error)
        raise ValueError(f"{file} is damaged or not a {file.suffix} file: {reason}") from error
    return _state_dict(content, file)


def check_fetched(file: Path) -> None:
    """Raises ValueError for what Git LFS leaves in place of a file, OSError for a file that may not be read."""
    with file.open("rb") as opened:
        if opened.read(len(POINTER)) == POINTER:
            raise ValueError(
                f"{file} is a Git LFS pointer, not the weights: fetch them, as by git lfs pull or hf download"
            )


def _read_npz(file: Path) -> dict[str, Tensor]:
    """Raises UnpicklingError for an array of objects, which is a pickle."""
    if not zipfile.is_zipfile(file):  # numpy would take it for a pickle
        raise ValueError("it is not a zip archive")
    tensors = {}
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
        for name in arrays.files:
            try:
                tensors[name] = torch.from_numpy(arrays[name])
            except ValueError as error:
                if "allow_pickle" in str(error):
                    raise pickle.UnpicklingError(f"'{name}' is an array of objects") from error
                raise
            except MemoryError as error:
                member = name if name in arrays.zip.namelist() else f"{name}.npy"
                np.empty(arrays.zip.getinfo(member).file_size, np.uint8)  # fails, too, where memory is short
                raise ValueError(f"'{name}' claims to be larger than its file") from error
    return tensors


def _state_dict(content: Any, file: Path) -> dict[str, Tensor]:
    """The dict of tensors in a file, at the top level or under `model` or `state_dict`.

    A prefix that all names share is left out of them where it is one of PREFIXES, or several of these.
    """
    for key in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{file} holds no weights: expected a dict of tensors, got {type(content).__name__}")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(f"{file} is not a dict of tensors: '{name}' is {type(value).__name__}")
        if value.layout != torch.strided or value.is_meta:
            raise ValueError(f"{file} has '{name}' sparse or without values: save dense tensors")
    while shared := next((prefix for prefix in PREFIXES if all(name.startswith(prefix) for name in content)), None):
        content = {name.removeprefix(shared): value for name, value in content.items()}
    return dict(content)
