"""The source rows of events: columns of the events if Spark read them, else read from the source files again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.event_columns import FILE, PLACE, ROW
from tidegate.pipelines.sources.file_slice import FileSlice


def source_rows(events: pa.Table, files: FileSlice | None, rows: Sequence[int] | pa.ChunkedArray) -> list[pa.Array]:
    """Return all columns of the source for the given events, in the given order.

    Args:
        events: events of the shard.
        files: the slice that the events were read from; None if Spark read them.
        rows: numbers of the events.
    """
    if files is None:
        carried: list[pa.Array] = events[ROW].take(rows).combine_chunks().flatten()
        return carried
    origins = events.select([FILE, PLACE]).take(rows)
    numbers, places = (np.asarray(origins[name].to_numpy()).astype(np.int64) for name in (FILE, PLACE))
    return [column.combine_chunks() for column in files.source_rows(numbers, places).columns]
