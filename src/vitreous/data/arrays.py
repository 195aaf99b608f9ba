"""Image sets in .npz files of NumPy, as MedMNIST and Keras share them."""

import logging
import re
from pathlib import Path

import numpy as np

from vitreous.data.images import ImageSet, match_labels, split_in
from vitreous.messages import first_line, shorten

log = logging.getLogger("vitreous")

KINDS = {  # the words for images and labels in the names of arrays
    **dict.fromkeys(("images", "image", "imgs", "x", "data", "pixels"), "images"),
    **dict.fromkeys(("labels", "label", "y", "targets", "target"), "labels"),
}


def read_npz(path: Path, name: str, source: str) -> ImageSet:
    """A set whose arrays are called like x_train and y_train, or train_images and train_labels, likewise for val and
    test; where no split is named, they are for training. Labels are integers from 0, or class names.

    All of it is read into memory. Raises ValueError for other arrays, and for a damaged file.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:  # a pickle may run anything
            arrays = dict(file)
    except MemoryError:  # not the file's fault
        raise
    except Exception as error:  # whatever a damaged file makes its reader raise
        raise ValueError(f"{path} is no npz file of plain arrays, or a damaged one: {first_line(error)}") from error
    pairs = {split: [arrays[key] for key in keys] for split, keys in _keys(list(arrays), source).items()}
    class_names = None
    for split, (_, labels) in list(pairs.items()):
        if split != "train" and labels.dtype.kind == "i" and labels.size and labels.max() < 0:
            log.warning("%s: %s has no labels: left out", source, split)
            del pairs[split]
    if pairs["train"][1].dtype.kind in "US":
        texts = {split: _texts(labels, f"{source}: {split}") for split, (_, labels) in pairs.items()}
        class_names = sorted(set(texts["train"]))
        for split, pair in pairs.items():
            pair[1] = match_labels(texts[split], class_names, f"{source}: {split}")
    if len({*(shape := pairs["train"][0].shape[1:])}) == 1 and len(shape) == 3 and shape[0] not in (1, 3):
        log.warning("%s: volumes of %d x %d x %d are read as images of %d channels", source, *shape, shape[0])
    train, val, test = (pairs.get(split) for split in ("train", "val", "test"))
    return ImageSet.from_arrays(*train, val=val, test=test, class_names=class_names, name=name, source=source)


def _texts(labels: np.ndarray, whose: str) -> list[str]:
    """Class names of an array, as text or as the bytes of UTF-8."""
    try:
        return (np.char.decode(labels, "utf-8") if labels.dtype.kind == "S" else labels.astype(str)).ravel().tolist()
    except UnicodeDecodeError as error:
        raise ValueError(f"{whose} has class names that are not UTF-8: save them as text") from error


def _keys(keys: list[str], source: str) -> dict[str, list[str]]:
    """The names of a file's arrays of images and of labels, in this order, by split."""
    found: dict[tuple[str, str], str] = {}
    for key in keys:
        words = re.split(r"[^a-z]+", key.lower())
        kinds = {KINDS[word] for word in words if word in KINDS}
        if len(kinds) != 1:
            log.warning("%s: array '%s' is left out: its name does not say that it is images, or labels", source, key)
            continue
        part = split_in(key) or "train", kinds.pop()
        if part in found:
            raise ValueError(f"{source}: '{found[part]}' and '{key}' are both {' '.join(part)}: keep one")
        found[part] = key
    splits = {split: [found.get((split, kind)) for kind in ("images", "labels")] for split, _ in found}
    for split, pair in splits.items():
        if None in pair:
            lacking = "labels" if pair[0] else "images"
            raise ValueError(f"{source} has no {lacking} beside '{pair[0] or pair[1]}': add an array {split}_{lacking}")
    if "train" not in splits:
        raise ValueError(
            f"{source} holds {shorten(keys, 10)}: name its arrays train_images and train_labels, and those for val and "
            "test likewise"
        )
    return splits
