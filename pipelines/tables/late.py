"""Table `late`: every row that came too late for all its windows, with the reason."""

from __future__ import annotations

import pyarrow as pa

from pipelines.tables.columns import TIMESTAMP, column, input_fields

NAME = "late"

TRAILING = (
    column("reason", pa.string(), "late, merged_window_late (its session had passed) or windows_passed", False),
    column("lateness_ms", pa.int64(), "how far its time lies behind the watermark"),
    column("watermark", TIMESTAMP, "watermark it was judged against"),
    column("window_start", TIMESTAMP, "the window it would have gone to"),
    column("window_end", TIMESTAMP, "the end of that window"),
    column("timeline", pa.int64(), "which line of snapshots it belongs to", False),
    column("epoch", pa.int64(), "the epoch that found it", False),
    column("stale", pa.bool_(), "whether an interval before it was run again since", False),
)


def schema(source: pa.Schema) -> pa.Schema:
    """The input's columns, then what makes the row late."""
    return pa.schema([*input_fields(TRAILING, source), *TRAILING])
