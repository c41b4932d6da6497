"""Min and max of a column; nulls are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windowing.aggregates.bound import Aggregate, column_type
from windowing.aggregates.order import order_key
from windowing.errors import IllegalArgument
from windowing.functions.aggregate import AggregateFunction


@dataclass(frozen=True, slots=True)
class Min(Aggregate):
    """The smallest value of a column, in the column's type. NaN is larger than any number, as in Spark."""

    column: str

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return _Extreme(self.column, _orderable(schema, self.column, "Min.column"), largest=False)

    @property
    def columns(self) -> Sequence[str]:
        return (self.column,)


@dataclass(frozen=True, slots=True)
class Max(Aggregate):
    """The largest value of a column, in the column's type. NaN is larger than any number, as in Spark."""

    column: str

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return _Extreme(self.column, _orderable(schema, self.column, "Max.column"), largest=True)

    @property
    def columns(self) -> Sequence[str]:
        return (self.column,)


def _orderable(schema: pa.Schema | None, column: str, aggregate: str) -> pa.DataType | None:
    kind = column_type(schema, column, aggregate)
    if kind is not None and pa.types.is_nested(kind):
        raise IllegalArgument(aggregate, column, f"it has type {kind}, which has no order")
    return kind


class _Extreme(AggregateFunction):
    def __init__(self, column: str, kind: pa.DataType | None, largest: bool) -> None:
        self._column = column
        self._largest = largest
        self.accumulator_type = kind
        self.result_type = kind

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return self.merge(accumulator, value[self._column])

    def merge(self, accumulator: Any, other: Any) -> Any:
        if accumulator is None or other is None:
            return other if accumulator is None else accumulator
        if type(other) is float or type(accumulator) is float:
            larger = order_key(other) > order_key(accumulator)
        else:
            larger = other > accumulator
        return other if larger == self._largest else accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator
