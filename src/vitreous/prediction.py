"""Prediction with a trained model: images in, class probabilities out."""

import io
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from glob import glob
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
import yaml
from PIL import Image
from torch import Tensor, nn

from vitreous.data.folders import files_below
from vitreous.data.images import Split
from vitreous.data.loaders import Batches
from vitreous.data.stores import BrokenImage, FileImages, Images, as_pixels, as_text, open_picture, reading
from vitreous.device import autocast, cores, pick_precision
from vitreous.files import path_of, write_csv
from vitreous.messages import printable
from vitreous.model import ViTConfig
from vitreous.preprocess import Preprocess
from vitreous.weights import Bundle
from vitreous.weights.bundle import Trained, find_record

TABLE = ("image", "rank", "class", "probability")  # what `write_table` writes
AT_ONCE, TOKENS, VALUES = 256, 1 << 16, 1 << 24  # most images, tokens, and numbers in these, in a batch of a split
HELD = 64  # batches whose answers are copied to the host at once


class Prediction(NamedTuple):
    """The model's answer for one image, most likely class first."""

    image: str
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class StoredImage:
    """An image of a split, for prediction like a file."""

    images: Images
    row: int
    name: str


Asked = Path | str | bytes | Image.Image | np.ndarray | Tensor | StoredImage
"""A path, a file's bytes, a picture, pixels in a format that `as_pixels` takes for many, or an image of a split."""


_asked: dict[nn.Module, tuple[list[tuple[nn.Module, bool]], int]] = {}  # modes to give back, and how often inside
_asking = Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode while inside, and as long as another thread is."""
    with _asking:
        modes, inside = _asked.get(model) or ([(module, module.training) for module in model.modules()], 0)
        _asked[model] = modes, inside + 1
        model.eval()
    try:
        yield
    finally:
        with _asking:
            modes, inside = _asked.pop(model)
            if inside > 1:
                _asked[model] = modes, inside - 1
            else:
                for module, mode in modes:
                    module.training = mode


@torch.inference_mode()
def forward(
    model: nn.Module, images: Tensor, preprocess: Preprocess, precision: str, *, features: bool = False
) -> Tensor:
    """Logits (B, K) in float32 for uint8 images (B, C, H, W), both on the model's device, which is not waited for.

    features: return the input of the head, (B, pooled_dim), instead of logits.
    """
    with evaluating(model), autocast(images.device, precision):
        images = preprocess.normalise(images)
        answers = model.features(images) if features else model(images)
    return answers.float()


def split_logits(
    model: nn.Module,
    batches: Batches,
    preprocess: Preprocess,
    precision: str,
    order: Tensor | None = None,
    *,
    features: bool = False,
) -> Tensor:
    """Logits of a whole split in its own order, (N, K) on the host, or of the rows in `order` (n,): (n, K).

    features: return the input of the head, (N, pooled_dim), instead of logits.
    """
    order = torch.arange(len(batches)) if order is None else order
    done: list[Tensor] = []
    parts: list[Tensor] = []  # on the device, which copying each one would wait for
    for images, _ in batches.epoch(order):
        parts.append(forward(model, images, preprocess, precision, features=features))
        if len(parts) == HELD:
            done.append(torch.cat(parts).cpu())
            parts.clear()
    return torch.cat([*done, *(part.cpu() for part in parts)])


def predict(
    run: Trained,
    images: Iterable[Asked] | Asked | Split,
    *,
    top: int = 5,
    batch_size: int = 64,
    device: str = "auto",
    precision: str = "auto",
    broken: list[BrokenImage] | None = None,
) -> Iterator[Prediction]:
    """The `top` likeliest classes of each image, batch by batch, in order.

    run: a run or its folder, a bundle's folder, a shipped bundle's name, or a loaded `Bundle`. images: paths, the bytes
    of files, PIL images, a `Split`, or arrays and tensors, uint8 or floats in 0..1: (H, W), (H, W, C) or (C, H, W) is
    one image, and many have four dimensions. An image that cannot be read raises BrokenImage, a ValueError; if `broken`
    is a list, the error is appended to it and the image left out. device: auto, cpu, cuda, cuda:1 or mps; the model is
    moved there, and by `auto` to a GPU if there is one. precision: `auto` is what the run's recipe says, unless that is
    float16; for a `Bundle`, which has no recipe, as in training.
    """
    check_asked(images)
    for name, value in {"top": top, "batch_size": batch_size}.items():
        if value < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")
    bundle = Bundle.of(run)
    where = bundle.to(device)
    precision = precision_for(run, precision, where)

    def answers() -> Iterator[Prediction]:
        for names, pixels in read_batches(images, bundle.preprocess, broken, batch_size):
            logits = forward(bundle.model, torch.from_numpy(pixels).to(where), bundle.preprocess, precision).cpu()
            values, indices = (logits / bundle.temperature).softmax(dim=1).sort(dim=1, descending=True, stable=True)
            for name, value, index in zip(names, values[:, :top].tolist(), indices[:, :top].tolist(), strict=True):
                yield Prediction(name, tuple(bundle.class_names[i] for i in index), tuple(value))

    return answers()


def precision_for(run: Trained, precision: str, device: torch.device) -> str:
    """The precision to ask a run in; of `auto`, see `predict`. A loaded `Bundle` has no recipe."""
    return pick_precision(own_precision(run) if precision == "auto" else precision, device)


def own_precision(run: Trained) -> str:
    """The precision of a run's recipe; auto if unknown, or if float16, which is slow on most CPUs."""
    if (folder := find_record(run)) is None:
        return "auto"
    try:  # not by `read_recipe`, whose imports would delay the first answer
        asked = yaml.safe_load((folder / "recipe.yaml").read_text()).get("precision", "auto")
    except (yaml.YAMLError, AttributeError, UnicodeDecodeError, RecursionError):  # no recipe
        return "auto"
    return asked if asked in ("float32", "bf16") else "auto"  # others' files may ask for something else


def eval_batch_size(config: ViTConfig) -> int:
    """The batch size for evaluating many images: smaller for many tokens and wide models, to bound memory."""
    return max(min(AT_ONCE, TOKENS // config.tokens, VALUES // (config.tokens * config.dim)), 1)


def read_batches(
    images: Iterable[Asked] | Asked | Split,
    preprocess: Preprocess,
    broken: list[BrokenImage] | None,
    batch_size: int,
) -> Iterator[tuple[list[str], np.ndarray]]:
    """Names and pixels, uint8 (B, C, H, W) of the model's size, of one or many images; broken as for `predict`.

    Of many, those without a name are numbered from 0. Files and a split's images are read by several threads, but PIL
    images and arrays by this one, as the same object may be given twice.
    """
    Image.init()  # threads that load Pillow's plugins at the same time may miss some
    if isinstance(images, Split):
        images = [StoredImage(images.images, row, images.images.describe(row)) for row in range(len(images))]
    numbered = [(None, images)] if _is_one(images) else enumerate(images)
    pool, waiting = ThreadPoolExecutor(cores()), iter(numbered)

    def begin(image: Asked, row: int | None) -> Future:
        if isinstance(image, Path | str | bytes | StoredImage):
            return pool.submit(read_image, image, preprocess, row)
        done: Future = Future()
        try:
            done.set_result(read_image(image, preprocess, row))
        except BrokenImage as error:
            done.set_exception(error)
        return done

    try:
        while part := [(image_name(image, row), begin(image, row)) for row, image in islice(waiting, batch_size)]:
            names, pixels = [], []
            for name, reading in part:
                try:
                    pixels.append(reading.result())
                    names.append(name)
                except BrokenImage as error:
                    if broken is None:
                        raise
                    broken.append(error)
            if names:
                yield names, np.stack(pixels)
    finally:
        pool.shutdown(cancel_futures=True)


def check_asked(images: Any) -> None:
    """Raises TypeError for what is neither an image nor many, such as an open file, which would give its lines."""
    if hasattr(images, "read") or not (_is_one(images) or isinstance(images, Split | Iterable)):
        raise TypeError(
            f"images is a {type(images).__name__}: give paths, bytes (of an open file its .read()), PIL images, "
            "arrays, or a split, such as data.test"
        )


def _is_one(images: Iterable[Asked] | Asked) -> bool:
    """Whether this is a single image. A 1-D array holds paths, a 4-D array images."""
    return images.ndim in (2, 3) if isinstance(images, np.ndarray | Tensor) else isinstance(images, Asked)


def read_image(image: Asked, preprocess: Preprocess, row: int | None = None) -> np.ndarray:
    """One image as uint8 (C, H, W) of the model's size. row: of many. Raises BrokenImage."""
    if isinstance(image, bytes | Image.Image | np.ndarray | Tensor):
        with reading(partial(image_name, image, row)):  # an opened file is only decoded here
            if isinstance(image, np.ndarray | Tensor):
                return np.array(preprocess.fit_array(as_pixels(image[None])[0]), order="C")  # not a view of theirs
            return preprocess.fit_image(open_picture(io.BytesIO(image)) if isinstance(image, bytes) else image)
    if isinstance(image, StoredImage):
        return image.images.read([image.row], preprocess)[0]
    if not isinstance(image, Path | str):
        kind = type(image).__name__
        raise TypeError(f"an image is a path, bytes, a PIL image or an array, not {kind}")
    return FileImages([path_of(image)]).read([0], preprocess)[0]


def image_name(image: Asked, row: int | None = None) -> str:
    """Where an image came from, if known. row: of many, by which it is called if not."""
    unnamed = "the image" if row is None else f"image {row}"
    if isinstance(image, bytes | np.ndarray | Tensor):
        return unnamed
    if isinstance(image, StoredImage):
        return image.name
    if isinstance(image, Image.Image):
        image = getattr(image, "filename", "") or unnamed
    return as_text(image)


def image_files(patterns: Iterable[str]) -> list[Path]:
    """The image files of paths, folders (searched recursively) and glob patterns, sorted within each.

    A link to a file that is gone is left for reading to name. Raises ValueError for one that matches nothing.
    """
    files: list[Path] = []
    for pattern in patterns:
        path = path_of(pattern)
        if pattern and path.is_dir():
            found = [Path(file) for file in files_below(path)]
        elif pattern and (path.exists() or path.is_symlink()):
            found = [path]
        else:
            matching = map(Path, glob(str(path), recursive=True))  # noqa: PTH207 - which would find hidden files, too
            found = sorted(file for file in matching if file.is_file() or not file.exists())
        if not found:
            kind = "no images in folder" if path.is_dir() else "no image"
            raise ValueError(f"{kind} '{pattern}': give image files, folders or patterns such as 'photos/*.jpg'")
        files += found
    return files


def write_text(predictions: Iterable[Prediction], file: TextIO) -> None:
    """One line per image: its likeliest classes with their probabilities."""
    for prediction in predictions:
        classes = "  ".join(
            f"{printable(' '.join(name.split()))} {p:.1%}"
            for name, p in zip(prediction.classes, prediction.probabilities, strict=True)
        )
        print(f"{printable(prediction.image)}: {classes}", file=file)


def write_json_lines(predictions: Iterable[Prediction], file: TextIO) -> None:
    """One JSON object per image: {"image": ..., "classes": [...], "probabilities": [...]}."""
    for prediction in predictions:
        print(json.dumps(prediction._asdict()), file=file)


def write_table(predictions: Iterable[Prediction], path: Path) -> None:
    """CSV with one row per image and class: image, rank from 1, class, probability."""
    rows = (
        (prediction.image, rank, name, f"{p:.6f}")
        for prediction in predictions
        for rank, (name, p) in enumerate(zip(prediction.classes, prediction.probabilities, strict=True), start=1)
    )
    write_csv(path, TABLE, rows)
