"""Table `late`: every row that came too late for all its windows, with the reason and its reopening."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.manifest import Publish, Reopening
from tidegate.pipelines.tables.columns import TIMESTAMP, column, input_fields
from tidegate.pipelines.tables.key_groups import key_hashes
from tidegate.pipelines.tables.keys import digests
from tidegate.windowing.time import MAX_TIMESTAMP
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
    """Return the columns of the table: those of the input, then the reason, the window and the epochs."""
    return pa.schema([*input_fields(TRAILING, source, names), *TRAILING])


def is_open(rows: pa.Table) -> pa.ChunkedArray:
    """Return a boolean for each row: True if no window holds the row and it is not stale."""
    return pc.and_(pc.is_null(rows[REOPENED]), pc.invert(rows["stale"]))


def event_times(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the event time of each row, int64 epoch milliseconds."""
    judged_at = pc.fill_null(epoch_millis(rows["watermark"]), MAX_TIMESTAMP)
    return np.asarray(pc.subtract(judged_at, rows["lateness_ms"]).to_numpy(), np.int64)


def is_meant(rows: pa.Table, key: tuple[str, ...], reopening: Reopening) -> pa.ChunkedArray:
    """Return a boolean for each row of table late: True if an epoch reopens the row.

    Args:
        rows: rows of table late.
        key: names of the key columns in table late.
        reopening: the windows that the epoch reopens.
    """
    open_before = pc.and_(is_open(rows), pc.less(rows["epoch"], reopening.epoch))
    return pc.and_(open_before, is_chosen(rows, key, reopening))


def is_chosen(rows: pa.Table, key: tuple[str, ...], reopening: Reopening) -> pa.ChunkedArray:
    """Return a boolean for each row: True if it lies in the windows that an epoch reopens.

    Args:
        rows: rows with a key and the start of a window.
        key: names of the key columns.
        reopening: the windows that the epoch reopens.
    """
    begins = epoch_millis(rows["window_start"])
    chosen = _lies_in(begins, reopening.start, reopening.end)
    # Only an older tidegate named keys by their hashes.
    for names, of_key, spans in (
        (digests, reopening.digest, reopening.spans),
        (key_hashes, reopening.key, reopening.also),
    ):
        of_rows = names(rows, key) if of_key is not None or spans else None
        if of_key is not None:
            chosen = pc.and_(chosen, pc.equal(of_rows, of_key))
        if spans:
            chosen = pc.or_(chosen, pa.array(_lies_in_spans(of_rows, begins, spans)))
    return chosen


def _lies_in(times: pa.ChunkedArray, start: int | None, end: int | None) -> pa.ChunkedArray:
    """Return True for each time in `[start, end)`. A null lies in it only if both bounds are None."""
    lies = pa.chunked_array([pa.repeat(pa.scalar(True), len(times))])
    if start is not None:
        lies = pc.and_(lies, pc.fill_null(pc.greater_equal(times, start), False))
    if end is not None:
        lies = pc.and_(lies, pc.fill_null(pc.less(times, end), False))
    return lies


def _lies_in_spans(
    names: pa.Array, times: pa.ChunkedArray, spans: Sequence[tuple[str, int, int]] | Sequence[tuple[int, int, int]]
) -> npt.NDArray[np.bool_]:
    """Return True for each row whose time lies in a span of its key.

    Args:
        names: what names the key of each row.
        times: a time of each row, int64 epoch milliseconds; null lies in none.
        spans: what names a key, start and end. Spans of a key don't overlap.
    """
    owners_of, starts, ends = (np.array(column) for column in zip(*sorted(spans), strict=True))
    distinct, owners = np.unique(owners_of, return_inverse=True)
    of_rows = pc.fill_null(pc.index_in(names, pa.array(distinct, names.type)), len(distinct)).to_numpy()
    valid = np.asarray(times.is_valid().to_numpy())
    begins = np.asarray(times.fill_null(0).to_numpy())
    inside = np.zeros(len(of_rows), np.bool_)
    order = np.argsort(of_rows, kind="stable")
    each = np.arange(len(distinct))
    places = [
        np.searchsorted(in_order, each, side) for in_order in (of_rows[order], owners) for side in ("left", "right")
    ]
    for first_row, last_row, first, last in zip(*places, strict=True):
        rows = order[first_row:last_row]
        span = np.searchsorted(starts[first:last], begins[rows], "right") - 1
        inside[rows] = valid[rows] & (span >= 0) & (begins[rows] < ends[first:last][np.maximum(span, 0)])
    return inside


def with_marks(table: str, rows: pa.Table, key: tuple[str, ...], work: Publish) -> pa.Table:
    """Return rows of a published table with the marks of reopened rows, as an epoch changes them.

    Rows that the epoch reopens get its number. Rows lose the number of an epoch that is removed or becomes stale. Only
    table late has marks, so rows of other tables stay as they are: a column `reopened` of theirs is a count or a value
    of the user.
    """
    marks = marks_of(table, rows)
    if marks is None:
        return rows
    gone = pc.is_in(marks, value_set=pa.array([*work.remove_epochs, *work.stale_epochs], pa.int64()))
    rows = _marked(rows, pc.if_else(gone, pa.scalar(None, pa.int64()), marks))
    for reopening in work.reopened:
        meant = is_meant(rows, key, reopening)
        rows = _marked(rows, pc.if_else(meant, pa.scalar(reopening.epoch, pa.int64()), rows[REOPENED]))
    return rows


def marks_of(table: str, rows: pa.Table) -> pa.ChunkedArray | None:
    """Return the epoch that reopened each row, null for none; None for a table other than late."""
    return rows[REOPENED] if table == NAME and REOPENED in rows.column_names else None


def _marked(rows: pa.Table, marks: pa.ChunkedArray) -> pa.Table:
    index = rows.schema.get_field_index(REOPENED)
    return rows.set_column(index, rows.schema.field(index), marks)
