"""One frame of the rows of two inputs, with the columns that the events of both share (`definition.joint`)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.bound_input import BoundInput
from tidegate.pipelines.definition.event_columns import COMMIT, ROW, SIDE, STATUS, TIME
from tidegate.pipelines.spark.versions import from_arrow
from tidegate.pipelines.tables.columns import quoted
from tidegate.windowing.operators.two_inputs import value_column


def joint_frame(bound: BoundPipeline, input_: BoundInput, frame: DataFrame) -> DataFrame:
    """Return the judged rows of one input in the columns of both inputs; unchanged if the pipeline has one input.

    Args:
        bound: the pipeline.
        input_: the input.
        frame: rows that `SourceFrames.judged` returned.
    """
    if input_.side is None:
        return frame
    keys = [F.col(quoted(column)).alias(name) for column, name in zip(input_.input.key, bound.key.names, strict=True)]
    rows = [
        F.col(ROW).alias(str(other.side))
        if other is input_
        else _nothing(pa.struct(list(other.source)), str(other.side))
        for other in bound.inputs
    ]
    values = [
        F.col(quoted(name)).alias(value_column(str(other.side), name))
        if other is input_
        else _nothing(other.derived.field(name).type, value_column(str(other.side), name))
        for other in bound.inputs
        for name in other.used
    ]
    return frame.select(
        *keys,
        TIME,
        COMMIT,
        STATUS,
        F.struct(*keys, F.lit(input_.side).alias("side"), *rows).alias(ROW),
        F.lit(input_.side).alias(SIDE),
        *values,
    )


def together(frames: Iterable[DataFrame | None]) -> DataFrame | None:
    """Return all rows of frames with the same columns; None if there are no frames."""
    present = [frame for frame in frames if frame is not None]
    return reduce(DataFrame.unionByName, present) if present else None


def _nothing(kind: pa.DataType, name: str) -> Column:
    return F.lit(None).cast(from_arrow(pa.schema([(name, kind)]))[name].dataType).alias(name)
