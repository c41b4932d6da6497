"""Table `late`: every row that arrived too late for all its windows, the reason, and the epoch that reopened it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.column_names import input_fields
from tidegate.pipelines.definition.columns import TIMESTAMP, column
from tidegate.windowing.time import MAX_TIMESTAMP
from tidegate.windowing.timestamps import epoch_millis

NAME = "late"
REOPENED = "reopened"

TRAILING = (
    column("reason", pa.string(), "late, merged_window_late (its session had closed) or windows_passed", False),
    column("lateness_ms", pa.int64(), "how far its time is behind the watermark"),
    column("watermark", TIMESTAMP, "the watermark by which it was late"),
    column("window_start", TIMESTAMP, "the window that it would have been added to"),
    column("window_end", TIMESTAMP, "the end of that window"),
    column("timeline", pa.int64(), "the timeline that it belongs to", False),
    column("epoch", pa.int64(), "the epoch that found it", False),
    column("stale", pa.bool_(), "whether an earlier interval has been run again since", False),
    column(REOPENED, pa.int64(), "the epoch that later added it to its window; null while it is in no window"),
)


def schema(source: pa.Schema, names: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the columns of the table: those of the input, then the reason, the window and the epochs."""
    return pa.schema([*input_fields(TRAILING, source, names), *TRAILING])


def is_open(rows: pa.Table) -> pa.ChunkedArray:
    """Return a flag for each row: whether it is in no window and not stale."""
    return pc.and_(pc.is_null(rows[REOPENED]), pc.invert(rows["stale"]))


def event_times(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the event time of each row, int64 epoch milliseconds."""
    judged_at = pc.fill_null(epoch_millis(rows["watermark"]), MAX_TIMESTAMP)
    return np.asarray(pc.subtract(judged_at, rows["lateness_ms"]).to_numpy(), np.int64)
