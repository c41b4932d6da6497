"""Any and all of a boolean column. Nulls are ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.windowing.aggregates.bound import Aggregate, column_type
from tidegate.windowing.aggregates.vectorised import ExactlyMerging, Groups, Int64s, masked, valid_of
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.functions.aggregate import AggregateFunction
from tidegate.windowing.type_names import name_of


@dataclass(frozen=True, slots=True)
class AnyTrue(Aggregate):
    """True if `column` is true for any element; null if all values are null. Spark calls it `bool_or`."""

    column: str

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return _Truth(boolean(schema, self.column, "AnyTrue.column"), every=False)

    @property
    def columns(self) -> Sequence[str]:
        return (self.column,)


@dataclass(frozen=True, slots=True)
class AllTrue(Aggregate):
    """True if `column` is true for every element; null if all values are null. Spark calls it `bool_and`."""

    column: str

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return _Truth(boolean(schema, self.column, "AllTrue.column"), every=True)

    @property
    def columns(self) -> Sequence[str]:
        return (self.column,)


def boolean(schema: pa.Schema | None, column: str, aggregate: str) -> str:
    """Return the name of a column after checking that it is boolean.

    Raises:
        IllegalArgument: the column has another type.
    """
    kind = column_type(schema, column, aggregate)
    if kind is not None and not pa.types.is_boolean(kind):
        raise IllegalArgument(aggregate, column, f"it has type {name_of(kind)}; give a boolean column")
    return column


class _Truth(ExactlyMerging):
    accumulator_type = pa.bool_()
    result_type = pa.bool_()

    def __init__(self, column: str, every: bool) -> None:
        self._column = column
        self._every = every

    def create_accumulator(self) -> None:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return self.merge(accumulator, value[self._column])

    def merge(self, accumulator: Any, other: Any) -> Any:
        if accumulator is None or other is None:
            return other if accumulator is None else accumulator
        return accumulator and other if self._every else accumulator or other

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        return self.combine(columns[self._column], groups)

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        has_value = groups.any(valid_of(accumulators))
        truth = accumulators.fill_null(self._every).to_numpy(zero_copy_only=False)
        return masked(groups.all(truth) if self._every else groups.any(truth), has_value, pa.bool_())

    def finish(self, accumulators: pa.Array) -> pa.Array:
        return accumulators
