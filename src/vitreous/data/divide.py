"""Which training images are held out, and which are trained on, as bool (N,); and the groups that images come in."""

import logging
import math
import re
import warnings
from typing import TYPE_CHECKING
from unicodedata import normalize

import numpy as np

from vitreous.data.stores import Images
from vitreous.messages import did_you_mean

if TYPE_CHECKING:
    from vitreous.data.images import ImageSet

log = logging.getLogger("vitreous")


def in_fold(data: "ImageSet", fold: int, folds: int, seed: int, group: str | None) -> np.ndarray:
    """Which training images fold `fold` (from 1) has; see `ImageSet.with_fold`."""
    from sklearn.model_selection import StratifiedKFold

    labels, groups = data.train.labels, _group_numbers(data, group)
    counts = np.bincount(np.unique(np.stack([labels, groups]), axis=1)[0])  # groups of each class
    if len(small := np.flatnonzero((counts > 0) & (counts < folds))):
        name, count = data.class_names[small[0]], int(counts[small[0]])
        if group is not None and count == 1:
            raise ValueError(
                f"all images of class '{name}' fall into one group of data.group '{group}', so none can be held out: "
                "use another data.group"
            )
        units = f"training image{'s' * (count > 1)}" if group is None else f"groups by data.group '{group}'"
        way_out = f"use at most {count} folds" if count > 1 else "add images of it, or leave the class out"
        raise ValueError(f"class '{name}' has {count} {units}, fewer than {folds} folds: {way_out}")
    if group is not None:
        held = _in_part(labels, groups, fold, folds, seed)
        if len(gone := np.setdiff1d(labels, labels[~held])):
            raise ValueError(
                f"all groups of class '{data.class_names[gone[0]]}' by data.group '{group}' fall into fold {fold}: use "
                "another data.split_seed, or fewer folds"
            )
        return held
    parts = list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(labels, labels))
    return np.isin(np.arange(len(labels)), parts[fold - 1][1])


def for_validation(data: "ImageSet", fraction: float, seed: int, group: str | None) -> np.ndarray:
    """Which training images to hold out for validation, `fraction` of them; see `ImageSet.with_validation`."""
    from sklearn.model_selection import train_test_split

    labels = data.train.labels
    if group is not None:
        groups = _group_numbers(data, group)
        held = _in_part(labels, groups, 1, max(round(1 / fraction), 2), seed)
        held = _with_each_class(held, labels, groups)
        if not held.any():
            raise ValueError(
                f"data.group '{group}' leaves no group to hold out, as each is the only one of a class: use another "
                "data.group, or set data.val_fraction=0"
            )
        return held
    counts = np.bincount(labels)
    rows = np.flatnonzero(counts[labels] > 1)
    classes = int((counts > 1).sum())
    if not classes:
        raise ValueError(
            f"{data.source}: each of {len(labels)} training images has a label of its own, such as "
            f"'{data.class_names[labels[0]]}', so none can be held out: if another column has the classes, name "
            "it, as in DATA:COLUMN; else add images, or set data.val_fraction=0"
        )
    taken = max(math.ceil(fraction * len(rows)), classes)  # at least one per class
    if taken > len(rows) - classes:
        raise ValueError(
            f"a validation fraction of {fraction} leaves no image of each class on both sides, of {len(labels)} "
            f"images in {int((counts > 0).sum())} classes: use another data.val_fraction, or 0 for no validation"
        )
    kept, held = train_test_split(rows, test_size=taken, random_state=seed, stratify=labels[rows])
    for side, other in ((held, kept), (kept, held)):
        for label in np.setdiff1d(labels[rows], labels[side]):  # so small that its share rounds to zero
            most = np.bincount(labels[side]).argmax()
            i, j = np.flatnonzero(labels[side] == most)[0], np.flatnonzero(labels[other] == label)[0]
            side[i], other[j] = other[j], side[i]
    return np.isin(np.arange(len(labels)), held)


def in_share(data: "ImageSet", share: float, seed: int, group: str | None) -> np.ndarray:
    """Which training images to train on, `share` of them; see `ImageSet.with_train_share`."""
    labels, groups = data.train.labels, _group_numbers(data, group)
    place = np.random.default_rng(seed).permutation(groups.max() + 1)[groups]  # of an image's group in the order
    kept = np.zeros(groups.max() + 1, bool)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        first = own[np.argsort(place[own], kind="stable")][: max(round(share * len(own)), 1)]
        kept[groups[first]] = True
    return kept[groups]


def _in_part(labels: np.ndarray, groups: np.ndarray, part: int, parts: int, seed: int) -> np.ndarray:
    """Which images part `part` (from 1) of `parts` has: whole groups, stratified as far as possible."""
    from sklearn.model_selection import StratifiedGroupKFold

    parts = min(parts, groups.max() + 1, np.bincount(labels).max())  # scikit-learn refuses more
    held = np.zeros(len(labels), bool)
    if parts > 1:
        divide = StratifiedGroupKFold(parts, shuffle=True, random_state=seed).split
        with warnings.catch_warnings(action="ignore"):  # harmless: some classes with fewer images than parts
            held[list(divide(labels, labels, groups))[part - 1][1]] = True
    return held


def _with_each_class(held: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Which images to hold out, bool (N,), so that both sides have each class: whole groups change sides.

    A class of one group stays where it is trained on.
    """
    for label in np.setdiff1d(labels, labels[~held]):
        held = held & (groups != groups[labels == label][0])
    sizes = np.bincount(groups)
    for label in np.unique(labels):
        if label not in labels[held]:
            own = np.unique(groups[labels == label])
            for group in own[np.argsort(sizes[own], kind="stable")]:  # the smallest one without which train has all
                if np.isin(labels[groups == group], labels[~held & (groups != group)]).all():
                    held = held | (groups == group)
                    break
    return held


def _group_numbers(data: "ImageSet", pattern: str | None) -> np.ndarray:
    """The number of each training image's group, from 0, (N,); without a pattern each image is a group of its own."""
    if pattern is None:
        return np.arange(len(data.train))
    return np.unique(groups_of(data.train.images, pattern), return_inverse=True)[1]


def groups_of(images: Images, pattern: str) -> np.ndarray:
    """Each image's group, (N,): its value in the column named `pattern`, else the match of `pattern` in its path.

    Raises ValueError if there is none.
    """
    if (column := images.column(pattern)) is not None:
        if empty := int((column == "").sum()):
            raise ValueError(f"images without '{pattern}', as data.group asks for: {empty}; fill it in")
        return column
    try:
        compiled = re.compile(normalize("NFC", pattern))  # macOS may write an é as two characters
    except re.error as error:
        raise ValueError(f"data.group '{pattern}' is neither a column nor a regular expression: {error}") from error
    found = []
    for name in images.places():
        if not (match := compiled.search(normalize("NFC", name))):
            near = did_you_mean(pattern, getattr(images, "columns", ()))
            raise ValueError(f"data.group '{pattern}' is not a column, and finds nothing in {name}: {near}use another")
        group = match[1] if compiled.groups else match[0]
        if group is None:
            raise ValueError(
                f"data.group '{pattern}' finds something in {name}, but not by its first pair of brackets: put one "
                r"pair around all that tells, such as ((?:patient|control)\d+)"
            )
        found.append(group)
    return np.array(found)


def groups_if_any(images: Images, pattern: str | None) -> np.ndarray | None:
    """`groups_of`, or None, with a warning, if there are none, or if it is the name of a column that happens to be in
    all paths: images that are not divided need no groups."""
    if pattern is None:
        return None
    try:
        groups = groups_of(images, pattern)
        if set(groups) != {pattern} or images.column(pattern) is not None:
            return groups
        reason = f"data.group '{pattern}' is not a column, and finds nothing else in any path"
    except ValueError as error:
        reason = str(error)
    log.warning("no groups, so that each image counts by itself: %s", reason)
    return None
