"""Who is asked, and about which images: what commands make of the names that they are given."""

import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitreous.data.images import ImageSet
    from vitreous.prediction import StoredImage
    from vitreous.weights import Bundle

ROW = re.compile(r"(train|val|test):(\d+)")


def asked_model(run: str, arch: str | None, revision: str | None) -> "str | Bundle":
    """The name of what we have trained, as it is; others' weights, loaded with their head. Raises ValueError."""
    from vitreous.weights.bundle import find_bundle, read_config

    if arch is None and revision is None:
        with suppress(ValueError):
            read_config(find_bundle(run))
            return run
    from vitreous.weights.load import AS_IMAGENET, load_weights

    bundle, report = load_weights(run, arch=arch, revision=revision)
    if report.imagenet:
        print(f"vitreous: {run}: {AS_IMAGENET}", file=sys.stderr)
    return bundle


def asked_images(run: "str | Bundle", patterns: Iterable[str]) -> "list[Path | StoredImage]":
    """Image files as `image_files` finds them; `test:7`, where no file is called so, is a row of the run's own data."""
    from vitreous.prediction import image_files

    found, data = [], None
    for pattern in patterns:
        if not is_row(pattern):
            found += image_files([pattern])
            continue
        if data is None:
            from vitreous.evaluation import own_data

            data = own_data(run)
        found.append(stored_image(data, pattern))
    return found


def check_outside_data(out: Path, model: "str | Bundle", data: str | None = None) -> None:
    """Raises ValueError for a folder within DATA, or else a run's own, of which it would become a part."""
    from vitreous.data.folders import check_outside
    from vitreous.data.sources import lies_within, load
    from vitreous.evaluation import record_of

    if data is None:
        with suppress(ValueError):  # others' weights may have a recipe.yaml of another kind beside them
            data = record_of(model)[1].source
    if data is not None and lies_within(out, data):
        check_outside(out, load(data))


def is_row(name: str) -> bool:
    return ROW.fullmatch(name) is not None and not Path(name).exists()


def stored_image(data: "ImageSet", name: str) -> "StoredImage":
    """An image by its split and row, counted from 0, such as `test:7`. Raises ValueError where there is none."""
    from vitreous.prediction import StoredImage

    split, row = name.split(":")
    chosen = data.split(split)
    if int(row) >= len(chosen):
        raise ValueError(f"{name}: {split} has rows 0 to {len(chosen) - 1}: use one of them")
    return StoredImage(chosen.images, int(row), name)
