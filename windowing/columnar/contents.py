"""The contents of many windows: one Arrow array of accumulators for each aggregate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from windowing.aggregates.bound import AggregateColumns
from windowing.aggregates.vectorised import Groups, Int64s, VectorisedAggregate
from windowing.compute import Windows

Contents: TypeAlias = list[pa.Array]
"""One array of accumulators for each contents column, one value for each window."""


@dataclass(frozen=True)
class ColumnarContents:
    """The aggregates of windows, vectorised.

    Args:
        functions: one for each contents column.
        result: type of a result row.
        single: whether the one function makes the whole row.
    """

    functions: tuple[VectorisedAggregate, ...]
    result: pa.StructType
    single: bool

    @classmethod
    def of(cls, windows: Windows) -> ColumnarContents | None:
        """The contents of windows, or None where an aggregate has no vectorised form or no types."""
        if windows.aggregate is None or windows.process is not None:
            return None
        bound = windows.bound_aggregate
        functions = bound.functions if isinstance(bound, AggregateColumns) else (bound,)
        result = bound.result_type
        if not isinstance(result, pa.StructType):
            return None
        vectorised = tuple(
            function
            for function in functions
            if isinstance(function, VectorisedAggregate)
            and function.accumulator_type is not None
            and function.result_type is not None
        )
        if len(vectorised) < len(functions):
            return None
        return cls(vectorised, result, not isinstance(bound, AggregateColumns))

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, rows: Int64s, groups: Groups) -> Contents:
        """The contents of groups of elements.

        Args:
            columns: the input columns of all elements.
            timestamps: of all elements.
            rows: the elements, in the order of the groups.
            groups: over `rows`.
        """
        take = pa.array(rows)
        sorted_columns = {name: column.take(take) for name, column in columns.items()}
        times = timestamps[rows]
        return [function.accumulate(sorted_columns, times, groups) for function in self.functions]

    def merge(self, contents: Contents, groups: Groups) -> Contents:
        """The contents of each group; one that stands alone stays as it is, null too."""
        multiple = groups.sizes > 1
        if not multiple.any():
            return contents
        firsts = groups.starts[~multiple]
        rows = np.flatnonzero(multiple[groups.ids])
        parts = Groups.of_sizes(groups.sizes[multiple])
        place = np.empty(len(groups), np.int64)
        place[~multiple] = np.arange(len(firsts))
        place[multiple] = np.arange(len(firsts), len(groups))
        merged = []
        for function, array in zip(self.functions, contents, strict=True):
            combined = function.combine(array.take(pa.array(rows)), parts)
            joined = pa.concat_arrays([array.take(pa.array(firsts)), combined.cast(array.type)])
            merged.append(joined.take(pa.array(place)))
        return merged

    def results(self, contents: Contents) -> list[pa.Array]:
        """The result columns of each window."""
        finished = [function.finish(array) for function, array in zip(self.functions, contents, strict=True)]
        parts = finished[0].flatten() if self.single else finished
        return [part.cast(field.type) for part, field in zip(parts, self.result, strict=True)]

    def empty(self) -> Contents:
        """The contents of no windows."""
        return [pa.array([], function.accumulator_type) for function in self.functions]


def take(contents: Sequence[pa.Array], rows: Int64s) -> list[pa.Array]:
    """These rows of each array."""
    places = pa.array(rows)
    return [array.take(places) for array in contents]


def joined(parts: Sequence[Sequence[pa.Array]]) -> list[pa.Array]:
    """Arrays one after the other, column by column."""
    return [pa.concat_arrays(list(column)) for column in zip(*parts, strict=True)]
