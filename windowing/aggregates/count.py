"""Count: how many elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windowing.aggregates.bound import Aggregate, column_type
from windowing.functions.aggregate import AggregateFunction


@dataclass(frozen=True, slots=True)
class Count(Aggregate):
    """Number of elements, or of those whose `column` is not null. Result: int64, never null."""

    column: str | None = None

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        if self.column is None:
            return _CountElements()
        column_type(schema, self.column, "Count.column")
        return _CountValues(self.column)

    @property
    def columns(self) -> Sequence[str]:
        return () if self.column is None else (self.column,)


class _CountElements(AggregateFunction):
    accumulator_type = pa.int64()
    result_type = pa.int64()

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def get_result(self, accumulator: int) -> int:
        return accumulator


class _CountValues(_CountElements):
    def __init__(self, column: str) -> None:
        self._column = column

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + (value[self._column] is not None)
