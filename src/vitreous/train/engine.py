"""The only file that uses accelerate: devices, processes, trackers."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import patch_environment
from torch import Tensor, distributed, nn

from vitreous.device import pick_device
from vitreous.extras import need
from vitreous.messages import first_line

LONGEST_WAIT = timedelta(hours=12)  # for another process, such as the one that decodes the images for all

T = TypeVar("T")


def is_main() -> bool:
    """Whether this process prints and writes: by the launcher's environment, so known before anything has started."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def undisturbed() -> Iterator[None]:
    """Train with torch's own default dtype and device, whatever the caller's are, and give the caller back these,
    accelerate's settings and torch's generators: the CPU's, and CUDA's where it had begun."""
    alone = int(os.environ.get("WORLD_SIZE", 1)) == 1  # several processes stay connected
    states = [kind._shared_state for kind in (PartialState, AcceleratorState, GradientState)] if alone else []
    before = [dict(state) for state in states]
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    dtype, host = torch.get_default_dtype(), torch.device("cpu")
    with torch.random.fork_rng(gpus), nullcontext() if torch.get_default_device() == host else host:
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            for state, content in zip(states, before, strict=True):
                state.clear()
                state.update(content)


class Engine:
    """The processes of a run, as seen by one of them, started alone or by `accelerate launch` or `torchrun`.

    They compute together on `device`. Their decisions go through a separate group on the host, which does not wait
    for the device.
    """

    def __init__(self, device: str = "auto", *, track: tuple[str, ...] = ()):
        check_launch()
        for name in track:  # accelerate silently drops trackers that are not installed
            need(f"track={name}", [name], "track")
        # the recipe sets precision and compilation, not the launcher; the trackers' folder is set when they start
        options = {"mixed_precision": "no", "dynamo_backend": "no", "log_with": list(track) or None, "project_dir": "."}
        if int(os.environ.get("WORLD_SIZE", 1)) == 1:  # accelerate keeps the device of a process's first run
            AcceleratorState._reset_state(reset_partial_state=True)
            where = pick_device(device)
            # accelerate refuses several GPUs of some kinds unless NCCL, which one process does without, is restrained
            with patch_environment(ACCELERATE_TORCH_DEVICE=where, NCCL_P2P_DISABLE=1, NCCL_IB_DISABLE=1):
                self._accelerator = Accelerator(cpu=where.type == "cpu", **options)
        else:
            try:
                self._accelerator = Accelerator(cpu=shared_device(device) == "cpu", **options)
            except NotImplementedError as error:  # accelerate knows which GPUs and drivers these are
                way_out = "set NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1, or install a newer driver"
                raise ValueError(f"these GPUs cannot reach each other directly: {way_out}") from error
            self._hosts = distributed.new_group(backend="gloo", timeout=LONGEST_WAIT)
        self.device: torch.device = self._accelerator.device
        self.processes: int = self._accelerator.num_processes
        self.rank: int = self._accelerator.process_index
        self.main: bool = self._accelerator.is_main_process
        self._track = track

    def prepare(self, model: nn.Module) -> nn.Module:
        """Place and wrap the model, whose weights remain the same objects, so that optimisers may have them already.

        On several GPUs, its BatchNorm modules become SyncBatchNorm, and stay that.
        """
        if self.processes > 1 and self.device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return self._accelerator.prepare(model)

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The model itself, without what `prepare` has wrapped around it."""
        return self._accelerator.unwrap_model(model)

    def gradients(self, model: nn.Module, last: bool) -> AbstractContextManager:
        """For the forward and backward of one part of a batch: gradients are synchronised in the last part only."""
        return nullcontext() if last else self._accelerator.no_sync(model)

    def sum(self, values: Tensor) -> Tensor:
        """Sum over processes."""
        return self._accelerator.reduce(values, "sum")

    def gather(self, values: Tensor) -> Tensor:
        """Rows (n, ...) of each process -> rows of all processes in rank order, both on the host."""
        return self._accelerator.gather(values.to(self.device)).cpu() if self.processes > 1 else values

    def copy_buffers(self, model: nn.Module) -> None:
        """Broadcast the main process's buffers: without SyncBatchNorm, running statistics differ across processes."""
        if self.processes > 1:
            for buffer in model.buffers():
                distributed.broadcast(buffer, src=0)

    def max(self, *values: float) -> list[float]:
        """The maximum of each value over processes, to agree where each has its own clock or signals."""
        if self.processes == 1:
            return list(values)
        largest = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(largest, distributed.ReduceOp.MAX, group=self._hosts)
        return largest.tolist()

    def from_main(self, ask: Callable[[], T]) -> T:
        """Call `ask` in the main process only; all return its result, or raise its ValueError or OSError."""
        if self.processes == 1:
            return ask()
        answer: Any = None
        if self.main:
            try:
                answer = ask()
            except (ValueError, OSError) as error:
                answer = error
        box = [answer]
        distributed.broadcast_object_list(box, src=0, group=self._hosts)
        if isinstance(box[0], ValueError | OSError):
            raise box[0]
        return box[0]

    def from_all(self, value: T) -> list[T]:
        """The value of every process, in rank order."""
        values: list[Any] = [value] * self.processes
        if self.processes > 1:
            distributed.all_gather_object(values, value, group=self._hosts)
        return values

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.processes > 1:
            distributed.barrier(self._hosts)

    @contextmanager
    def first_on_machine(self) -> Iterator[None]:
        """One process per machine runs the block before the others, which then use what it has written to disk."""
        first = self._accelerator.is_local_main_process
        if not first:
            self.wait()
        try:
            yield
        finally:
            if first:
                self.wait()

    @contextmanager
    def trackers(self, folder: Path, config: dict[str, Any], tracker_id: str, resumed: bool) -> Iterator[None]:
        """While inside, `log` reaches the trackers. tracker_id: unique to the run. resumed: they may know the id."""
        self.from_main(lambda: self._start_trackers(folder, config, tracker_id, resumed))
        failed = True
        try:
            yield
            failed = False
        finally:  # else the next run of this process would be logged as this one
            for tracker in self._accelerator.trackers:  # `end_training` would also destroy the process group
                if tracker.name == "wandb":
                    tracker.run.finish(exit_code=int(failed))
                else:
                    tracker.finish()

    def _start_trackers(self, folder: Path, config: dict[str, Any], tracker_id: str, resumed: bool) -> None:
        if not self._track:
            return
        self._accelerator.project_configuration.logging_dir = str(folder)
        fold = folder.name.startswith("fold-")
        wandb = {
            "name": "-".join(folder.parts[-2:]) if fold else folder.name,
            "group": folder.parent.name if fold else None,
            "dir": str(folder),
            "id": tracker_id,
            "resume": "allow" if resumed else None,
        }
        try:
            project = os.environ.get("WANDB_PROJECT") if "wandb" in self._track else None
            self._accelerator.init_trackers(project or "vitreous", config, {"wandb": wandb})
        except Exception as error:  # each tracker raises types of its own
            raise ValueError(f"cannot start the tracker: {first_line(error)}; leave track out") from error

    def log(self, values: dict[str, float], step: int) -> None:
        if self._track:
            self._accelerator.log(values, step)


def check_launch() -> None:
    """Raises ValueError if srun or mpirun has started several processes, each of which would train by itself."""
    tasks = max(int(os.environ.get(name, 1)) for name in ("SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"))
    if tasks > 1 and "WORLD_SIZE" not in os.environ:
        raise ValueError(
            f"started {tasks} times by srun or mpirun: start torchrun, once on each machine, as by "
            "`srun --ntasks-per-node=1 torchrun ...`"
        )


def shared_device(name: str) -> str:
    """The device for several processes, `cpu` or `cuda`. Raises ValueError if they cannot compute there."""
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device '{name}' is not for several processes: use cpu or cuda, of which each takes its own")
    device, processes = pick_device(name).type, int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if device == "cuda" and processes > torch.cuda.device_count():
        raise ValueError(
            f"{processes} processes for {torch.cuda.device_count()} GPUs: start one for each, or use --device cpu"
        )
    return device
