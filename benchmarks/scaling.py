"""How the cost of training grows: a step with the model and its tokens; an epoch and its memory with the images.

    python benchmarks/scaling.py            # many minutes, 3 GB in the temporary folder; writes results/scaling.json
    python benchmarks/scaling.py --quick    # half a minute, at small sizes; writes nothing

Steps are AdamW steps on 32 px images, each model at patches of 4, 64 tokens, and one model at patches of 8 to 1. Epochs
are those of whole runs, each a process of its own, that stream 1,000 to 1,000,000 memory-mapped images of 32 px through
light augmentation into a model of almost nothing. Exponents are slopes of a log-log least-squares line: an epoch should
grow by 1.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from measure import RESULTS, interleaved, machine, save
from rich.console import Console

from vitreous.data.images import ImageSet, Split
from vitreous.data.stores import ArrayImages
from vitreous.device import autocast, peak_memory, pick_device, pick_precision
from vitreous.model import ViT, ViTConfig
from vitreous.recipe import OptimOptions, make_recipe
from vitreous.train.optim import make_optimizers
from vitreous.train.run import fit

SIDE, CLASSES = 32, 10
MODELS = ("nano", "micro", "mini", "Ti", "S")
PATCHES = (8, 4, 2, 1)  # 16, 64, 256 and 1,024 tokens
IMAGES = (1_000, 10_000, 100_000, 1_000_000)
RECIPE = {
    "epochs": 2,  # the second is timed, from the end of the first
    "model": {"patch_size": 16, "dim": 16, "depth": 1, "heads": 1},
    "augment": {"flip": 0.5, "shift": 4, "cutmix": 1.0},
    "data": {"val_fraction": 0, "memory_budget": 1e-9, "workers": 0},
    "optim": {"batch_size": 250},
}


def exponent(x: list[float], y: list[float]) -> float:
    """The slope of the least-squares line through (log x, log y)."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def step(size: str, batch: int, device: torch.device) -> tuple[Callable[[], None], int]:
    """A training step of a model of this size, such as nano/4, and its parameters."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(size=size, image_size=SIDE, num_classes=CLASSES)).to(device)
    (optimizer,) = make_optimizers(model, OptimOptions())
    images = torch.randn(batch, 3, SIDE, SIDE, device=device)
    labels = torch.randint(CLASSES, (batch,), device=device)
    precision = pick_precision("auto", device)

    def call() -> None:
        with autocast(device, precision):
            logits = model(images)
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return call, sum(weight.numel() for weight in model.parameters())


def steps(sizes: list[str], batch: int, device: torch.device, rounds: int) -> list[dict[str, Any]]:
    """A row for each size: its parameters, its tokens and the seconds of a step."""
    calls = {size: step(size, batch, device) for size in sizes}
    timings = interleaved({size: call for size, (call, _) in calls.items()}, device, rounds, 1)
    rows = []
    for size, seconds in timings.items():
        tokens = (SIDE // int(size.partition("/")[2])) ** 2
        rows.append({"size": size, "parameters": calls[size][1], "tokens": tokens, "batch": batch, "seconds": seconds})
    return rows


def write_pixels(file: Path, images: int) -> None:
    """Noise, uint8 (images, 3, 32, 32), of which no two are alike."""
    block = np.random.default_rng(0).integers(0, 256, (4096, 3, SIDE, SIDE), np.uint8)
    with file.open("wb") as out:
        for start in range(0, images, len(block)):
            rows = np.arange(start, min(start + len(block), images), dtype=np.uint32)
            block[: len(rows), 0, 0, :4] = rows[:, None].view(np.uint8)  # its number is in its first pixels
            out.write(block[: len(rows)].data)


def run(file: Path, images: int, folder: Path) -> dict[str, float]:
    """Train on the first images of the file. Returns the seconds of the second epoch and the peak memory in bytes."""
    torch.set_num_threads(1)
    pixels = np.memmap(file, np.uint8, "r", shape=(images, 3, SIDE, SIDE))
    split = Split(ArrayImages(pixels), np.arange(images) % CLASSES)
    data = ImageSet("noise", "noise", tuple(map(str, range(CLASSES))), split)
    ends = []
    fit(
        make_recipe(RECIPE, "benchmark"),
        data,
        out=folder,
        device="cpu",
        on_epoch=lambda row: ends.append(time.perf_counter()),
        console=Console(quiet=True),
    )
    return {"images": images, "seconds": ends[1] - ends[0], "bytes": peak_memory(torch.device("cpu"))}


def epochs(sizes: tuple[int, ...], rounds: int) -> list[dict[str, float]]:
    """A row for each number of images: median seconds of an epoch, and the largest peak memory."""
    runs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "pixels"
        write_pixels(file, max(sizes))
        for i in range(rounds):
            for images in sizes:
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    runs.append(pool.submit(run, file, images, Path(temporary) / f"{images}-{i}").result())
    rows = []
    for images in sizes:
        own = [r for r in runs if r["images"] == images]
        seconds, peak = statistics.median(r["seconds"] for r in own), max(r["bytes"] for r in own)
        rows.append({"images": images, "seconds": seconds, "bytes": peak})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds, no file")
    parser.add_argument("--device", default="auto", help="of the steps; the epochs run on one core")
    options = parser.parse_args()
    device = pick_device(options.device)
    quick = options.quick

    names, patches, rounds = (MODELS[:2], PATCHES[:2], 2) if quick else (MODELS, PATCHES, 7)
    by_model = steps([f"{name}/4" for name in names], 4 if quick else 32, device, rounds)
    by_tokens = steps([f"micro/{patch}" for patch in patches], 2 if quick else 8, device, rounds)
    by_images = epochs((500, 2000) if quick else IMAGES, 1 if quick else 3)

    def slope(rows: list[dict[str, Any]], x: str, y: Callable[[dict], float]) -> float:
        return exponent([row[x] for row in rows], [y(row) for row in rows])

    def median(row: dict[str, Any]) -> float:
        return row["seconds"]["median"]

    exponents = {
        "step by parameters": slope(by_model, "parameters", median),
        "step by tokens": slope(by_tokens, "tokens", median),
        "epoch by images": slope(by_images, "images", lambda row: row["seconds"]),
    }
    results = {"models": by_model, "tokens": by_tokens, "images": by_images, "exponents": exponents}
    from tables import scaling_tables  # not at the top, as each epoch's process would import it, too

    print(scaling_tables(results))
    if not quick:
        about = {"machine": machine(device), "rounds": {"steps": rounds, "epochs": 3}}
        save(RESULTS / "scaling.json", about | results)


if __name__ == "__main__":
    main()
