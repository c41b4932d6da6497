"""Sum and mean of a column; nulls are left out, and of nothing but nulls the result is null."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windowing.aggregates.bound import Aggregate, column_type
from windowing.errors import IllegalArgument
from windowing.functions.aggregate import AggregateFunction
from windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP

_MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class Sum(Aggregate):
    """Sum of a column. Result: int64 of integers, double of floats, a wider decimal of decimals.

    Raises:
        OverflowError: an integer sum leaves int64 (it never wraps).
    """

    column: str

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return _Sum(self.column, _sum_type(column_type(schema, self.column, "Sum.column"), self.column))

    @property
    def columns(self) -> Sequence[str]:
        return (self.column,)


@dataclass(frozen=True, slots=True)
class Mean(Aggregate):
    """Arithmetic mean of a column, as a double."""

    column: str

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        _sum_type(column_type(schema, self.column, "Mean.column"), self.column)
        return _Mean(self.column)

    @property
    def columns(self) -> Sequence[str]:
        return (self.column,)


def _sum_type(kind: pa.DataType | None, column: str) -> pa.DataType | None:
    if kind is None:
        return None
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(kind.precision + 10, _MAX_PRECISION), kind.scale)
    raise IllegalArgument("column", column, f"it has type {kind}; a sum or mean needs numbers")


class _Sum(AggregateFunction):
    def __init__(self, column: str, kind: pa.DataType | None) -> None:
        self._column = column
        self.accumulator_type = kind
        self.result_type = kind

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return self.merge(accumulator, value[self._column])

    def merge(self, accumulator: Any, other: Any) -> Any:
        if accumulator is None:
            return other
        if other is None:
            return accumulator
        total = accumulator + other
        if type(total) is int and not MIN_TIMESTAMP <= total <= MAX_TIMESTAMP:
            raise OverflowError(
                f"the sum of column {self._column!r} leaves int64 ({total}): cast it to a decimal or double in columns="
            )
        return total

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


class _Mean(AggregateFunction):
    accumulator_type = pa.struct([("sum", pa.float64()), ("count", pa.int64())])
    result_type = pa.float64()

    def __init__(self, column: str) -> None:
        self._column = column

    def create_accumulator(self) -> dict[str, Any]:
        return {"sum": 0.0, "count": 0}

    def add(self, value: Any, accumulator: dict[str, Any]) -> dict[str, Any]:
        number = value[self._column]
        if number is not None:
            accumulator["sum"] += float(number)
            accumulator["count"] += 1
        return accumulator

    def merge(self, accumulator: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        return {"sum": accumulator["sum"] + other["sum"], "count": accumulator["count"] + other["count"]}

    def get_result(self, accumulator: dict[str, Any]) -> float | None:
        return accumulator["sum"] / accumulator["count"] if accumulator["count"] else None
