"""The tensors of a weight file, read without running anything that is in it."""

import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

TORCH = (".pt", ".pth", ".bin")
SUFFIXES = (".safetensors", *TORCH, ".npz")


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a .safetensors, .pt, .pth, .bin or .npz file, on the host, as they are stored.

    torch's files are read with `weights_only=True`, numpy's with `allow_pickle=False`, and neither is tried
    otherwise. Raises ValueError for a file that needs more, is damaged, or holds something else than tensors.
    """
    if file.suffix not in SUFFIXES:
        raise ValueError(f"{file} is no weight file: give one of {', '.join(SUFFIXES)}")
    try:
        if file.suffix == ".safetensors":
            return load_file(file, device="cpu")
        if file.suffix == ".npz":
            return _read_npz(file)
        return _state_dict(torch.load(file, map_location="cpu", weights_only=True), file)
    except pickle.UnpicklingError as error:
        found = re.search(r"Unsupported (?:global|operand|class)[^\n]*?(?= was not| is not|\.\s|\n|$)", str(error))
        reason = found.group() if found else str(error).strip().split("\n")[0]
        raise ValueError(
            f"{file} is refused: it holds more than tensors, and loading it could run code ({reason}): "
            f"save the weights alone, best as .safetensors"
        ) from error
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror or error}") from error
    except (SafetensorError, RuntimeError, EOFError, KeyError, zipfile.BadZipFile) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{file} is damaged or no {file.suffix} file: {reason}") from error


def _read_npz(file: Path) -> dict[str, Tensor]:
    tensors = {}
    with file.open("rb") as opened:
        if not zipfile.is_zipfile(opened):  # numpy would take it for a pickle
            raise ValueError(f"{file} is damaged or no .npz file: it is no zip archive")
    with np.load(file, allow_pickle=False) as arrays:
        for name in arrays.files:
            try:
                tensors[name] = torch.from_numpy(arrays[name])
            except (ValueError, TypeError) as error:  # an array of objects is a pickle; or a type torch has not
                raise ValueError(f"{file} is refused: '{name}' is no plain array ({error})") from error
    return tensors


def _state_dict(content: Any, file: Path) -> dict[str, Tensor]:
    """The dict of tensors that a file of torch is, or that it holds as `model` or `state_dict`."""
    for key in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{file} holds no weights: expected a dict of tensors, got {type(content).__name__}")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(f"{file} is no dict of tensors: '{name}' is {type(value).__name__}")
    return dict(content)
