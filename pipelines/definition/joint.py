"""Columns of the events and rows of two inputs in one slice.

event   key columns, tidegate:side, left:amount, left:shop, right:paid     the other side's columns are null
row     key columns, side, left {...}, right {...}                  as tables late and rejects keep it
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidegate.pipelines.definition.bound_input import BoundInput
from tidegate.pipelines.definition.columns import quoted, to_delta
from tidegate.pipelines.definition.event_columns import SIDE
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.two_inputs import SIDES, value_column
from tidegate.windowing.type_names import name_of


def joint_key(pipeline: Pipeline, inputs: Sequence[BoundInput]) -> KeySchema:
    """Return the key of both inputs, with the names of the first input.

    Raises:
        Refused: a key column has another type in the second input, so equal keys would not match.
    """
    left, right = (part.key for part in inputs)
    for name, kind, other, other_kind in zip(left.names, left.types, right.names, right.types, strict=True):
        if kind != other_kind:
            raise Refused(
                f"key column {name!r} of pipeline {pipeline.name!r} has type {name_of(kind)} in table "
                f"{inputs[0].input.source.table!r}, and {other!r} has type {name_of(other_kind)} in table "
                f"{inputs[1].input.source.table!r}: equal keys would not meet. Cast one in columns=, for example "
                f"columns={ {f'{name}_key': f'cast({quoted(name)} as string)'} }"
            )
    return left


def joint_events(key: KeySchema, inputs: Sequence[BoundInput]) -> pa.Schema:
    """Return the columns of an event of either input."""
    keys = [pa.field(name, kind) for name, kind in zip(key.names, key.types, strict=True)]
    values = [
        pa.field(value_column(side, name), to_delta(part.derived.field(name).type))
        for side, part in zip(SIDES, inputs, strict=True)
        for name in part.used
    ]
    return pa.schema([*keys, pa.field(SIDE, pa.string()), *values])


def joint_rows(key: KeySchema, inputs: Sequence[BoundInput]) -> pa.Schema:
    """Return the columns of a source row of either input."""
    keys = [pa.field(name, kind) for name, kind in zip(key.names, key.types, strict=True)]
    rows = [pa.field(side, pa.struct(list(part.source))) for side, part in zip(SIDES, inputs, strict=True)]
    return pa.schema([*keys, pa.field("side", pa.string()), *rows])
