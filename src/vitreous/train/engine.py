"""The only file that knows accelerate: devices, processes, backward, trackers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from vitreous.device import pick_device


class Engine:
    """The processes of a run, seen from one of them. Started alone or by `accelerate launch`."""

    def __init__(self, device: str = "auto", *, track: tuple[str, ...] = (), folder: Path | None = None):
        for name in track:  # accelerate leaves out in silence what is not installed
            if find_spec(name) is None:
                raise ImportError(f'track={name} needs {name}: pip install "vitreous[track]"')
        if "WORLD_SIZE" not in os.environ:  # accelerate keeps the device of the first run of a process
            AcceleratorState._reset_state(reset_partial_state=True)
            with _environment("ACCELERATE_TORCH_DEVICE", str(pick_device(device))):
                self._accelerator = Accelerator(log_with=list(track) or None, project_dir=folder)
        else:
            self._accelerator = Accelerator(cpu=device == "cpu", log_with=list(track) or None, project_dir=folder)
        self.device: torch.device = self._accelerator.device
        self.processes: int = self._accelerator.num_processes
        self.rank: int = self._accelerator.process_index
        self.main: bool = self._accelerator.is_main_process
        self._tracked = bool(track)
        self._folder = folder

    def prepare(self, model: nn.Module, optimizers: list) -> tuple[nn.Module, list]:
        """Place and wrap the model and its optimisers."""
        model, *optimizers = self._accelerator.prepare(model, *optimizers)
        return model, optimizers

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The model itself, as it was before `prepare`."""
        return self._accelerator.unwrap_model(model)

    @contextmanager
    def gradients(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Around the forward and backward of one part of a batch: processes exchange gradients at the last only."""
        if last:
            yield
        else:
            with self._accelerator.no_sync(model):
                yield

    def backward(self, loss: Tensor) -> None:
        self._accelerator.backward(loss)

    def sum(self, values: Tensor) -> Tensor:
        """Sum over processes."""
        return self._accelerator.reduce(values, "sum")

    def wait(self) -> None:
        """Until all processes are here."""
        self._accelerator.wait_for_everyone()

    def start_trackers(self, name: str, config: dict[str, str | int | float | bool]) -> None:
        if self._tracked:
            try:
                self._accelerator.init_trackers("vitreous", config, {"wandb": {"name": name, "dir": str(self._folder)}})
            except Exception as error:  # each tracker has errors of its own
                raise ValueError(f"cannot start the tracker: {str(error).splitlines()[0]}; leave track out") from error

    def log(self, values: dict[str, float], step: int) -> None:
        if self._tracked:
            self._accelerator.log(values, step)

    def finish(self) -> None:
        if self._tracked:
            self._accelerator.end_training()


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
