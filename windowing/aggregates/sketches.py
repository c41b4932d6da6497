"""Approximate aggregates: sketches of bounded size that merge, kept in the state as bytes.

Theta sketches count distinct values by keeping the smallest hashes. So the result and every byte of the state depend
only on the set of values, not on the order of arrival or the division into epochs (docs/decisions/aggregates.md). KLL
sketches give quantiles. They are exact up to their size, and within their rank error beyond it. A KLL sketch draws
random bits when it compacts, so two runs over more values than its size may differ within that error. These aggregates
need the package `datasketches` (extra `sketches`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.extras import needs
from tidegate.windowing.aggregates.bound import OfColumn
from tidegate.windowing.aggregates.doubles import doubles_of
from tidegate.windowing.aggregates.order import orderable, without_sign
from tidegate.windowing.aggregates.sums import numeric
from tidegate.windowing.aggregates.vectorised import ExactlyMerging, Groups, Int64s, valid_of
from tidegate.windowing.errors import IllegalArgument, UnsupportedOperation
from tidegate.windowing.functions.aggregate import AggregateFunction
from tidegate.windowing.keys import DECIMALS


@dataclass(frozen=True, slots=True)
class ApproxCountDistinct(OfColumn):
    """Approximate number of distinct non-null values of a column. The result is int64, never null.

    Args:
        column: the column.
        log_size: 5 to 20. The sketch keeps up to 2^log_size hashes of 8 bytes. It is exact up to that number of
            distinct values; beyond it, the relative standard error is 1 / sqrt(2^log_size).

    Raises:
        IllegalArgument: `log_size` is not 5 to 20.
    """

    log_size: int = 11

    def __post_init__(self) -> None:
        if not 5 <= self.log_size <= 20:
            raise IllegalArgument("log_size", self.log_size, "give 5 to 20")

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        orderable(schema, self.column, "ApproxCountDistinct.column")
        return _Distinct(self.column, self.log_size)


@dataclass(frozen=True, slots=True)
class ApproxQuantile(OfColumn):
    """Approximate quantile of a column, as a double: the smallest value with a rank of at least the fraction.

    NaN is larger than any number, and -0.0 is 0.0.

    Args:
        column: a column of numbers; nulls are ignored.
        fraction: 0 to 1; 0.5 is the median.
        size: size of the sketch, 8 to 65535. The sketch is exact up to that number of values; beyond it, the rank
            error is about 2.3 / size.

    Raises:
        IllegalArgument: `fraction` or `size` is out of range.
    """

    fraction: float
    size: int = 200

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise IllegalArgument("fraction", self.fraction, "give 0 to 1")
        if not 8 <= self.size <= 65535:
            raise IllegalArgument("size", self.size, "give 8 to 65535")

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        numeric(schema, self.column, "ApproxQuantile.column")
        return _Quantile(self.column, self.fraction, self.size)


def _datasketches() -> Any:
    try:
        import datasketches  # type: ignore[import-untyped]
    except ImportError as error:
        raise UnsupportedOperation(needs("an approximate aggregate", "datasketches")) from error
    return datasketches


class _Distinct(ExactlyMerging):
    accumulator_type = pa.binary()
    result_type = pa.int64()

    def __init__(self, column: str, log_size: int) -> None:
        self._column = column
        self._log_size = log_size

    def create_accumulator(self) -> bytes:
        return self._of_values(())

    def add(self, value: Any, accumulator: bytes) -> bytes:
        item = value[self._column]
        return accumulator if item is None else self.merge(accumulator, self._of_values((item,)))

    def merge(self, accumulator: bytes, other: bytes) -> bytes:
        return self._union((accumulator, other))

    def get_result(self, accumulator: bytes) -> int:
        estimate: float = _datasketches().compact_theta_sketch.deserialize(accumulator).get_estimate()
        return round(estimate)

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        values = columns[self._column].to_pylist()
        runs = (values[start : last + 1] for start, last in zip(groups.starts, groups.lasts, strict=True))
        return pa.array([self._of_values(run) for run in runs], pa.binary())

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        sketches = accumulators.to_pylist()
        runs = (sketches[start : last + 1] for start, last in zip(groups.starts, groups.lasts, strict=True))
        return pa.array([self._union(run) for run in runs], pa.binary())

    def finish(self, accumulators: pa.Array) -> pa.Array:
        return pa.array([self.get_result(sketch) for sketch in accumulators.to_pylist()], pa.int64())

    def _of_values(self, values: Iterable[Any]) -> bytes:
        sketches = _datasketches()
        sketch = sketches.update_theta_sketch(self._log_size)
        for value in values:
            if value is not None:
                sketch.update(_hashable(value))
        # The result of a union depends only on the smallest hashes. The sketch itself depends on the order of values.
        union = sketches.theta_union(self._log_size)
        union.update(sketch)
        serialized: bytes = union.get_result().serialize()
        return serialized

    def _union(self, parts: Iterable[bytes]) -> bytes:
        sketches = _datasketches()
        union = sketches.theta_union(self._log_size)
        for part in parts:
            union.update(sketches.compact_theta_sketch.deserialize(part))
        serialized: bytes = union.get_result().serialize()
        return serialized


_EMPTY = -1
"""The sketch ignores an empty string, so these bytes stand for it. No UTF-8 text contains them."""


def _hashable(value: Any) -> Any:
    """Return a value that the sketch accepts: a string, a number, or an unambiguous string for any other type."""
    if isinstance(value, str | bytes) and not value:
        return _EMPTY
    if isinstance(value, bytes):
        return value.hex()
    if type(value) is Decimal:
        return str(DECIMALS.normalize(value))
    if isinstance(value, bool | date | Decimal):
        return str(value)
    return without_sign(value)


class _Quantile(ExactlyMerging):
    accumulator_type = pa.struct([("sketch", pa.binary()), ("nans", pa.int64())])
    result_type = pa.float64()

    def __init__(self, column: str, fraction: float, size: int) -> None:
        self._column = column
        self._fraction = fraction
        self._size = size

    def create_accumulator(self) -> dict[str, Any]:
        return self._of_numbers(np.empty(0))

    def add(self, value: Any, accumulator: dict[str, Any]) -> dict[str, Any]:
        number = value[self._column]
        return accumulator if number is None else self.merge(accumulator, self._of_numbers(np.array([float(number)])))

    def merge(self, accumulator: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        return self._merged((accumulator, other))

    def get_result(self, accumulator: dict[str, Any]) -> float | None:
        sketch = self._read(accumulator["sketch"])
        numbers, nans = sketch.n, accumulator["nans"]
        if not numbers + nans:
            return None
        # The quantile is the smallest value whose rank is at least the fraction, as in Spark's percentile_approx.
        rank = self._fraction * (numbers + nans)
        if rank > numbers or not numbers:
            return float("nan")
        return float(sketch.get_quantile(rank / numbers, True))

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        values = columns[self._column]
        numbers, valid = doubles_of(values), valid_of(values)
        runs = (slice(start, last + 1) for start, last in zip(groups.starts, groups.lasts, strict=True))
        return pa.array([self._of_numbers(numbers[run][valid[run]]) for run in runs], self.accumulator_type)

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        parts = accumulators.to_pylist()
        runs = (parts[start : last + 1] for start, last in zip(groups.starts, groups.lasts, strict=True))
        return pa.array([self._merged(run) for run in runs], self.accumulator_type)

    def finish(self, accumulators: pa.Array) -> pa.Array:
        return pa.array([self.get_result(part) for part in accumulators.to_pylist()], pa.float64())

    def _of_numbers(self, numbers: Any) -> dict[str, Any]:
        sketch = _datasketches().kll_doubles_sketch(self._size)
        unknown = np.isnan(numbers)
        sketch.update(np.sort(numbers[~unknown]) + 0.0)
        return {"sketch": sketch.serialize(), "nans": int(unknown.sum())}

    def _merged(self, parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
        sketch, nans = _datasketches().kll_doubles_sketch(self._size), 0
        for part in parts:
            sketch.merge(self._read(part["sketch"]))
            nans += part["nans"]
        return {"sketch": sketch.serialize(), "nans": nans}

    def _read(self, sketch: bytes) -> Any:
        return _datasketches().kll_doubles_sketch.deserialize(sketch)
