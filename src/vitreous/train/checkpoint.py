"""Everything that a run needs to go on as if it had never stopped, in one file that is whole or not there."""

from pathlib import Path
from typing import Any

import torch

from vitreous.files import replace_file


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write tensors and plain values, with the state of the random generators."""
    content = content | {"random": {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all()}}
    replace_file(path, lambda part: torch.save(content, part))


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote and put the random generators back. Raises ValueError for a damaged file."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        random = content.pop("random")
    except Exception as error:  # torch.load raises a different type for each way in which a file can be broken
        raise ValueError(f"{path} is damaged ({type(error).__name__}): remove it to start the run again") from error
    torch.set_rng_state(random["cpu"])
    if device.type == "cuda" and len(random["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(random["cuda"])
    return content
