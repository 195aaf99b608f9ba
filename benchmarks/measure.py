"""Shared by the benchmarks: fair timing, the machine a figure belongs to, and writing results into documents."""

import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.data.images import ImageSet, Split
from vitreous.data.stores import FileImages
from vitreous.device import has_amx, has_fast_bf16
from vitreous.doctor import matmul_rate
from vitreous.files import read_json, write_json
from vitreous.recipe import Recipe, flat
from vitreous.train.folder import commit
from vitreous.train.folds import fit_folds
from vitreous.train.run import fit

RESULTS = Path(__file__).parent / "results"
sys.path.append(str(Path(__file__).parent.parent))  # where the package `reproductions` lies, which is not installed


def interleaved(
    variants: dict[Any, Callable[[], object]], device: torch.device, rounds: int, calls: int
) -> dict[Any, dict[str, float]]:
    """Time variants side by side: each round runs all of them, beginning with another one, so that a slow moment of the
    machine hits all and none has a place of its own.

    Returns, for each variant, the seconds of a call: the median over the rounds, and both quartiles.
    """
    for call in variants.values():
        call()  # warm-up
    seconds: dict[Any, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for i in range(rounds):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            start = now(device)
            for _ in range(calls):
                variants[name]()
            seconds[name].append((now(device) - start) / calls)
    quartiles = {name: statistics.quantiles(times, n=4, method="inclusive") for name, times in seconds.items()}
    return {name: {"low": low, "median": mid, "high": high} for name, (low, mid, high) in quartiles.items()}


def now(device: torch.device) -> float:
    """The time in seconds, once all work queued on the device is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def units(device: torch.device) -> str:
    """What multiplies matrices there, after which results are named: `avx2`, `avx512`, `avx512-bf16`, `amx`, `cuda`."""
    if device.type != "cpu":
        return device.type
    if has_amx():
        return "amx"
    return torch.backends.cpu.get_cpu_capability().lower() + "-bf16" * has_fast_bf16(device)


def machine(device: torch.device) -> dict[str, Any]:
    """Hardware, versions and the rate of a plain matrix product in GFLOP/s."""
    capabilities = torch.cpu.get_capabilities()
    return {
        "processor": capabilities.get("cpu_name", "unknown"),
        "cores": capabilities.get("num_physical_cores"),
        "threads": torch.get_num_threads(),
        "units": units(device),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__,
        "matmul_gflops": {
            "float32": round(matmul_rate(device, torch.float32)),
            "bf16": round(matmul_rate(device, torch.bfloat16)),
        },
    }


def declare_torchvision_operators() -> None:
    """On a CPU build of torch, PyPI's torchvision does not import, nor what imports it, without two operators."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pass
    except RuntimeError:
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)


def trained(recipe: Recipe, data: ImageSet | None, folder: Path, device: str = "auto") -> dict[str, Any]:
    """The results of a run, or a cross-validation: as they are, or after training, which goes on where it was stopped.

    data: loaded from the recipe's source where it is None. Raises KeyboardInterrupt for training that is interrupted,
    ValueError where the run in the folder is of another recipe.
    """
    finished = folder / "results.json"
    claim(recipe, folder)
    if not finished.exists():
        begin = fit_folds if recipe.data.folds is not None and recipe.data.fold is None else fit
        run = begin(recipe, data, out=folder, device=device, resume=(folder / "recipe.yaml").exists())
        if run.results is None:
            raise KeyboardInterrupt
    return read_json(finished)


def claim(recipe: Recipe, folder: Path) -> None:
    """Note beside a folder which recipe is to be run in it, all of its settings.

    Raises ValueError where a run of another recipe is there: its results would be taken for this one's.
    """
    note, asked = folder.with_name(f"{folder.name}.json"), flat(recipe.model_dump(mode="json"))
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, asked)
    elif not note.exists():
        raise ValueError(f"{folder} is of a recipe that no {note.name} beside it tells: move it away")
    elif (own := read_json(note)) != asked:
        key = min(key for key in own.keys() | asked.keys() if own.get(key) != asked.get(key))
        raise ValueError(f"{folder} is a run with {key}={own.get(key)}: move it away, or measure something else")


def save(path: Path, results: dict[str, Any]) -> None:
    """Write results as JSON, with the commit of the code that was measured, and print where."""
    write_json(path, results | {"commit": commit()})
    print(f"written to {path.name}")


def markdown(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (head, ["---"] * len(head), *rows))


def between(values: Sequence[float], form: str) -> str:
    """From the smallest to the largest, or the one figure that all of them round to."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def threads(machine: dict[str, Any]) -> str:
    """How many threads a machine computed with, in words."""
    return f"{machine['threads']} thread{'s' * (machine['threads'] > 1)}"


def one_thread(machine: dict[str, Any]) -> str:
    """What goes before a command so that it computes with one thread, if that machine did."""
    return "OMP_NUM_THREADS=1 " * (machine["threads"] == 1)


def replaced(document: str, opening: str, closing: str, block: str) -> str:
    """The document with the block between two marks, which it must have once."""
    document, count = re.subn(
        f"{opening}.*?{closing}", lambda _: f"{opening}\n{block}\n{closing}", document, flags=re.DOTALL
    )
    assert count == 1, f"the document has {count} places for {opening}"
    return document


def pooled(images: ImageSet) -> ImageSet:
    """The same images with no split: those for training first, then those for testing. Files only."""
    train, test = images.train, images.test
    files = FileImages([*train.images.paths, *test.images.paths])
    return replace(images, train=Split(files, np.append(train.labels, test.labels)), test=None)
