"""A labelled set of images and its splits."""

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from vitreous.data.divide import for_validation, in_fold, in_share
from vitreous.data.stores import ArrayImages, DatasetImages, Images, as_pixels, even_rows
from vitreous.messages import shorten
from vitreous.preprocess import same_channels

if TYPE_CHECKING:
    from vitreous.recipe import DataOptions

log = logging.getLogger("vitreous")

SPLITS = {  # the words for splits in file names, folder names and table cells
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "val",
    "valid": "val",
    "dev": "val",
    "validation": "val",
}
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "class", "category")  # the first that a set has


@dataclass(frozen=True)
class Split:
    """Images with their labels, int64 (N,). `split[row]` is an image of its own size, uint8 (C, H, W), and its label.

    Reading many images, fitted to a model, is what `images` is for.
    """

    images: Images
    labels: np.ndarray

    def __post_init__(self):
        if len(self.images) != len(self.labels):
            raise ValueError(f"{len(self.images)} images with {len(self.labels)} labels: one for each")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return self.images.at_own_size(row), int(self.labels[row])

    def take(self, rows: np.ndarray) -> "Split":
        return Split(self.images.take(rows), self.labels[rows])

    def evenly(self, most: int) -> "Split":
        """At most `most` images, evenly spread, with the first and the last."""
        return self.take(even_rows(len(self), most))


@dataclass(frozen=True)
class ImageSet:
    """Training images, and validation and test images where there are any. Labels index `class_names`."""

    name: str
    source: str
    class_names: tuple[str, ...]
    train: Split
    val: Split | None = None
    test: Split | None = None
    skip_broken: bool = False
    """Leave out images that cannot be read; `decode` finds and reports them."""
    label: str | None = None
    """The label column, if one was asked for. `source` then ends in it; a path may look the same."""
    warnings: tuple[str, ...] = ()
    """What was told while it was found, such as what is left out; a run keeps it."""

    def __post_init__(self):
        if len(set(self.class_names)) < len(self.class_names):
            raise ValueError(f"{self.source}: class names {self.class_names} repeat: make them differ")
        if "/" in self.name or not self.name.strip("."):
            raise ValueError(f"the set's name is '{self.name}', by which runs are named: give one without /")
        for name, split in self.splits.items():
            if not len(split):
                raise ValueError(f"{self.source}: {name} holds no images")
            low, high, last = split.labels.min(), split.labels.max(), len(self.class_names) - 1
            if low < 0 or high > last:
                raise ValueError(
                    f"{self.source}: {name} labels {low}..{high} are not within 0..{last}: number the classes from 0, "
                    "and name each of them"
                )
            if len(unknown := np.setdiff1d(split.labels, self.train.labels)):
                unknown = self.class_names[unknown[0]]
                raise ValueError(
                    f"{self.source}: {name} has class '{unknown}' that train lacks: add such images to train, or leave "
                    "it out"
                )

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {len(split):,}" for name, split in self.splits.items())
        return f"ImageSet({self.name!r}, {len(self.class_names)} classes, images: {counts})"

    @property
    def splits(self) -> dict[str, Split]:
        """The splits that exist, by name."""
        splits = {"train": self.train, "val": self.val, "test": self.test}
        return {name: split for name, split in splits.items() if split is not None}

    def split(self, name: str) -> Split:
        """A split by its name. Raises ValueError if there is none."""
        if name not in self.splits:
            raise ValueError(f"{self.source} has no split '{name}': use {' or '.join(self.splits)}")
        return self.splits[name]

    @property
    def default_split(self) -> str:
        """The default split for evaluation: test, else val, else train."""
        return list(self.splits)[-1]

    @classmethod
    def from_arrays(
        cls,
        images: np.ndarray | Tensor,
        labels: np.ndarray | Tensor | Sequence[int],
        *,
        test: tuple[Any, Any] | None = None,
        val: tuple[Any, Any] | None = None,
        class_names: Sequence[str] | None = None,
        name: str = "arrays",
        source: str | None = None,
    ) -> "ImageSet":
        """Make a set from arrays or tensors; val and test are pairs (images, labels).

        images: (N, H, W), (N, H, W, C) or (N, C, H, W), uint8 or floats in 0..1. labels: (N,), from 0. class_names:
        by label; by default "0", "1", ..., for which labels may have no gap. Raises ValueError for other shapes, types
        or labels.
        """
        train = _array_split("train", images, labels)
        if class_names is None:
            class_names = _numbered(train.labels)
        others = {"val": val, "test": test}
        for key, pair in others.items():
            if pair is not None and not (isinstance(pair, tuple | list) and len(pair) == 2):
                raise ValueError(f"{key} is a {type(pair).__name__}: give a pair ({key}_images, {key}_labels)")
        others = {key: pair and _array_split(key, *pair) for key, pair in others.items()}
        for key, split in others.items():
            if split is not None and not same_channels(split.images.channels, train.images.channels):
                raise ValueError(
                    f"{key} has images of {split.images.channels} channels, train of {train.images.channels}: give "
                    "all splits the same number"
                )
        return cls(name, source or name, as_class_names(class_names), train, **others)

    @classmethod
    def from_dataset(
        cls,
        train: Any,
        *,
        val: Any = None,
        test: Any = None,
        class_names: Sequence[str] | None = None,
        name: str = "dataset",
    ) -> "ImageSet":
        """Make a set from map-style datasets: `dataset[row]` is (image, label), labels are integers from 0.

        An image is a PIL image, or an array or tensor, uint8 or floats in 0..1: (H, W), (H, W, C) or (C, H, W). Images
        are kept, up to `data.memory_budget`, so the dataset should make no random changes, as `recipe.augment` does.
        Labels come from an attribute `targets` if there is one, else every item is read once. Class names come from
        `train.classes` if it exists, of a torch `Subset` from the set it is cut from; if val or test have `classes`
        too, labels are matched by name.
        """
        split = Split(DatasetImages(train), _dataset_labels("train", train))
        own = _classes(train)
        class_names = own if class_names is None else class_names
        class_names = as_class_names(_numbered(split.labels) if class_names is None else class_names)
        own = class_names if own is None else as_class_names(own)
        others = {"val": val, "test": test}
        for key, dataset in others.items():
            if dataset is not None:
                labels = _dataset_labels(key, dataset)
                names = _classes(dataset)
                if names is not None and (names := as_class_names(names)) != own:
                    if not 0 <= labels.min() <= labels.max() < len(names):
                        raise ValueError(f"{key} labels {labels.min()}..{labels.max()} exceed 0..{len(names) - 1}")
                    labels = match_labels([names[label] for label in labels], own, key)
                others[key] = Split(DatasetImages(dataset), labels)
        return cls(name, name, class_names, split, **others)

    def divided(self, options: "DataOptions") -> "ImageSet":
        """The set as a run sees it: with a fold held out for testing, if asked for, with validation images, and with
        as many of the other training images as asked for."""
        if options.folds is not None and options.fold is None:
            raise ValueError(
                f"data.folds={options.folds} asks for {options.folds} runs: use `vitreous train --folds`, or "
                "`fit_folds` from Python, or choose one of them with data.fold"
            )
        how = options.split_seed, options.group
        held = self if options.fold is None else self.with_fold(options.fold, options.folds, *how)
        return held.with_validation(options.val_fraction, *how).with_train_share(options.train_share, *how)

    def with_fold(self, fold: int, folds: int, seed: int = 0, group: str | None = None) -> "ImageSet":
        """Hold out fold `fold` (from 1) of `folds` stratified, seeded folds of train as the test images.

        It replaces the set's own test images. group: what `data.group` says; each group is within one fold. Raises
        ValueError for a class with fewer images than folds, and if the groups do not allow it.
        """
        return self._hold_out("test", in_fold(self, fold, folds, seed, group))

    def with_validation(self, fraction: float, seed: int = 0, group: str | None = None) -> "ImageSet":
        """Split a stratified, seeded share of train off for validation, unless the set has validation images.

        A class with a single image stays in train; any other has images on both sides. group: what `data.group` says;
        whole groups are held out, with about as many images as asked for, or more where each class would not be on
        both sides.
        """
        if not 0 <= fraction < 1:
            raise ValueError(f"validation fraction {fraction} is not within 0..1, 1 left out: use 0.1, say")
        if self.val is not None or fraction == 0:
            return self
        return self._hold_out("val", for_validation(self, fraction, seed, group))

    def with_train_share(self, share: float, seed: int = 0, group: str | None = None) -> "ImageSet":
        """Keep a stratified, seeded share of the training images, which a larger share has, too, and validation and
        test images as they are.

        At least one image of each class stays. group: what `data.group` says; whole groups stay, of each class as many
        as are needed for its share.
        """
        if share == 1:
            return self
        return replace(self, train=self.train.take(np.flatnonzero(in_share(self, share, seed, group))))

    def _hold_out(self, split: str, held: np.ndarray) -> "ImageSet":
        """Make those training images for which held, bool (N,), is true the images of another split."""
        kept, held = np.flatnonzero(~held), np.flatnonzero(held)
        return replace(self, **{"train": self.train.take(kept), split: self.train.take(held)})


def composed(names: Iterable[str]) -> list[str]:
    """Names with an é of two characters as one, so that they compare: macOS may write two."""
    return [normalize("NFC", name) for name in names]


def match_labels(names: Sequence[str], class_names: Sequence[str], split: str, owner: str = "train") -> np.ndarray:
    """The index of each name in the owner's `class_names`: int64 (N,). Raises ValueError for an unknown name.

    An é of one character and an é of two are the same, unless both are classes.
    """
    row_of = {name: row for row, name in enumerate(class_names)}
    known = dict(zip(composed(class_names), class_names, strict=True))
    meant = {name: name if name in row_of else known.get(normalize("NFC", name), name) for name in set(names)}
    names = [meant[name] for name in names]
    if unknown := sorted(set(names) - set(class_names)):
        known = shorten(class_names, 10)
        raise ValueError(
            f"{split} has class '{unknown[0]}' that {owner} lacks; {owner} has {known}: rename it, or leave it out"
        )
    counts = Counter(class_names)
    if twice := [name for name in sorted(set(names)) if counts[name] > 1]:
        raise ValueError(f"{owner} has {counts[twice[0]]} classes '{twice[0]}': rename all but one of them")
    return np.array([row_of[name] for name in names], np.int64)


def split_in(name: str) -> str:
    """train, val or test: the first such word in a name; "" if there is none."""
    return next((SPLITS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in SPLITS), "")


def tells_splits(words: Iterable[str]) -> bool:
    """Whether all words are names of splits, train and another among them. Stops at the first that is not."""
    kinds = set()
    for word in words:
        if (kind := SPLITS.get(word.lower())) is None:
            return False
        kinds.add(kind)
    return "train" in kinds and len(kinds) > 1


def tell_joined(names: Collection[str], label: str, source: str) -> None:
    """Warns of labels that are several others, joined by a sign or a space. label: their column."""
    cut = {name: [[part.strip() for part in name.split(sign)] for sign in "|;, "] for name in sorted(names)}
    known = set(names)
    joined = [name for name, ways in cut.items() if any(len(way) > 1 and known.issuperset(way) for way in ways)]
    if joined:
        log.warning(
            "%s: one label an image: '%s' joins others of '%s' and is read as a class of its own (%d such): "
            "where an image has several labels, keep the one that counts; a name of several words is fine",
            source, joined[0], label, len(joined),
        )  # fmt: skip


def as_class_names(names: Sequence) -> tuple[str, ...]:
    """Class names by label, as text; several words for one class are joined, as torchvision's ImageNet has them."""
    if isinstance(names, str | dict | set | frozenset):  # a set has another order in each process
        raise ValueError(f"class_names is a {type(names).__name__}: give a list of names, in the order of the labels")
    return tuple(", ".join(map(_text, name)) if isinstance(name, tuple | list) else _text(name) for name in names)


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)  # bytes: of CIFAR's own files, or of HDF5


def _numbered(labels: np.ndarray) -> tuple[str, ...]:
    """Class names "0", "1", ... for labels, which must be consecutive."""
    present = np.unique(labels)
    if not np.array_equal(present, np.arange(len(present))):
        raise ValueError(
            f"train labels are {present[:10].tolist()}: number them from 0 without a gap, as "
            "numpy.unique(labels, return_inverse=True)[1] does, or give class_names, one for each number from 0"
        )
    return tuple(map(str, present))


def _array_split(name: str, images, labels) -> Split:
    return Split(ArrayImages(as_pixels(images)), _integers(name, labels))


def _classes(dataset) -> Sequence[str] | None:
    """The class names that a dataset, or the one that a `Subset` is cut from, gives."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return getattr(dataset, "classes", None)


def _dataset_labels(name: str, dataset) -> np.ndarray:
    if not hasattr(dataset, "__getitem__"):
        way_out = "its .dataset" if hasattr(dataset, "dataset") else "a dataset, with len and dataset[row]"
        raise TypeError(f"{name} is a {type(dataset).__name__}: give {way_out}")
    if not len(dataset):
        raise ValueError(f"{name} holds no images")
    labels = getattr(dataset, "targets", None)
    if labels is None or len(labels) != len(dataset) or getattr(dataset, "target_transform", None):
        if not (isinstance(first := dataset[0], tuple | list) and len(first) == 2):
            hint = ": of Hugging Face's datasets give the parquet files (to_parquet)" if isinstance(first, dict) else ""
            raise ValueError(f"{name} items must be pairs (image, label), not {type(first).__name__}{hint}")
        labels = [dataset[row][1] for row in range(len(dataset))]
    return _integers(name, labels)


def _integers(name: str, labels) -> np.ndarray:
    labels = labels.cpu().numpy() if isinstance(labels, torch.Tensor) else np.asarray(labels)
    labels = labels[:, 0] if labels.shape[1:] == (1,) else labels  # as Keras and MedMNIST give them
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        names = "; np.unique(labels, return_inverse=True) makes class_names and integers of names"
        way_out = f"give one integer an image{names if labels.dtype.kind in 'OUS' else ''}"
        raise ValueError(f"{name} labels are {labels.dtype} {labels.shape}: {way_out}")
    return labels.astype(np.int64)
