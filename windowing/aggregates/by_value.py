"""Min by and max by: the value of a column in the element whose other column is smallest or largest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.bound import Aggregate
from tidegate.windowing.aggregates.extremes import first_rows, orderable
from tidegate.windowing.aggregates.ranks import order_key, ranks
from tidegate.windowing.aggregates.vectorised import Groups, Int64s, VectorisedAggregate, valid_of
from tidegate.windowing.functions.aggregate import AggregateFunction


@dataclass(frozen=True, slots=True)
class MinBy(Aggregate):
    """Value of `column` in the element with the smallest `by`; the smallest value if several have it. May be null.

    Elements whose `by` is null are left out, as in Spark.
    """

    column: str
    by: str

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return _bound(schema, self.column, self.by, "MinBy", largest=False)

    @property
    def columns(self) -> Sequence[str]:
        return (self.column, self.by)


@dataclass(frozen=True, slots=True)
class MaxBy(Aggregate):
    """Value of `column` in the element with the largest `by`; the largest value if several have it. May be null.

    Elements whose `by` is null are left out, as in Spark.
    """

    column: str
    by: str

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return _bound(schema, self.column, self.by, "MaxBy", largest=True)

    @property
    def columns(self) -> Sequence[str]:
        return (self.column, self.by)


def _bound(schema: pa.Schema | None, column: str, by: str, name: str, *, largest: bool) -> AggregateFunction:
    return _ByValue(
        column, by, orderable(schema, column, f"{name}.column"), orderable(schema, by, f"{name}.by"), largest
    )


class _ByValue(VectorisedAggregate):
    def __init__(
        self, column: str, by: str, kind: pa.DataType | None, by_kind: pa.DataType | None, largest: bool
    ) -> None:
        self._column, self._by = column, by
        self._largest = largest
        self.result_type = kind
        if kind is not None and by_kind is not None:
            self.accumulator_type = pa.struct([("by", by_kind), ("value", kind)])

    def create_accumulator(self) -> None:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        if value[self._by] is None:
            return accumulator
        return self.merge(accumulator, {"by": value[self._by], "value": value[self._column]})

    def merge(self, accumulator: Any, other: Any) -> Any:
        if accumulator is None or other is None:
            return other if accumulator is None else accumulator
        return other if (_order(other) > _order(accumulator)) == self._largest else accumulator

    def get_result(self, accumulator: Any) -> Any:
        return None if accumulator is None else accumulator["value"]

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        return self._chosen(columns[self._by], columns[self._column], groups)

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        by, values = accumulators.flatten()
        return self._chosen(by, values, groups)

    def finish(self, accumulators: pa.Array) -> pa.Array:
        return accumulators.flatten()[1]

    def _chosen(self, by: pa.Array, values: pa.Array, groups: Groups) -> pa.Array:
        valid = valid_of(by)
        chosen = np.ones(len(by), np.bool_)
        for column in (by, values):
            rank = ranks(column)
            # Rows that are not chosen get the worst rank. In a group without a valid `by`, all rows tie.
            if self._largest:
                rank = np.where(chosen & valid, rank, np.iinfo(np.int64).min)
                best = groups.max(rank)
            else:
                rank = np.where(chosen & valid, rank, np.iinfo(np.int64).max)
                best = groups.min(rank)
            chosen &= rank == best[groups.ids]
        rows = first_rows(chosen, groups)
        has_value = valid[rows]
        fields = [pa.field("by", by.type), pa.field("value", values.type)]
        taken = [by.take(pa.array(rows)), values.take(pa.array(rows))]
        return pa.StructArray.from_arrays(taken, fields=fields, mask=None if has_value.all() else pa.array(~has_value))


def _order(entry: dict[str, Any]) -> tuple[tuple[int, Any], tuple[int, Any]]:
    return order_key(entry["by"]), order_key(entry["value"])
