"""Sum and mean of a column. Nulls are ignored, and the result is null if all values are null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates.bound import OfColumn, column_type
from tidegate.windowing.aggregates.doubles import Total, added, doubles_of, rest_of, sums
from tidegate.windowing.aggregates.exact import (
    checked_decimal,
    checked_int64,
    mean_of,
    mean_type,
    sum_decimals,
    sum_int64,
    unwrapped,
    wrapped,
)
from tidegate.windowing.aggregates.vectorised import ExactlyMerging, Groups, Hashed, Int64s, masked, valid_of
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.functions.aggregate import AggregateFunction
from tidegate.windowing.keys import DECIMALS
from tidegate.windowing.time import MAX_TIMESTAMP
from tidegate.windowing.type_names import name_of

_MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class Sum(OfColumn):
    """Sum of a column. The result is int64 for integers, double for floats, and a wider decimal for decimals.

    Sums of integers and decimals are exact. Sums of doubles keep their rounding errors, so that they can correct the
    result (`tidegate.windowing.aggregates.doubles`).

    Raises:
        OverflowError: a result does not fit int64, or a decimal result has more than 38 digits. Intermediate sums may
            exceed these limits, and a result never wraps (docs/decisions/aggregates.md).
    """

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        kind = _sum_type(column_type(schema, self.column, "Sum.column"), self.column, "Sum.column")
        return _DoubleSum(self.column) if kind == pa.float64() else _Sum(self.column, kind)


@dataclass(frozen=True, slots=True)
class Mean(OfColumn):
    """Arithmetic mean of a column: for integers and floats a double, for decimals a decimal as in Spark.

    The mean of decimals has four more digits after the point, at most 38 digits in all. It is the exact sum, divided
    and rounded half up once.

    Raises:
        OverflowError: a mean of decimals has more than 38 digits.
    """

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        kind = numeric(schema, self.column, "Mean.column")
        return _DecimalMean(self.column, kind) if kind is not None and pa.types.is_decimal(kind) else _Mean(self.column)


def numeric(schema: pa.Schema | None, column: str, aggregate: str) -> pa.DataType | None:
    """Return the type of a numeric column, or None if types are unknown.

    Raises:
        IllegalArgument: the column does not hold numbers.
    """
    kind = column_type(schema, column, aggregate)
    _sum_type(kind, column, aggregate)
    return kind


def _sum_type(kind: pa.DataType | None, column: str, aggregate: str) -> pa.DataType | None:
    if kind is None:
        return None
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_decimal128(kind):
        return pa.decimal128(min(kind.precision + 10, _MAX_PRECISION), kind.scale)
    raise IllegalArgument(
        aggregate, column, f"it has type {name_of(kind)}, which is not a number: {_number_from(kind, column)}"
    )


def _number_from(kind: pa.DataType, column: str) -> str:
    """Return advice on how to derive a number from a column of another type."""
    if pa.types.is_boolean(kind):
        return "use CountIf, which counts true values"
    # Quoted, because a name may contain spaces or dots, or be an SQL keyword.
    quoted = "`" + column.replace("`", "``") + "`"
    if pa.types.is_date(kind):
        return f"derive one, columns={ {'days': f'unix_date({quoted})'} }"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return f"derive one, columns={ {'number': f'try_cast({quoted} as decimal(18, 2))'} }"
    return "derive one in columns="


class _Sum(ExactlyMerging):
    """Sum of integers or decimals, or of any numbers if their type is unknown.

    A sum in memory may have any size. If the column of a snapshot can't hold it, the stored sum wraps, and the
    remainder is the number of times that it wrapped.
    """

    def __init__(self, column: str, kind: pa.DataType | None) -> None:
        self._column = column
        self.accumulator_type = kind
        self.result_type = kind
        self.rest_type = None if kind is None else pa.int64()

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return self.merge(accumulator, value[self._column])

    def merge(self, accumulator: Any, other: Any) -> Any:
        if other is None:
            return accumulator
        if isinstance(other, float):
            return added(0.0 if accumulator is None else accumulator, other)
        if accumulator is None:
            return other
        return DECIMALS.add(accumulator, other) if type(other) is Decimal else accumulator + other

    def get_result(self, accumulator: Any) -> Any:
        if type(accumulator) is int:
            return checked_int64(accumulator, self._column)
        if type(accumulator) is Decimal:
            return checked_decimal(accumulator, self.accumulator_type, self._column)
        return None if accumulator is None else float(accumulator)

    def stored(self, accumulator: Any) -> tuple[Any, Any]:
        return (None, None) if accumulator is None else wrapped(accumulator, self.accumulator_type)

    def restored(self, value: Any, rest: int | None) -> Any:
        return value if rest is None else unwrapped(value, rest, self.accumulator_type)

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        return self.combine(columns[self._column], groups)

    def hashed(self, columns: Mapping[str, pa.Array]) -> Hashed | None:
        values = columns[self._column]
        if not pa.types.is_integer(values.type) or not len(values):
            return None
        bounds = [abs(bound) for bound in pc.min_max(values).as_py().values() if bound is not None]
        # Arrow's sums wrap, so no sum may leave int64.
        return Hashed("sum", values) if max(bounds, default=0) * len(values) <= MAX_TIMESTAMP else None

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        kind = self.accumulator_type
        if pa.types.is_decimal(kind):
            return sum_decimals(accumulators, groups, kind, self._column)
        numbers = accumulators.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return masked(sum_int64(numbers, groups, self._column), _have_values(accumulators, groups), kind)


class _DoubleSum(ExactlyMerging):
    accumulator_type = result_type = rest_type = pa.float64()
    rest_in_arrays = True

    def __init__(self, column: str) -> None:
        self._column = column

    def create_accumulator(self) -> None:
        return None

    def add(self, value: Any, accumulator: Total | None) -> Any:
        return self.merge(accumulator, value[self._column])

    def merge(self, accumulator: Total | None, other: float | None) -> Total | None:
        if other is None:
            return accumulator
        return added(0.0 if accumulator is None else accumulator, other)

    def get_result(self, accumulator: Total | None) -> float | None:
        return None if accumulator is None else float(accumulator)

    def stored(self, accumulator: Total | None) -> tuple[Any, Any]:
        return (None, None) if accumulator is None else (float(accumulator), rest_of(accumulator) or None)

    def restored(self, value: float | None, rest: float | None) -> Total | None:
        return None if value is None else Total.of(value, rest)

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        values = columns[self._column]
        return self._array(*sums(doubles_of(values), groups), _have_values(values, groups))

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        stored, rest = accumulators.flatten()
        return self._array(*sums(doubles_of(stored), groups, doubles_of(rest)), _have_values(stored, groups))

    def finish(self, accumulators: pa.Array) -> pa.Array:
        return accumulators.flatten()[0]

    def _array(self, total: Any, rest: Any, valid: Any) -> pa.Array:
        return self.with_rest(masked(total, valid, pa.float64()), pa.array(rest))


def _have_values(values: pa.Array, groups: Groups) -> Any:
    """Return a flag for each group: whether it has a non-null value."""
    return groups.any(valid_of(values)) if values.null_count else np.ones(len(groups), np.bool_)


class _Mean(ExactlyMerging):
    accumulator_type = pa.struct([("sum", pa.float64()), ("count", pa.int64())])
    result_type = rest_type = pa.float64()
    rest_in_arrays = True

    def __init__(self, column: str) -> None:
        self._column = column

    def create_accumulator(self) -> dict[str, Any]:
        return {"sum": 0.0, "count": 0}

    def add(self, value: Any, accumulator: dict[str, Any]) -> dict[str, Any]:
        number = value[self._column]
        if number is not None:
            accumulator["sum"] = _plus(accumulator["sum"], number if type(number) is Decimal else float(number))
            accumulator["count"] += 1
        return accumulator

    def merge(self, accumulator: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        return {"sum": _plus(accumulator["sum"], other["sum"]), "count": accumulator["count"] + other["count"]}

    def get_result(self, accumulator: dict[str, Any]) -> Any:
        total, count = accumulator["sum"], accumulator["count"]
        if not count:
            return None
        return mean_of(total, count, None, None, self._column) if type(total) is Decimal else total / count

    def stored(self, accumulator: dict[str, Any]) -> tuple[Any, Any]:
        total = accumulator["sum"]
        return {"sum": float(total), "count": accumulator["count"]}, rest_of(total) or None

    def restored(self, value: dict[str, Any], rest: float | None) -> dict[str, Any]:
        return value if rest is None else {"sum": Total.of(value["sum"], rest), "count": value["count"]}

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        values = columns[self._column]
        return self._array(*sums(doubles_of(values), groups), groups.sum(valid_of(values).astype(np.int64)))

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        stored, rest = accumulators.flatten()
        total, count = stored.flatten()
        return self._array(*sums(total.to_numpy(), groups, doubles_of(rest)), groups.sum(count.to_numpy()))

    def finish(self, accumulators: pa.Array) -> pa.Array:
        total, count = (part.to_numpy() for part in accumulators.flatten()[0].flatten())
        return masked(total / np.maximum(count, 1), count > 0, pa.float64())

    def _array(self, total: Any, rest: Any, count: Any) -> pa.Array:
        fields = list(self.accumulator_type)
        return self.with_rest(
            pa.StructArray.from_arrays([pa.array(total), pa.array(count)], fields=fields), pa.array(rest)
        )


def _plus(total: Any, other: Any) -> Any:
    """Return the sum of two doubles or, where types are unknown, of decimals, whose empty sum is the double 0."""
    if type(total) is Decimal or type(other) is Decimal:
        return DECIMALS.add(total or Decimal(), other or Decimal())
    return added(total, other)


class _DecimalMean(ExactlyMerging):
    """Mean of decimals. The sum is stored like that of `Sum`, so its remainder counts how often it wrapped."""

    rest_type = pa.int64()

    def __init__(self, column: str, kind: pa.Decimal128Type) -> None:
        self._column = column
        self._kind = kind
        self._sum = _Sum(column, _sum_type(kind, column, "Mean.column"))
        self._fields = [pa.field("sum", self._sum.accumulator_type), pa.field("count", pa.int64())]
        self.accumulator_type = pa.struct(self._fields)
        self.result_type = mean_type(kind)

    def create_accumulator(self) -> dict[str, Any]:
        return {"sum": None, "count": 0}

    def add(self, value: Any, accumulator: dict[str, Any]) -> dict[str, Any]:
        number = value[self._column]
        if number is not None:
            accumulator["sum"] = self._sum.merge(accumulator["sum"], number)
            accumulator["count"] += 1
        return accumulator

    def merge(self, accumulator: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        total = self._sum.merge(accumulator["sum"], other["sum"])
        return {"sum": total, "count": accumulator["count"] + other["count"]}

    def get_result(self, accumulator: dict[str, Any]) -> Decimal | None:
        return self._mean(accumulator["sum"], accumulator["count"])

    def stored(self, accumulator: dict[str, Any]) -> tuple[Any, Any]:
        total, rest = self._sum.stored(accumulator["sum"])
        return {"sum": total, "count": accumulator["count"]}, rest

    def restored(self, value: dict[str, Any], rest: int | None) -> dict[str, Any]:
        return {"sum": self._sum.restored(value["sum"], rest), "count": value["count"]}

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        values = columns[self._column]
        return self._array(self._sum.combine(values, groups), groups.sum(valid_of(values).astype(np.int64)))

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        total, count = accumulators.flatten()
        return self._array(self._sum.combine(total, groups), groups.sum(count.to_numpy()))

    def finish(self, accumulators: pa.Array) -> pa.Array:
        total, count = accumulators.flatten()
        return pa.array(map(self._mean, total.to_pylist(), count.to_pylist()), self.result_type)

    def _mean(self, total: Decimal | None, count: int) -> Decimal | None:
        return None if total is None else mean_of(total, count, self.result_type, self._kind, self._column)

    def _array(self, total: pa.Array, count: Any) -> pa.Array:
        return pa.StructArray.from_arrays([total, pa.array(count)], fields=self._fields)
