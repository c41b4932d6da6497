"""First and last value of a column by event time.

Values with equal times are ordered by the value itself. So the result depends neither on the order of arrival nor on
the cut of the input into epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.bound import Aggregate, column_type
from tidegate.windowing.aggregates.extremes import first_rows
from tidegate.windowing.aggregates.ranks import order_key, ranks
from tidegate.windowing.aggregates.vectorised import Groups, Int64s, VectorisedAggregate
from tidegate.windowing.errors import IllegalArgument, MissingTimestamp
from tidegate.windowing.functions.aggregate import AggregateFunction, TimedAggregateFunction
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis
from tidegate.windowing.type_names import name_of


@dataclass(frozen=True, slots=True)
class First(Aggregate):
    """Value of the earliest element; the smallest value if several are earliest. May be null."""

    column: str

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return _ByTime(self.column, comparable(schema, self.column, "First.column"), last=False)

    @property
    def columns(self) -> Sequence[str]:
        return (self.column,)


@dataclass(frozen=True, slots=True)
class Last(Aggregate):
    """Value of the latest element; the largest value if several are latest. May be null."""

    column: str

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return _ByTime(self.column, comparable(schema, self.column, "Last.column"), last=True)

    @property
    def columns(self) -> Sequence[str]:
        return (self.column,)


def comparable(schema: pa.Schema | None, column: str, aggregate: str) -> pa.DataType | None:
    """Return the type of a column whose values can order elements with equal times; None if types are unknown.

    Raises:
        IllegalArgument: the values have no order.
    """
    kind = column_type(schema, column, aggregate)
    if kind is not None and pa.types.is_nested(kind):
        raise IllegalArgument(
            aggregate,
            column,
            f"it has type {name_of(kind)}, whose values have no order, so equal times would have no rule: convert it "
            f'to a text, columns={{"{column}_json": "to_json({column})"}}, or a field of it',
        )
    return kind


class _ByTime(TimedAggregateFunction, VectorisedAggregate):
    def __init__(self, column: str, kind: pa.DataType | None, last: bool) -> None:
        self._column = column
        self._last = last
        self.result_type = kind
        if kind is not None:
            self.accumulator_type = pa.struct([("at", pa.int64()), ("value", kind)])

    def create_accumulator(self) -> None:
        return None

    def add_at(self, value: Any, timestamp: Millis | None, accumulator: Any) -> Any:
        if timestamp is None:
            raise MissingTimestamp
        if accumulator is None or (timestamp > accumulator["at"]) == self._last or timestamp == accumulator["at"]:
            return self.merge(accumulator, {"at": timestamp, "value": value[self._column]})
        return accumulator

    def merge(self, accumulator: Any, other: Any) -> Any:
        if accumulator is None or other is None:
            return other if accumulator is None else accumulator
        return other if (_order(other) > _order(accumulator)) == self._last else accumulator

    def get_result(self, accumulator: Any) -> Any:
        return None if accumulator is None else accumulator["value"]

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        return self._chosen(timestamps, columns[self._column].cast(self.result_type), groups)

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        at, values = accumulators.flatten()
        return self._chosen(at.to_numpy(), values, groups)

    def finish(self, accumulators: pa.Array) -> pa.Array:
        return accumulators.flatten()[1]

    def _chosen(self, at: Int64s, values: pa.Array, groups: Groups) -> pa.Array:
        best = groups.max(at) if self._last else groups.min(at)
        chosen = at == best[groups.ids]
        if chosen.sum() > len(groups):
            rank = np.where(chosen, ranks(values), MIN_TIMESTAMP if self._last else MAX_TIMESTAMP)
            chosen &= rank == (groups.max(rank) if self._last else groups.min(rank))[groups.ids]
        rows = first_rows(chosen, groups)
        fields = [pa.field("at", pa.int64()), pa.field("value", values.type)]
        return pa.StructArray.from_arrays([pa.array(at[rows]), values.take(pa.array(rows))], fields=fields)


def _order(entry: dict[str, Any]) -> tuple[Millis, tuple[int, Any]]:
    return entry["at"], order_key(entry["value"])
