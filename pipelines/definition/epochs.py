"""Table `epochs`: one row for each epoch, read by reports, conservation suites and `tidegate runs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidegate.pipelines.definition import counters
from tidegate.pipelines.definition.columns import TIMESTAMP, column
from tidegate.pipelines.definition.recorded import Shape

NAME = "epochs"

ERASING = frozenset({"forget", "prune"})
"""Kinds of epochs that remove rows on a user's request. A restore keeps these epochs' rows in this table."""

_SHARD = pa.struct([(name, pa.int64()) for name in ("first", "last", *counters.OF_SHARDS)])

DELETED = "deleted"
_DELETED = pa.struct([(name, pa.int64()) for name in ("epoch", "late", "reopened", "rejected")])

SHAPE = "shape"
_SHAPE = pa.struct([(name, pa.int64()) for name in Shape.model_fields])

FINGERPRINT = "fingerprint"

FINAL_THROUGH = "final_through"

_COUNTED = {counter.name: column(counter.name, pa.int64(), counter.meaning, False) for counter in counters.KEPT}

_AT_THE_END = (
    counters.REOPENED,
    counters.NEVER_EMITTED,
    counters.ROWS_OUT,
    counters.VERSIONS_SKIPPED,
    counters.ROWS_DELETED,
    counters.DELETED_IN_WINDOWS,
)
"""Counters whose columns come after `stale`."""

SCHEMA = pa.schema(
    [
        column("timeline", pa.int64(), "the timeline that it belongs to", False),
        column("epoch", pa.int64(), "number of the epoch; always increases, never reused", False),
        column("parent", pa.int64(), "the epoch whose snapshot it started from"),
        column(
            "kind",
            pa.string(),
            "backfill, stream, clock, change, reopen, restore, forget, prune or reset",
            False,
        ),
        column("interval_start", TIMESTAMP, "first event time of a backfill's interval"),
        column("interval_end", TIMESTAMP, "end of that interval, exclusive"),
        column(
            "source_version", pa.int64(), "newest version of the source that was read; of the left one if there are two"
        ),
        column("watermark", TIMESTAMP, "watermark after the epoch"),
        column("processing_time", TIMESTAMP, "clock of the epoch"),
        *(column for name, column in _COUNTED.items() if name not in _AT_THE_END),
        column("shards", pa.list_(_SHARD), "each range of key groups, with its counters"),
        column("phases", pa.map_(pa.string(), pa.float64()), "seconds spent in each phase", False),
        column("run_id", pa.string(), "the run that computed it", False),
        column("started_at", TIMESTAMP, "clock of the driver when the epoch began", False),
        column("stale", pa.bool_(), "whether an earlier interval has been run again since", False),
        _COUNTED[counters.REOPENED],
        column("watermark_lag_ms", pa.int64(), "how far the watermark is behind the clock"),
        _COUNTED[counters.NEVER_EMITTED],
        _COUNTED[counters.ROWS_OUT],
        _COUNTED[counters.VERSIONS_SKIPPED],
        _COUNTED[counters.ROWS_DELETED],
        _COUNTED[counters.DELETED_IN_WINDOWS],
        column(DELETED, pa.list_(_DELETED), "rows removed from late and rejects, by the epoch that had counted them"),
        column(SHAPE, _SHAPE, "size, slide, offset, gap and allowed lateness of windows in the code that ran, ms"),
        column(FINGERPRINT, pa.string(), "identifies the code that ran"),
        column(
            FINAL_THROUGH,
            TIMESTAMP,
            "a window is final if its final_at is at or before this time; null before the first watermark and after "
            "the end of input",
        ),
    ]
)


def has_ended(row: Mapping[str, Any], began: int | None) -> bool:
    """Return True if an epoch has no watermark because its input had ended, and not because there was none yet.

    Args:
        row: its row in the table.
        began: the first epoch with a watermark; None if there is none.
    """
    return row["watermark"] is None and began is not None and row["epoch"] > began
