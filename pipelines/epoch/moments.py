"""Conversion of times to the type that the tables of an epoch have."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.event_columns import LAST_TIME
from tidegate.windowing.time import MIN_TIMESTAMP
from tidegate.windowing.timestamps import timestamps_of


def moments(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return times as TIMESTAMPs. The minimum and maximum of event time don't fit the type and become null.

    Args:
        times: int64 epoch milliseconds.
    """
    bounds = pc.min_max(times)
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    if first is None or (first > MIN_TIMESTAMP and last < LAST_TIME):
        return timestamps_of(times)
    fits = pc.and_(pc.greater(times, MIN_TIMESTAMP), pc.less(times, LAST_TIME))
    return timestamps_of(pc.if_else(fits, times, None))
