"""Top N: the first elements of a window in the order of a column, as a list of structs.

Ties are broken by declared columns, and then by all other columns of the struct. So the list depends neither on the
order of arrival nor on how the input is divided into epochs. An accumulator never has more than `n` entries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.bound import Aggregate
from tidegate.windowing.aggregates.collect import entries_of, lists
from tidegate.windowing.aggregates.order import order_key, orderable, ranks, without_sign, without_signs
from tidegate.windowing.aggregates.vectorised import ExactlyMerging, Groups, Int64s, valid_of
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.functions.aggregate import AggregateFunction


@dataclass(frozen=True, slots=True)
class TopN(Aggregate):
    """The `n` elements with the largest `by`, the largest first, as a list of structs.

    A struct has the columns `by`, `ties` and `also`, each once. Elements whose `by` is null are ignored. NaN is larger
    than any number, and -0.0 is 0.0. Source: Flink's window top-N, `ROW_NUMBER() OVER (PARTITION BY window_start,
    window_end ORDER BY ...) <= n`.

    Args:
        n: largest number of elements.
        by: column that ranks the elements.
        ties: columns that rank elements with the same `by`: the smallest value first, and null before it.
        also: further columns of the struct. They rank remaining ties in the same way.
        largest: False ranks the smallest `by` first.

    Raises:
        IllegalArgument: `n` is below 1, or `ties` or `also` is not a list of column names.

    Example:
        >>> TopN(3, by="price", ties=["id"], also=["seller", "price"]).columns
        ('price', 'id', 'seller')
    """

    n: int
    by: str
    ties: Sequence[str] = ()
    also: Sequence[str] = ()
    largest: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1:
            raise IllegalArgument("TopN.n", self.n, "give a whole number of elements, 1 or more")
        for field in ("ties", "also"):
            names = getattr(self, field)
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise IllegalArgument(f"TopN.{field}", names, 'give a list of column names, such as ["id"]')
            object.__setattr__(self, field, tuple(names))

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        fields = {**dict.fromkeys(self.also, "also"), **dict.fromkeys(self.ties, "ties"), self.by: "by"}
        kinds = {name: orderable(schema, name, f"TopN.{fields[name]}") for name in self.columns}
        return _TopN(self.n, kinds, largest=self.largest)

    @property
    def columns(self) -> Sequence[str]:
        return tuple(dict.fromkeys((self.by, *self.ties, *self.also)))


class _TopN(ExactlyMerging):
    """The first entries by the first column, then by the others. A type is None where it is unknown."""

    def __init__(self, n: int, kinds: Mapping[str, pa.DataType | None], *, largest: bool) -> None:
        self._n = n
        self._by, *self._others = kinds
        self._largest = largest
        if all(kind is not None for kind in kinds.values()):
            self._entry = pa.struct(list(kinds.items()))
            self.accumulator_type = self.result_type = pa.list_(self._entry)

    def create_accumulator(self) -> list[dict[str, Any]]:
        return []

    def add(self, value: Any, accumulator: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if value[self._by] is None:
            return accumulator
        entry = {name: without_sign(value[name]) for name in (self._by, *self._others)}
        accumulator.insert(bisect_right(accumulator, self._place(entry), key=self._place), entry)
        del accumulator[self._n :]
        return accumulator

    def merge(self, accumulator: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted([*accumulator, *other], key=self._place)[: self._n]

    def get_result(self, accumulator: list[dict[str, Any]]) -> list[dict[str, Any]]:
        # The next element changes the accumulator, but a caller may still hold the result, so copy it.
        return accumulator.copy()

    def _place(self, entry: Mapping[str, Any]) -> tuple[Any, ...]:
        first = order_key(entry[self._by])
        return (_Backwards(first) if self._largest else first, *(order_key(entry[name]) for name in self._others))

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        kept = np.flatnonzero(valid_of(columns[self._by]))
        entries = [columns[field.name].cast(field.type).take(pa.array(kept)) for field in self._entry]
        return self._lists(entries, groups.ids[kept], len(groups))

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        entries, owners = entries_of(accumulators, groups)
        return self._lists(entries.flatten(), owners, len(groups))

    def _lists(self, entries: list[pa.Array], owners: Int64s, groups: int) -> pa.Array:
        """Return the list of each group.

        The ranking column comes first and has no nulls. The owners (the groups of the entries) are in ascending order.
        """
        entries = [without_signs(column) for column in entries]
        rank = ranks(entries[0])
        if self._largest:
            rank = ~rank
        begins = np.searchsorted(owners, np.arange(groups + 1))
        # The other columns only rank entries that tie with the last one of their list, or that precede it.
        order = np.lexsort((rank, owners))
        lasts = order[np.minimum(begins[:-1] + self._n, begins[1:])[begins[1:] > begins[:-1]] - 1]
        limits = np.zeros(groups, np.int64)
        limits[owners[lasts]] = rank[lasts]
        kept = np.flatnonzero(rank <= limits[owners])
        entries, rank, owners = [column.take(pa.array(kept)) for column in entries], rank[kept], owners[kept]
        order = np.lexsort((*(ranks(column) for column in reversed(entries[1:])), rank, owners))
        begins = np.searchsorted(owners, np.arange(groups))
        chosen = order[np.arange(len(order)) - begins[owners] < self._n]
        taken = [column.take(pa.array(chosen)) for column in entries]
        return lists(pa.StructArray.from_arrays(taken, fields=list(self._entry)), owners[chosen], groups)


class _Backwards:
    """A sort key that reverses the order of another one."""

    __slots__ = ("_key",)

    def __init__(self, key: tuple[int, Any]) -> None:
        self._key = key

    def __lt__(self, other: _Backwards) -> bool:
        return other._key < self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Backwards) and other._key == self._key

    __hash__ = None  # type: ignore[assignment]
