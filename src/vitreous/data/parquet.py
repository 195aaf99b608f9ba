"""Images in a column of parquet files, and what the other columns say of them."""

import io
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vitreous.data.stores import SAMPLE, Images, even_rows, header_shape, identity, open_picture

log = logging.getLogger("vitreous")

LARGE_GROUP = 1 << 30  # bytes of a row group above which a warning is logged
SAMPLED_GROUPS = 4  # row groups from which images are read for channels and size
HELD_BYTES = 256 << 20  # encoded images kept in memory, per process


class ParquetImages(Images):
    """Encoded images in a column of parquet files: plain bytes, or a struct with a field `bytes`. root: the set's
    folder."""

    _lock = threading.Lock()  # of the process

    def __init__(self, files: Sequence[str | Path], column: str, root: Path):
        import pyarrow.parquet as pq

        self.files, self.image_column, self.root = [str(file) for file in files], column, root
        self.groups, counts = [], [0]  # of each row group: its file, its number and the file's first row; and its rows
        for file in self.files:
            first, metadata = sum(counts), pq.read_metadata(file)
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            self.groups += [(file, number, first) for number in range(len(groups))]
            counts += [group.num_rows for group in groups]
            if (largest := max((group.total_byte_size for group in groups), default=0)) > LARGE_GROUP:
                log.warning(
                    "%s keeps %.1f GB of images in one row group, which is read whole, by each worker too: write it "
                    "with row_group_size=1000",
                    file, largest / 1e9,
                )  # fmt: skip
        self.starts = np.cumsum(counts)
        self._held = {}
        super().__init__(int(self.starts[-1]))

    def key(self) -> str:
        return identity(self.files, self.image_column)

    def column(self, name: str) -> np.ndarray | None:
        import pyarrow.parquet as pq

        if not any(name in pq.read_schema(file).names for file in self.files):
            return None
        return np.array(list(self.cells(name)))[self.rows]

    def cells(self, name: str) -> Iterator[str]:
        """What a column says of each stored image, as text, read part by part; "" if empty, or if its file lacks it."""
        import pyarrow.parquet as pq

        for file in self.files:
            with pq.ParquetFile(file) as parquet:
                if name not in parquet.schema_arrow.names:
                    yield from [""] * parquet.metadata.num_rows
                    continue
                for batch in parquet.iter_batches(columns=[name]):
                    yield from ("" if value is None else str(value) for value in batch.column(name).to_pylist())

    def _encoded(self, row: int) -> io.BytesIO:
        group = self._group(row)
        with self._lock:
            if group not in self._held:
                self._held[group] = self._read_group(*self.groups[group][:2])
                while len(self._held) > 1 and sum(held.nbytes for held in self._held.values()) > HELD_BYTES:
                    del self._held[next(iter(self._held))]  # the oldest
            column = self._held[group]
        cell = column[row - int(self.starts[group])].as_py()
        fields = cell if isinstance(cell, dict) else {"bytes": cell}
        if (encoded := fields.get("bytes")) is None:
            why = ": only paths, as datasets' to_parquet leaves images that are files: give their folder"
            raise ValueError(f"column '{self.image_column}' holds no bytes here{why if fields.get('path') else ''}")
        return io.BytesIO(encoded)

    def _group(self, rows):
        """The row group that holds a row, or those that hold some."""
        return np.searchsorted(self.starts, rows, side="right") - 1

    def _read_group(self, file: str, number: int):
        import pyarrow.parquet as pq

        with pq.ParquetFile(file) as parquet:
            return parquet.read_row_group(number, columns=[self.image_column])[self.image_column]

    def _fit(self, row, preprocess):
        with open_picture(self._encoded(row)) as image:
            return preprocess.fit_image(image)

    def _shape(self, row):
        with open_picture(self._encoded(row)) as image:
            return header_shape(image)

    def _name(self, row):
        file, _, first = self.groups[self._group(row)]
        return f"{file}: row {row - first}"

    def _place(self, row):
        return self._name(row).removeprefix(f"{self.root}/")

    def _sample_rows(self):  # from a few row groups, as each costs a read; files may be sorted by class
        group = self._group(self.rows)
        there = np.unique(group)
        there = there[even_rows(len(there), SAMPLED_GROUPS)]
        return np.concatenate([self.rows[group == one][: SAMPLE // len(there)] for one in there])

    def __getstate__(self):
        return self.__dict__ | {"_held": {}}
