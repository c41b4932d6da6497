"""Count of elements: all of them, those with a value, or those for which a condition is true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.bound import Aggregate, OfColumn, boolean, column_type
from tidegate.windowing.aggregates.vectorised import ExactlyMerging, Groups, Hashed, Int64s, valid_of
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.functions.aggregate import AggregateFunction


@dataclass(frozen=True, slots=True)
class Count(Aggregate):
    """Number of elements, or of elements whose `column` is not null. The result is int64, never null."""

    column: str | None = None

    def __post_init__(self) -> None:
        if self.column == "*":
            raise IllegalArgument("Count.column", self.column, "Count() without a column counts all elements")

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        if self.column is None:
            return _CountElements()
        column_type(schema, self.column, "Count.column")
        return _CountValues(self.column)

    @property
    def columns(self) -> Sequence[str]:
        return () if self.column is None else (self.column,)


@dataclass(frozen=True, slots=True)
class CountIf(OfColumn):
    """Number of elements whose boolean `column` is true and not null. The result is int64, never null."""

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return _CountTrue(boolean(schema, self.column, "CountIf.column"))


class _CountElements(ExactlyMerging):
    accumulator_type = pa.int64()
    result_type = pa.int64()

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        return pa.array(groups.sizes, pa.int64())

    def hashed(self, columns: Mapping[str, pa.Array]) -> Hashed | None:
        return Hashed("count_all")

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        return pa.array(groups.sum(accumulators.to_numpy()), pa.int64())


class _CountValues(_CountElements):
    def __init__(self, column: str) -> None:
        self._column = column

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + (value[self._column] is not None)

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        return pa.array(groups.sum(valid_of(columns[self._column]).astype(np.int64)), pa.int64())

    def hashed(self, columns: Mapping[str, pa.Array]) -> Hashed | None:
        return Hashed("count", columns[self._column])


class _CountTrue(_CountElements):
    def __init__(self, column: str) -> None:
        self._column = column

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + (value[self._column] is True)

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        true = columns[self._column].fill_null(False).to_numpy(zero_copy_only=False)
        return pa.array(groups.sum(true.astype(np.int64)), pa.int64())

    def hashed(self, columns: Mapping[str, pa.Array]) -> Hashed | None:
        return Hashed("sum", columns[self._column].fill_null(False))
