"""Image sets in tables: a CSV file with images, their labels and, optionally, their splits."""

import csv
import io
import logging
import os
import re
from pathlib import Path
from unicodedata import normalize

from vitreous.data.folders import IMAGE_SUFFIXES, files_below
from vitreous.data.images import LABEL_COLUMNS, SPLITS, ImageSet, Split, match_labels, tell_joined, tells_splits
from vitreous.data.stores import FileImages, as_text
from vitreous.files import EXPLANATION
from vitreous.messages import shorten

log = logging.getLogger("vitreous")

TABLES = {".csv", ".tsv"}
FILE_COLUMNS = (
    "file", "file_name", "filename", "filepath", "filepaths", "path", "image", "image_path", "image_name", "image_id",
    "img", "img_path", "img_name", "id_code", "id",
)  # fmt: skip


def read_table(path: Path, name: str, source: str, label: str | None = None) -> ImageSet:
    """Read a table with one row per image, identified by its file; the order of the rows does not matter.

    The file column is the first of FILE_COLUMNS: paths relative to the table's folder, or else names of files anywhere
    below it, with or without their suffix. The label column is `label`, or the first of LABEL_COLUMNS, or the only one
    left. `split` says train, val or test; a table with one split is read as training images. Classes are sorted, as
    numbers if all of them are. Raises ValueError for anything ambiguous or missing.
    """
    columns = _columns(path)
    image = _column(columns, FILE_COLUMNS, "file", path)
    if label is None:
        left = {key: cells for key, cells in columns.items() if key != image and key.lower() != "split"}
        if not left:
            raise ValueError(f"{path} has no column of labels beside '{image}': add one")
        label = next(iter(left)) if len(left) == 1 else _column(left, LABEL_COLUMNS, "label", path)
    if label not in columns or label == image:
        raise ValueError(f"{path} has no column '{label}' of labels: it has {', '.join(columns)}")
    files, words = _files(columns[image], image, path), columns[label]
    rows_of = _rows_by_split(columns, files, words, path)
    for part in set(rows_of) - {"train"}:
        if not any(words[row] for row in rows_of[part]):
            log.warning("%s: %s has no labels: left out", source, part)
            del rows_of[part]
    if bare := [files[row] for rows in rows_of.values() for row in rows if not words[row]]:
        raise ValueError(f"{path}: {as_text(bare[0])} has no '{label}': add it, or leave the row out")

    names = {words[row] for row in rows_of["train"]}
    _check_listed_once(rows_of, files, words, path)
    tell_joined(names, label, source)
    numbers = all(name.isdecimal() for name in names)
    class_names = tuple(sorted(names, key=lambda name: (int(name) if numbers else 0, name)))
    made = {}
    for part, rows in rows_of.items():
        own = {key: [cells[row] for row in rows] for key, cells in columns.items()}
        images = FileImages([files[row] for row in rows], own, path.parent)  # for itself, so that no other is decoded
        labels = match_labels([words[row] for row in rows], class_names, f"{source}: {part}")
        made[part] = Split(images, labels)
    return ImageSet(name, source, class_names, **made)


def _columns(path: Path) -> dict[str, list[str]]:
    """The table's columns by name; those without a name, such as row numbers, are left out."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: save it as that") from error
    told, text = re.fullmatch(r"\n*(?:sep=(.)\n)?(.*)", text, re.DOTALL).groups()  # as Excel is told
    head = text.partition("\n")[0]
    delimiter = told or ("\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=head.count))
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        names, *rows = [row for row in reader if any(row)] or [[]]
    except csv.Error as error:
        raise ValueError(f"{path}: {error} in line {reader.line_num}: mend its quotes") from error
    names = [name.strip() for name in names]
    lower = [name.lower() for name in names]
    if twice := [name for name in names if name and lower.count(name.lower()) > 1]:
        raise ValueError(f"{path} has several columns '{twice[0]}': rename all but one of them")
    if uneven := next((row for row in rows if len(row) != len(names)), None):
        raise ValueError(f"{path} has {len(names)} columns, but {len(uneven)} in the row of {uneven[0]}: mend the row")
    if not rows:
        raise ValueError(f"{path} has no rows below a first line that names its columns, such as file,label")
    columns = {name: [cell.strip() for cell in cells] for name, *cells in zip(names, *rows, strict=True)}
    return {name: cells for name, cells in columns.items() if not re.fullmatch(r"(Unnamed: \d+)?", name)}  # pandas'


def _column(columns: dict[str, list[str]], words: tuple[str, ...], kind: str, path: Path) -> str:
    """The column with the first of these names; a space counts as _."""
    called = {name.lower().replace(" ", "_"): name for name in columns}
    found = next((called[word] for word in words if word in called), None)
    if found is None:
        way_out = "call one of them 'file' (a table has a row for each image)"
        if kind == "label":
            way_out = f"name it, as in {path.name}:{next(iter(columns))}"
        flags = [name for name, cells in columns.items() if {"0", "1", "0.0", "1.0"}.issuperset(cells)]
        if kind == "label" and len(flags) > 1:
            raise ValueError(
                f"{path} has columns of 0 and 1, {shorten(flags)}: if each is a class, give one column of class names, "
                "as by pandas' idxmax(axis=1); several labels an image cannot be learnt; if one column alone is the "
                f"label, {way_out}"
            )
        raise ValueError(f"{path}: which of {', '.join(columns)} is the {kind} of an image? {way_out}")
    return found


def _files(values: list[str], image: str, path: Path) -> list[str]:
    """The file of each row. A missing file keeps its path, and is reported when it is read."""
    root, called = path.parent, {}
    if "" in values:
        raise ValueError(f"{path}: {values.count('')} rows have no '{image}': add it, or leave the rows out")
    lacking = {value for value in values if not os.path.isfile(root / value)}  # noqa: PTH113 - no error if too long
    names = {value: normalize("NFC", value) for value in lacking}  # macOS may write an é as two characters
    paths = (name.isascii() and "/" in name and Path(name).suffix.lower() in IMAGE_SUFFIXES for name in names)
    if not all(paths):  # else there is nothing to look for
        for file in files_below(root):
            inside = Path(normalize("NFC", str(Path(file).relative_to(root))))
            for key in {str(inside), str(inside.with_suffix("")), inside.name, inside.stem}:
                called.setdefault(key, []).append(file)
    if lacking.issuperset(values) and called.keys().isdisjoint(names.values()):
        raise ValueError(
            f"{path}: no '{image}' is found, such as {values[0]}: write paths from {root}, with /, or bare names of "
            "files anywhere below it"
        )
    for value in values:
        if value in names and len(several := called.get(names[value], [])) > 1:
            called[names[value]] = several = [file for file in several if not _is_explanation(file)] or several
            if len(several) > 1:
                raise ValueError(
                    f"{path}: '{value}' is any of {', '.join(map(as_text, several[:3]))}: write its path, or move the "
                    "table into the folder of its images"
                )
    return [called.get(names.get(value), [str(root / value)])[0] for value in values]


def _is_explanation(file: str) -> bool:
    """Whether `vitreous explain` has written an image, as the figures beside it tell."""
    figures = Path(file).with_suffix(".json")
    return figures.is_file() and f'"{EXPLANATION}"' in figures.read_text(errors="replace")


def _check_listed_once(rows_of: dict[str, list[int]], files: list[str], words: list[str], path: Path) -> None:
    """Raises ValueError for a file with several labels. `check` tells of one that is listed twice with the same."""
    first: dict[str, int] = {}
    for row in sorted(row for rows in rows_of.values() for row in rows):
        other = first.setdefault(files[row], row)
        if words[other] != words[row]:
            raise ValueError(
                f"{path}: {as_text(files[row])} is '{words[other]}' in row {other + 1} and '{words[row]}' in row "
                f"{row + 1} below the head: keep one of them"
            )


def _rows_by_split(
    columns: dict[str, list[str]], files: list[str], words: list[str], path: Path
) -> dict[str, list[int]]:
    """The rows of train, val and test, each sorted by file, so that the order of the table does not matter."""
    splits = next((cells for name, cells in columns.items() if name.lower() == "split"), None)
    for name, cells in columns.items() if splits is None else ():
        if tells_splits(cells):
            raise ValueError(f"{path}: '{name}' tells what images are for training: call it 'split', or leave it out")
    rows_of: dict[str, list[int]] = {}
    for row in sorted(range(len(files)), key=lambda row: (files[row], words[row])):
        word = "train" if splits is None else splits[row].lower()
        if word not in SPLITS:
            raise ValueError(
                f"{path}: split '{word}' of {as_text(files[row])} is none of {', '.join(SPLITS)}: write one of them, "
                "or rename the column"
            )
        rows_of.setdefault(SPLITS[word], []).append(row)
    if len(rows_of) == 1:
        return {"train": next(iter(rows_of.values()))}
    if "train" not in rows_of:
        raise ValueError(f"{path} has rows of {' and '.join(rows_of)}, and none of train: mark those to train on")
    return rows_of
