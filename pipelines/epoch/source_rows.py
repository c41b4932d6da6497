"""The source rows of events: carried along where Spark read them, fetched again where the tasks read the files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.event_columns import FILE, PLACE, ROW
from tidegate.pipelines.sources.file_slice import FileSlice


def source_rows(events: pa.Table, files: FileSlice | None, rows: Sequence[int] | pa.ChunkedArray) -> list[pa.Array]:
    """All columns of the source of some events, in the order asked for.

    Args:
        events: as the shard has them.
        files: what they were read from; None where Spark read them.
        rows: numbers of events.
    """
    if files is None:
        carried: list[pa.Array] = events[ROW].take(rows).combine_chunks().flatten()
        return carried
    origins = events.select([FILE, PLACE]).take(rows)
    numbers, places = (np.asarray(origins[name].to_numpy()).astype(np.int64) for name in (FILE, PLACE))
    return [column.combine_chunks() for column in files.source_rows(numbers, places).columns]
