"""Image sets in parquet files, such as those of the Hugging Face Hub."""

import io
import json
import logging
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.data.images import LABEL_COLUMNS, SPLITS, ImageSet, Split, match_labels, split_in, tell_joined
from vitreous.data.stores import SAMPLE, Images, even_rows, header_shape, identity, open_picture
from vitreous.messages import first_line, shorten

log = logging.getLogger("vitreous")

LARGE_GROUP = 1 << 30  # bytes of a row group above which a warning is logged
SAMPLED_GROUPS = 4  # row groups from which images are read for channels and size
HELD_BYTES = 256 << 20  # encoded images kept in memory, per process


class ParquetImages(Images):
    """Encoded images in a column of parquet files: plain bytes, or a struct with a field `bytes`. root: the set's
    folder."""

    def __init__(self, files: Sequence[str | Path], column: str, root: Path):
        import pyarrow.parquet as pq

        self.files, self.image_column, self.root = [str(file) for file in files], column, root
        self.groups, counts = [], [0]  # (file, row group) of each, and behind a 0 its number of rows
        self.firsts = []  # the first row of each file
        for number, file in enumerate(self.files):
            self.firsts.append(sum(counts))
            metadata = pq.read_metadata(file)
            for group in range(metadata.num_row_groups):
                self.groups.append((number, group))
                counts.append(metadata.row_group(group).num_rows)
            sizes = [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
            if max(sizes, default=0) > LARGE_GROUP:
                log.warning(
                    "%s keeps %.1f GB of images in one row group, which is read whole, by each worker too: write it "
                    "with row_group_size=1000",
                    file, max(sizes) / 1e9,
                )  # fmt: skip
        self.starts = np.cumsum(counts)
        self._held, self._lock = {}, threading.Lock()
        super().__init__(int(self.starts[-1]))

    def key(self) -> str:
        return identity(self.files, self.image_column)

    def column(self, name: str) -> np.ndarray | None:
        import pyarrow.parquet as pq

        if any(name not in pq.read_schema(file).names for file in self.files):
            return None
        parts = [pq.read_table(file, columns=[name])[name].to_pylist() for file in self.files]
        return np.array(["" if value is None else str(value) for part in parts for value in part])[self.rows]

    def _encoded(self, row: int) -> io.BytesIO:
        group = self._group(row)
        with self._lock:
            if group not in self._held:
                self._held[group] = self._read_group(*self.groups[group])
                while len(self._held) > 1 and sum(held.nbytes for held in self._held.values()) > HELD_BYTES:
                    del self._held[next(iter(self._held))]  # the oldest
            column = self._held[group]
        encoded = column[row - int(self.starts[group])].as_py()
        if encoded is None:
            raise ValueError(f"column '{self.image_column}' holds no bytes here")
        return io.BytesIO(encoded)

    def _group(self, row: int) -> int:
        """The row group that holds a row."""
        return int(np.searchsorted(self.starts, row, side="right")) - 1

    def _read_group(self, file: int, group: int):
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.files[file]) as parquet:
            column = parquet.read_row_group(group, columns=[self.image_column])[self.image_column]
        return pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column

    def _fit(self, row, preprocess):
        with open_picture(self._encoded(row)) as image:
            return preprocess.fit_image(image)

    def _shape(self, row):
        with open_picture(self._encoded(row)) as image:
            return header_shape(image)

    def _name(self, row):
        file, _ = self.groups[self._group(row)]
        return f"{self.files[file]}: row {row - self.firsts[file]}"

    def _place(self, row):
        return self._name(row).removeprefix(f"{self.root}/")

    def _sample_rows(self):  # from a few row groups, as each costs a read; files may be sorted by class
        group = np.searchsorted(self.starts, self.rows, side="right")
        there = np.unique(group)
        there = there[even_rows(len(there), SAMPLED_GROUPS)]
        return np.concatenate([self.rows[group == one][: SAMPLE // len(there)] for one in there])

    def __getstate__(self):
        return self.__dict__ | {"_held": {}, "_lock": None}

    def __setstate__(self, state):
        self.__dict__.update(state | {"_lock": threading.Lock()})


def read_parquet(root: Path, files: list[Path], name: str, source: str, label: str | None = None) -> ImageSet:
    """A set of parquet files, with paths relative to root. The name of a file, or of its folder, gives its split; where
    none does, a column `split`.

    label: the label column, whatever the files themselves say.
    """
    import pyarrow as pa

    try:
        return _read_parquet(root, files, name, source, label)
    except (pa.ArrowException, json.JSONDecodeError, RecursionError) as error:
        reason = first_line(error)[:120]
        raise ValueError(f"{source}: its parquet files are damaged or not alike: {reason}") from error


def _read_parquet(root: Path, files: list[Path], name: str, source: str, label: str | None) -> ImageSet:
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
        exact = [path for path in paths if SPLITS.get(_series(path) or path.parent.name.lower()) == split]
        if exact and (others := sorted(path.name for path in paths if path not in exact)):
            log.warning("%s: files named only somewhat like %s are left out: %s", source, split, shorten(others, 5))
            of_split[split] = exact
    if len(of_split) == 1:  # all there is, whatever its name
        of_split = {"train": of_split.popitem()[1]}
    if "train" not in of_split:
        raise ValueError(f"{source}: no training files among {', '.join(map(str, files))}")
    at = Path(source) if source.startswith("hf:") else root  # as it is given as DATA
    for split in ("train", *of_split):
        folders = sorted({str(at / file.parent.relative_to(root)) for file in of_split[split]})
        if len(folders) > 1 and split == "train":
            raise ValueError(f"{source} holds several sets: give one of these folders: {', '.join(folders)}")
        if len(folders) > 1:
            raise ValueError(
                f"{source} holds {split} files in several folders, {', '.join(folders)}: keep those of one, or give a "
                f"folder with one set of train and {split}"
            )

    image, label, class_names = _columns(of_split["train"][0], label)
    rows_of = _rows_by_split(of_split, label, source)
    found = {}
    for split, rows in rows_of.items():
        paths = of_split["train" if rows is not None else split]
        labels = _labels(paths, label, rows)
        words = labels is not None and labels.dtype.kind == "O"
        absent = labels is None or (words and (labels == "").all()) or (labels.dtype.kind == "i" and (labels < 0).all())
        if split != "train" and absent:
            log.warning("%s: %s has no labels: left out", source, split)
        elif labels is None or labels.dtype.kind not in "iuO" or (words and (None in labels or "" in labels)):
            raise ValueError(f"{source}: '{label}' of {split} needs an integer or a string in every row")
        elif class_names is None and labels.dtype.kind == "i" and (labels < 0).any():
            raise ValueError(
                f"{source}: '{label}' of {split} is {labels.min()} in some rows, which mostly means that they have no "
                "label: leave them out, or number the classes from 0"
            )
        else:
            found[split] = (paths, rows, labels, _class_names(paths, label))

    if class_names is None:
        class_names = tuple(map(str, np.unique(found["train"][2])))
        tell_joined(class_names, label, source)
    splits, stored = {}, {}
    for split, (paths, rows, labels, names) in found.items():
        if names != class_names:
            if names and not 0 <= labels.min() <= labels.max() < len(names):
                raise ValueError(
                    f"{source}: {split} labels {labels.min()}..{labels.max()} exceed its {len(names)} class names"
                )
            words = [names[i] if names else str(i) for i in labels]
            labels = match_labels(words, class_names, f"{source}: {split}")
        if paths[0] not in stored:
            stored[paths[0]] = ParquetImages(paths, image, root)
        images = stored[paths[0]]
        splits[split] = Split(images if rows is None else images.take(rows), labels.astype(np.int64))
    return ImageSet(name, source, class_names, **splits)


def _rows_by_split(of_split: dict[str, list[Path]], label: str, source: str) -> dict[str, np.ndarray | None]:
    """The rows of each split among those of the files for training, where a column `split` divides them; else None for
    each split that has files."""
    import pyarrow.parquet as pq

    files, whole = of_split["train"], dict.fromkeys(of_split)
    fields = [field for file in files for field in pq.read_schema(file)]
    texts = dict.fromkeys(field.name for field in fields if field.name != label and _is_text(field.type))
    called = next((name for name in texts if name.lower() == "split"), None)
    if called is None:
        if len(of_split) == 1 and (telling := [name for name in texts if _tells_splits(files, name)]):
            raise ValueError(
                f"{source}: '{telling[0]}' tells what images are for training: call it 'split', or leave it out"
            )
        return whole
    words = np.array([word for part in _split_words(files, called) for word in part])
    kinds = np.unique(words).tolist()
    if len(kinds) == 1 or SPLITS.keys().isdisjoint(kinds):
        return whole
    if len(of_split) > 1:
        log.warning("%s: the names of its files tell the splits, and column '%s' is passed over", source, called)
        return whole
    if unknown := [kind for kind in kinds if kind not in SPLITS]:
        raise ValueError(
            f"{source}: '{called}' is '{unknown[0]}' in some rows, which is none of {', '.join(SPLITS)}: write one of "
            "them, or rename the column"
        )
    if "train" not in kinds:
        raise ValueError(f"{source} has rows of {' and '.join(kinds)}, and none of train: mark those to train on")
    return {kind: np.flatnonzero(words == kind) for kind in kinds}


def _tells_splits(files: list[Path], column: str) -> bool:
    """Whether a column tells images for training from others, and nothing else."""
    kinds: set[str] = set()
    for words in _split_words(files, column):
        if not SPLITS.keys() >= set(words):  # read no further, as captions may be long
            return False
        kinds.update(words)
    return "train" in kinds and len(kinds) > 1


def _split_words(files: list[Path], column: str) -> Iterator[list[str]]:
    """Part by part what a column says of each row: train, val, test or, in lower case, another word; "" if nothing."""
    import pyarrow.parquet as pq

    for file in files:
        with pq.ParquetFile(file) as parquet:
            if column not in parquet.schema_arrow.names:
                yield [""] * parquet.metadata.num_rows
                continue
            for batch in parquet.iter_batches(columns=[column]):
                words = ["" if word is None else str(word).lower() for word in batch.column(0).to_pylist()]
                yield [SPLITS.get(word, word) for word in words]


def _class_names(files: list[Path], label: str) -> tuple[str, ...] | None:
    """The class names that the first file states. Raises ValueError if another states others."""
    stated = {file: names for file in files if (names := _columns(file, label)[2])}
    for file, names in stated.items():
        if names != next(iter(stated.values())):
            raise ValueError(
                f"{next(iter(stated))} and {file} number the classes of '{label}' differently: write both with the "
                "same names"
            )
    return stated.get(files[0])


def _series(file: Path) -> str:
    """The name that the numbered files of a series share: `train` of train-00000-of-00002-1f2e.parquet."""
    return re.sub(r"[-_.]?\d+(-of-\d+.*)?$", "", file.stem).lower()


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


def _labels(files: list[Path], column: str, rows: np.ndarray | None) -> np.ndarray | None:
    """The column of all files, or of some of their rows; None if they lack it, or it is empty in every row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not any(column in pq.read_schema(file).names for file in files):
        return None
    columns = [pq.read_table(file, columns=[column])[column] for file in files]
    if rows is not None:
        columns = [pa.chunked_array([chunk for part in columns for chunk in part.chunks]).take(rows)]
    if all(part.null_count == len(part) for part in columns):
        return None
    plain = [part.cast(part.type.value_type) if pa.types.is_dictionary(part.type) else part for part in columns]
    parts = [part.to_numpy() for part in plain]
    if len(kinds := {part.dtype for part in parts}) > 1 and np.dtype(object) in kinds:
        raise ValueError(
            f"{files[0].parent}: '{column}' holds numbers in some files and words in others: make them one"
        )
    return np.concatenate(parts)


def _columns(file: Path, label: str | None) -> tuple[str, str, tuple[str, ...] | None]:
    """Image column, label column (`label` if given), and class names if the file states them.

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
    if label is not None and label not in labels:
        raise ValueError(f"{file} has no column '{label}' of labels: it has {', '.join(labels) or 'none'}")
    if label is None:
        of_classes = [name for name in stated("ClassLabel") if name.lower() != "split"]
        labels = of_classes or [name for name in labels if name.lower() != "split"]
    else:
        labels = [label]
    preferred = [name for name in LABEL_COLUMNS if name in labels] or labels
    if len(images) != 1 or not preferred or (len(labels) > 1 and preferred[0] not in LABEL_COLUMNS):
        raise ValueError(
            f"{file} has image columns {images} and label columns {labels}: one of each is needed; of "
            f"several label columns, one named {', '.join(LABEL_COLUMNS[:-1])} or {LABEL_COLUMNS[-1]}, or the one that "
            "stands behind a colon, DATA:COLUMN"
        )
    names = features.get(preferred[0], {}).get("names")
    return images[0], preferred[0], tuple(names) if names and isinstance(names, list) else None


def _is_text(kind) -> bool:
    """Whether a column of this type holds strings."""
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
