"""The elements of an epoch as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.epochs.arrays import ParallelArrays
from tidegate.windowing.sides import SIDES, side_of_column

KEY_PREFIX = "key_"
VALUE_PREFIX = "value_"
"""Prefix of the names of value columns. Key columns have `KEY_PREFIX`, so one table can hold both."""


@dataclass(frozen=True, kw_only=True)
class Elements(ParallelArrays):
    """Elements of a set of keys, in any order.

    Args:
        timestamps: int64 epoch milliseconds.
        commits: index of each element's source commit within the epoch, int64.
        keys: the key columns by name.
        columns: the value columns by name; with two inputs, the columns of both, as `value_column` names them.
        sides: `left` or `right` for each element; None if there is a single input.
        counts: None if each row is an element. If each row is a part of a window (`columnar.parts`), the number of its
            elements; `columns` are then contents columns, and a timestamp is one of the part's.
    """

    timestamps: Int64s
    commits: Int64s
    keys: Mapping[str, pa.Array]
    columns: Mapping[str, pa.Array]
    sides: pa.Array | None = None
    counts: Int64s | None = None

    @property
    def total(self) -> int:
        """Number of elements that the rows stand for."""
        return len(self) if self.counts is None else int(self.counts.sum())

    @property
    def types(self) -> tuple[pa.StructType, ...]:
        """Type of the elements of each input."""
        columns = [pa.struct([(name, self.columns[key].type) for key, name in names]) for names in self.names.values()]
        return tuple(columns)

    @property
    def names(self) -> Mapping[str | None, list[tuple[str, str]]]:
        """Columns of each input: the name in `columns`, and the name in the input's elements."""
        if self.sides is None:
            return {None: [(name, name) for name in self.columns]}
        return {
            side: [(name, rest) for name in self.columns for owner, rest in [side_of_column(name)] if owner == side]
            for side in SIDES
        }
