"""Table `windows` compared with table `results`: it has each current window once, and no other row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
from deltalake import DeltaTable

from tidegate.expectations.scope import Scope
from tidegate.expectations.slices import Slices
from tidegate.pipelines.definition import windows
from tidegate.pipelines.definition.row_sets import surplus
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.ledger.tables.table_log import TableLog
from tidegate.pipelines.storage.warehouse import active_files, stored_schema

MISSING, SURPLUS, UNREADABLE = "missing", "stands not", "unreadable"
"""Faults: a window that stands is not in the table; a row is none of these windows; a file can't be read."""


def faults(tables: PipelineTables, scope: Scope, slices: Slices, folder: Path | None) -> pd.DataFrame | None:
    """Return a row for each window in scope that the table lacks or has in excess; None if there is no such table.

    Args:
        tables: the pipeline's tables.
        scope: the epoch, and the range of rows to check.
        slices: rows of table `results` in scope.
        folder: folder for parts of the rows.
    """
    handle = _of_epoch(tables, scope.pinned.snapshot.manifest.epoch)
    if handle is None:
        return None
    key = tuple(scope.pinned.snapshot.manifest.schemas.key)
    schema = stored_schema(handle)
    early = handle.metadata().configuration.get(windows.EARLY) == "true"
    named = [*key, "window_start", "window_end"]
    parts = [schema.empty_table().select(named).append_column("fault", pa.array([], pa.string()))]

    def batches() -> Iterator[pa.RecordBatch]:
        names = [file["path"] for file in active_files(handle)]
        where = scope.of_windows
        yield from tables.warehouse.read_batches(tables.path(windows.NAME), names, schema, where=where)

    try:
        found = Slices(batches(), schema, key, slices.rows, folder, slices.rows_at_a_time)
    except Refused:
        parts.append(_faulty(schema.empty_table().select(named), UNREADABLE, 1))
        found = None
    for panes, rows in zip(slices, found or (), strict=found is not None):
        expected = windows.standing(panes, key, early).select(schema.names).cast(schema)
        more, less = surplus(rows, expected, schema.names)
        for table, is_faulty, fault in ((rows, more, SURPLUS), (expected, less, MISSING)):
            faulty = table.filter(pa.array(is_faulty)).select(named)
            parts.append(_faulty(faulty, fault, len(faulty)))
    frame: pd.DataFrame = pa.concat_tables(parts).to_pandas(date_as_object=False)
    return frame


def _faulty(rows: pa.Table, fault: str, count: int) -> pa.Table:
    if len(rows) < count:
        rows = pa.table([pa.nulls(count, field.type) for field in rows.schema], schema=rows.schema)
    return rows.append_column("fault", pa.array([fault] * count, pa.string()))


def _of_epoch(tables: PipelineTables, epoch: int) -> DeltaTable | None:
    """Return the table without the windows of later epochs; None if there is no such version."""
    if not tables.warehouse.exists(tables.path(windows.NAME)):
        return None
    handle = tables.look(windows.NAME)
    log, version = TableLog(tables, windows.NAME), handle.version()
    for number in range(version, -1, -1):
        entry = log.entry(number)
        if entry is None:
            return None
        if entry.snapshot is not None:
            if entry.snapshot["epoch"] <= epoch:
                break
            version = number - 1
    return handle if version == handle.version() else tables.open(windows.NAME, version)
