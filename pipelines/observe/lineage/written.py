"""Rows and bytes that a command wrote to its pipeline's tables, for the output statistics of its run.

Only one driver at a time runs epochs, and each epoch records when it started. So the epochs of a command are those that
started while it held the lease. Rows that a later epoch removed are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs
from tidegate.pipelines.definition.columns import TIMESTAMP
from tidegate.pipelines.ledger.lease import read_lease
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema, path_of, read_table
from tidegate.windowing.time import Millis, from_millis


@dataclass(frozen=True, slots=True)
class Held:
    """The time for which a driver held the lease, int64 epoch milliseconds; `until` is None if no end was recorded."""

    since: Millis
    until: Millis | None = None


@dataclass(frozen=True, slots=True)
class TableWrites:
    """Rows that a command wrote to a table. For a file that also has other rows, `size` is their share of it."""

    rows: int
    size: int
    files: int

    def to_facet(self) -> dict[str, int]:
        """Return the content of OpenLineage's facet `outputStatistics`."""
        return {"rowCount": self.rows, "size": self.size, "fileCount": self.files}


@dataclass(frozen=True, slots=True)
class Written:
    """The work of a command.

    Args:
        events: number of rows that it read.
        version: newest version of the first source that it read; None if none of its epochs read one.
        tables: rows that it wrote to each table.
    """

    events: int
    version: int | None
    tables: Mapping[str, TableWrites]


def written_by_driver(tables: PipelineTables, held: Held) -> Written:
    """Return the work of the driver that held the lease during a time."""
    names = tables.with_windows(PUBLISHED)
    if not tables.exist:
        return Written(0, None, {name: TableWrites(0, 0, 0) for name in names})
    until = held.until
    if until is None and (row := read_lease(tables)) is not None and row.acquired_at > held.since:
        # A killed driver records no end, and the next one already holds the lease.
        until = row.acquired_at
    began = pc.field("started_at") >= _moment(held.since)
    if until is not None:
        began &= pc.field("started_at") < _moment(until)
    chosen = read_table(tables.warehouse, tables.look(epochs.NAME), ["epoch", "events_in", "source_version"], began)
    if not len(chosen):
        return Written(0, None, {name: TableWrites(0, 0, 0) for name in names})
    bounds = pc.min_max(chosen["epoch"]).as_py()
    writes = {name: _written_in(tables, name, bounds["min"], bounds["max"]) for name in names}
    newest = chosen.sort_by([("epoch", "descending")])["source_version"].drop_null()
    return Written(pc.sum(chosen["events_in"]).as_py() or 0, newest[0].as_py() if len(newest) else None, writes)


def _moment(millis: Millis) -> pa.Scalar:
    return pa.scalar(from_millis(millis)).cast(TIMESTAMP)


def _written_in(tables: PipelineTables, table: str, first: int, last: int) -> TableWrites:
    """Return the rows of a table that a range of epochs wrote."""
    handle = tables.look(table)
    rows = size = files = 0
    for file in active_files(handle):
        if file["min.epoch"] is None or file["max.epoch"] < first or file["min.epoch"] > last:
            continue
        share = count = file["num_records"]
        if file["min.epoch"] < first or file["max.epoch"] > last:
            share = _rows_between(tables, handle, file["path"], first, last)
        rows += share
        size += file["size_bytes"] * share // max(1, count)
        files += share > 0
    return TableWrites(rows, size, files)


def _rows_between(tables: PipelineTables, handle: Any, file: str, first: int, last: int) -> int:
    """Return the number of rows of some epochs in a file that also has rows of others."""
    chosen = (pc.field("epoch") >= first) & (pc.field("epoch") <= last)
    return len(tables.warehouse.read_files(path_of(handle), [file], arrow_schema(handle), ["epoch"], chosen))
