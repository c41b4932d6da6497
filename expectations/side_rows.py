"""Rows other than final windows that a pipeline's own suites check: those that were added since the previous check.

Rows of tables `late` and `rejects`, and of the source, belong to no window, so no correction can fix a bad one.
Therefore each is checked once, by the first check after its epoch, whether the previous check passed or failed.
"""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.expectations.pinned import Pinned, as_frame
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch.file_slices import of_added, of_version
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.storage.warehouse import arrow_schema
from tidegate.windowing.time import to_millis

SOURCE = "source"
"""Name of these rows among those of `[pipelines.NAME.suites]`; the others are the names of their tables."""


def rows_since(pinned: Pinned, pipeline: Pipeline, kind: str) -> pd.DataFrame:
    """Return the rows of a kind that were added since the newest earlier checked epoch; all if there is none.

    Args:
        pinned: the tables as of an epoch.
        pipeline: the pipeline.
        kind: `late`, `rejects` or `source`.

    Raises:
        UsageError: the source's rows can't be read without Spark, or the pipeline has two sources.
        Refused: a version of the source can no longer be read.
    """
    epochs = pinned.scope.pinned.epochs
    earlier = epochs.filter(pc.less(epochs["epoch"], pinned.manifest.epoch))["epoch"].to_pylist()
    since = quality.newest_of_checked(pinned.tables, earlier)
    if kind == SOURCE:
        return as_frame(_source_rows(pinned, pipeline, since))
    handle, scope = pinned.scope.pinned.handles[kind], pinned.scope
    where = scope.pinned.current & (pc.field("epoch") > (0 if since is None else since))
    names, schema = [file["path"] for file in scope.files_of(kind)], arrow_schema(handle)
    batches = pinned.tables.warehouse.read_batches(pinned.tables.path(kind), names, schema, where=where)
    return as_frame(pa.Table.from_batches(batches, schema))


def _source_rows(pinned: Pinned, pipeline: Pipeline, since: int | None) -> pa.Table:
    """Return the rows of the only source that the epochs after one read, with the source's columns.

    A backfill reads the rows of its interval, and a stream those of commits; rows that `where` drops are included.
    """
    field = f"pipelines.{pipeline.name}.suites.source"
    if len(pipeline.inputs) > 1:
        raise UsageError(f"{field}: {pipeline.name} has two sources; leave it out")
    try:
        source = OpenInput.open(LocalEngine(cores=1), pinned.tables, pipeline)
    except Refused as error:
        raise UsageError(f"{field}: a check reads the source without Spark: {error}") from error
    read, slices, frontier = -1, list[FileSlice](), None
    for row in pinned.scope.pinned.epochs.sort_by("epoch").to_pylist():
        version, interval = row["source_version"], (row["interval_start"], row["interval_end"])
        is_new, is_backfill = since is None or row["epoch"] > since, interval[0] is not None
        if is_new and is_backfill:
            slices.append(of_version(source, version, None, *map(to_millis, interval)))
        elif is_new and frontier is not None and row["kind"] == "stream":
            slices.append(of_version(source, version, None, frontier))
        elif is_new and version is not None and version > read:
            slices.append(of_added(source, [each for each in source.commits(read, version) if not each.changes]))
        if is_backfill or row["kind"] == "stream":
            frontier = to_millis(interval[1]) if is_backfill else None
        read = read if version is None else version
    schema = source.columns.schema
    return pa.concat_tables([schema.empty_table(), *(rows for each in slices for rows in _rows_of(each, schema))])


def _rows_of(files: FileSlice, schema: pa.Schema) -> list[pa.Table]:
    """Return the rows of a slice with all columns of the source, only those of its interval."""
    found = []
    for number, part in enumerate(files.parts):
        table = files.table_of(number)
        columns = table.columns
        for rows, _ in table.stored(part, schema.names):
            kept = rows.cast(schema)
            if (part.since, part.until) != (FIRST_TIME, LAST_TIME):
                derived = columns.derive(rows, [columns.timestamp])
                times, _ = columns.millis(derived[columns.timestamp])
                kept = kept.filter(pa.array((times >= part.since) & (times < part.until)))
            found.append(kept)
    return found
