"""Aggregates that take a column's value from the first or last element of a window, by event time or by another column.

Elements that tie are ordered by the value itself. So the result depends neither on the order of arrival nor on how the
input is divided into epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates.bound import OfColumn
from tidegate.windowing.aggregates.order import first_rows, order_key, orderable, ranks, without_sign, without_signs
from tidegate.windowing.aggregates.vectorised import Bools, ExactlyMerging, Groups, Int64s, valid_of
from tidegate.windowing.errors import MissingTimestamp
from tidegate.windowing.functions.aggregate import AggregateFunction, TimedAggregateFunction
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis


@dataclass(frozen=True, slots=True)
class First(OfColumn):
    """Value of the earliest element. If several elements share the earliest time, the smallest value.

    The value may be null. With `ignore_nulls`, it is the earliest value that is not null, and null only if all are.
    """

    ignore_nulls: bool = False

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        kind = orderable(schema, self.column, "First.column")
        return _ByTime(self.column, kind, largest=False, ignore_nulls=self.ignore_nulls)


@dataclass(frozen=True, slots=True)
class Last(OfColumn):
    """Value of the latest element. If several elements share the latest time, the largest value.

    The value may be null. With `ignore_nulls`, it is the latest value that is not null, and null only if all are.
    """

    ignore_nulls: bool = False

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        kind = orderable(schema, self.column, "Last.column")
        return _ByTime(self.column, kind, largest=True, ignore_nulls=self.ignore_nulls)


@dataclass(frozen=True, slots=True)
class _OfColumnBy(OfColumn):
    by: str
    ignore_nulls: bool = False

    @property
    def columns(self) -> Sequence[str]:
        return (self.column, self.by)


@dataclass(frozen=True, slots=True)
class MinBy(_OfColumnBy):
    """Value of `column` in the element with the smallest `by`; of elements that tie, the smallest value.

    The value may be null. Elements whose `by` is null are ignored, as in Spark; with `ignore_nulls`, so are elements
    whose value is null.
    """

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return _ByColumn(self, schema, largest=False)


@dataclass(frozen=True, slots=True)
class MaxBy(_OfColumnBy):
    """Value of `column` in the element with the largest `by`; of elements that tie, the largest value.

    The value may be null. Elements whose `by` is null are ignored, as in Spark; with `ignore_nulls`, so are elements
    whose value is null.
    """

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return _ByColumn(self, schema, largest=True)


class _Chosen(ExactlyMerging):
    """The value of the first or last element in an order. The accumulator also keeps that element's order value.

    Args:
        column: column of the value.
        kind: its type; None if types are unknown.
        order: name of the order value in the accumulator.
        order_kind: type of the order values.
        largest: True chooses the last element by the order.
        ignore_nulls: True leaves out elements whose value is null.
    """

    def __init__(
        self,
        column: str,
        kind: pa.DataType | None,
        order: str,
        order_kind: pa.DataType | None,
        *,
        largest: bool,
        ignore_nulls: bool,
    ) -> None:
        self._column = column
        self._order = order
        self._largest = largest
        self._ignore_nulls = ignore_nulls
        self.result_type = kind
        if kind is not None and order_kind is not None:
            self.accumulator_type = pa.struct([(order, order_kind), ("value", kind)])

    def create_accumulator(self) -> None:
        return None

    def merge(self, accumulator: Any, other: Any) -> Any:
        if accumulator is None or other is None:
            return other if accumulator is None else accumulator
        return other if (self._place(other) > self._place(accumulator)) == self._largest else accumulator

    def _place(self, entry: dict[str, Any]) -> tuple[Any, tuple[int, Any]]:
        return order_key(entry[self._order]), order_key(entry["value"])

    def get_result(self, accumulator: Any) -> Any:
        return None if accumulator is None else accumulator["value"]

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        order, values = accumulators.flatten()
        return self._taken(order, values, groups)

    def finish(self, accumulators: pa.Array) -> pa.Array:
        return accumulators.flatten()[1]

    def _chosen(self, order: pa.Array, values: pa.Array, groups: Groups) -> pa.Array:
        """Return the accumulator of each group of elements."""
        if self._ignore_nulls and values.null_count:
            order = pc.if_else(values.is_valid(), order, pa.scalar(None, order.type))
        return self._taken(order, values, groups)

    def _taken(self, order: pa.Array, values: pa.Array, groups: Groups) -> pa.Array:
        """Return the accumulator of each group; it is null if no order value of the group is valid."""
        valid = valid_of(order)
        rows = self._rows(self._ranks(order), valid, values, groups)
        has_value = valid[rows]
        fields = [pa.field(self._order, order.type), pa.field("value", values.type)]
        taken = [order.take(pa.array(rows)), values.take(pa.array(rows))]
        return pa.StructArray.from_arrays(taken, fields=fields, mask=None if has_value.all() else pa.array(~has_value))

    def _rows(self, rank: Int64s, valid: Bools, values: pa.Array, groups: Groups) -> Int64s:
        """Return, for each group, the row that is first or last by rank, then by value. Invalid rows come last.

        For a group without valid rows, any row is returned.
        """
        best, worst = (groups.max, MIN_TIMESTAMP) if self._largest else (groups.min, MAX_TIMESTAMP)
        rank = rank if valid.all() else np.where(valid, rank, worst)
        chosen = rank == best(rank)[groups.ids]
        if chosen.sum() > len(groups):
            rank = np.where(chosen & valid, ranks(values), worst)
            chosen &= rank == best(rank)[groups.ids]
        return first_rows(chosen, groups)

    def _ranks(self, order: pa.Array) -> Int64s:
        return ranks(order)


class _ByTime(_Chosen, TimedAggregateFunction):
    def __init__(self, column: str, kind: pa.DataType | None, *, largest: bool, ignore_nulls: bool) -> None:
        super().__init__(column, kind, "at", pa.int64(), largest=largest, ignore_nulls=ignore_nulls)

    def add_at(self, value: Any, timestamp: Millis | None, accumulator: Any) -> Any:
        if timestamp is None:
            raise MissingTimestamp
        if accumulator is not None and timestamp != (at := accumulator["at"]) and (timestamp > at) != self._largest:
            return accumulator
        if self._ignore_nulls and value[self._column] is None:
            return accumulator
        return self.merge(accumulator, {"at": timestamp, "value": value[self._column]})

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        return self._chosen(pa.array(timestamps), columns[self._column].cast(self.result_type), groups)

    def _place(self, entry: dict[str, Any]) -> tuple[Any, tuple[int, Any]]:
        return entry["at"], order_key(entry["value"])

    def _ranks(self, order: pa.Array) -> Int64s:
        # A group without a value has null, so its rank does not matter.
        return np.asarray(order.fill_null(0).to_numpy())


class _ByColumn(_Chosen):
    def __init__(self, given: _OfColumnBy, schema: pa.Schema | None, *, largest: bool) -> None:
        name = type(given).__name__
        kind, by_kind = (orderable(schema, getattr(given, field), f"{name}.{field}") for field in ("column", "by"))
        super().__init__(given.column, kind, "by", by_kind, largest=largest, ignore_nulls=given.ignore_nulls)
        self._by = given.by

    def add(self, value: Any, accumulator: Any) -> Any:
        if value[self._by] is None or (self._ignore_nulls and value[self._column] is None):
            return accumulator
        return self.merge(accumulator, {"by": without_sign(value[self._by]), "value": value[self._column]})

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        return self._chosen(without_signs(columns[self._by]), columns[self._column], groups)
