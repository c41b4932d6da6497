"""Cases for the columnar operator: the same windows over elements of one column, with an aggregate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from tests.transcripts.by_element import columnar_harness
from tests.transcripts.case import Skipped
from tidegate.windowing.aggregates import Aggregate, AggregateColumns, Count, Sum
from tidegate.windowing.assigners import DynamicEventTimeSessionWindows, GapColumn
from tidegate.windowing.columnar import choose_operator
from tidegate.windowing.compute import Windows
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.testing.harness import OperatorHarness

VALUE, GAP = "value", "gap"

_INPUT = pa.schema([(VALUE, pa.int64()), (GAP, pa.int64())])
_AGGREGATES: dict[str, Aggregate] = {"sum": Sum(VALUE), "reduce_sum": Sum(VALUE), "count": Count()}
"""The functions of cases that are aggregates; the others see elements in order of arrival."""


def build_columnar(windows: Windows, operator: dict[str, Any], key: KeySchema | None) -> OperatorHarness:
    """Return a harness for a case's windows.

    Raises:
        Skipped: the planner chooses the row operator for them, or the function is not an aggregate.
    """
    function = operator["function"]
    aggregate = _AGGREGATES.get(function) if isinstance(function, str) else None
    if aggregate is None:
        raise Skipped(f"by design: function {function!r} is no aggregate: it sees elements one by one")
    if isinstance(windows.assigner, DynamicEventTimeSessionWindows):
        windows = replace(windows, assigner=DynamicEventTimeSessionWindows(GapColumn(GAP)))
    same = replace(
        windows, reduce=None, process=None, evictor=None, aggregate=AggregateColumns.of({VALUE: aggregate}, _INPUT)
    )
    choice = choose_operator(same if windows.evictor is None else windows)
    if not choice.columnar:
        raise Skipped(f"by design: {choice.reason}")
    return columnar_harness(
        same, key=key or KeySchema.of(key=pa.string()), values=_INPUT, late_output=operator["late_output"]
    )
