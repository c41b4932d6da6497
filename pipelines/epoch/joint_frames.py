"""The rows of two inputs as one frame, in the columns that their events have together (`definition.joint`)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.bound_input import BoundInput
from tidegate.pipelines.definition.event_columns import COMMIT, ROW, SIDE, STATUS, TIME
from tidegate.pipelines.tables.columns import quoted
from tidegate.windowing.operators.two_inputs import value_column


def joint_frame(bound: BoundPipeline, one: BoundInput, frame: DataFrame) -> DataFrame:
    """Judged rows of one input in the columns of both; as they are where there is only one.

    Args:
        bound: the pipeline.
        one: the input.
        frame: as `SourceFrames.judged` gives it.
    """
    if one.side is None:
        return frame
    keys = [F.col(quoted(own)).alias(name) for own, name in zip(one.input.key, bound.key.names, strict=True)]
    rows = [
        F.col(ROW).alias(str(other.side)) if other is one else _nothing(pa.struct(list(other.source)), str(other.side))
        for other in bound.inputs
    ]
    values = [
        F.col(quoted(name)).alias(value_column(str(other.side), name))
        if other is one
        else _nothing(other.derived.field(name).type, value_column(str(other.side), name))
        for other in bound.inputs
        for name in other.used
    ]
    return frame.select(
        *keys,
        TIME,
        COMMIT,
        STATUS,
        F.struct(*keys, F.lit(one.side).alias("side"), *rows).alias(ROW),
        F.lit(one.side).alias(SIDE),
        *values,
    )


def together(frames: Iterable[DataFrame | None]) -> DataFrame | None:
    """All rows of frames with the same columns; None where there are no frames."""
    found = [frame for frame in frames if frame is not None]
    return reduce(DataFrame.unionByName, found) if found else None


def _nothing(kind: pa.DataType, name: str) -> Column:
    return F.lit(None).cast(from_arrow_type(kind)).alias(name)
