"""From a folder of photographs to batches of 224 px on one core: ours, beside torch's DataLoader with torchvision.

    python benchmarks/loading.py            # minutes on one core; writes results/loading.json
    python benchmarks/loading.py --quick    # seconds, on few images; writes nothing

The JPEGs are made up, of a photograph's size and detail, in a temporary folder that also takes the cache. Each way
reads all of them once, in a random order, into normalised float32 batches. Torchvision's way is an `ImageFolder` with
`Resize`, `CenterCrop` and `Normalize`, which decodes anew in every epoch; ours decodes in the first epoch only.
"""

import argparse
import functools
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from measure import RESULTS, declare_torchvision_operators, interleaved, machine, save
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitreous.data.images import Split
from vitreous.data.loaders import Batches
from vitreous.data.sources import load
from vitreous.device import pick_device
from vitreous.preprocess import Preprocess

SIDE, BATCH, CLASSES = 224, 32, 4
SIZES = [(500, 375), (375, 500), (500, 333), (480, 360)]  # (width, height) of the originals
MEAN, STD = (0.48, 0.45, 0.41), (0.23, 0.22, 0.22)
PEER = "DataLoader, torchvision"


def photograph(rng: np.random.Generator, size: tuple[int, int]) -> bytes:
    """A JPEG with detail at every scale, less of it the finer, as in photographs: coloured noise, octave by octave."""
    pixels = np.full((size[1], size[0], 3), 128.0)
    for cells, strength in ((4, 60), (8, 45), (16, 30), (32, 20), (64, 14), (128, 11), (256, 9)):
        noise = rng.integers(0, 256, (cells, cells, 3), np.uint8)
        pixels += (np.asarray(Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)) / 128.0 - 1) * strength
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def write_folder(folder: Path, images: int) -> float:
    """Write folder/<class>/<i>.jpg, from a hundred different photographs. Returns their mean size in kB."""
    rng = np.random.default_rng(0)
    files = [photograph(rng, SIZES[i % len(SIZES)]) for i in range(min(images, 100))]
    for i in range(images):
        path = folder / f"class{i % CLASSES}" / f"{i:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[i % len(files)])
    return sum(map(len, files)) / len(files) / 1e3


def read(batches: Iterable[Tensor], images: int) -> None:
    """Take all batches; they must be what a model takes, and all there."""
    seen = 0
    for batch in batches:
        assert batch.dtype == torch.float32 and batch.shape[1:] == (3, SIDE, SIDE)
        seen += len(batch)
    assert seen == images, f"{seen} of {images} images"


def ours(split: Split) -> dict[str, Callable[[], None]]:
    """A first epoch, from nothing; a new run's, when the images were decoded before; and later epochs."""
    preprocess = Preprocess(image_size=SIDE, mean=MEAN, std=STD)
    cache = Path(os.environ["VITREOUS_CACHE"])

    def epoch(batches: Batches) -> None:
        order = torch.randperm(len(batches))
        read((preprocess.normalise(batch.images) for batch in batches.epoch(order)), len(split))

    def first() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        epoch(Batches(split, preprocess, batch_size=BATCH))

    resident = Batches(split, preprocess, batch_size=BATCH)
    streamed = Batches(split, preprocess, batch_size=BATCH, memory_budget=0)
    return {
        "ours, first epoch: decodes": first,
        "ours, first epoch of another run": lambda: epoch(Batches(split, preprocess, batch_size=BATCH)),
        "ours, later epochs, in memory": functools.partial(epoch, resident),
        "ours, later epochs, streamed": functools.partial(epoch, streamed),
    }


def torchvision_dataset(folder: Path) -> Dataset:
    """Normalised float32 (3, 224, 224) and labels, decoded whenever they are asked for."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import InterpolationMode, v2

    fit = [v2.Resize(SIDE, InterpolationMode.BICUBIC), v2.CenterCrop(SIDE)]
    tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return ImageFolder(folder, v2.Compose([*fit, *tail]))


def torchvision(folder: Path, images: int) -> Callable[[], None]:
    """An epoch, whichever."""
    loader = DataLoader(torchvision_dataset(folder), BATCH, shuffle=True)
    return lambda: read((batch for batch, _ in loader), images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few images and rounds, no file")
    options = parser.parse_args()
    images, rounds = (48, 2) if options.quick else (2000, 5)
    device = pick_device("cpu")  # keeps memory from step to step, as training does; so the peer does, too
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):  # images are decoded by threads, as many as there are cores
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    declare_torchvision_operators()

    with tempfile.TemporaryDirectory() as temporary:
        os.environ["VITREOUS_CACHE"] = f"{temporary}/cache"
        folder = Path(temporary) / "photographs"
        kilobytes = write_folder(folder, images)
        ways = ours(load(folder).train)
        try:
            ways |= {PEER: torchvision(folder, images)}
            missing = None
        except Exception as error:  # a broken install raises anything
            missing = f"{PEER} is left out: {type(error).__name__}: {error}".splitlines()[0]
        timings = interleaved(ways, device, rounds, 1)

    rows = []
    for name, seconds in timings.items():
        row = {"name": name, "images_per_second": images / seconds["median"]}
        row["quartiles"] = [images / seconds["high"], images / seconds["low"]]
        if PEER in timings:
            row["faster_than_peer_by"] = timings[PEER]["median"] / seconds["median"]
        rows.append(row)

    show(
        rows, f"{images} JPEGs of about 500 x 375 px, {kilobytes:.0f} kB each, to {SIDE} px: images a second, one core"
    )
    if missing:
        print(missing)
    if not options.quick:
        results = {"machine": machine(device), "images": images, "kilobytes": kilobytes, "rounds": rounds}
        save(RESULTS / "loading.json", results | {"missing": missing, "rows": rows})


def show(rows: list[dict], title: str) -> None:
    table = Table(title=title)
    table.add_column("way", no_wrap=True)
    for header in ("images/s", "times the DataLoader's"):
        table.add_column(header, justify="right")
    for row in rows:
        ratio = row.get("faster_than_peer_by")
        table.add_row(row["name"], f"{row['images_per_second']:,.0f}", "" if ratio is None else f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
