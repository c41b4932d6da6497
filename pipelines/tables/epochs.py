"""Table `epochs`: one row for each epoch, read by reports, conservation suites and `tidegate runs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.manifest import EPOCHS
from tidegate.pipelines.storage import Warehouse, active_files, arrow_schema, path_of
from tidegate.pipelines.tables.columns import TIMESTAMP, column

if TYPE_CHECKING:
    from deltalake import DeltaTable

NAME = EPOCHS
ROWS_OUT = "rows_out"

ERASING = frozenset({"forget", "prune"})
"""Kinds of epochs that remove rows on a user's request. A restore keeps their rows in this table."""

COUNTERS = (
    "on_time",
    "late",
    "no_window",
    "fired_early",
    "fired_on_time",
    "fired_late",
    "withdrawn",
    "timers_registered",
    "timers_fired",
    "timers_deleted",
    "open_windows",
    "reopened",
    "never_emitted",
)
"""Counters of the operators, summed over the shards of an epoch."""

SHARD_COUNTERS = (
    "on_time",
    "late",
    "no_window",
    "fired_early",
    "fired_on_time",
    "fired_late",
    "withdrawn",
    "open_windows",
    "reopened",
    "never_emitted",
)
"""Counters that are kept for each range of key groups too, so that conservation can be checked there."""

_SHARD = pa.struct([(name, pa.int64()) for name in ("first", "last", *SHARD_COUNTERS)])

SCHEMA = pa.schema(
    [
        column("timeline", pa.int64(), "which line of snapshots it belongs to", False),
        column("epoch", pa.int64(), "number of the epoch; grows for ever and is never used again", False),
        column("parent", pa.int64(), "the epoch whose snapshot it started from"),
        column("kind", pa.string(), "backfill, stream, clock, reopen, restore, forget or prune", False),
        column("interval_start", TIMESTAMP, "first event time of a backfill's interval"),
        column("interval_end", TIMESTAMP, "end of that interval, not included"),
        column("source_version", pa.int64(), "newest version of the source (of two, the left one) that was read"),
        column("watermark", TIMESTAMP, "watermark after the epoch"),
        column("processing_time", TIMESTAMP, "clock of the epoch"),
        column("events_in", pa.int64(), "rows read", False),
        column("on_time", pa.int64(), "rows that a window took", False),
        column("late", pa.int64(), "rows in the late table", False),
        column("no_window", pa.int64(), "rows that their assigner put nowhere", False),
        column("rejected", pa.int64(), "rows in the rejects table", False),
        column("dropped", pa.int64(), "rows for which `where` was not true", False),
        column("fired_early", pa.int64(), "early panes", False),
        column("fired_on_time", pa.int64(), "on-time panes", False),
        column("fired_late", pa.int64(), "late panes", False),
        column("withdrawn", pa.int64(), "panes taken back", False),
        column("timers_registered", pa.int64(), "timers set", False),
        column("timers_fired", pa.int64(), "timers that fired", False),
        column("timers_deleted", pa.int64(), "timers deleted before they fired", False),
        column("open_windows", pa.int64(), "windows in the snapshot", False),
        column("shards", pa.list_(_SHARD), "ranges of key groups, and counts as above"),
        column("phases", pa.map_(pa.string(), pa.float64()), "seconds spent in each phase", False),
        column("run_id", pa.string(), "the run that made it", False),
        column("started_at", TIMESTAMP, "clock of the driver when it began", False),
        column("stale", pa.bool_(), "whether an interval before it was run again since", False),
        column("reopened", pa.int64(), "late rows that windows took in after all"),
        column("watermark_lag_ms", pa.int64(), "how far the watermark lies behind the clock"),
        column("never_emitted", pa.int64(), "elements in windows that went away before a pane showed them"),
        column(ROWS_OUT, pa.int64(), "rows put out to table results; null where an older version did not count them"),
    ]
)


def newest(warehouse: Warehouse, handle: DeltaTable, limit: int | None, with_stale: bool = False) -> pa.Table:
    """Return the rows of the newest epochs, the newest first. Files that hold only older epochs are not read.

    Args:
        warehouse: the warehouse of the table.
        handle: the table.
        limit: number of rows; None takes all.
        with_stale: True includes epochs whose results were replaced.
    """
    path, schema = path_of(handle), arrow_schema(handle)
    files = sorted(active_files(handle), key=lambda file: -file["max.epoch"])
    wanted = None if with_stale else ~pc.field("stale")
    newest_rows = schema.empty_table()
    for file in files:
        is_full = limit is not None and len(newest_rows) == limit
        if is_full and file["max.epoch"] < pc.min(newest_rows["epoch"]).as_py():
            break
        # Read the numbers alone first: a file may hold a million epochs, and the caller may ask for twenty.
        numbers = warehouse.read_files(path, [file["path"]], schema, ["epoch"], wanted)["epoch"]
        numbers = pa.table([numbers], ["epoch"]).sort_by([("epoch", "descending")])["epoch"]
        chosen = numbers.slice(0, limit).combine_chunks()
        is_chosen = pc.field("epoch").isin(chosen) if wanted is None else pc.field("epoch").isin(chosen) & wanted
        rows = warehouse.read_files(path, [file["path"]], schema, None, is_chosen)
        newest_rows = pa.concat_tables([newest_rows, rows]).sort_by([("epoch", "descending")]).slice(0, limit)
    return newest_rows
