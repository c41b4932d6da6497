"""Columns of the results of process functions and joins: their declared types, checked when a pipeline is created.

result_type = pa.struct([("amount", pa.int64())])         a column for each field
side_outputs = {"alerts": pa.struct([("why", ...)])}      a struct column for each side output, null on other rows
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.columns import TIMESTAMP, to_delta
from tidegate.windowing.compute import CoProcess, Join, KeyedProcess, WindowJoin
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.sides import SIDES

_EXAMPLE = 'pyarrow.struct([("amount", pyarrow.int64())])'


def check_result_types(compute: KeyedProcess | CoProcess | Join) -> None:
    """Refuse a function or join whose results have no declared type, or a type that no table can hold.

    Raises:
        IllegalArgument: a type is missing, is not a struct, or has a field whose name is taken.
    """
    if isinstance(compute, Join):
        if compute.join is None and compute.result_type is None:
            return
        _check_struct("compute.result_type", compute.result_type)
        if compute.join is None:
            raise IllegalArgument(
                "compute.result_type",
                compute.result_type,
                "without join= a result has the columns left and right: give join=, or leave result_type out",
            )
        return
    _check_struct("compute.function.result_type", compute.function.result_type)
    outputs = compute.function.side_outputs
    if not isinstance(outputs, Mapping):
        raise IllegalArgument("compute.function.side_outputs", outputs, f"give {{'name': {_EXAMPLE}}}")
    for tag, kind in outputs.items():
        if not isinstance(tag, str) or not tag.isidentifier():
            raise IllegalArgument(
                "compute.function.side_outputs",
                tag,
                "give the side output a name that a column can have: letters, digits and _",
            )
        _check_struct(f"compute.function.side_outputs[{tag!r}]", kind)
        if tag in {compute.function.result_type.field(i).name for i in range(compute.function.result_type.num_fields)}:
            raise IllegalArgument(
                "compute.function.side_outputs", tag, "the result has a column of the same name: rename one of them"
            )


def result_columns(compute: KeyedProcess | CoProcess | Join, sides: Mapping[str, pa.StructType]) -> pa.StructType:
    """Return the columns of a result row, in Delta's types.

    Args:
        compute: a function or join that `check_result_types` has checked.
        sides: type of the elements of each input, if there are two.
    """
    if isinstance(compute, Join) and compute.join is None:
        bounds = [pa.field(f"window_{bound}", TIMESTAMP) for bound in ("start", "end")]
        of_window, of_sides = (bounds, compute.sides) if isinstance(compute, WindowJoin) else ([], SIDES)
        return pa.struct([*of_window, *(pa.field(side, sides[side]) for side in of_sides)])
    outputs = {} if isinstance(compute, Join) else compute.function.side_outputs
    declared: Any = compute.result_type
    fields = [*declared, *(pa.field(tag, kind) for tag, kind in outputs.items())]
    return pa.struct([field.with_type(to_delta(field.type)) for field in fields])


def _check_struct(field: str, kind: object) -> None:
    if not isinstance(kind, pa.StructType) or not kind.num_fields:
        raise IllegalArgument(field, kind, f"declare the Arrow struct type of a row, such as {_EXAMPLE}")
    names = [kind.field(i).name for i in range(kind.num_fields)]
    if len(set(names)) < len(names):
        raise IllegalArgument(field, names, "two columns have the same name: rename one")
    if clash := sorted(set(names) & results.ELEMENT_RESERVED):
        raise IllegalArgument(field, clash[0], "table results already has a column of that name: rename the result")
