"""Storage of images: in an array, in files, in a dataset; all are read by `Images.read`."""

import hashlib
import mmap
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from vitreous.preprocess import Preprocess, orientation

FORMATS = {"JPEG": "JPEG", "PNG": "PNG", "TIFF": "TIFF", "WEBP": "WebP", "BMP": "BMP", "GIF": "GIF", "AVIF": "AVIF"}
FORMATS |= {"HEIF": "HEIC", "JPEG2000": "JPEG 2000", "PPM": "Netpbm"}  # Pillow's names -> ours
SAMPLE = 64  # images whose headers are read for channels and size
MOST_LAST = 16  # channels of an array that has them last, if not 1 or 3, or images are square
MAPPED = 16  # images that stay mapped, each with up to 2 MB of the file around it


class BrokenImage(ValueError):
    """An image that cannot be read: says which one and why."""


class Images(ABC):
    """A collection of images that are read on demand and fitted to a model's size on the way.

    `rows` are the images of the storage that it shows, in order: `take` copies nothing.
    """

    def __init__(self, stored: int):
        self.stored = stored
        self.rows = np.arange(stored)

    @abstractmethod
    def key(self) -> str | None:
        """Identity of the whole storage, to find its decoded copy again; None if there is no stable one."""

    @abstractmethod
    def _fit(self, row: int, preprocess: Preprocess) -> np.ndarray:
        """One stored image as uint8 (C, H, W) of the model's size."""

    @abstractmethod
    def _shape(self, row: int) -> tuple[int, int, int]:
        """(C, H, W) of one stored image, as cheaply as possible."""

    @abstractmethod
    def _name(self, row: int) -> str:
        """The location of one stored image, for messages."""

    def _place(self, row: int) -> str:
        """The location of one stored image relative to its set, which `data.group` searches."""
        return self._name(row)

    def places(self) -> list[str]:
        return [self._place(int(row)) for row in self.rows]

    def missing(self) -> str | None:
        """The first image that is not there, as far as that can be told without reading one."""
        return None

    def column(self, name: str) -> np.ndarray | None:
        """The images' values in a column, as text, "" if empty: (N,). None: there is no such column."""
        return None

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: np.ndarray) -> "Images":
        return self._view(self.rows[rows])

    def whole(self) -> "Images":
        """All stored images, in storage order."""
        return self._view(np.arange(self.stored))

    def _view(self, rows: np.ndarray) -> "Images":
        """Other rows of the same storage; unlike a copy or a pickle, it shares everything that is open."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, rows=rows)
        return view

    def describe(self, row: int) -> str:
        return self._name(int(self.rows[row]))

    def original(self, row: int) -> "Images":
        """One image as stored before any decoding and fitting."""
        one = self.take(np.array([row]))
        for measured in ("shape", "channels", "_sampled_shapes"):  # of all images, not of this one
            one.__dict__.pop(measured, None)
        return one

    def read(self, rows: np.ndarray, preprocess: Preprocess) -> np.ndarray:
        """Read and fit some rows: uint8 (n, C, H, W). Raises BrokenImage for one that cannot be read."""
        fitted = np.empty((len(rows), *preprocess.shape), np.uint8)
        for i, row in enumerate(self.rows[rows]):
            with reading(partial(self._name, int(row))):
                fitted[i] = self._fit(int(row), preprocess)
        return fitted

    def at_own_size(self, row: int, white: float | None = None) -> np.ndarray:
        """A copy of one image as it is, upright: uint8 (C, H, W). white: as `Preprocess` has it. Raises BrokenImage."""
        stored = int(self.rows[row])
        with reading(partial(self._name, stored)):
            C, H, W = self._shape(stored)
            whole = Preprocess(image_size=(H, W), mean=(0,) * C, std=(1,) * C, white=white)
            return np.array(self._fit(stored, whole))

    @cached_property
    def shape(self) -> tuple[int, int, int] | None:
        """(C, H, W) if all images are of one size, as far as a sample of their headers shows; else None."""
        sizes = {shape[1:] for shape in self._sampled_shapes}
        return (self.channels, *sizes.pop()) if len(sizes) == 1 else None

    @cached_property
    def channels(self) -> int:
        return max(shape[0] for shape in self._sampled_shapes)

    @cached_property
    def _sampled_shapes(self) -> list[tuple[int, int, int]]:
        shapes, rows = [], self._sample_rows()
        for row in rows:
            try:
                shapes.append(self._shape(int(row)))
            except Exception as error:  # decoding will report it
                last = f"{self._name(int(row))}: {reason(error)}"
        if not shapes:
            raise BrokenImage(f"none of {len(rows)} images tried can be read, the last is {last}")
        return shapes

    def _sample_rows(self) -> np.ndarray:
        return self.rows[even_rows(len(self), SAMPLE)]


class ArrayImages(Images):
    """Decoded images, uint8 (N, C, H, W), in memory or memory-mapped. origin: the images they were decoded from."""

    def __init__(self, pixels: np.ndarray, origin: Images | None = None):
        super().__init__(len(pixels))
        self.pixels, self.origin = pixels, origin
        self.fitted = origin is not None

    def column(self, name: str) -> np.ndarray | None:
        return None if self.origin is None else self.origin.take(self.rows).column(name)

    def places(self) -> list[str]:
        return super().places() if self.origin is None else self.origin.take(self.rows).places()

    def original(self, row: int) -> Images:
        return super().original(row) if self.origin is None else self.origin.original(int(self.rows[row]))

    def fits(self, preprocess: Preprocess) -> bool:
        """Whether the pixels are ready for the model: fitted when decoded, or whole images of its size."""
        return self.shape == preprocess.shape and (self.fitted or preprocess.crop_fraction == 1)

    @property
    def array(self) -> np.ndarray:
        """uint8 (N, C, H, W) in the order of the rows; a copy only if that is not the storage's order."""
        return self.pixels if np.array_equal(self.rows, np.arange(self.stored)) else self.pixels[self.rows]

    def key(self) -> str:
        digest = hashlib.blake2b(repr(self.pixels.shape).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.pixels))
        return digest.hexdigest()

    def read(self, rows, preprocess):
        if self.fits(preprocess):
            return self._copy(self.rows[rows])
        return super().read(rows, preprocess)

    def one_by_one(self) -> Iterator[np.ndarray]:
        """Every image, uint8 (C, H, W), in the order of the rows."""
        for start in range(0, len(self), MAPPED):
            yield from self._copy(self.rows[start : start + MAPPED])

    def _copy(self, stored: np.ndarray) -> np.ndarray:
        """Copy some stored images. Mapped pages are released after reading, else they all count as our memory."""
        if not (self._is_map and self.pixels.mode == "r"):
            return self.pixels[stored]
        copy = np.empty((len(stored), *self.shape), np.uint8)
        for start in range(0, len(stored), MAPPED):
            copy[start : start + MAPPED] = self.pixels[stored[start : start + MAPPED]]
            self.pixels.base.madvise(mmap.MADV_DONTNEED)  # the system still caches the file
        return copy

    @property
    def _is_map(self) -> bool:
        """Whether the pixels are a memory-mapped file, from its start on."""
        return isinstance(self.pixels.base, mmap.mmap)

    def _fit(self, row, preprocess):
        return preprocess.fit_array(self.pixels[row])

    def _shape(self, row):
        return self.pixels.shape[1:]

    def _name(self, row):
        return self.origin.describe(row) if self.origin is not None else f"row {row}"

    def __getstate__(self):
        state, pixels = self.__dict__ | {"origin": None}, self.pixels
        if self._is_map and pixels.flags.c_contiguous and pixels.mode != "c":  # a worker maps the file again
            state["pixels"] = (pixels.filename, pixels.dtype, "r", pixels.offset, pixels.shape)
        return state

    def __setstate__(self, state):
        if isinstance(state["pixels"], tuple):
            state["pixels"] = np.memmap(*state["pixels"])
        self.__dict__.update(state)


class FileImages(Images):
    """Image files in `FORMATS`. columns: their values in a table, by name. root: the set's folder."""

    def __init__(
        self, paths: Sequence[str | Path], columns: dict[str, list[str]] | None = None, root: Path | None = None
    ):
        super().__init__(len(paths))
        self.paths, self.columns, self.root = [str(path) for path in paths], columns or {}, root

    def column(self, name: str) -> np.ndarray | None:
        return np.array(self.columns[name])[self.rows] if name in self.columns else None

    def missing(self) -> str | None:
        there = os.path.exists  # four times as fast as Path's, which raises for a name that is too long
        return next((self._name(row) for row in self.rows if not there(self.paths[row])), None)

    def key(self) -> str:
        return identity(self.paths)

    def _fit(self, row, preprocess):
        with open_picture(self.paths[row]) as image:
            return preprocess.fit_image(image)

    def _shape(self, row):
        with open_picture(self.paths[row]) as image:
            return header_shape(image)

    def _name(self, row):
        return as_text(self.paths[row])

    def _place(self, row):
        return self._name(row) if self.root is None else self._name(row).removeprefix(f"{as_text(self.root)}/")


class DatasetImages(Images):
    """Any dataset with `len` and `dataset[row]` giving (image, label): a picture, an array or a tensor."""

    _lock = threading.RLock()  # of the process: a dataset need not be thread-safe, and may read another one

    def __init__(self, dataset):
        super().__init__(len(dataset))
        self.dataset = dataset

    def key(self) -> None:
        return None

    def _image(self, row: int) -> Image.Image | np.ndarray:
        with self._lock:
            image = self.dataset[row][0]
            if isinstance(image, Image.Image):
                image.load()  # from a file that the dataset may hold open
                return image
        if not hasattr(image, "ndim"):
            kind = type(image).__name__
            raise TypeError(
                f"an image is a PIL image, an array or a tensor, not {kind}; files are read by vt.load_data, from a "
                "folder or a table"
            )
        return as_pixels(image[None])[0]

    def _fit(self, row, preprocess):
        image = self._image(row)
        return preprocess.fit_image(image) if isinstance(image, Image.Image) else preprocess.fit_array(image)

    def _shape(self, row):
        image = self._image(row)
        return header_shape(image) if isinstance(image, Image.Image) else image.shape

    def _name(self, row):
        return f"{type(self.dataset).__name__}: row {row}"


def even_rows(count: int, most: int) -> np.ndarray:
    """At most `most` row numbers in 0..count-1, evenly spread, with the first and the last."""
    return np.linspace(0, count - 1, min(count, most)).astype(int)


def as_pixels(images) -> np.ndarray:
    """Convert images in an array or tensor to uint8 (N, C, H, W).

    Takes (N, H, W), (N, H, W, C) or (N, C, H, W), as uint8 or as floats in 0..1. Channels are last where there are 1 or
    3 of them, where only then the images are square, or where there are at most `MOST_LAST` and fewer than there would
    be if they were first.
    """
    if isinstance(images, torch.Tensor):
        images = images.detach().cpu()
        images = (images.float() if images.is_floating_point() else images).numpy()
    try:
        images = np.asanyarray(images)
    except ValueError as error:  # numpy's, of a list
        raise ValueError("images are of several shapes: give a dataset of them to ImageSet.from_dataset") from error
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4 or not images.size:
        raise ValueError(f"images of shape {images.shape}: give (N, H, W), (N, H, W, C) or (N, C, H, W)")
    first, middle, last = images.shape[1:]
    fewer = last < first and last <= MOST_LAST and middle != last  # squares: C, H, W
    squares = first == middle != last  # H, W, C
    if first not in (1, 3) and (last in (1, 3) or squares or fewer):
        images = np.ascontiguousarray(np.moveaxis(images, 3, 1))
    if images.dtype == np.uint8:
        return images
    low, high = images.min(), images.max()
    if not np.issubdtype(images.dtype, np.floating) or not (low >= 0 and high <= 1):
        raise ValueError(f"images are {images.dtype} in {low}..{high}: give uint8, or floats in 0..1")
    return np.rint(images * 255).astype(np.uint8)


def as_text(name: str | Path) -> str:
    """A file name that can be written anywhere: bytes that are not UTF-8 become \\udcff and the like."""
    return str(name).encode(errors="backslashreplace").decode()


def reason(error: Exception) -> str:
    """Why an image cannot be read, in one line."""
    if isinstance(error, UnidentifiedImageError):
        *most, last = FORMATS.values()
        return f"not a {', '.join(most)} or {last} picture in gray or colour"
    if isinstance(error, Image.DecompressionBombError):
        return f"more than the {2 * Image.MAX_IMAGE_PIXELS:,} pixels that Pillow opens: make it smaller"
    if isinstance(error, IsADirectoryError):
        return "a folder: name an image file in it"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@contextmanager
def reading(name: Callable[[], str]) -> Iterator[None]:
    """Whatever a decoder raises for an image becomes a BrokenImage that names it; lack of memory stays what it is."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # decoders raise nearly anything for a damaged file
        raise BrokenImage(f"{name()}: {reason(error)}") from error


def open_picture(source: str | Path | BinaryIO) -> Image.Image:
    """Open a picture from an untrusted source, by its content and in `FORMATS` alone.

    Of the others that Pillow knows, some start a program (EPS, also within IPTC) or decode in Python, byte by byte.
    HEIC is not built into Pillow. Raises ValueError for it if extra heic is not installed.
    """
    if isinstance(source, str | Path) and Path(source).is_fifo():  # which nobody may ever write to
        raise ValueError("a pipe: name an image file")
    try:
        return Image.open(source, formats=[name for name in FORMATS if name != "HEIF"])
    except UnidentifiedImageError:
        if not _is_heic(source):
            raise
    if find_spec("pillow_heif") is None:
        raise ValueError('a HEIC picture: convert it to JPEG, or pip install "vitreous[heic]"')
    from pillow_heif import register_heif_opener

    register_heif_opener()
    return Image.open(source, formats=["HEIF"])


def _is_heic(source: str | Path | BinaryIO) -> bool:
    """Whether a file that is nothing else says that it is HEIC: ISO base media of a brand such as heic or mif1."""
    if isinstance(source, str | Path):
        with Path(source).open("rb") as file:
            return _is_heic(file)
    source.seek(0)
    return source.read(12).startswith((b"ftyphe", b"ftypmif1", b"ftypmsf1"), 4)


def header_shape(image: Image.Image) -> tuple[int, int, int]:
    """(C, H, W) of a picture, mostly without decoding it."""
    if image.format == "TIFF":  # Pillow rotates these itself, and tells only after loading
        image.load()
    columns, rows = image.size if orientation(image) < 5 else image.size[::-1]
    gray = image.mode in ("1", "L", "LA", "La", "F") or image.mode.startswith("I")
    return (1 if gray else 3, rows, columns)


def identity(paths: Sequence[str], *more: str) -> str:
    """A hash that changes when a file is added, removed, renamed or written."""
    digest = hashlib.blake2b(repr(more).encode(), digest_size=16)
    for path in paths:
        try:
            stat = Path(path).stat()
            state = f"{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}"  # the last: renamed, perhaps over another
        except OSError:  # decoding will report it
            state = "unreadable"
        digest.update(f"{Path(path).absolute()}|{state}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
