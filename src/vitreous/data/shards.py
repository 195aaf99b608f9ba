"""Image sets in parquet files, such as those of the Hugging Face Hub: which file, row and column is what."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.data.images import (
    LABEL_COLUMNS,
    SPLITS,
    ImageSet,
    Split,
    match_labels,
    split_in,
    tell_joined,
    tells_splits,
)
from vitreous.data.parquet import ParquetImages
from vitreous.data.stores import Images
from vitreous.messages import first_line, shorten

log = logging.getLogger("vitreous")

PARTIAL = "partial-"  # what the Hub puts before the name of a split that it has converted in part


def read_parquet(root: Path, files: list[Path], name: str, source: str, label: str | None = None) -> ImageSet:
    """A set of parquet files, with paths relative to root. The name of a file, or of its folder, gives its split; where
    none does, a column `split`.

    label: the label column, whatever the files themselves say.
    """
    import pyarrow as pa

    of_split = _files_by_split(root, files, source)
    try:
        return _read(root, of_split, name, source, label)
    except (pa.ArrowException, json.JSONDecodeError, RecursionError) as error:
        reason = first_line(error)[:120]
        raise ValueError(f"{source}: its parquet files are damaged or not alike: {reason}") from error


def _read(root: Path, of_split: dict[str, list[Path]], name: str, source: str, label: str | None) -> ImageSet:
    image, label, *_ = _columns(of_split["train"][0], label)
    stored = {split: ParquetImages(files, image, root) for split, files in of_split.items()}
    class_names, splits = (), {}
    for split, images in sorted(_images_by_split(stored, label, source).items(), key=lambda one: one[0] != "train"):
        cells = list(images.cells(label))
        words = [cells[row] for row in images.rows]
        known = set(words)
        names, numbers = (None, False) if "" in known else _agreed(images.files, label)
        if split != "train" and (known <= {""} or (numbers and max(map(int, known)) < 0)):
            log.warning("%s: %s has no labels: left out", source, split)
            continue
        if not known or "" in known:
            raise ValueError(f"{source}: '{label}' of {split} needs an integer or a string in every row")
        known = sorted(known, key=int if numbers else None)
        if numbers and int(known[0]) < 0:
            raise ValueError(
                f"{source}: '{label}' of {split} is {known[0]} in some rows, which mostly means that they have no "
                "label: leave them out, or number the classes from 0"
            )
        if names is not None:
            if int(known[-1]) >= len(names):
                raise ValueError(
                    f"{source}: {split} labels {known[0]}..{known[-1]} exceed its {len(names)} class names"
                )
            words = [names[int(word)] for word in words]
        if split == "train":
            class_names = names or tuple(known)
            if names is None:
                tell_joined(known, label, source)
        splits[split] = Split(images, match_labels(words, class_names, f"{source}: {split}"))
    return ImageSet(name, source, class_names, **splits)


def _files_by_split(root: Path, files: list[Path], source: str) -> dict[str, list[Path]]:
    """The files of each split, train among them, as their names and those of their folders tell."""
    of_split: dict[str, list[Path]] = {}
    for file in files:
        of_split.setdefault(split_in(f"{file.stem} {file.parent.name}"), []).append(root / file)
    nameless = of_split.pop("", [])
    if nameless and "train" in of_split:
        names = ", ".join(file.name for file in nameless[:5])
        log.warning("%s: files of no known split are left out: %s", source, names)
    elif nameless:
        of_split["train"] = nameless
    for split, paths in of_split.items():
        exact = [path for path in paths if SPLITS.get(_series(path)) == split]
        if exact and (others := sorted(path.name for path in paths if path not in exact)):
            log.warning("%s: files named only somewhat like %s are left out: %s", source, split, shorten(others, 5))
            of_split[split] = exact
    if len(of_split) == 1:  # all there is, whatever its name
        of_split = {"train": of_split.popitem()[1]}
    if "train" not in of_split:
        raise ValueError(f"{source}: no training files among {', '.join(map(str, files))}")
    at = Path(source) if source.startswith("hf:") else root  # as it is given as DATA
    for split in ("train", *of_split):
        folders = sorted({at / file.parent.relative_to(root) for file in of_split[split]})
        if len(folders) > 1 and split == "train":
            homes = sorted({str(folder.parent if split_in(folder.name) else folder) for folder in folders})
            raise ValueError(
                f"{source} holds several sets, in {', '.join(homes)}: give the folder of one, with all its splits"
            )
        if len(folders) > 1:
            raise ValueError(
                f"{source} holds {split} files in several folders, {', '.join(map(str, folders))}: keep those of one, "
                f"or give a folder with one set of train and {split}"
            )
    return of_split


def _series(file: Path) -> str:
    """The name that the numbered files of a series share: `train` of train-00000-of-00002-1f2e.parquet, and of
    train/0000.parquet."""
    shared = re.sub(r"[-_.]?\d+(-of-\d+.*)?$", "", file.stem) or file.parent.name.removeprefix(PARTIAL)
    return shared.lower()


def check_complete(files: list[Path], source: str) -> None:
    """Raises ValueError if some of a series of numbered files, such as train-00000-of-00003, are missing."""
    parts: dict[tuple[Path, str, str], set[str]] = {}
    for file in files:
        if numbered := re.match(r"(.*)-(\d+)-of-(\d+)", file.stem):
            name, number, count = numbered.groups()
            parts.setdefault((file.parent, name, count), set()).add(number)
    for (folder, name, count), there in parts.items():
        if len(there) < int(count):
            missing = int(count) - len(there)
            raise ValueError(
                f"{source}: of the {int(count)} files {folder / name}-*-of-{count}, {missing} are missing: add them, "
                "or give one that is there by its own path"
            )


def _images_by_split(stored: dict[str, ParquetImages], label: str, source: str) -> dict[str, Images]:
    """The images of each split: those of its files or, where these are for training alone and a column `split` divides
    them, of its rows."""
    import pyarrow.parquet as pq

    train = stored["train"]
    fields = [field for file in train.files for field in pq.read_schema(file)]
    texts = dict.fromkeys(field.name for field in fields if field.name != label and _is_text(field.type))
    called = next((name for name in texts if name.lower() == "split"), None)
    if called is None:
        if len(stored) == 1 and (telling := [name for name in texts if tells_splits(train.cells(name))]):
            raise ValueError(
                f"{source}: '{telling[0]}' tells what images are for training: call it 'split', or leave it out"
            )
        return stored
    words = np.array([SPLITS.get(word.lower(), word.lower()) for word in train.cells(called)])
    kinds = np.unique(words).tolist()
    if len(kinds) == 1 or SPLITS.keys().isdisjoint(kinds):
        return stored
    if len(stored) > 1:
        log.warning("%s: the names of its files tell the splits, and column '%s' is passed over", source, called)
        return stored
    if unknown := [kind for kind in kinds if kind not in SPLITS]:
        raise ValueError(
            f"{source}: '{called}' is '{unknown[0]}' in some rows, which is none of {', '.join(SPLITS)}: write one of "
            "them, or rename the column"
        )
    if "train" not in kinds:
        raise ValueError(f"{source} has rows of {' and '.join(kinds)}, and none of train: mark those to train on")
    return {kind: train.take(np.flatnonzero(words == kind)) for kind in kinds}


def _agreed(files: list[str], label: str) -> tuple[tuple[str, ...] | None, bool]:
    """The class names that the first file states, and whether labels are numbers. Raises ValueError if another file
    differs."""
    of_file = {file: _columns(file, label)[2:] for file in files}
    if len({numbers for _, numbers in of_file.values()}) > 1:
        raise ValueError(
            f"{Path(files[0]).parent}: '{label}' holds numbers in some files and words in others: make them one"
        )
    stated = {file: names for file, (names, _) in of_file.items() if names}
    for file, names in stated.items():
        if names != next(iter(stated.values())):
            raise ValueError(
                f"{next(iter(stated))} and {file} number the classes of '{label}' differently: write both with the "
                "same names"
            )
    return of_file[files[0]]


def _columns(file: Path | str, label: str | None) -> tuple[str, str, tuple[str, ...] | None, bool]:
    """Image column, label column (`label` if given), class names if the file states them, and whether the labels are
    numbers.

    Metadata written by the `datasets` library takes precedence; without it, the column types decide.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{file} is not a parquet file, or a damaged one: {error}") from error
    features: Any = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    for key in ("info", "features"):
        features = features.get(key) if isinstance(features, dict) else None
    known = features.items() if isinstance(features, dict) else ()
    features = {name: kind for name, kind in known if isinstance(kind, dict)}  # a list is a feature of lists

    def stated(kind: str) -> list[str]:
        return [name for name in schema.names if features.get(name, {}).get("_type") == kind]

    def holds_images(kind: pa.DataType) -> bool:
        if pa.types.is_struct(kind):
            return kind.get_field_index("bytes") >= 0
        return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)

    def holds_labels(kind: pa.DataType) -> bool:
        whole = kind.value_type if pa.types.is_dictionary(kind) else kind
        return pa.types.is_integer(whole) or _is_text(kind)

    images = stated("Image") or [field.name for field in schema if holds_images(field.type)]
    labels = [field.name for field in schema if holds_labels(field.type)]
    if label is None:
        named = [name for word in LABEL_COLUMNS for name in schema.names if name.lower() == word][:1]
        if named and named[0] not in labels:
            raise ValueError(
                f"{file}: '{named[0]}' holds {schema.field(named[0]).type}, not an integer or a word an image: make it "
                "one, or name the column of labels, as in DATA:COLUMN"
            )
        of_classes, others = ([n for n in some if n.lower() != "split"] for some in (stated("ClassLabel"), labels))
        labels = named or of_classes or others
    elif label in labels:
        labels = [label]
    else:
        raise ValueError(
            f"{file} has no column '{label}' of labels (integers or words, one an image): it has "
            f"{', '.join(labels) or 'none'}"
        )
    if len(images) != 1 or len(labels) != 1:
        raise ValueError(
            f"{file} has image columns {images} and label columns {labels}: one of each is needed; of "
            f"several label columns, one named {', '.join(LABEL_COLUMNS[:-1])} or {LABEL_COLUMNS[-1]}, or the one that "
            "stands behind a colon, DATA:COLUMN"
        )
    names, numbers = features.get(labels[0], {}).get("names"), not _is_text(schema.field(labels[0]).type)
    names = tuple(map(str, names)) if numbers and names and isinstance(names, list) else None  # `datasets` takes any
    return images[0], labels[0], names, numbers


def _is_text(kind) -> bool:
    """Whether a column of this type holds strings."""
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
