"""Image sets in tables: a CSV file that names images, their labels and, where it says so, their splits."""

import csv
import io
import logging
from pathlib import Path

import numpy as np

from vitreous.data.folders import IMAGE_SUFFIXES, files_below
from vitreous.data.images import ImageSet, Split, match_labels
from vitreous.data.parquet import LABEL_COLUMNS, SPLITS
from vitreous.data.stores import FileImages, as_text

log = logging.getLogger("vitreous")

TABLES = {".csv", ".tsv"}


def read_table(path: Path, name: str, source: str, label: str | None = None) -> ImageSet:
    """A row an image: a column of files, one of labels, and `split` where there is one, of train, val and test.

    The column of files is the one whose values are found, as paths relative to the table or as names anywhere below
    its folder, with or without their ending. label: the column of labels, unless its name tells or it is the only one.
    Classes are sorted, as numbers where all of them are. Raises ValueError for what cannot be told.
    """
    columns = _columns(path)
    files, image = _files(columns, path)
    others = {key.lower(): key for key in columns if key != image}
    splits = columns[others.pop("split")] if "split" in others else ["train"] * len(files)
    if label is None:
        label = next((others[word] for word in LABEL_COLUMNS if word in others), None)
        if label is None and len(others) == 1:
            (label,) = others.values()
    if label is None or label not in columns or label == image:
        what = "no column that must be the labels'" if label is None else f"no column '{label}'"
        among = ", ".join(others.values()) or "none"
        raise ValueError(f"{path} has {what} among {among}: name it, as in {path.name}:COLUMN")
    words = columns[label]

    rows_of: dict[str, list[int]] = {}
    for row, word in enumerate(splits):
        if word.lower() not in SPLITS:
            raise ValueError(f"{path}: split '{word}' of {files[row]} is none of {', '.join(SPLITS)}")
        rows_of.setdefault(SPLITS[word.lower()], []).append(row)
    for split in set(rows_of) - {"train"}:
        if not any(words[row] for row in rows_of[split]):
            log.warning("%s: %s has no labels: left out", source, split)
            del rows_of[split]
    if "train" not in rows_of:
        raise ValueError(f"{path} has no row whose split is train")
    if missing := [row for rows in rows_of.values() for row in rows if not words[row]]:
        raise ValueError(f"{path}: {len(missing)} rows have no '{label}', such as that of {files[missing[0]]}: add it")

    names = {words[row] for row in rows_of["train"]}
    if len(names) == len(rows_of["train"]):
        raise ValueError(f"{path}: '{label}' differs in every row, so these are no classes: name another column")
    class_names = tuple(sorted(names, key=int if all(name.isdecimal() for name in names) else None))
    images, made = FileImages(files, columns), {}
    for split, rows in rows_of.items():
        labels = match_labels([words[row] for row in rows], class_names, f"{source}: {split}")
        made[split] = Split(images.take(np.array(rows)), labels)
    return ImageSet(name, source, class_names, **made)


def _columns(path: Path) -> dict[str, list[str]]:
    """The table's columns by name; those without one, such as a row's number, are left out."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: save it as that") from error
    head = text.partition("\n")[0]
    delimiter = max(",;\t", key=head.count)
    try:
        names, *rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if any(row)]
    except (csv.Error, ValueError) as error:  # the second is that of no rows at all
        raise ValueError(f"{path} is no table: its first line must name the columns, as in file,label") from error
    names = [name.strip() for name in names]
    if any(Path(name).suffix.lower() in IMAGE_SUFFIXES for name in names):
        raise ValueError(f"{path} does not name its columns: give it a first line, such as file,label")
    if not rows:
        raise ValueError(f"{path} has no row below its names of columns: {', '.join(names)}")
    if uneven := next((row for row in rows if len(row) != len(names)), None):
        raise ValueError(f"{path} has {len(names)} columns, but {len(uneven)} in the row of {uneven[0]}: mend the row")
    return {name: [value.strip() for value in values] for name, *values in zip(names, *rows, strict=True) if name}


def _files(columns: dict[str, list[str]], path: Path) -> tuple[list[str], str]:
    """The files that a table names, and the column that does. One that is not there keeps its path, and is told later.

    Raises ValueError where no column names files, or one means several.
    """
    root, placed, called = path.resolve().parent, {}, {}
    for file in files_below(root):
        inside = Path(file).relative_to(root)
        placed[str(inside)] = [file]
        for key in {str(inside.with_suffix("")), inside.name, inside.stem}:
            called.setdefault(key, []).append(file)

    def found(value: str) -> list[str]:
        files = placed.get(value) or called.get(value) or []
        elsewhere = not files and "/" in value and (root / value).is_file()
        return [str(root / value)] if elsewhere else files

    hits = {name: sum(bool(found(value)) for value in values) for name, values in columns.items()}
    image = max(hits, key=hits.__getitem__, default="")
    if not hits.get(image):
        first = ", ".join(values[0] for values in columns.values())
        raise ValueError(f"{path} names no image in {root} or below; its first row is {first}")
    files = []
    for value in columns[image]:
        if len(several := found(value)) > 1:
            raise ValueError(f"{path}: '{value}' is any of {', '.join(map(as_text, several[:3]))}: write its path")
        files += several or [str(root / value)]
    return files, image
