"""Slices over tables that a test made: all files of the head, and what tasks read of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.hand_made import HandMade
from tests.lake import at, hourly_pipeline
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.definition.event_columns import FILE, PLACE
from tidegate.pipelines.sources.choose_reader import slice_of, why_through_spark
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.sources.delta.reader import DeltaReader
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_columns import SourceColumns
from tidegate.pipelines.sources.stored_fields import fields_of
from tidegate.pipelines.storage import Warehouse, arrow_schema
from tidegate.windowing.time import to_millis


def slice_at(table: HandMade, pipeline: Any = None) -> FileSlice:
    """Return all files of a table at its head as a slice; Arrow must be able to read the table."""
    warehouse = Warehouse(str(table.folder.parent))
    log = SourceLog(warehouse, str(table.folder))
    schema = bare(arrow_schema(warehouse.open(log.path)))
    bound = bind(pipeline or hourly_pipeline(), schema, schema)
    assert why_through_spark(bound, log) is None
    files = slice_of(bound, log)
    active = log.active(files.columns.timestamp, to_read=True)
    parts = tuple(FilePart.of(file, 0, to_millis(at("23:00"))) for file in sorted(active, key=lambda file: file.path))
    return replace(files, parts=parts)


def slice_in(folder: Path, columns: SourceColumns, *parts: FilePart) -> FileSlice:
    """Return a slice of plain files in a folder."""
    reader = DeltaReader(Warehouse(str(folder)), str(folder), columns.as_read, fields_of(columns.schema))
    return FileSlice(reader, columns, parts)


def bare(schema: pa.Schema) -> pa.Schema:
    """Return a schema without the metadata of its fields, at any depth, as Spark gives it."""
    return pa.schema([(field.name, _bare(field.type)) for field in schema])


def _bare(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _bare(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_bare(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_bare(kind.key_type), _bare(kind.item_type))
    return kind


def events_of(files: FileSlice) -> pa.Table:
    """Return the events of a slice."""
    return pa.concat_tables(list(files.events()))


def whole_rows(files: FileSlice, events: pa.Table) -> list[dict[str, Any]]:
    """Return the source rows of events, read again by file and place as those of late rows are."""
    numbers, places = (np.asarray(events[name]).astype(np.int64) for name in (FILE, PLACE))
    rows: list[dict[str, Any]] = files.source_rows(numbers, places).to_pylist()
    return rows
