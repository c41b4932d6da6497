"""The events of a slice in order, for watermark generators that see every one: a pass on the driver."""

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
    """Usable events by commit, then by time, ties by their columns; streamed, so that no slice need fit the driver.

    Args:
        frame: judged rows of one input.
        one: the input. A generator sees the columns that `uses` names, or all.
    """

    def __init__(self, frame: DataFrame, one: BoundInput) -> None:
        names = one.derived.names if one.input.uses is None else list(one.input.uses)
        columns = [F.col(quoted(name)) for name in names]
        ties = [
            column
            for column, name in zip(columns, names, strict=True)
            if not pa.types.is_nested(one.derived.field(name).type)
        ]
        rows = frame.where(moves_watermark(one)).select(
            COMMIT, partition_of(one).alias(_PARTITION), TIME, F.struct(*columns).alias("event"), *ties
        )
        ordered = rows.orderBy(COMMIT, TIME, *ties).select(COMMIT, _PARTITION, TIME, "event")
        self._rows: Iterator[SeenEvent] = (
            SeenEvent(row[COMMIT], row[_PARTITION], row[TIME], row["event"].asDict(recursive=True))
            for row in ordered.toLocalIterator(prefetchPartitions=True)
        )
        self._next = next(self._rows, None)

    def of(self, commit: int) -> Iterator[SeenEvent]:
        """The events of a commit; commits must be asked for in order."""
        while self._next is not None and self._next.commit == commit:
            yield self._next
            self._next = next(self._rows, None)


def moves_watermark(one: BoundInput) -> Column:
    """Condition for judged rows whose event time moves the watermark; a time that can't be used is null there."""
    if one.input.watermark_from == "kept":
        return F.col(STATUS) == OK
    return F.col(STATUS).isin(OK, DROPPED) & F.col(TIME).isNotNull()


def partition_of(one: BoundInput) -> Column:
    """The source partition of a row, as a text."""
    by = one.input.watermark_by
    return F.lit(ONLY_PARTITION) if by is None else F.coalesce(F.col(quoted(by)).cast("string"), F.lit("null"))
