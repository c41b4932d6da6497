"""Variance and standard deviation, numerically stable even for values far from zero.

The mean keeps its rounding error, which matters for values that are close together and far from zero. Source: Welford
for single values; Chan, Golub and LeVeque for merging.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.bound import OfColumn
from tidegate.windowing.aggregates.doubles import Total, added, doubles_of, rest_of, two_sum
from tidegate.windowing.aggregates.sums import numeric
from tidegate.windowing.aggregates.vectorised import Groups, Int64s, VectorisedAggregate, masked, valid_of
from tidegate.windowing.functions.aggregate import AggregateFunction


@dataclass(frozen=True, slots=True)
class Variance(OfColumn):
    """Sample variance (null for fewer than two values) or population variance of a column, as a double."""

    sample: bool = True

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        numeric(schema, self.column, "Variance.column")
        return _Spread(self.column, self.sample, root=False)


@dataclass(frozen=True, slots=True)
class StandardDeviation(OfColumn):
    """Square root of the `Variance`."""

    sample: bool = True

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        numeric(schema, self.column, "StandardDeviation.column")
        return _Spread(self.column, self.sample, root=True)


class _Spread(VectorisedAggregate):
    accumulator_type = pa.struct([("count", pa.int64()), ("mean", pa.float64()), ("m2", pa.float64())])
    result_type = rest_type = pa.float64()
    rest_in_arrays = True

    def __init__(self, column: str, sample: bool, root: bool) -> None:
        self._column = column
        self._free = int(sample)
        self._root = root

    def create_accumulator(self) -> dict[str, Any]:
        return {"count": 0, "mean": 0.0, "m2": 0.0}

    def add(self, value: Any, accumulator: dict[str, Any]) -> dict[str, Any]:
        number = value[self._column]
        if number is None:
            return accumulator
        number = float(number)
        count = accumulator["count"] + 1
        away = _apart(number, accumulator["mean"])
        mean = added(accumulator["mean"], away / count)
        return _accumulator(count, mean, accumulator["m2"] + away * _apart(number, mean))

    def merge(self, accumulator: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        if not accumulator["count"] or not other["count"]:
            return accumulator if accumulator["count"] else other
        count = accumulator["count"] + other["count"]
        away = _apart(other["mean"], accumulator["mean"])
        mean = added(accumulator["mean"], away * other["count"] / count)
        apart = away * away * accumulator["count"] * other["count"] / count
        return _accumulator(count, mean, accumulator["m2"] + other["m2"] + apart)

    def get_result(self, accumulator: dict[str, Any]) -> float | None:
        free = accumulator["count"] - self._free
        if free <= 0:
            return None
        variance = float(accumulator["m2"] / free)
        return sqrt(variance) if self._root else variance

    def stored(self, accumulator: dict[str, Any]) -> tuple[Any, Any]:
        return {**accumulator, "mean": float(accumulator["mean"])}, rest_of(accumulator["mean"]) or None

    def restored(self, value: dict[str, Any], rest: float | None) -> dict[str, Any]:
        return value if rest is None else {**value, "mean": Total.of(value["mean"], rest)}

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        values = columns[self._column]
        valid = valid_of(values)
        numbers = doubles_of(values)
        count = groups.sum(valid.astype(np.int64))
        with np.errstate(invalid="ignore", over="ignore"):
            middle = _within(numbers, valid, groups)
            shifted = np.where(valid, numbers - middle[groups.ids], 0.0)
            off = groups.sum(shifted) / np.maximum(count, 1)
            mean, rest = two_sum(middle, off)
            away = np.where(valid, shifted - off[groups.ids], 0.0)
            # The second term corrects the rounding error of the mean.
            squares, correction = groups.sum(away * away), groups.sum(away) ** 2 / np.maximum(count, 1)
            m2 = np.where(np.isinf(squares), squares, squares - correction)
        return self._array(count, mean, rest, np.maximum(m2, 0.0))

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        stored, rest = accumulators.flatten()
        count, mean, m2 = (part.to_numpy() for part in stored.flatten())
        total = groups.sum(count)
        with np.errstate(invalid="ignore", over="ignore"):
            middle = _within(mean, count > 0, groups)
            shifted = np.where(count > 0, mean - middle[groups.ids] + doubles_of(rest), 0.0)
            off = groups.sum(count * shifted) / np.maximum(total, 1)
            spread = groups.sum(m2) + groups.sum(count * (shifted - off[groups.ids]) ** 2)
        return self._array(total, *two_sum(middle, off), spread)

    def finish(self, accumulators: pa.Array) -> pa.Array:
        count, _, m2 = (part.to_numpy() for part in accumulators.flatten()[0].flatten())
        free = count - self._free
        variance = m2 / np.maximum(free, 1)
        return masked(np.sqrt(variance) if self._root else variance, free > 0, pa.float64())

    def _array(self, count: Any, mean: Any, rest: Any, m2: Any) -> pa.Array:
        unknown = ~np.isfinite(mean)
        mean, m2 = np.where(unknown, np.nan, mean), np.where(unknown, np.nan, m2)
        fields = list(self.accumulator_type)
        stored = pa.StructArray.from_arrays([pa.array(count), pa.array(mean), pa.array(m2)], fields=fields)
        return self.with_rest(stored, pa.array(rest))


def _apart(number: float, mean: float) -> float:
    """Return the difference between a number (or a mean) and a mean, taking their remainders into account."""
    return (number - mean) + (rest_of(number) - rest_of(mean))


def _within(numbers: Any, valid: Any, groups: Groups) -> Any:
    """Return the largest number of each group; 0 for a group without valid numbers.

    Summing differences from a number of the group keeps digits that sums of large numbers would lose.
    """
    largest = groups.max(np.where(valid, numbers, -np.inf))
    return np.where(np.isneginf(largest) & ~groups.any(valid), 0.0, largest)


def _accumulator(count: int, mean: float, m2: float) -> dict[str, Any]:
    """Return the three parts of an accumulator. After an infinite value or a NaN, only the count is still a number."""
    if not isfinite(mean):
        mean = m2 = nan
    return {"count": count, "mean": mean, "m2": m2}
