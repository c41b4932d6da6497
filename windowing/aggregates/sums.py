"""Sum and mean of a column; nulls are left out, and of nothing but nulls the result is null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from windowing.aggregates.bound import Aggregate, column_type
from windowing.aggregates.exact import checked_decimal, checked_int64, sum_decimals, sum_int64
from windowing.aggregates.vectorised import Groups, Int64s, VectorisedAggregate, masked, valid_of
from windowing.errors import IllegalArgument
from windowing.functions.aggregate import AggregateFunction
from windowing.keys import DECIMALS

_MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class Sum(Aggregate):
    """Sum of a column. Result: int64 of integers, double of floats, a wider decimal of decimals.

    Raises:
        OverflowError: an integer sum leaves int64, or a decimal one its 38 digits (it never wraps); a partial
            sum on the way counts too, and which are formed differs (docs/decisions/0013-columnar-operator.md).
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
        numeric(schema, self.column, "Mean.column")
        return _Mean(self.column)

    @property
    def columns(self) -> Sequence[str]:
        return (self.column,)


def numeric(schema: pa.Schema | None, column: str, aggregate: str) -> pa.DataType | None:
    """The type of a column of numbers.

    Raises:
        IllegalArgument: it holds something else.
    """
    kind = column_type(schema, column, aggregate)
    _sum_type(kind, column)
    return kind


def _sum_type(kind: pa.DataType | None, column: str) -> pa.DataType | None:
    if kind is None:
        return None
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_decimal128(kind):
        return pa.decimal128(min(kind.precision + 10, _MAX_PRECISION), kind.scale)
    raise IllegalArgument("column", column, f"it has type {kind}; a sum or mean needs numbers")


class _Sum(VectorisedAggregate):
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
        if type(other) is Decimal:
            return checked_decimal(DECIMALS.add(accumulator, other), self.accumulator_type, self._column)
        total = accumulator + other
        return checked_int64(total, self._column) if type(total) is int else total

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        return self.combine(columns[self._column], groups)

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        kind = self.accumulator_type
        if kind is not None and pa.types.is_decimal(kind):
            return sum_decimals(accumulators, groups, kind, self._column)
        numbers = numbers_of(accumulators, pa.int64() if kind == pa.int64() else pa.float64())
        sums = sum_int64(numbers, groups, self._column) if kind == pa.int64() else groups.sum(numbers)
        known = groups.any(valid_of(accumulators)) if accumulators.null_count else np.ones(len(groups), np.bool_)
        return masked(sums, known, kind)

    def finish(self, accumulators: pa.Array) -> pa.Array:
        return accumulators


def numbers_of(values: pa.Array, kind: pa.DataType) -> Any:
    """Values as a NumPy array of a type, with 0 where they are null."""
    return values.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)


class _Mean(VectorisedAggregate):
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

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        values = columns[self._column]
        return self._struct(groups.sum(numbers_of(values, pa.float64())), groups.sum(valid_of(values).astype(np.int64)))

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        total, count = accumulators.flatten()
        return self._struct(groups.sum(total.to_numpy()), groups.sum(count.to_numpy()))

    def finish(self, accumulators: pa.Array) -> pa.Array:
        total, count = (part.to_numpy() for part in accumulators.flatten())
        return masked(total / np.maximum(count, 1), count > 0, pa.float64())

    def _struct(self, total: Any, count: Any) -> pa.Array:
        return pa.StructArray.from_arrays([pa.array(total), pa.array(count)], fields=list(self.accumulator_type))
