"""Two inputs as one slice: which columns their events and rows have once they are together.

event   key columns, __side, left:amount, left:shop, right:paid     the other side's columns are null
row     key columns, side, left {...}, right {...}                  as tables late and rejects keep it
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidegate.pipelines.definition.bound_input import BoundInput
from tidegate.pipelines.definition.event_columns import SIDE
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.tables.columns import to_delta
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.two_inputs import SIDES, value_column


def joint_key(pipeline: Pipeline, inputs: Sequence[BoundInput]) -> KeySchema:
    """The key that both inputs have.

    Raises:
        Refused: a key column has another type in the second input, so equal keys would not meet.
    """
    left, right = (one.key for one in inputs)
    for name, kind, other, other_kind in zip(left.names, left.types, right.names, right.types, strict=True):
        if kind != other_kind:
            raise Refused(
                f"key column {name!r} of pipeline {pipeline.name!r} has type {kind} in table "
                f"{inputs[0].input.source.table!r}, and {other!r} has type {other_kind} in table "
                f"{inputs[1].input.source.table!r}: equal keys would not meet. Cast one in columns=, for example "
                f"columns={{'{name}_key': 'cast({name} as string)'}}"
            )
    return left


def joint_events(key: KeySchema, inputs: Sequence[BoundInput]) -> pa.Schema:
    """The columns of an event of either input."""
    keys = [pa.field(name, kind) for name, kind in zip(key.names, key.types, strict=True)]
    values = [
        pa.field(value_column(side, name), to_delta(one.derived.field(name).type))
        for side, one in zip(SIDES, inputs, strict=True)
        for name in one.used
    ]
    return pa.schema([*keys, pa.field(SIDE, pa.string()), *values])


def joint_rows(key: KeySchema, inputs: Sequence[BoundInput]) -> pa.Schema:
    """The columns of a source row of either input."""
    keys = [pa.field(name, kind) for name, kind in zip(key.names, key.types, strict=True)]
    rows = [pa.field(side, pa.struct(list(one.source))) for side, one in zip(SIDES, inputs, strict=True)]
    return pa.schema([*keys, pa.field("side", pa.string()), *rows])
