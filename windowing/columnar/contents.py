"""The contents of many windows: one Arrow array of accumulators for each aggregate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates.bound import AggregateColumns
from tidegate.windowing.aggregates.vectorised import Groups, Int64s, VectorisedAggregate
from tidegate.windowing.compute import Windows
from tidegate.windowing.epochs.arrays import joined, taken
from tidegate.windowing.epochs.elements import Elements

Contents: TypeAlias = list[pa.Array]
"""One array of accumulators for each contents column, with a value for each window."""


@dataclass(frozen=True)
class ColumnarContents:
    """The aggregates of windows, vectorised. If `single`, the only function returns the whole result row."""

    functions: tuple[VectorisedAggregate, ...]
    result: pa.StructType
    single: bool

    @classmethod
    def of(cls, windows: Windows) -> ColumnarContents | None:
        """Return the aggregates of windows, or None if an aggregate has no vectorised form or untyped columns."""
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

    def accumulate(self, columns: Mapping[str, pa.Array], times: Int64s, rows: Int64s, groups: Groups) -> Contents:
        """Return the contents of groups of elements.

        Times and rows (the indices of the elements) are in the order of the groups.
        """
        take = pa.array(rows)
        sorted_columns = {name: column.take(take) for name, column in columns.items()}
        return [function.accumulate(sorted_columns, times, groups) for function in self.functions]

    def added(self, elements: Elements, rows: Int64s, groups: Groups) -> Contents:
        """Return the contents of groups of elements or parts; `rows` are their indices, in the order of the groups."""
        if elements.counts is None:
            return self.accumulate(elements.columns, elements.timestamps[rows], rows, groups)
        take = pa.array(rows)
        return self.merge(self.of_columns([column.take(take) for column in elements.columns.values()]), groups)

    def merge(self, contents: Contents, groups: Groups) -> Contents:
        """Return the merged contents of each group. The value of a group with only one is unchanged, even if null."""
        multiple = groups.sizes > 1
        if not multiple.any():
            return contents
        if multiple.all():
            return [
                function.combine(array, groups).cast(array.type)
                for function, array in zip(self.functions, contents, strict=True)
            ]
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

    def merged_pairs(self, contents: Contents, others: Contents) -> Contents:
        """Merge each row's contents with those of the same row of `others`."""
        rows = len(contents[0])
        if not rows:
            return contents
        order = np.arange(2 * rows).reshape(2, -1).T.reshape(-1)
        pairs = Groups.of_sizes(np.full(rows, 2))
        return self.merge(taken(joined([contents, others]), order), pairs)

    def results(self, contents: Contents) -> list[pa.Array]:
        """Return the result columns, with a value for each window."""
        finished = [function.finish(array) for function, array in zip(self.functions, contents, strict=True)]
        parts = finished[0].flatten() if self.single else finished
        return [part.cast(field.type) for part, field in zip(parts, self.result, strict=True)]

    def empty(self) -> Contents:
        """Return the contents of no windows."""
        return [pa.array([], function.array_type) for function in self.functions]

    def columns(self, contents: Contents) -> list[pa.Array]:
        """Return contents as columns of state rows: the accumulators, then the remainders."""
        stored, rests = [], []
        for function, array in zip(self.functions, contents, strict=True):
            if function.rest_in_arrays:
                array, rest = array.flatten()
                # Most remainders are zero; nulls take no space.
                rests.append(pc.if_else(pc.equal(rest, 0), pa.scalar(None, rest.type), rest))
            elif function.rest_type is not None:
                rests.append(pa.nulls(len(array), function.rest_type))
            stored.append(array)
        return stored + rests

    def of_columns(self, columns: Sequence[pa.Array]) -> Contents:
        """Return contents from the columns that `columns` returned, without remainders that arrays can't hold."""
        rests = iter(columns[len(self.functions) :])
        contents = []
        for function, array in zip(self.functions, columns, strict=False):
            if function.rest_type is not None:
                rest = next(rests)
                if function.rest_in_arrays:
                    array = function.with_rest(array, rest)
            contents.append(array)
        return contents
