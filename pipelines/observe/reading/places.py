"""Rows of a table by place: a file, and the number of the row in it.

Whether a pane is current depends on other rows of its window, which may be in other files. So the places of current
rows are found once, from few columns; each task then reads whole files and keeps the rows at these places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidegate.pipelines.storage.warehouse import Warehouse, active_files, arrow_schema, path_of

FILE, ROW = "\0file", "\0row"
"""Columns of a row's place: the index of its file, and its number in the file, starting at 0."""

Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Files:
    """The files of a table at one version, as deltalake lists them."""

    warehouse: Warehouse
    path: str
    schema: pa.Schema
    active: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, warehouse: Warehouse, table: DeltaTable) -> Files:
        """Return the files of a table at the version at which it was opened."""
        return cls(warehouse, path_of(table), arrow_schema(table), tuple(active_files(table)))

    def rows(self, columns: Sequence[str], where: pc.Expression) -> pa.Table:
        """Return columns of the rows that satisfy an expression. Files are skipped based on their statistics."""
        names = [file["path"] for file in self.active]
        return self.warehouse.read_files(self.path, names, self.schema, list(columns), where)

    def some(self, numbers: Sequence[int]) -> Files:
        """Return the files with these indices, which are renumbered."""
        return Files(self.warehouse, self.path, self.schema, tuple(self.active[number] for number in numbers))

    def of_epochs(self, after: int, until: int) -> list[int]:
        """Return the indices of files whose statistics allow rows of the epochs in a range."""
        return [
            number
            for number, file in enumerate(self.active)
            if file.get("max.epoch") is None or (file["max.epoch"] > after and file["min.epoch"] <= until)
        ]

    def with_later_panes(self) -> list[int]:
        """Return the indices of files that may have a retraction or a pane that is not its window's first."""
        return [
            number for number, file in enumerate(self.active) if file.get("max.pane") != 0 or file.get("max.op") != "+"
        ]

    def places(
        self, columns: Sequence[str], where: Callable[[pa.Table], pa.ChunkedArray], numbers: Sequence[int] | None = None
    ) -> pa.Table:
        """Return columns of the rows that a function selects, with their places.

        It gets the columns of a file's rows, and returns a boolean for each. `numbers` are the files to read; None for
        all.
        """
        of_files = range(len(self.active)) if numbers is None else numbers
        parts = [self._places(number, list(columns), where) for number in of_files]
        if parts:
            return pa.concat_tables(parts)
        fields = [self.schema.field(name) for name in columns]
        return pa.schema([*fields, (FILE, pa.int32()), (ROW, pa.int64())]).empty_table()

    def _places(self, number: int, columns: list[str], where: Callable[[pa.Table], pa.ChunkedArray]) -> pa.Table:
        rows = self.warehouse.read_files(self.path, [self.active[number]["path"]], self.schema, columns)
        placed = rows.append_column(FILE, pa.repeat(pa.scalar(number, pa.int32()), len(rows))).append_column(
            ROW, pa.array(np.arange(len(rows)))
        )
        return placed.filter(where(rows))


def without(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Return the rows whose places are not in `others`. Both are from the same files."""
    return rows.filter(pa.array(~np.isin(_numbered(rows), _numbered(others))))


def _numbered(rows: pa.Table) -> npt.NDArray[np.int64]:
    return np.asarray((rows[FILE].to_numpy().astype(np.int64) << 40) | rows[ROW].to_numpy(), np.int64)


def bits_by_file(places: pa.Table, files: Files) -> dict[int, bytes]:
    """Return, for each file with a row in `places`, one bit per row of the file, set for these rows."""
    numbers = places[FILE].to_numpy()
    rows = places[ROW].to_numpy()
    masks = {}
    for number in np.unique(numbers).tolist():
        mask = np.zeros(files.active[number]["num_records"], np.bool_)
        mask[rows[numbers == number]] = True
        masks[number] = np.packbits(mask).tobytes()
    return masks


def from_bits(bits: bytes, first: int, count: int) -> npt.NDArray[np.bool_]:
    """Return the booleans of `count` rows of a file, from row `first` on."""
    start = first // 8
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8)[start : (first + count + 7) // 8])
    return unpacked[first - 8 * start :][:count].astype(np.bool_)
