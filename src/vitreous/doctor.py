"""What this machine has, its speed in matrix products, and what is known not to work on it."""

import platform
import shutil
import time
from importlib.metadata import PackageNotFoundError, version

import psutil
import torch

from vitreous.device import NO_MPS, OLDER_CUDA, gpu_too_old, has_fast_bf16, pick_device, pick_precision
from vitreous.extras import pip_line
from vitreous.messages import first_line

BASE = ("vitreous", "torch", "accelerate", "numpy", "pillow", "pyarrow", "scikit-learn", "safetensors")
OPTIONAL = {  # extra: its packages
    "track": ("tensorboard", "wandb"),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "serve": ("starlette", "uvicorn", "python-multipart"),
    "heic": ("pillow-heif",),
}
SIDE = 8192  # of the largest matrices multiplied


def examine() -> None:
    """Print versions, devices, matrix-product rates and findings."""
    print(f"Python {platform.python_version()}, {platform.platform()}")
    print(", ".join(f"{name} {installed(name)}" for name in BASE))
    for extra, names in OPTIONAL.items():
        for name in names:
            print(f"optional {name}: {installed(name) or f'not installed: {pip_line(extra)}'}")
    memory, threads = psutil.virtual_memory(), torch.get_num_threads()
    print(
        f"{torch.cpu.get_capabilities().get('cpu_name', platform.processor())}, {threads} thread{'s' * (threads > 1)}, "
        f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB memory free"
    )
    for name in dict.fromkeys(("cpu", pick_device().type)):
        device = torch.device(name)
        rates = {"float32": matmul_rate(device, torch.float32), "bf16": matmul_rate(device, torch.bfloat16)}
        label = torch.cuda.get_device_name(device) if name == "cuda" else name
        auto, fastest = pick_precision("auto", device), max(rates, key=rates.__getitem__)
        print(
            f"{label}: {rates['float32']:,.0f} GFLOP/s in float32, {rates['bf16']:,.0f} in bf16; "
            f"precision auto is {auto}"
        )
        if rates[fastest] > 1.5 * rates[auto]:
            print(f"note: {fastest} multiplies faster than {auto} here: precision={fastest} may train faster")
    print(f"device auto is {pick_device().type}")
    for finding in findings():
        print(f"note: {finding}")


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """GFLOP/s of a square matrix product, best of five; the side doubles until it takes 20 ms or reaches `SIDE`."""
    side, best = min(256, SIDE), 0.0
    while side <= SIDE and best < 0.02:
        a, best = torch.randn(side, side, device=device).to(dtype), float("inf")
        for _ in range(5):
            start = time.perf_counter()
            b = a @ a
            b[0, 0].item()  # waits for the device
            best = min(best, time.perf_counter() - start)
        rate = 2 * side**3 / best / 1e9
        side *= 2
    return rate


def findings() -> list[str]:
    """Combinations on this machine that are known to be broken or slow."""
    found = []
    if not has_fast_bf16(torch.device("cpu")) and not torch.cuda.is_available():
        found.append("this processor has no fast bf16 and there is no CUDA GPU: training runs in float32")
    if torch.backends.mps.is_available():
        found.append(NO_MPS)
    if torch.cuda.is_available() and (why := gpu_too_old()):
        found.append(why)
    elif torch.cuda.is_available() and not has_fast_bf16(torch.device("cuda")):
        found.append("this GPU has no bf16 units, so auto means float32: precision=float16 may train faster")
    if installed("torchvision"):
        try:
            import torchvision  # noqa: F401
        except Exception as error:  # a broken installation may raise anything
            reason = first_line(error)
            found.append(f"torchvision does not import beside this torch ({reason}); vitreous does not need it")
    if torch.version.cuda and not torch.cuda.is_available():
        found.append(
            f"torch is built for CUDA {torch.version.cuda} but sees no GPU: check the driver (nvidia-smi), or, for an "
            f"older one, {OLDER_CUDA}"
        )
    if not torch.version.cuda and shutil.which("nvidia-smi"):
        found.append(
            "there is an NVIDIA driver, but this torch is built for CPUs alone: to use the GPU, `pip uninstall torch`, "
            "then install again (see README.md, Install)"
        )
    return found


def installed(name: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
