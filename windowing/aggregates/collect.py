"""Collections of a column's values: all values as a list, or the distinct values as a set. Nulls are ignored.

A list is ordered by event time, then by value, and a set by value. So neither depends on the order of arrival. Their
size grows with the number of elements in the window.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.bound import OfColumn
from tidegate.windowing.aggregates.order import order_key, orderable, ranks, without_sign, without_signs
from tidegate.windowing.aggregates.vectorised import Bools, ExactlyMerging, Groups, Int64s, valid_of
from tidegate.windowing.errors import MissingTimestamp
from tidegate.windowing.functions.aggregate import AggregateFunction, TimedAggregateFunction
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class CollectList(OfColumn):
    """Values of a column as a list, ordered by event time; empty if all values are null."""

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return _CollectList(self.column, orderable(schema, self.column, "CollectList.column"))


@dataclass(frozen=True, slots=True)
class CollectSet(OfColumn):
    """Distinct values of a column as a sorted list. NaN equals itself, and -0.0 equals 0.0."""

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return _CollectSet(self.column, orderable(schema, self.column, "CollectSet.column"))


class _CollectList(TimedAggregateFunction, ExactlyMerging):
    def __init__(self, column: str, kind: pa.DataType | None) -> None:
        self._column = column
        if kind is not None:
            self.result_type = pa.list_(kind)
            self.accumulator_type = pa.list_(pa.struct([("at", pa.int64()), ("value", kind)]))

    def create_accumulator(self) -> list[dict[str, Any]]:
        return []

    def add_at(self, value: Any, timestamp: Millis | None, accumulator: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if timestamp is None:
            raise MissingTimestamp
        if value[self._column] is not None:
            insort(accumulator, {"at": timestamp, "value": value[self._column]}, key=_by_time)
        return accumulator

    def merge(self, accumulator: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted([*accumulator, *other], key=_by_time)

    def get_result(self, accumulator: list[dict[str, Any]]) -> list[Any]:
        return [entry["value"] for entry in accumulator]

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        values = columns[self._column]
        kept = np.flatnonzero(valid_of(values))
        return self._lists(timestamps[kept], values.take(pa.array(kept)), groups.ids[kept], len(groups))

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        entries, owners = entries_of(accumulators, groups)
        at, values = entries.flatten()
        return self._lists(at.to_numpy(), values, owners, len(groups))

    def finish(self, accumulators: pa.Array) -> pa.Array:
        return pa.ListArray.from_arrays(_offsets(accumulators), accumulators.flatten().flatten()[1])

    def _lists(self, at: Int64s, values: pa.Array, owners: Int64s, groups: int) -> pa.Array:
        order = np.lexsort((ranks(values), at, owners))
        fields = [pa.field("at", pa.int64()), pa.field("value", values.type)]
        taken = [pa.array(at[order], pa.int64()), values.take(pa.array(order))]
        return lists(pa.StructArray.from_arrays(taken, fields=fields), owners, groups)


class _CollectSet(ExactlyMerging):
    def __init__(self, column: str, kind: pa.DataType | None) -> None:
        self._column = column
        if kind is not None:
            self.accumulator_type = self.result_type = pa.list_(kind)

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        item = value[self._column]
        return accumulator if item is None else self.merge(accumulator, [item])

    def merge(self, accumulator: list[Any], other: list[Any]) -> list[Any]:
        distinct = {order_key(value): value for value in accumulator}
        for value in map(without_sign, other):
            distinct.setdefault(order_key(value), value)
        return [distinct[key] for key in sorted(distinct)]

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        values = columns[self._column]
        kept = np.flatnonzero(valid_of(values))
        return self._sets(values.take(pa.array(kept)), groups.ids[kept], len(groups))

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        entries, owners = entries_of(accumulators, groups)
        return self._sets(entries, owners, len(groups))

    def _sets(self, values: pa.Array, owners: Int64s, groups: int) -> pa.Array:
        values = without_signs(values)
        rank = ranks(values)
        order = np.lexsort((rank, owners))
        first: Bools = np.ones(len(order), np.bool_)
        first[1:] = (rank[order][1:] != rank[order][:-1]) | (owners[order][1:] != owners[order][:-1])
        kept = order[first]
        distinct = values.take(pa.array(kept))
        return lists(distinct, owners[kept], groups)


def entries_of(accumulators: pa.Array, groups: Groups) -> tuple[pa.Array, Int64s]:
    """Return the entries of lists, and the group of each entry."""
    sizes = np.diff(_offsets(accumulators).to_numpy())
    return accumulators.flatten(), np.repeat(groups.ids, sizes)


def lists(entries: pa.Array, owners: Int64s, groups: int) -> pa.Array:
    """Return a list for each group, from entries that are sorted by their group."""
    offsets = np.searchsorted(np.sort(owners), np.arange(groups + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), entries)


def _offsets(array: pa.Array) -> pa.Array:
    """Return the offsets of the lists, relative to the first one: the array may be a slice of a longer one."""
    offsets = array.offsets.to_numpy()
    return pa.array(offsets - offsets[0]) if len(offsets) else pa.array([0], pa.int32())


def _by_time(entry: dict[str, Any]) -> tuple[Millis, tuple[int, Any]]:
    return entry["at"], order_key(entry["value"])
