"""Batches of a split: small sets are kept on the device as uint8, large ones are streamed by workers."""

import copy
import json
import logging
import math
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from vitreous.data.images import Split
from vitreous.data.stores import ArrayImages, BrokenImage, Images, even_rows
from vitreous.device import cores
from vitreous.files import path_of, write_json
from vitreous.messages import lacks_memory
from vitreous.preprocess import Preprocess, channel_statistics

log = logging.getLogger("vitreous")

IN_MEMORY = 2 << 30  # bytes of pixels that may be decoded into memory
MEASURED = 1 << 30  # bytes of pixels used for mean and standard deviation
COPIED = 16 << 20  # bytes of pixels copied at a time
PART = 32  # images decoded at a time
FITTING = 4  # bumped when `Preprocess` changes how it fits images, so that older decoded images are not used
ABANDONED = 86_400  # seconds after which an unfinished file is that of a process that was killed
SKIPPING = "data.skip_broken=true to train, else --skip-broken"
REPORTED = 20  # broken images that are logged individually
START = "fork" if sys.platform == "linux" else None  # Python 3.14's own way imports all anew in each worker and pass
ELSEWHERE = "VITREOUS_CACHE can name another folder"

Progress = Callable[[int, int], None]  # gets the images done and the total


def cache_folder() -> Path | None:
    """The cache of decoded images, which may be deleted at any time: `$VITREOUS_CACHE`, or ~/.cache/vitreous; None
    without a home folder."""
    chosen = os.environ.get("VITREOUS_CACHE")
    folder = path_of(chosen or "~/.cache/vitreous")
    return None if not chosen and str(folder).startswith("~") else folder


class Batch(NamedTuple):
    """images: uint8 (B, C, H, W). labels: int64 (B,)."""

    images: Tensor
    labels: Tensor


class Batches:
    """The images of a split, decoded and fitted, in batches on the device, in any order.

    Up to `memory_budget` bytes of pixels are kept on the device and batches are indexed there; a larger set is read by
    `workers` processes (0: this one). Both give the same batches. With skip_broken, images that cannot be read are left
    out; `images` and `labels` are the remaining ones, on the host.
    """

    def __init__(
        self,
        split: Split,
        preprocess: Preprocess,
        *,
        batch_size: int,
        device: torch.device | str = "cpu",
        memory_budget: int = 4 << 30,
        workers: int = 0,
        skip_broken: bool = False,
        progress: Progress | None = None,
    ):
        if batch_size < 1:
            raise ValueError(f"batch size {batch_size} is less than 1: give 1 or more")
        split = decode(split, preprocess, cache=cache_folder(), skip_broken=skip_broken, progress=progress)
        self.preprocess, self.batch_size, self.workers = preprocess, batch_size, workers
        self.device = torch.device(device)
        self.images, self.labels = split.images, torch.tensor(split.labels)
        self._labels = self.labels.to(self.device)
        self.resident = _bytes(self.images, preprocess) <= memory_budget
        if self.resident:
            try:
                self._pixels = torch.empty((len(split), *preprocess.shape), dtype=torch.uint8, device=self.device)
            except RuntimeError as error:
                if not lacks_memory(error):
                    raise
                size = _bytes(self.images, preprocess) / 1e9
                raise ValueError(
                    f"{size:.1f} GB of images do not fit into the memory of {self.device}: to train, lower "
                    "data.memory_budget; else use --device cpu"
                ) from error
            for rows in self._parts(np.arange(len(split))):
                try:
                    self._pixels[rows[0] : rows[-1] + 1] = torch.from_numpy(self.images.read(rows, preprocess))
                except BrokenImage as error:
                    raise _met(error) from error
        if isinstance(self.images, ArrayImages):
            return
        if not self.resident:
            size = _bytes(self.images, preprocess) / 1e9
            log.warning("%.1f GB of decoded images are not kept: each pass decodes them anew", size)
        elif self.device.type == "cpu":
            self.images = ArrayImages(self._pixels.numpy(), origin=self.images)

    def __len__(self) -> int:
        return len(self.labels)

    def in_batches_of(self, batch_size: int) -> "Batches":
        """The same images, in batches of another size."""
        other = copy.copy(self)
        other.batch_size = batch_size
        return other

    def streamed(self) -> "Batches":
        """The same images, read when they are asked for: the device's memory is free for others."""
        other = copy.copy(self)
        other.resident, other._pixels = False, None
        return other

    def epoch(self, order: Tensor) -> Iterator[Batch]:
        """Batches of the rows in `order`; the last one may be smaller."""
        order = order.cpu()
        if not len(order):
            return iter(())
        if not 0 <= order.min() <= order.max() < len(self):
            raise ValueError(f"rows {order.min()}..{order.max()} are not within 0..{len(self) - 1}")
        return self._resident_epoch(order) if self.resident else self._streamed_epoch(order)

    def _resident_epoch(self, order: Tensor) -> Iterator[Batch]:
        for rows in order.to(self.device).split(self.batch_size):
            yield Batch(self._pixels.index_select(0, rows), self._labels.index_select(0, rows))

    def _streamed_epoch(self, order: Tensor) -> Iterator[Batch]:
        loader = DataLoader(
            [rows.numpy() for rows in order.split(self.batch_size)],
            batch_size=None,  # each item has the rows of a whole batch, which a worker reads
            collate_fn=partial(_read, self.images, self.preprocess),
            num_workers=self.workers,
            multiprocessing_context=START if self.workers else None,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_leave_group,
            generator=torch.Generator(),  # leaves the global one unchanged, as a resident set does
        )
        labels = self.labels[order].to(self.device).split(self.batch_size)
        for images, own in zip(loader, labels, strict=True):
            if isinstance(images, BrokenImage):
                raise _met(images)
            yield Batch(images.to(self.device, non_blocking=True), own)

    def measured(self) -> Preprocess:
        """The preprocessing with mean and std of these images, or of an evenly spread sample of a very large set."""
        rows = even_rows(len(self), max(1, MEASURED // math.prod(self.preprocess.shape)))
        mean, std = channel_statistics(self.images.read(part, self.preprocess) for part in self._parts(rows))
        return self.preprocess.model_copy(update={"mean": mean, "std": std})

    def _parts(self, rows: np.ndarray) -> list[np.ndarray]:
        """The rows in parts to read one at a time, so that what is read never takes as much memory as the set again."""
        step = max(1, COPIED // math.prod(self.preprocess.shape))
        return np.split(rows, range(step, len(rows), step))


def _read(images: Images, preprocess: Preprocess, rows: np.ndarray) -> Tensor | BrokenImage:
    """The pixels of some rows, in a worker. An error is returned as a value, to keep its one-line message."""
    try:
        return torch.from_numpy(images.read(rows, preprocess))
    except BrokenImage as error:
        return error


def _leave_group(_: int) -> None:
    """Leave the process group: Ctrl-C or a scheduler's SIGTERM to the group is for the process that trains."""
    os.setpgrp()


def decode(
    split: Split,
    preprocess: Preprocess,
    *,
    cache: Path | None = None,
    skip_broken: bool = False,
    progress: Progress | None = None,
) -> Split:
    """The split with its images decoded and fitted: uint8 (N, C, H, W), in memory or memory-mapped.

    cache: a folder that keeps decoded images for the next time. Images that fit already are returned as they are, and
    so is a set of more than 2 GiB that no folder keeps: it is decoded whenever it is read. Raises
    BrokenImage if images cannot be read; with skip_broken they are left out, with their labels.
    """
    images = split.images
    if isinstance(images, ArrayImages) and images.fits(preprocess):
        return split
    small = _bytes(images, preprocess) <= IN_MEMORY
    rows, array, broken = np.arange(len(images)), None, {}
    file = None if small and isinstance(images, ArrayImages) else _cache_file(cache, images, preprocess)
    if file is not None:  # holds the whole storage, shared by training and validation images
        rows, images = images.rows, images.whole()
        array, broken = _cached(file, images, preprocess, progress)
    elif small:
        array = np.empty((len(images), *preprocess.shape), np.uint8)
        broken = _decode_all(images, preprocess, array, progress)
    elif skip_broken:
        broken = _decode_all(images, preprocess, None, progress)

    alive = np.flatnonzero(~np.isin(rows, list(broken)))
    _report([broken[row] for row in rows if row in broken], len(split), skip_broken)
    if array is None:
        return split.take(alive)
    return Split(ArrayImages(array, origin=images).take(rows[alive]), split.labels[alive])


def _bytes(images: Images, preprocess: Preprocess) -> int:
    return len(images) * math.prod(preprocess.shape)


def _cache_file(cache: Path | None, images: Images, preprocess: Preprocess) -> Path | None:
    """The file for all decoded images of a storage; None if the storage has no key, or the disk no room."""
    key = None if cache is None else images.key()
    if key is None:
        return None
    shape = "x".join(map(str, preprocess.shape))
    crop = "" if preprocess.crop_fraction == 1 else f"-{preprocess.crop_fraction}"
    white = "" if preprocess.white is None else f"-white-{preprocess.white!r}"
    file = cache / f"{key}-{FITTING}-{shape}-{preprocess.interpolation}-{preprocess.fit}{crop}{white}.npy"
    needed = _bytes(images.whole(), preprocess)
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning("decoded images are not kept: %s: %s; %s", cache, error.strerror, ELSEWHERE)
        return None
    for old in cache.glob("*.unfinished"):  # what killed processes have left takes room
        with suppress(OSError):  # another process has taken it away, or it may not be
            if time.time() - old.stat().st_mtime > ABANDONED:
                old.unlink()
    if not file.exists() and not os.access(cache, os.W_OK):
        log.warning("decoded images are not kept: %s cannot be written to; %s", cache, ELSEWHERE)
        return None
    if not file.exists() and shutil.disk_usage(cache).free < 1.1 * needed:
        size = f"{needed / 1e9:.1f} GB" if needed >= 1e9 else f"{needed / 1e6:.1f} MB"
        log.warning("%s has no room for %s of decoded images; %s", cache, size, ELSEWHERE)
        return None
    return file


def _cached(
    file: Path, whole: Images, preprocess: Preprocess, progress: Progress | None
) -> tuple[np.ndarray, dict[int, str]]:
    """The decoded images in a file, created if missing, and the messages of the broken ones."""
    notes = file.with_suffix(".broken.json")
    try:
        array = np.load(file, mmap_mode="r")
        broken = {int(row): message for row, message in json.loads(notes.read_text()).items()}
        still = _decode_all(whole.take(list(broken)), preprocess, None, None) if broken else {}
        if len(still) == len(broken):  # else a fault is gone, such as a missing permission: decode again
            return array, broken
    except (OSError, ValueError, EOFError):  # missing or damaged
        pass

    unfinished = file.with_name(f"{file.stem}.{uuid.uuid4().hex}.unfinished")
    try:
        shape = (len(whole), *preprocess.shape)
        array = np.lib.format.open_memmap(unfinished, "w+", np.uint8, shape)
        if hasattr(os, "posix_fallocate"):  # else a full disk would kill the process while it writes
            with unfinished.open("r+b") as opened:
                os.posix_fallocate(opened.fileno(), 0, unfinished.stat().st_size)
        broken = _decode_all(whole, preprocess, array, progress)
        array.flush()
        notes.unlink(missing_ok=True)  # cut short here, old pixels would be taken with new notes, but not with none
        unfinished.replace(file)
        write_json(notes, broken)
    except OSError as error:
        more = "make room there, or name another folder as VITREOUS_CACHE"
        raise OSError(f"cannot keep decoded images in {file.parent}: {error.strerror or error}: {more}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return np.load(file, mmap_mode="r"), broken


def _decode_all(
    images: Images, preprocess: Preprocess, array: np.ndarray | None, progress: Progress | None
) -> dict[int, str]:
    """Read every image, into `array` if given. Returns the messages of broken ones, by row."""
    broken: dict[int, str] = {}

    def decode_part(start: int) -> int:
        rows = range(start, min(start + PART, len(images)))
        for row in rows:
            try:
                pixels = images.read([row], preprocess)[0]
            except BrokenImage as error:
                broken[row] = str(error)
                continue
            if array is not None:
                array[row] = pixels
        return len(rows)

    done, starts = 0, list(range(0, len(images), PART))
    report = progress or (lambda done, total: None)
    for start in starts[:2]:  # the second one is timed
        started = time.perf_counter()
        done += decode_part(start)
        report(done, len(images))
    # Tiny images spend their time in Python, where threads only wait for each other
    threads = cores() if (time.perf_counter() - started) / PART > 5e-4 else 1
    Image.init()  # else threads that meet a further format at once may not find it
    pool = ThreadPoolExecutor(threads)
    try:
        for part in as_completed([pool.submit(decode_part, start) for start in starts[2:]]):
            done += part.result()
            report(done, len(images))
    finally:
        pool.shutdown(cancel_futures=True)
    return dict(sorted(broken.items()))


def _met(error: BrokenImage) -> BrokenImage:
    """What to say of a broken image that is met on the way, in a set that is not decoded beforehand."""
    return BrokenImage(f"{error}: repair it; or begin again without it, or with {SKIPPING}")


def _report(broken: list[str], total: int, skip: bool) -> None:
    """Log the images that could not be read. Raises BrokenImage unless they may be skipped and others are left."""
    if not broken:
        return
    if not skip:
        more = f" (and {len(broken) - 1} more of {total} images)" if len(broken) > 1 else ""
        raise BrokenImage(f"{broken[0]}{more}: repair or remove it, or skip it: {SKIPPING}")
    for message in broken[:REPORTED]:
        log.warning("cannot read %s", message)
    if len(broken) == total:
        raise BrokenImage(f"none of {total} images can be read; the first: {broken[0]}")
    log.warning("left out %d of %d images that cannot be read", len(broken), total)
