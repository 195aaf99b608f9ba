"""Image sets in tables: a CSV file that names images, their labels and, where it says so, their splits."""

import csv
import io
import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vitreous.data.folders import IMAGE_SUFFIXES, files_below
from vitreous.data.images import ImageSet, Split, match_labels
from vitreous.data.parquet import LABEL_COLUMNS, SPLITS
from vitreous.data.stores import FileImages, as_text

log = logging.getLogger("vitreous")

TABLES = {".csv", ".tsv"}
FILE_COLUMNS = ("file", "file_name", "filename", "filepath", "path", "image", "image_path", "image_id", "img", "id")
FIRST = 100  # rows in which paths are looked for
SINGLE = 100  # classes up to which each may have one image: more of them are no classes


def read_table(path: Path, name: str, source: str, label: str | None = None) -> ImageSet:
    """A row an image: a column of files, one of labels, and one of splits where there is one. In the order of files.

    The column of files is the one whose values are found: as paths from the table's folder, or else as names anywhere
    below it, with or without their ending. The column of splits says train, val or test and the like in every row; a
    table of one split is read as training images. label: the column of labels, unless its name tells or no other is
    left. Classes are sorted, as numbers where all of them are. Raises ValueError for what cannot be told.
    """
    columns = _columns(path)
    if label is not None and label not in columns:
        raise ValueError(f"{path} has no column '{label}': it has {', '.join(columns)}")
    files, image = _files({key: values for key, values in columns.items() if key != label}, path)
    others = [key for key in columns if key not in (image, label)]
    split = next((key for key in others if _are_splits(columns[key]) or key.lower() == "split"), None)
    if label is None:
        label = _label_column([key for key in others if key != split], path)
    words = columns[label]
    rows_of = _rows_by_split(columns[split] if split else ["train"] * len(files), words, files, path)
    for part in set(rows_of) - {"train"}:
        if not any(words[row] for row in rows_of[part]):
            log.warning("%s: %s has no labels: left out", source, part)
            del rows_of[part]
    _check_filled(words, label, (row for rows in rows_of.values() for row in rows), files, path)

    names = {words[row] for row in rows_of["train"]}
    if len(names) > SINGLE and len(rows_of["train"]) < 2 * len(names):
        raise ValueError(f"{path}: '{label}' has {len(names)} values in {len(words)} rows, so these are no classes")
    numbers = all(name.isdecimal() for name in names)
    class_names = tuple(sorted(names, key=lambda name: (int(name) if numbers else 0, name)))
    images, made = FileImages(files, columns), {}
    for part, rows in rows_of.items():
        labels = match_labels([words[row] for row in rows], class_names, f"{source}: {part}")
        made[part] = Split(images.take(np.array(rows)), labels)
    return ImageSet(name, source, class_names, **made)


def _label_column(names: list[str], path: Path) -> str:
    """The one that is called a label, or the only one."""
    if not names:
        raise ValueError(f"{path} has a column of files and none of labels: add one")
    called = [name for word in LABEL_COLUMNS for name in names if name.lower() == word]
    if not called and len(names) != 1:
        raise ValueError(
            f"{path}: none of its columns {', '.join(names)} is called {', '.join(LABEL_COLUMNS[:-1])} or "
            f"{LABEL_COLUMNS[-1]}: name the one of labels, as in {path.name}:{names[0]}"
        )
    return (called or names)[0]


def _are_splits(values: list[str]) -> bool:
    """Whether a column says in every row what it is for, and of some that they are for training."""
    words = {value.lower() for value in set(values)}
    return words <= set(SPLITS) and "train" in {SPLITS[word] for word in words}


def _rows_by_split(splits: list[str], words: list[str], files: list[str], path: Path) -> dict[str, list[int]]:
    """The rows of train, val and test, by file, so that the order in which a table was saved changes nothing."""
    rows_of: dict[str, list[int]] = {}
    for row in sorted(range(len(files)), key=lambda row: (files[row], words[row])):
        if splits[row].lower() not in SPLITS:
            raise ValueError(
                f"{path}: split '{splits[row]}' of {as_text(files[row])} is none of {', '.join(SPLITS)}: write one of "
                "them, or rename the column"
            )
        rows_of.setdefault(SPLITS[splits[row].lower()], []).append(row)
    if len(rows_of) == 1:
        return {"train": next(iter(rows_of.values()))}
    if "train" not in rows_of:
        raise ValueError(f"{path} has rows of {' and '.join(rows_of)}, and none of train")
    return rows_of


def _columns(path: Path) -> dict[str, list[str]]:
    """The table's columns by name; those without one, such as a row's number, are left out."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: save it as that") from error
    head = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count), strict=True)
    csv.field_size_limit(len(text) + 1)
    try:
        names, *rows = [row for row in reader if any(row)] or [[]]
    except csv.Error as error:
        raise ValueError(f"{path}: {error} in line {reader.line_num}: mend its quotes") from error
    names = [name.strip() for name in names]
    if not names or any(Path(name).suffix.lower() in IMAGE_SUFFIXES for name in names):
        raise ValueError(f"{path} does not name its columns: give it a first line, such as file,label")
    if twice := [name for name in names if name and [other.lower() for other in names].count(name.lower()) > 1]:
        raise ValueError(f"{path} has several columns '{twice[0]}': rename all but one of them")
    if not rows:
        raise ValueError(f"{path} has no row below its names of columns: {', '.join(names)}")
    if uneven := next((row for row in rows if len(row) != len(names)), None):
        raise ValueError(f"{path} has {len(names)} columns, but {len(uneven)} in the row of {uneven[0]}: mend the row")
    return {name: [value.strip() for value in values] for name, *values in zip(names, *rows, strict=True) if name}


def _files(columns: dict[str, list[str]], path: Path) -> tuple[list[str], str]:
    """The files that a table names, and the column that does. One that is not there keeps its path, and is told later.

    Raises ValueError where no column names files, or it is not clear which one or which files.
    """
    root = path.parent

    def is_path(value: str) -> bool:
        return Path(value).suffix.lower() in IMAGE_SUFFIXES and (root / value).is_file()

    hits = {name: sum(map(is_path, values[:FIRST])) for name, values in columns.items()}
    called: dict[str, list[str]] = {}
    if not any(hits.values()):
        for file in files_below(root):
            inside = Path(file).relative_to(root)
            for key in {str(inside), str(inside.with_suffix("")), inside.name, inside.stem}:
                called.setdefault(key, []).append(file)
        hits = {name: sum(value in called for value in values) for name, values in columns.items()}
    image = _column_of_files(hits, path)
    if image is None:
        first = ", ".join(values[0] for values in columns.values())
        raise ValueError(
            f"{path} names no image: a path holds from {root}, a name for any file below it; its first row is {first}"
        )
    _check_filled(columns[image], image, range(len(columns[image])), columns[image], path)
    files = []
    for value in columns[image]:
        if len(several := called.get(value, [])) > 1:
            raise ValueError(f"{path}: '{value}' is any of {', '.join(map(as_text, several[:3]))}: write its path")
        files += several or [str(root / value)]
    return files, image


def _column_of_files(hits: dict[str, int], path: Path) -> str | None:
    """The column with the most values that are found; of several with about as many, the one that is called so.

    What is called a label is none, unless it alone is found.
    """
    hits = {name: count for name, count in hits.items() if count}
    likely = {name: count for name, count in hits.items() if name.lower() not in LABEL_COLUMNS} or hits
    best = [name for name, count in likely.items() if 2 * count >= max(likely.values())]
    called = [name for word in FILE_COLUMNS for name in best if name.lower() == word]
    if len(best) > 1 and not called:
        raise ValueError(f"{path}: {' and '.join(best)} name files: call the column of the images 'file'")
    return (called or best or [None])[0]


def _check_filled(values: list[str], name: str, rows: Iterable[int], files: list[str], path: Path) -> None:
    """Raises ValueError for rows that say nothing in this column."""
    if missing := [row for row in rows if not values[row]]:
        where = f", such as that of {as_text(files[missing[0]])}" if files[missing[0]] else ""
        raise ValueError(f"{path}: {len(missing)} rows have no '{name}'{where}: add it, or leave the rows out")
