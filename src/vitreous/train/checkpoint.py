"""All the state needed to resume a run as if it had never stopped, in one file that is written atomically."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.files import replace_file

FORMAT = 7  # bumped whenever the content or its meaning changes: a run must not resume with different numbers


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of torch's generators for the CPU and `device`; reading that of another GPU would initialise it."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def save_checkpoint(path: Path, content: dict[str, Any], random: list[dict[str, Tensor]]) -> None:
    """Write tensors and plain values. random: `random_state` of each process."""
    content = content | {"format": FORMAT, "random": random}

    def write(part: Path) -> None:
        with part.open("wb") as file:  # one of Python's, whose errors say why
            torch.save(content, file)

    replace_file(path, write)


def load_checkpoint(path: Path, device: torch.device, rank: int = 0) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote and restore the random generators of process `rank`.

    A process with no saved state keeps its own. Raises ValueError for a damaged file or another format.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        states = list(content.pop("random"))
    except (OSError, MemoryError):  # not the file's fault
        raise
    except Exception as error:  # torch.load raises a different type for each way in which a file can be broken
        raise ValueError(f"{path} is damaged ({type(error).__name__}): remove it to start the run again") from error
    if content.pop("format", 1) != FORMAT:
        raise ValueError(f"{path} is of another version of vitreous: go on with that one, or start again with --out")
    if rank >= len(states):
        return content
    random = states[rank]
    torch.set_rng_state(random["cpu"])
    if device.type == "cuda" and "cuda" in random:
        torch.cuda.set_rng_state(random["cuda"], device)
    if device.type == "mps" and "mps" in random:
        torch.mps.set_rng_state(random["mps"])
    return content
