"""Rows of a table in parts that fit into memory, with all rows of a key in one part.

A rule about windows needs all rows of a key together. So if there are too many rows, they are written to files by a
hash of the key, and the files are read one after the other.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidegate.pipelines.ledger.tables.keys import key_schema
from tidegate.windowing.columnar.hashing import UInt64s, hash_keys

ROWS = 100_000
"""Approximate number of rows in a part; with everything computed from them they take some 200 MB."""


_PARTS = "parts-"
_ABANDONED_SECONDS = 86_400


class Slices:
    """Rows by key, which can be read more than once.

    Args:
        batches: the rows.
        schema: schema of the rows.
        key: the key columns; without key columns all rows belong to one key.
        rows: number of rows, at most.
        folder: folder for the files of the parts; None for the system's temporary folder.
        rows_at_a_time: approximate number of rows in a part.
    """

    def __init__(
        self,
        batches: Iterable[pa.RecordBatch],
        schema: pa.Schema,
        key: tuple[str, ...],
        rows: int,
        folder: Path | None = None,
        rows_at_a_time: int = ROWS,
    ) -> None:
        self.schema, self.rows, self.rows_at_a_time = schema, rows, rows_at_a_time
        parts = -(-rows // rows_at_a_time) if key else 1
        self._table: pa.Table | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: list[Path] = []
        if parts <= 1:
            self._table = pa.Table.from_batches(batches, schema)
            return
        # The parts are removed with this object; those of a killed check are removed by a later check.
        if folder is not None:
            _remove_old_parts(folder)
        self._folder = tempfile.TemporaryDirectory(prefix=_PARTS, dir=folder)
        self._files = [Path(self._folder.name, f"{part}.arrow") for part in range(parts)]
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with ExitStack() as stack:
            writers = [stack.enter_context(pa.ipc.new_file(str(file), schema, options=options)) for file in self._files]
            for batch in batches:
                part = (hashes_of(batch, key) % np.uint64(parts)).astype(np.int64)
                order = np.argsort(part, kind="stable")
                sorted_rows = batch.take(pa.array(order))
                bounds = np.searchsorted(part[order], np.arange(parts + 1))
                for number, writer in enumerate(writers):
                    if bounds[number] < bounds[number + 1]:
                        writer.write(sorted_rows.slice(bounds[number], bounds[number + 1] - bounds[number]))

    def __iter__(self) -> Iterator[pa.Table]:
        """Yield each part."""
        if self._table is not None:
            yield self._table
        for file in self._files:
            with pa.OSFile(str(file)) as source, pa.ipc.open_file(source) as reader:
                yield reader.read_all()


def _remove_old_parts(folder: Path) -> None:
    for left in folder.glob(f"{_PARTS}*"):
        if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def hashes_of(rows: pa.RecordBatch | pa.Table, key: tuple[str, ...]) -> UInt64s:
    """Return Spark's hash of the key of each row."""
    columns = [rows[name] for name in key]
    plain = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns]
    return hash_keys(key_schema(rows.schema, key), plain, len(rows))
