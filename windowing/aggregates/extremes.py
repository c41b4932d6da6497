"""Min and max of a column. Nulls are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.bound import OfColumn, boolean
from tidegate.windowing.aggregates.order import first_rows, order_key, orderable, ranks, without_sign, without_signs
from tidegate.windowing.aggregates.vectorised import ExactlyMerging, Groups, Hashed, Int64s, masked, valid_of
from tidegate.windowing.functions.aggregate import AggregateFunction


@dataclass(frozen=True, slots=True)
class Min(OfColumn):
    """Smallest value of a column, in the column's type. NaN is larger than any number, as in Spark, and -0.0 is 0.0."""

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return Extreme(self.column, orderable(schema, self.column, "Min.column"), largest=False)


@dataclass(frozen=True, slots=True)
class Max(OfColumn):
    """Largest value of a column, in the column's type. NaN is larger than any number, as in Spark, and -0.0 is 0.0."""

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return Extreme(self.column, orderable(schema, self.column, "Max.column"), largest=True)


class Extreme(ExactlyMerging):
    """The smallest or largest value of a column. Among booleans, True is the larger one."""

    def __init__(self, column: str, kind: pa.DataType | None, largest: bool) -> None:
        self._column = column
        self._largest = largest
        self.accumulator_type = kind
        self.result_type = kind

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return self.merge(accumulator, without_sign(value[self._column]))

    def merge(self, accumulator: Any, other: Any) -> Any:
        if accumulator is None or other is None:
            return other if accumulator is None else accumulator
        if type(other) is float or type(accumulator) is float:
            larger = order_key(other) > order_key(accumulator)
        else:
            larger = other > accumulator
        return other if larger == self._largest else accumulator

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        return self.combine(columns[self._column], groups)

    def hashed(self, columns: Mapping[str, pa.Array]) -> Hashed | None:
        values = columns[self._column]
        # Arrow ignores NaN, and keeps the sign of a zero.
        return Hashed("max" if self._largest else "min", values) if pa.types.is_integer(values.type) else None

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        kind = accumulators.type
        if pa.types.is_boolean(kind):
            return self._of_numbers(accumulators.cast(pa.uint8()), groups).cast(kind)
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return without_signs(self._of_numbers(accumulators, groups))
        return accumulators.take(pa.array(_row_of_extreme(accumulators, groups, self._largest)))

    def _of_numbers(self, values: pa.Array, groups: Groups) -> pa.Array:
        kind = values.type
        floats = pa.types.is_floating(kind)
        valid = valid_of(values)
        if values.null_count:
            neutral = _neutral(kind, self._largest)
            numbers = np.where(valid, values.fill_null(neutral).to_numpy(zero_copy_only=False), neutral)
            has_value = groups.any(valid)
        else:
            numbers, has_value = values.to_numpy(zero_copy_only=False), np.ones(len(groups), np.bool_)
        if not len(groups):
            return values.slice(0, 0)
        if self._largest:
            return masked(np.maximum.reduceat(numbers, groups.starts), has_value, kind)
        return masked((np.fmin if floats else np.minimum).reduceat(numbers, groups.starts), has_value, kind)


def _neutral(kind: pa.DataType, largest: bool) -> Any:
    if pa.types.is_floating(kind):
        return -np.inf if largest else np.nan
    limits = np.iinfo(kind.to_pandas_dtype())
    return limits.min if largest else limits.max


def _row_of_extreme(values: pa.Array, groups: Groups, largest: bool) -> Int64s:
    """Return the row of each group's smallest or largest value. If a group has only nulls, return one of its rows."""
    rank = ranks(values)
    if not largest and values.null_count:
        rank = np.where(valid_of(values), rank, np.iinfo(np.int64).max)
    best = groups.max(rank) if largest else groups.min(rank)
    return first_rows(rank == best[groups.ids], groups)


@dataclass(frozen=True, slots=True)
class AnyTrue(OfColumn):
    """True if `column` is true for any element; null if all values are null. Spark calls it `bool_or`."""

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return Extreme(boolean(schema, self.column, "AnyTrue.column"), pa.bool_(), largest=True)


@dataclass(frozen=True, slots=True)
class AllTrue(OfColumn):
    """True if `column` is true for every element; null if all values are null. Spark calls it `bool_and`."""

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return Extreme(boolean(schema, self.column, "AllTrue.column"), pa.bool_(), largest=False)
