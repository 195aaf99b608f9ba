"""Ask a trained model: images in, class probabilities out."""

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitreous.data.loaders import Batches
from vitreous.data.sources import IMAGE_SUFFIXES
from vitreous.data.stores import BrokenImage, FileImages
from vitreous.device import autocast, pick_device, pick_precision
from vitreous.preprocess import Preprocess
from vitreous.weights import Bundle, find_bundle


class Prediction(NamedTuple):
    """The model's answer for one image, most likely class first."""

    image: str
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]


@torch.inference_mode()
def forward(model: nn.Module, batches: Iterable[Tensor], preprocess: Preprocess, precision: str) -> Iterator[Tensor]:
    """Logits (B, K), float32 on the host, for each batch of uint8 images (B, C, H, W) on the model's device."""
    model.eval()
    for images in batches:
        with autocast(images.device, precision):
            logits = model(preprocess.normalise(images))
        yield logits.float().cpu()


def split_logits(model: nn.Module, batches: Batches, preprocess: Preprocess, precision: str) -> Tensor:
    """Logits of a whole split in its own order: (N, K)."""
    order = torch.arange(len(batches))
    return torch.cat(list(forward(model, (b.images for b in batches.epoch(order)), preprocess, precision)))


def predict(
    run: Path | str | Bundle,
    images: Iterable[Path | str | Image.Image],
    *,
    top: int = 5,
    batch_size: int = 64,
    device: str = "auto",
    precision: str = "auto",
    broken: list[BrokenImage] | None = None,
) -> Iterator[Prediction]:
    """The `top` likeliest classes of each image, batch by batch, in order.

    run: a run folder, a bundle folder, a shipped bundle's name, or a loaded `Bundle`. An image that cannot be read
    raises BrokenImage, a ValueError; with a list given as `broken` it is noted there and left out.
    """
    if top < 1:
        raise ValueError(f"top is {top}: ask for at least 1 class")
    where = pick_device(device)
    bundle = run if isinstance(run, Bundle) else Bundle.load(find_bundle(run))
    model = bundle.model.to(where)
    top = min(top, len(bundle.class_names))
    names: list[str] = []  # of the images handed to the model and not yet answered

    def batches() -> Iterator[Tensor]:
        pixels: list[np.ndarray] = []
        for image in images:
            try:
                pixels.append(_read(image, bundle.preprocess))
            except BrokenImage as error:
                if broken is None:
                    raise
                broken.append(error)
                continue
            names.append(_name(image))
            if len(pixels) == batch_size:
                yield torch.from_numpy(np.stack(pixels)).to(where)
                pixels.clear()
        if pixels:
            yield torch.from_numpy(np.stack(pixels)).to(where)

    for logits in forward(model, batches(), bundle.preprocess, pick_precision(precision, where)):
        answered, names[:] = names[: len(logits)], names[len(logits) :]
        values, indices = logits.softmax(dim=1).topk(top, dim=1)
        for name, value, index in zip(answered, values.tolist(), indices.tolist(), strict=True):
            yield Prediction(name, tuple(bundle.class_names[i] for i in index), tuple(value))


def _read(image: Path | str | Image.Image, preprocess: Preprocess) -> np.ndarray:
    """The pixels that the model reads, uint8 (C, H, W). Raises BrokenImage."""
    if not isinstance(image, Image.Image):
        return FileImages([image]).read([0], preprocess)[0]
    try:
        return preprocess.fit_image(image)
    except Exception as error:  # an opened file is decoded here, and decoders raise nearly anything
        raise BrokenImage(f"{_name(image)}: {error}") from error


def _name(image: Path | str | Image.Image) -> str:
    return str(getattr(image, "filename", "") or image)


def image_files(patterns: Iterable[str]) -> list[Path]:
    """The image files of paths, folders (searched through) and glob patterns, each in sorted order.

    Raises ValueError for one that matches nothing.
    """
    files: list[Path] = []
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
        elif path.exists():
            found = [path]
        else:
            root = Path(path.anchor or ".")
            found = sorted(p for p in root.glob(str(path.relative_to(path.anchor))) if p.is_file())
        if not found:
            kind = "no images in folder" if path.is_dir() else "no image"
            raise ValueError(f"{kind} '{pattern}': give image files, folders or patterns such as 'photos/*.jpg'")
        files += found
    return files


def write_text(predictions: Iterable[Prediction], file: TextIO) -> None:
    """One line an image: its likeliest classes with their probabilities."""
    for prediction in predictions:
        classes = "  ".join(
            f"{name} {p:.1%}" for name, p in zip(prediction.classes, prediction.probabilities, strict=True)
        )
        print(f"{prediction.image}: {classes}", file=file)


def write_json_lines(predictions: Iterable[Prediction], file: TextIO) -> None:
    """One object an image: {"image": ..., "classes": [...], "probabilities": [...]}."""
    for prediction in predictions:
        print(json.dumps(prediction._asdict()), file=file)


def write_csv(predictions: Iterable[Prediction], path: Path) -> None:
    """One row an image and class: image, rank from 1, class, probability."""
    predictions = list(predictions)  # so that nothing is overwritten by a prediction that fails
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "rank", "class", "probability"])
        for prediction in predictions:
            for rank, (name, p) in enumerate(zip(*prediction[1:], strict=True), start=1):
                writer.writerow([prediction.image, rank, name, f"{p:.6f}"])
