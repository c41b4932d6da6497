"""Slices over tables that a test wrote: all files of the head, and what tasks read from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.hand_made import HandMade
from tests.lake import at, hourly_pipeline
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.accepted_times import AcceptedTimes
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.definition.event_columns import FILE, PLACE
from tidegate.pipelines.sources.choose_reader import InputColumns, choose_reader, slice_of
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.sources.delta.reader import DeltaReader
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_columns import ColumnsToRead, without_metadata
from tidegate.pipelines.sources.source_table import SourceTable
from tidegate.pipelines.sources.stored_fields import fields_of
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.time import FIRST_TIME, LAST_TIME, to_millis

ACCEPTED = AcceptedTimes(not_before=1, first=FIRST_TIME, end=LAST_TIME)
"""Event times that a pipeline accepts by default, without room for windows."""


def slice_at(table: HandMade, pipeline: Any = None, warehouse: Warehouse | None = None) -> FileSlice:
    """Return all files of a table at its head as a slice; Arrow must be able to read the table.

    Args:
        table: the table in its original folder.
        pipeline: the pipeline that reads it.
        warehouse: a warehouse with a copy of the folder; None if there is no copy.
    """
    warehouse = warehouse or Warehouse(str(table.folder.parent))
    log = SourceLog(warehouse, warehouse.path(table.folder.name))
    files = files_over(log, pipeline or hourly_pipeline())
    active = log.active(files.tables[0].columns.timestamp, to_read=True)
    parts = (FilePart.of(file, 0, to_millis(at("23:00"))) for file in sorted(active, key=lambda file: file.path))
    return files.of(parts, {0: 0})


def files_over(log: SourceLog, pipeline: Pipeline) -> FileSlice:
    """Return the slice of a table without files; Arrow must be able to read the table."""
    choice = choose_reader(pipeline, pipeline.inputs[0], log)
    assert not choice.needs_spark, choice
    assert choice.derived is not None
    columns = InputColumns(without_metadata(log.schema), choice.derived)
    bound = bind(pipeline, columns.source, columns.derived)
    return slice_of(bound, [log], [choice], [columns])


def slice_in(folder: Path, columns: ColumnsToRead, *parts: FilePart) -> FileSlice:
    """Return a slice of plain files in a folder."""
    reader = DeltaReader(Warehouse(str(folder)), str(folder), columns.as_read, fields_of(columns.schema))
    values = pa.schema([columns.of_events.field(name) for name in columns.used])
    return FileSlice((SourceTable(reader, columns),), columns.key, values, columns.schema, parts, {0: 0})


def events_of(files: FileSlice) -> pa.Table:
    """Return the events of a slice."""
    return pa.concat_tables(list(files.events()))


def whole_rows(files: FileSlice, events: pa.Table) -> list[dict[str, Any]]:
    """Return the source rows of events, read again by file and position, as those of late rows are."""
    numbers, places = (np.asarray(events[name]).astype(np.int64) for name in (FILE, PLACE))
    rows: list[dict[str, Any]] = files.source_rows(numbers, places).to_pylist()
    return rows
