"""Everything that a run needs to go on as if it had never stopped, in one file that is whole or not there."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.files import replace_file

FORMAT = 4  # raised where other things are kept, or mean something else: a run must not go on with other numbers
CPU = torch.device("cpu")


def random_state(device: torch.device = CPU) -> dict[str, Tensor]:
    """Of torch's generators in this process that computes on `device`: those of other GPUs would start up there."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def save_checkpoint(path: Path, content: dict[str, Any], random: list[dict[str, Tensor]] | None = None) -> None:
    """Write tensors and plain values. random: `random_state` of each process, unless given of this one, on a CPU."""
    content = content | {"format": FORMAT, "random": random or [random_state()]}
    replace_file(path, lambda part: torch.save(content, part))


def load_checkpoint(path: Path, device: torch.device, rank: int = 0) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote and put the random generators of process `rank` back.

    A process more than there were keeps its own. Raises ValueError for a damaged file.
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
