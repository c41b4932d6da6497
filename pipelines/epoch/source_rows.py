"""The source rows of events: read from the source files again, or columns of the events that Spark read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.event_columns import FILE, KEY_PREFIX, PLACE, ROW
from tidegate.pipelines.sources.file_slice import FileSlice


def source_rows(events: pa.Table, files: FileSlice | None, rows: Sequence[int] | pa.ChunkedArray) -> list[pa.Array]:
    """Return all columns of the source for the given events, in the given order.

    Args:
        events: events of the shard.
        files: the slice that the events were read from; None if they carry their rows.
        rows: numbers of the events.
    """
    asked = events.take(rows)
    carried = None
    if ROW in events.column_names:
        structs = asked[ROW].combine_chunks()
        if files is None or not structs.null_count:
            return list(structs.flatten())
        carried = pa.Table.from_arrays(structs.flatten(), schema=files.shape.rows)
    assert files is not None
    is_carried = (
        np.zeros(len(asked), np.bool_) if carried is None else structs.is_valid().to_numpy(zero_copy_only=False)
    )
    read = pa.array(np.flatnonzero(~is_carried))
    origins = asked.select([FILE, PLACE]).take(read)
    numbers, places = (np.asarray(origins[name].to_numpy()).astype(np.int64) for name in (FILE, PLACE))
    keys = [asked[f"{KEY_PREFIX}{name}"].take(read) for name in files.shape.key]
    whole = files.source_rows(numbers, places, keys)
    if carried is not None and is_carried.any():
        whole = pa.concat_tables([whole, carried.filter(pa.array(is_carried))])
        order = np.concatenate([np.flatnonzero(~is_carried), np.flatnonzero(is_carried)])
        whole = whole.take(pa.array(np.argsort(order)))
    return [column.combine_chunks() for column in whole.columns]
