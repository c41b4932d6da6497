"""Table `epochs`: one row for each epoch, read by reports, conservation suites and `tidegate runs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.manifest import EPOCHS, Shape
from tidegate.pipelines.storage import Warehouse, active_files, arrow_schema, path_of, read_table
from tidegate.pipelines.tables import counters
from tidegate.pipelines.tables.columns import TIMESTAMP, column

if TYPE_CHECKING:
    from deltalake import DeltaTable

NAME = EPOCHS

ERASING = frozenset({"forget", "prune"})
"""Kinds of epochs that remove rows on a user's request. A restore keeps their rows in this table."""

_SHARD = pa.struct([(name, pa.int64()) for name in ("first", "last", *counters.OF_SHARDS)])

DEPARTED = "departed"
_DEPARTED = pa.struct([(name, pa.int64()) for name in ("epoch", "late", "reopened", "rejected")])

SHAPE = "shape"
_SHAPE = pa.struct([(name, pa.int64()) for name in Shape.model_fields])

_COUNTED = {
    counter.name: column(counter.name, pa.int64(), counter.meaning, counter.is_younger) for counter in counters.KEPT
}

SCHEMA = pa.schema(
    [
        column("timeline", pa.int64(), "which line of snapshots it belongs to", False),
        column("epoch", pa.int64(), "number of the epoch; grows for ever and is never used again", False),
        column("parent", pa.int64(), "the epoch whose snapshot it started from"),
        column("kind", pa.string(), "backfill, stream, clock, change, reopen, restore, forget, prune or reset", False),
        column("interval_start", TIMESTAMP, "first event time of a backfill's interval"),
        column("interval_end", TIMESTAMP, "end of that interval, not included"),
        column("source_version", pa.int64(), "newest version of the source (of two, the left one) that was read"),
        column("watermark", TIMESTAMP, "watermark after the epoch"),
        column("processing_time", TIMESTAMP, "clock of the epoch"),
        *(_COUNTED[counter.name] for counter in counters.KEPT if not counter.is_younger),
        column("shards", pa.list_(_SHARD), "ranges of key groups, and counts as above"),
        column("phases", pa.map_(pa.string(), pa.float64()), "seconds spent in each phase", False),
        column("run_id", pa.string(), "the run that made it", False),
        column("started_at", TIMESTAMP, "clock of the driver when it began", False),
        column("stale", pa.bool_(), "whether an interval before it was run again since", False),
        _COUNTED[counters.REOPENED],
        column("watermark_lag_ms", pa.int64(), "how far the watermark lies behind the clock"),
        _COUNTED[counters.NEVER_EMITTED],
        _COUNTED[counters.ROWS_OUT],
        _COUNTED[counters.VERSIONS_SKIPPED],
        _COUNTED[counters.ROWS_GONE],
        _COUNTED[counters.TAKEN_BACK],
        column(DEPARTED, pa.list_(_DEPARTED), "rows that left late and rejects, by the epoch that counted them"),
        column(SHAPE, _SHAPE, "size, slide, offset, gap and allowed lateness of windows by the code that ran, ms"),
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


def is_forgotten_since(warehouse: Warehouse, handle: DeltaTable, epoch: int) -> bool:
    """Return True if a key was forgotten after an epoch, so that what was read as of that epoch may have the key."""
    where = (pc.field("kind") == "forget") & (pc.field("epoch") > epoch)
    return bool(len(read_table(warehouse, handle, ["epoch"], where)))
