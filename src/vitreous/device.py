"""Device, precision and compilation, chosen in the same way for training, evaluation and prediction."""

import ctypes
import os
import re
import resource
import shutil
import sys
import sysconfig
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

Precision = Literal["auto", "float32", "bf16", "float16"]
PRECISIONS = get_args(Precision)
NO_MPS = (
    "Apple's GPU (mps) has not been tried, and torch's gradients of batch norm in a stem are reported to be wrong on "
    "it (https://github.com/pytorch/pytorch/issues/175189): train on the CPU"
)
OLDER_CUDA = "install torch's build for CUDA 12.6 (see README.md, Install)"
WORTH_COMPILING = 5000  # steps of a run: with fewer, compiling costs more time than it saves


def pick_device(name: str = "auto") -> torch.device:
    """`auto`: the CUDA GPU if there is one that this torch can use, else the CPU, for which `keep_memory` is called.

    Apple's GPUs (`mps`) have to be asked for: see `NO_MPS`. On a CUDA GPU, this makes float32 convolutions compute in
    float32: by default cuDNN rounds to TF32, with 10 bits. Raises ValueError for a device that is not available.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    available = [kind for kind, found in there.items() if found]
    if name == "auto":
        name = "cuda" if there["cuda"] and not gpu_too_old() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in available:
        raise ValueError(f"device '{name}' is not available: use {', '.join(available)} or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device '{name}' is not available: there are {torch.cuda.device_count()}, from cuda:0")
    if device.type == "cuda":
        if why := gpu_too_old(device):
            raise ValueError(f"{why}, or use --device cpu")
        torch.backends.cudnn.allow_tf32 = False
    if device.type == "cpu":
        keep_memory()
    return device


def gpu_too_old(device: torch.device | None = None) -> str:
    """Why this torch cannot compute on a CUDA GPU that is there (default: the first), and what to do; "" if it can."""
    built_for = [divmod(int(number), 10) for number in re.findall(r"sm_(\d+)", " ".join(torch.cuda.get_arch_list()))]
    if not built_for or (own := torch.cuda.get_device_capability(device)) >= min(built_for):
        return ""
    lowest = "{}.{}".format(*min(built_for))
    return f"the GPU's compute capability is {own[0]}.{own[1]}, and this torch needs {lowest} or more: {OLDER_CUDA}"


def keep_memory() -> None:
    """Have glibc keep freed memory for the next step, unless the environment configures malloc itself.

    By default it returns large blocks to the system at once, and gets them back page by page, zeroed. Training is
    measurably faster when it is kept (LOG.md), at the price of memory that is never returned.
    """
    asked = any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"))
    if asked or not sys.platform.startswith("linux") or not hasattr(libc := ctypes.CDLL(None), "mallopt"):
        return
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
    if libc.mallopt(M_MMAP_THRESHOLD, 2**30) or libc.mallopt(M_MMAP_THRESHOLD, 2**25):  # bytes; old ones refuse more
        libc.mallopt(M_TRIM_THRESHOLD, -1)  # never


def pick_precision(name: str, device: torch.device) -> str:
    """`auto`: bf16 autocast with float32 weights where the processor multiplies bf16 faster, else float32.

    Raises ValueError for a name that is not one of `PRECISIONS`.
    """
    if name not in PRECISIONS:
        raise ValueError(f"unknown precision '{name}': use {', '.join(PRECISIONS)}")
    if name != "auto":
        return name
    return "bf16" if has_fast_bf16(device) else "float32"


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 matrices faster than float32: tensor cores, AMX, AMD's avx512_bf16.

    Intel's avx512_bf16 is slower than its float32. It is what virtual machines that hide AMX are left with: 157 GFLOP/s
    instead of 283 for matrices of 2,048 x 2,048, and training in float32 is 1.3 times as fast (LOG.md).
    """
    if device.type == "cuda":
        with torch.cuda.device(device):  # torch asks the current one
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        features = torch.cpu.get_capabilities()
        intel = features.get("cpu_name", "").startswith("Intel")
        return has_amx() or bool(features.get("avx512_bf16") and not intel)
    return False


def has_amx() -> bool:
    """Whether the processor has Intel's bf16 matrix units (AMX), several times as fast as its float32."""
    return bool(torch.cpu.get_capabilities().get("amx_bf16"))


def has_wide_bf16() -> bool:
    """Whether a CPU's bf16 is fast enough for the recipes NAME-amx: Intel's AMX, or AMD's AVX-512 from Zen 5 on.

    Zen 5, which alone of AMD's has AVX512_VP2INTERSECT, multiplies 512 bits at a time: two of its cores train as fast
    as two with AMX (LOG.md), two of Zen 4 half as fast.
    """
    features = torch.cpu.get_capabilities()
    zen5 = features.get("avx512_bf16") and features.get("avx512_vp2intersect")
    return has_amx() or bool(zen5 and features.get("cpu_name", "").startswith("AMD"))


def widest_float(device: torch.device) -> torch.dtype:
    """The dtype for sums of many numbers: float64, except on Apple's GPUs, which lack it."""
    return torch.float32 if device.type == "mps" else torch.float64


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context in which a model computes in `precision`, `float32`, `bf16` or `float16`."""
    dtype = torch.float16 if precision == "float16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=precision != "float32")


def compiled(model: nn.Module, choice: bool | str, device: torch.device, steps: int) -> Callable[[Tensor], Tensor]:
    """A callable of the model for training, compiled as the recipe's `compile` says. The model itself is not changed.

    Raises ValueError if compiling is asked for and `compiling_lacks` something.
    """
    if choice == "auto":
        choice = device.type == "cuda" and steps >= WORTH_COMPILING and not compiling_lacks(device)
    if not choice:
        return model
    if lacking := compiling_lacks(device):
        raise ValueError(f"compile={str(choice).lower()} needs {lacking}, and there is none here: set compile=false")
    graphs = choice == "reduce-overhead"
    # not dynamic: else a second image size would be compiled for any size, and be slower
    call = torch.compile(model, mode="reduce-overhead" if graphs else None, dynamic=False)

    def step(images: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # outputs of the last step may be overwritten
        return call(images)

    return step if graphs else call


def compiling_lacks(device: torch.device) -> str:
    """What `torch.compile` needs and this machine does not have, in words; "" if it has all."""
    gpu = device.type == "cuda"
    variable, names = ("CC", ("gcc", "clang")) if gpu else ("CXX", ("g++", "clang++"))
    if variable not in os.environ and not any(map(shutil.which, names)):
        return f"a compiler such as {names[0]}"
    if not gpu:
        return ""
    if torch.cuda.get_device_capability(device) < (7, 0):
        return "a GPU of compute capability 7.0 or more"
    if find_spec("triton") is None:
        return "the package triton"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return "" if headers.is_file() else f"{headers} (from python3-dev, for a system's Python)"


def cores() -> int:
    """Processor cores that this process may use, which on a shared machine are fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: reserved on the GPU since the run began if it computes, else this process's RAM so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    status = Path("/proc/self/status")
    if status.exists() and (peak := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):  # gVisor's has no such line
        return int(peak[1]) * 1024  # `getrusage` may report the parent process's memory
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
