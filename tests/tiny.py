"""What many tests share: images that a model of some thousand weights learns in a second, and a recipe for it."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from vitreous.augment import Augment
from vitreous.data.images import ImageSet, Split
from vitreous.data.stores import ArrayImages
from vitreous.model import ViT, ViTConfig
from vitreous.preprocess import Preprocess
from vitreous.recipe import Recipe, make_recipe
from vitreous.weights import Bundle

CLASSES = ("ant", "bee", "cat")
UNREADABLE = "not a JPEG, PNG, TIFF, WebP, BMP, GIF, AVIF, HEIC, JPEG 2000 or Netpbm picture in gray or colour"
# what no two runs share
TIMES = (
    "train_seconds", "step_seconds", "total_seconds", "val_seconds", "compile_seconds", "seconds", "images_per_second",
    "peak_memory", "tracker_id",
)  # fmt: skip
EVERYTHING = Augment(
    flip=0.5,
    shift=4,
    crop_scale=(0.3, 1),
    rotation=15,
    scale=0.2,
    shear=10,
    padding="mean",
    color=0.4,
    randaugment_ops=2,
    erase=0.5,
    mixup=0.8,
    cutmix=1,
    mix_probability=0.9,
)


def stripes(count: int = 48, classes: int = 3, channels: int = 1, side: int = 8, seed: int = 0):
    """Noise with a bright band whose place is the class: uint8 (count, channels, side, side) and labels (count,)."""
    labels = np.arange(count) % classes
    pixels = np.random.default_rng(seed).integers(0, 100, (count, channels, side, side), np.uint8)
    band = side // classes
    for image, label in zip(pixels, labels, strict=True):
        image[:, label * band : (label + 1) * band] += 120
    return pixels, labels


def tiny_set(count: int = 48, test: int = 12, **shape: int) -> ImageSet:
    """Stripes with a test split; by the tiny recipe 36 of the 48 are trained on and 12 are for validation."""
    names = CLASSES if shape.get("classes", 3) == 3 else None
    return ImageSet.from_arrays(
        *stripes(count, **shape), test=stripes(test, seed=1, **shape), class_names=names, name="stripes"
    )


class Sealed(ArrayImages):
    """Images that may be looked at only after `open`; looks before that are counted, too."""

    open = False
    looks = 0

    @property
    def pixels(self) -> np.ndarray:
        Sealed.looks += 1
        assert Sealed.open, "sealed pixels were read"
        return self.hidden

    @pixels.setter
    def pixels(self, pixels: np.ndarray) -> None:
        self.hidden = pixels


def sealed_set() -> ImageSet:
    """The tiny set with its test images sealed anew."""
    Sealed.open, Sealed.looks = False, 0
    data = tiny_set()
    return replace(data, test=Split(Sealed(data.test.images.array), data.test.labels))


def tiny_recipe(**changes: Any) -> Recipe:
    """Two epochs of four or five steps for 8 x 8 images; `changes` are keys, or sections that are merged in."""
    fields = {
        "epochs": 2,
        "precision": "float32",
        "model": {"patch_size": 4, "dim": 16, "depth": 1, "heads": 2},
        "data": {"val_fraction": 0.25},
        "optim": {"batch_size": 8, "learning_rate": 3e-3},
    }
    for key, value in changes.items():
        fields[key] = fields[key] | value if isinstance(value, dict) and key in fields else value
    return make_recipe(fields, "test")


def tiny_vit(**changes: Any) -> ViT:
    """The model of the tiny recipe for the tiny set, fresh."""
    fields = {"image_size": 8, "patch_size": 4, "channels": 1, "num_classes": 3, "dim": 16, "depth": 1, "heads": 2}
    return ViT(ViTConfig(**fields | changes))


def tiny_bundle(seed: int = 0, classes: tuple[str, ...] = CLASSES, **model: Any) -> Bundle:
    """An untrained model whose answers differ from image to image."""
    torch.manual_seed(seed)
    vit = tiny_vit(num_classes=len(classes), **model).eval()
    for module in vit.modules():  # not as they start, so that one of them forgotten on the way shows
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            module.num_batches_tracked.fill_(7)
    last = vit.head[-1] if isinstance(vit.head, torch.nn.Sequential) else vit.head
    torch.nn.init.normal_(last.weight)
    channels, image_size = vit.config.channels, vit.config.image_size
    return Bundle(vit, Preprocess(image_size=image_size, mean=(0.4,) * channels, std=(0.2,) * channels), classes)


def write_images(root: Path, per_class: int, seed: int = 0, classes: tuple[str, ...] = CLASSES) -> Path:
    """Stripes as root/<class>/<i>.png."""
    pixels, labels = stripes(per_class * len(classes), len(classes), seed=seed)
    for row, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        file = root / classes[label] / f"{row // len(classes):03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(file)
    return root


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a run folder's kept model."""
    return load_file(folder / "model" / "model.safetensors")


def equal(a: Any, b: Any) -> bool:
    """Bit for bit, through nested containers."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return a == b


def untimed(values: Any) -> Any:
    """Without the figures that tell how long something took."""
    if isinstance(values, dict):
        return {key: untimed(value) for key, value in values.items() if key not in TIMES}
    return [untimed(value) for value in values] if isinstance(values, list) else values


def csv_rows(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, each by the names of its columns."""
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def metrics_rows(folder: Path) -> list[dict[str, str]]:
    """The rows of `metrics.csv`."""
    return csv_rows(folder / "metrics.csv")
