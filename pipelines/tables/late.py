"""Table `late`: every row that came too late for all its windows, with the reason."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.manifest import Publish, Reopening
from tidegate.pipelines.tables.columns import TIMESTAMP, column, input_fields
from tidegate.pipelines.tables.key_groups import key_hashes
from tidegate.windowing.timestamps import epoch_millis

NAME = "late"
REOPENED = "reopened"

TRAILING = (
    column("reason", pa.string(), "late, merged_window_late (its session had passed) or windows_passed", False),
    column("lateness_ms", pa.int64(), "how far its time lies behind the watermark"),
    column("watermark", TIMESTAMP, "watermark it was judged against"),
    column("window_start", TIMESTAMP, "the window it would have gone to"),
    column("window_end", TIMESTAMP, "the end of that window"),
    column("timeline", pa.int64(), "which line of snapshots it belongs to", False),
    column("epoch", pa.int64(), "the epoch that found it", False),
    column("stale", pa.bool_(), "whether an interval before it was run again since", False),
    column(REOPENED, pa.int64(), "the epoch that took it in after all; null while no window holds it"),
)


def schema(source: pa.Schema, names: Mapping[str, str] | None = None) -> pa.Schema:
    """The input's columns, then what makes the row late."""
    return pa.schema([*input_fields(TRAILING, source, names), *TRAILING])


def is_open(rows: pa.Table) -> pa.ChunkedArray:
    """Which rows no window holds."""
    return pc.and_(pc.is_null(rows[REOPENED]), pc.invert(rows["stale"]))


def is_meant(rows: pa.Table, key: tuple[str, ...], reopening: Reopening) -> pa.ChunkedArray:
    """Which rows an epoch reopens.

    Args:
        rows: of table late.
        key: what it calls the key columns.
        reopening: which rows are meant.
    """
    open_before = pc.and_(is_open(rows), pc.less(rows["epoch"], reopening.epoch))
    begins = epoch_millis(rows["window_start"])
    hashes = key_hashes(rows, key) if reopening.key is not None or reopening.also else None
    chosen = _lies_in(begins, reopening.start, reopening.end)
    if reopening.key is not None:
        chosen = pc.and_(chosen, pc.equal(hashes, reopening.key))
    for owner, start, end in reopening.also:
        chosen = pc.or_(chosen, pc.and_(pc.equal(hashes, owner), _lies_in(begins, start, end)))
    return pc.and_(open_before, chosen)


def _lies_in(times: pa.ChunkedArray, start: int | None, end: int | None) -> pa.ChunkedArray:
    """Which times lie in `[start, end)`; a time that is not there lies in all of time only."""
    lies = pa.chunked_array([pa.repeat(pa.scalar(True), len(times))])
    if start is not None:
        lies = pc.and_(lies, pc.fill_null(pc.greater_equal(times, start), False))
    if end is not None:
        lies = pc.and_(lies, pc.fill_null(pc.less(times, end), False))
    return lies


def with_marks(rows: pa.Table, key: tuple[str, ...], work: Publish) -> pa.Table:
    """Rows of a table, and of table late those as reopened that an epoch reopens, or open again where it is gone."""
    if REOPENED not in rows.column_names:
        return rows
    marks = rows[REOPENED]
    gone = pc.is_in(marks, value_set=pa.array([*work.remove_epochs, *work.stale_epochs], pa.int64()))
    rows = _marked(rows, pc.if_else(gone, pa.scalar(None, pa.int64()), marks))
    for reopening in work.reopened:
        meant = is_meant(rows, key, reopening)
        rows = _marked(rows, pc.if_else(meant, pa.scalar(reopening.epoch, pa.int64()), rows[REOPENED]))
    return rows


def marks_of(rows: pa.Table) -> pa.ChunkedArray | None:
    """Which epoch reopened each row; None of another table."""
    return rows[REOPENED] if REOPENED in rows.column_names else None


def _marked(rows: pa.Table, marks: pa.ChunkedArray) -> pa.Table:
    index = rows.schema.get_field_index(REOPENED)
    return rows.set_column(index, rows.schema.field(index), marks)
