"""Columns of times: as tables keep them, and as int64 milliseconds since the epoch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Int64s

TIMESTAMP = pa.timestamp("us", tz="UTC")
"""The type in which tables keep times."""

MILLISECONDS = pa.timestamp("ms", tz="UTC")
"""The type in which snapshots keep times."""


def epoch_millis(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """TIMESTAMPs as int64 epoch milliseconds; null stays null.

    Raises:
        ArrowInvalid: a time has a part below one millisecond, which no time of ours has.
    """
    return times.cast(MILLISECONDS).cast(pa.int64())


def floored_millis(times: pa.Array | pa.ChunkedArray) -> Int64s:
    """TIMESTAMPs of a user as int64 epoch milliseconds, rounded down; what null becomes has no meaning."""
    micros = times.cast(TIMESTAMP).cast(pa.int64())
    numbers: Int64s = np.asarray(micros.fill_null(0).to_numpy())
    return np.floor_divide(numbers, 1000)


def timestamps_of(millis: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Int64 epoch milliseconds as TIMESTAMPs; null stays null.

    Raises:
        ArrowInvalid: a time does not fit: int64 microseconds end in the year 294246.
    """
    return millis.cast(MILLISECONDS).cast(TIMESTAMP)
