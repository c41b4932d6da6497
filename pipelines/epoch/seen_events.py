"""The events of a slice in order, for watermark generators that read each event; the driver reads them once."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidegate.pipelines.definition.bound_input import BoundInput
from tidegate.pipelines.definition.event_columns import COMMIT, DROPPED, OK, ONLY_PARTITION, STATUS, TIME
from tidegate.pipelines.tables.columns import quoted
from tidegate.windowing.watermarks import SeenEvent

_PARTITION = "__partition"


class SeenEvents:
    """Usable events, ordered by commit, time and columns. They are streamed, so a slice need not fit on the driver.

    Args:
        frame: judged rows of one input.
        input_: the input. A generator gets the columns that `uses` names, or else all columns.
    """

    def __init__(self, frame: DataFrame, input_: BoundInput) -> None:
        names = input_.derived.names if input_.input.uses is None else list(input_.input.uses)
        columns = [F.col(quoted(name)) for name in names]
        ties = [
            column
            for column, name in zip(columns, names, strict=True)
            if not pa.types.is_nested(input_.derived.field(name).type)
        ]
        rows = frame.where(moves_watermark(input_)).select(
            COMMIT, partition_of(input_).alias(_PARTITION), TIME, F.struct(*columns).alias("event"), *ties
        )
        ordered = rows.orderBy(COMMIT, TIME, *ties).select(COMMIT, _PARTITION, TIME, "event")
        self._rows: Iterator[SeenEvent] = (
            SeenEvent(row[COMMIT], row[_PARTITION], row[TIME], row["event"].asDict(recursive=True))
            for row in ordered.toLocalIterator(prefetchPartitions=True)
        )
        self._next = next(self._rows, None)

    def of(self, commit: int) -> Iterator[SeenEvent]:
        """Yield the events of a commit. Call it for the commits in ascending order."""
        while self._next is not None and self._next.commit == commit:
            yield self._next
            self._next = next(self._rows, None)


def moves_watermark(input_: BoundInput) -> Column:
    """Return the condition for judged rows whose event time moves the watermark; an unusable time is null."""
    if input_.input.watermark_from == "kept":
        return F.col(STATUS) == OK
    return F.col(STATUS).isin(OK, DROPPED) & F.col(TIME).isNotNull()


def partition_of(input_: BoundInput) -> Column:
    """Return the source partition of a row, as text."""
    by = input_.input.watermark_by
    return F.lit(ONLY_PARTITION) if by is None else F.coalesce(F.col(quoted(by)).cast("string"), F.lit("null"))
