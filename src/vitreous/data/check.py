"""Checks of a data set before training: copies, leaks, class balance; and its summary."""

import hashlib
import re
import shlex
import unicodedata
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.data.divide import groups_of
from vitreous.data.images import ImageSet, Split, composed
from vitreous.data.loaders import Batches
from vitreous.data.stores import SAMPLE, ArrayImages, FileImages, Images, even_rows, open_picture
from vitreous.messages import shorten

RARE = 10  # images: a class with fewer is worth a note
DARK = 64  # of 255: the highest 14-bit level in a 16-bit file
FEW_TO_CHOOSE_BY = 30  # validation images; one of them is more than three points of accuracy
UNBALANCED = 3  # times as many images in the largest class as in the smallest
COUNT_IMAGES = ("top1", "loss")  # of `best_by`: figures in which all images count the same
SERIES = r"([^/]*\d[^/]*[^/\d])\d+\.\w+$"  # slide03_field of slide03_field12.tif
SHORTEST_SERIES = 2  # images
LISTED = 100_000  # images: the names of more are not looked at


def check(
    image_set: ImageSet,
    train: Split | Batches,
    val: Split | Batches | None = None,
    group: str | None = None,
    best_by: str | None = "top1",
    white: float | None = None,
    balance: str = "none",
) -> list[str]:
    """Findings about the splits of a run, one line each. Only the splits that are given are read.

    group, white, balance: what `data.group`, `data.white` and `data.balance` say. best_by: the figure by which
    validation images choose what is kept; None where they do not.
    """
    counts = np.bincount(train.labels, minlength=len(image_set.class_names))
    chosen_by = best_by if val is not None else None
    findings = _alike(image_set.class_names) + _balance(image_set.class_names, counts, balance, chosen_by)
    if stacks := first_page_alone(image_set.train.images):
        findings.append(stacks)
    if group is not None and len(np.unique(groups_of(image_set.train.images, group))) == len(image_set.train):
        findings.append(f"data.group '{group}' makes a group of each image, and so keeps none together")
    findings += _torn(image_set, group) if group is not None else _series(image_set)
    if chosen_by and len(val) < FEW_TO_CHOOSE_BY:
        findings.append(
            f"the epoch to keep is chosen by {len(val)} validation images, which is largely chance: hold out more or "
            "none (data.val_fraction), or cross-validate (--folds)"
        )
    if chosen_by and len(lacking := np.setdiff1d(train.labels, val.labels)):
        named = shorten([f"'{image_set.class_names[label]}'" for label in lacking], 5)
        findings.append(f"no validation image of class {named}: the epoch to keep is chosen without it")
    if not isinstance(train.images, ArrayImages):
        return [*findings, "copies were not looked for, as the decoded images are not kept"]
    rows = even_rows(len(train.images), SAMPLE)
    brightest = np.median(train.images.pixels[train.images.rows[rows]].max(axis=(1, 2, 3)))
    if brightest <= DARK:  # in most images, as a scale bar or a speck may be brighter
        gray = image_set.train.images.channels == 1  # those of colour have 8 bits when they are opened
        way_out = "give their white, data.white=4095 or 16383" if gray else "scale them to 8 bits before"
        way_out = f": if these are 12- or 14-bit images in 16-bit files, {way_out}"
        findings.append(
            f"in half of {len(rows)} images no pixel is brighter than {brightest:.0f} of 255, so few gray levels are "
            f"left{way_out if white is None or not gray else ''}"
        )
    hashes = image_hashes(train.images)
    findings += _copies(image_set.class_names, train, hashes)
    if val is not None and (leaked := leaks("validation", val.images, train.images, hashes)):
        findings.append(leaked)
    return findings


def leaks(name: str, images: Images, others: Images, hashes: np.ndarray, where: str = "train") -> str:
    """A line about images of a split that are also among others, if both are decoded; else "".

    hashes: `image_hashes` of the others; empty if they are not decoded. where: what these are.
    """
    leaked = np.flatnonzero(are_among(images, hashes))
    if not len(leaked):
        return ""
    row = np.flatnonzero(hashes == image_hashes(images.take(leaked[:1])))[0]
    example = _pair(images.describe(leaked[0]), others.describe(row))
    return f"{len(leaked)} of {len(images)} {name} images are also in {where}, such as {example}"


def are_among(images: Images, hashes: np.ndarray) -> np.ndarray:
    """Which images are copies of those with these `image_hashes`, bool (N,); none if they are not decoded."""
    if not (len(hashes) and isinstance(images, ArrayImages)):
        return np.zeros(len(images), bool)
    return np.isin(image_hashes(images), hashes)


def copies_among(images: Images, among: np.ndarray, which: str, who: str) -> str:
    """A line about images that are `are_among` others; "" if none is.

    which: such as `these 100`. who: the model that learnt from those.
    """
    copies = np.flatnonzero(among)
    if not len(copies):
        return ""
    example = images.describe(copies[0])
    said = f"{len(copies)} of {which} images are among those that {who} learnt from, such as {example}"
    return f"{said}: figures on them will be too good"


def summary(image_set: ImageSet, train: Split | Batches, val: Split | Batches | None = None) -> dict[str, Any]:
    """The content of `data.json`: counts of the images used and, if broken files are left out, of all images listed;
    and a hash of the pixels and labels given, where they are decoded."""
    given = {"train": train, "val": val}
    used = image_set.splits | {name: split for name, split in given.items() if split is not None}
    per_class, listed = (_per_class(splits, len(image_set.class_names)) for splits in (used, image_set.splits))
    digests = {name: digest_of(split.images, split.labels) for name, split in given.items() if split is not None}
    content = {
        "name": image_set.name,
        "source": image_set.source,
        "label": image_set.label,
        "classes": list(image_set.class_names),
        "counts": {name: len(split) for name, split in used.items()},
        "per_class": per_class,
        "hash": {name: digest for name, digest in digests.items() if digest is not None},
    }
    return content | ({"listed": listed} if image_set.skip_broken else {})


def differs(image_set: ImageSet, record: dict, *, test: bool = True) -> bool:
    """Whether a divided set differs from its `summary` in classes, or in the number of images per class in a split.

    test: whether to compare the test images too, on which no training depends.
    """
    listed = _per_class(image_set.splits, len(image_set.class_names))  # reads no image
    recorded = record.get("listed", record["per_class"])
    if not test:
        listed, recorded = ({k: v for k, v in part.items() if k != "test"} for part in (listed, recorded))
    return composed(image_set.class_names) != composed(record["classes"]) or listed != recorded


def altered(record: dict, name: str, digest: str | None) -> bool:
    """Whether a split's `digest_of`, if it has one, is not the one in the set's `summary`, if that has one."""
    return None not in (digest, before := record["hash"].get(name)) and digest != before


def _per_class(splits: dict, classes: int) -> dict[str, list[int]]:
    return {name: np.bincount(split.labels, minlength=classes).tolist() for name, split in splits.items()}


def _torn(image_set: ImageSet, group: str) -> list[str]:
    """Groups with images in several splits, as a set may come with them. Reads only names and columns."""
    groups: dict[str, set[str]] = {}
    for name, split in image_set.splits.items():
        with suppress(ValueError):  # test images need have none
            groups[name] = set(groups_of(split.images, group).tolist())
    shared = {pair: groups[pair[0]] & groups[pair[1]] for pair in combinations(groups, 2)}
    return [
        f"groups of data.group '{group}' with images in {a} and in {b}: {len(torn)}, such as {min(torn)}; figures on "
        f"{b} will be too good"
        for (a, b), torn in shared.items()
        if torn
    ]


def _series(image_set: ImageSet) -> list[str]:
    """Images that are numbered in many series, as fields of slides or frames of films are. Reads only names."""
    if not isinstance(image_set.train.images, FileImages):
        return []
    images = image_set.train.images.whole()  # with those held out at random, which tears series apart
    if len(images) > LISTED:
        return []
    found = []
    for name in images.places():
        numbered = name.rpartition(".")[0][-1:].isdecimal()  # one that is not takes long to search
        if not (match := numbered and re.search(SERIES, name)):
            return []
        found.append(match[1])
    names, counts = np.unique(found, return_counts=True)
    long = counts >= SHORTEST_SERIES
    few = long.sum() < 2 * len(image_set.class_names)  # as where each class is one
    if few or counts[long].sum() < 0.5 * len(images):
        return []
    # a column with as many values as there are series, and as many pairs of the two, divides as they do
    columns = (name for name in images.columns if len(set(images.column(name))) == len(names))
    alike = (name for name in columns if len(set(zip(images.column(name), found, strict=True))) == len(names))
    return [
        f"the names count {long.sum()} series, such as {names[long][0]} ({counts[long][0]} images): if each shows one "
        "thing, such as a slide, a patient or a film, keep them together by "
        f"data.group={shlex.quote(next(alike, SERIES))}, or figures will be too good"
    ]


def _alike(class_names: tuple[str, ...]) -> list[str]:
    """Classes whose names look the same to a reader: they differ only in case, spaces or Unicode form."""
    first: dict[str, str] = {}
    findings = []
    for name in class_names:
        other = first.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), name)
        if other != name:
            findings.append(f"'{other}' and '{name}' are two classes: if they are one, give them one name")
    return findings


def _balance(class_names: tuple[str, ...], counts: np.ndarray, balance: str, chosen_by: str | None) -> list[str]:
    findings = []
    most, least = counts.argmax(), counts.argmin()
    if counts[most] > UNBALANCED * counts[least]:
        way_out = "; data.balance=weights makes them count the same" if balance == "none" else ""
        findings.append(
            f"classes are unbalanced: {counts[most]} training images of '{class_names[most]}', "
            f"{counts[least]} of '{class_names[least]}'{way_out}"
        )
        if balance != "none" and chosen_by in COUNT_IMAGES:
            findings.append(
                f"best_by={chosen_by} chooses the epoch to keep by a figure in which small classes hardly count: "
                "best_by=recall_macro makes them count the same"
            )
    if len(rare := np.flatnonzero(counts < RARE)):
        named = shorten([f"'{class_names[i]}' ({counts[i]})" for i in rare], 5)
        which = "1 class has" if len(rare) == 1 else f"{len(rare)} classes have"
        findings.append(f"{which} fewer than {RARE} training images: {named}")
    return findings


def first_page_alone(images: Images) -> str:
    """A line if a sample of the files has one with several pages, channels or time points; else ""."""
    if isinstance(images, FileImages):
        for row in even_rows(len(images), SAMPLE):
            path = images.paths[images.rows[row]]
            with suppress(Exception), open_picture(path) as image:  # decoding reports broken ones
                if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":  # a camera's, with a preview
                    return f"only the first page of multi-page files is read, such as {images.describe(row)}"
    return ""


def _copies(class_names: tuple[str, ...], train: Split | Batches, hashes: np.ndarray) -> list[str]:
    """Identical images within train, and those among them with different labels."""
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    original = first[which]  # (N,) the first row with the same pixels
    copies = np.flatnonzero(original != np.arange(len(hashes)))
    if not len(copies):
        return []
    describe, labels = train.images.describe, np.asarray(train.labels)
    example = _pair(describe(copies[0]), describe(original[copies[0]]))
    findings = [f"training images that are exact copies of others: {len(copies)}, such as {example}"]
    conflicts = copies[labels[copies] != labels[original[copies]]]
    if len(conflicts):
        row, other = conflicts[0], original[conflicts[0]]
        findings.append(
            f"copies of another label than their original: {len(conflicts)}, such as "
            f"{describe(row)} ('{class_names[labels[row]]}') = "
            f"{describe(other)} ('{class_names[labels[other]]}')"
        )
    return findings


def _pair(name: str, other: str) -> str:
    """Two images of the same pixels, which a table may list as one file."""
    return f"{name}, which is listed twice" if name == other and Path(name).is_file() else f"{name} = {other}"


def image_hashes(images: Images) -> np.ndarray:
    """64 bits of each image's pixels, uint64 (N,); empty if they are not decoded."""
    digests = bytearray()
    for image in images.one_by_one() if isinstance(images, ArrayImages) else ():
        digests += hashlib.blake2b(image.tobytes(), digest_size=8).digest()
    return np.frombuffer(digests, np.uint64)


def digest_of(images: Images, labels) -> str | None:
    """sha256 of labels, int64 (N,), and pixels; None if the images are not decoded."""
    if not isinstance(images, ArrayImages):
        return None
    digest = hashlib.sha256(np.asarray(labels).tobytes())
    for image in images.one_by_one():
        digest.update(image.tobytes())
    return digest.hexdigest()
