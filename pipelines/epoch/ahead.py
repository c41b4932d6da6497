"""Rows that a pipeline rejected because their time was ahead of their commit: they are rejected in every later read.

In event order, a row's time is compared with the time at which its file was written, and OPTIMIZE writes files anew. So
a row that was rejected could be accepted later. Table rejects has the rejected rows with all their columns, so the same
number of rows with equal values are rejected again. Nothing that the pipeline reads distinguishes them anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.manifest import Manifest
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.rules import Int64s
from tidegate.pipelines.sources.source_columns import SourceColumns
from tidegate.pipelines.sources.source_table import JudgedRows
from tidegate.pipelines.storage import read_table
from tidegate.pipelines.tables import rejects
from tidegate.pipelines.tables.columns import input_rows
from tidegate.pipelines.tables.multisets import texts_of
from tidegate.pipelines.tables.pipeline_tables import PipelineTables

_FOUND = pa.schema([("number", pa.int64()), ("place", pa.int64()), ("accepted", pa.int64()), ("text", pa.string())])


def rejected_ahead(
    tables: PipelineTables, manifest: Manifest, source: pa.Schema, renamed: Mapping[str, str]
) -> pa.Table | None:
    """Return the rows that the line of a snapshot rejected because their time was ahead; None if there are none.

    Args:
        tables: the pipeline's tables.
        manifest: manifest of the snapshot.
        source: columns of a source row, as table rejects keeps it.
        renamed: new names in the table of columns whose type changed.
    """
    if not tables.warehouse.exists(tables.path(rejects.NAME)):
        return None
    where = (pc.field("reason") == rejects.AHEAD) & ~pc.field("stale")
    rows = read_table(tables.warehouse, tables.look(rejects.NAME), where=where)
    on_line = [any(first <= epoch <= last for first, last in manifest.line) for epoch in rows["epoch"].to_pylist()]
    rows = rows.filter(pa.array(on_line, pa.bool_()))
    return input_rows(rows, rejects.TRAILING, source, renamed) if len(rows) else None


def rejecting_again(files: FileSlice, rejected: pa.Table, engine: Engine) -> FileSlice:
    """Return the rows of a version, with the places of those that were rejected before and are rejected again.

    Args:
        files: all files of the version that may have such rows, of one input.
        rejected: the rows that were rejected before, in the columns of the source.
        engine: the engine, for rows that go through Spark.
    """
    if not files.parts:
        return files
    columns = files.table_of(0).columns
    copies = Counter(_texts(rejected, columns))
    times = None
    if columns.by_spark is None or columns.time_in_files is not None:
        times, _ = columns.millis(columns.derive(rejected, [columns.timestamp])[columns.timestamp])
    find = partial(_find, files, times)
    if files.needs_spark:
        equal_rows = engine.over(files, find, _FOUND, are_placed=True)
    else:
        names = [[table.columns.timestamp] for table in files.tables]
        equal_rows = pa.Table.from_batches(find(files.judged(names=names)), _FOUND)
    places: dict[int, list[int]] = {}
    # Among rows with equal values, those that are still ahead of their file are rejected first.
    order = [(name, "ascending") for name in ("accepted", "number", "place")]
    for row in equal_rows.sort_by(order).to_pylist():
        if copies[row["text"]] > 0:
            copies[row["text"]] -= 1
            places.setdefault(row["number"], []).append(row["place"])
    again = {number: tuple(sorted(rows)) for number, rows in places.items()}
    return files.of((replace(part, again=again.get(number, ())) for number, part in enumerate(files.parts)), files.late)


def _find(files: FileSlice, times: Int64s | None, judged: Iterator[JudgedRows]) -> Iterator[pa.RecordBatch]:
    """Yield the rows with one of the given event times: part, place, 0 if it is ahead of its file, and values."""
    for rows in judged:
        wanted = np.ones(len(rows.times), np.bool_) if times is None else np.isin(rows.times, times)
        if not wanted.any():
            continue
        whole = rows.rows
        if whole is None:
            whole = files.table_of(rows.number).source_rows(files.parts[rows.number], rows.places[wanted])
        else:
            whole = whole.filter(pa.array(wanted))
        ahead = rows.rejected.get(rejects.AHEAD, np.zeros(len(rows.times), np.bool_))[wanted]
        columns = [
            pa.array(np.full(len(whole), rows.number)),
            pa.array(rows.places[wanted]),
            pa.array((~ahead).astype(np.int64)),
            pa.array(_texts(whole, files.table_of(rows.number).columns), pa.string()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_FOUND)


def _texts(rows: pa.Table, columns: SourceColumns) -> list[str]:
    """Return each row as text, without the columns that the pipeline does not read.

    The source may have renamed or replaced those, and rows that only differ there have the same results.
    """
    by_spark = columns.by_spark
    names = columns.reads(columns.names) if by_spark is None else by_spark.reads(columns.names, rows.column_names)
    return texts_of(rows.select([name for name in rows.column_names if name in names]))
