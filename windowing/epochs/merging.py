"""Aggregates of parts, for the row operator: each element is a part of a window, with the columns of a state row."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tidegate.windowing.aggregates.bound import AggregateColumns
from tidegate.windowing.functions.aggregate import AggregateFunction
from tidegate.windowing.state.rows import REST


def merging(aggregate: AggregateFunction) -> AggregateColumns:
    """Return the aggregates of parts, given the aggregates of the elements in them."""
    assert isinstance(aggregate, AggregateColumns)
    functions = zip(aggregate.names, aggregate.functions, strict=True)
    return AggregateColumns({name: _Merging(function, f"acc_{name}") for name, function in functions})


class _Merging(AggregateFunction):
    """An aggregate whose elements have stored accumulators in a column, and their remainders in another one."""

    def __init__(self, function: AggregateFunction, column: str) -> None:
        self._function = function
        self._column = column
        self.accumulator_type, self.result_type = function.accumulator_type, function.result_type
        self.rest_type = function.rest_type

    def create_accumulator(self) -> Any:
        return self._function.create_accumulator()

    def add(self, value: Any, accumulator: Any) -> Any:
        # Several windows may get the part, and an accumulator may be changed in place.
        part = self._function.restored(deepcopy(value[self._column]), value.get(f"{REST}{self._column}"))
        return self._function.merge(accumulator, part)

    def get_result(self, accumulator: Any) -> Any:
        return self._function.get_result(accumulator)

    def merge(self, accumulator: Any, other: Any) -> Any:
        return self._function.merge(accumulator, other)

    def stored(self, accumulator: Any) -> tuple[Any, Any]:
        return self._function.stored(accumulator)

    def restored(self, value: Any, rest: Any) -> Any:
        return self._function.restored(value, rest)
