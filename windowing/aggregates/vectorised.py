"""Aggregates over arrays: many windows at once, for the columnar operator.

Values come sorted so that each group is one run. A built-in aggregate has both forms, one value at a
time and vectorised, and both give the same accumulators; so can an aggregate of your own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.windowing.functions.aggregate import AggregateFunction

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True)
class Groups:
    """Runs of rows that belong together; no run is empty.

    Args:
        starts: row at which each group begins, rising from 0; int64, one for each group.
        rows: number of rows of all groups.
    """

    starts: Int64s
    rows: int

    @classmethod
    def of_firsts(cls, first: Bools) -> Groups:
        """Groups that begin wherever `first` is true; it must be true at row 0."""
        return cls(np.flatnonzero(first), len(first))

    @classmethod
    def of_sizes(cls, sizes: Int64s) -> Groups:
        """Groups of these numbers of rows, one after the other."""
        ends = np.cumsum(sizes)
        return cls(ends - sizes, int(ends[-1]) if len(ends) else 0)

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def ids(self) -> Int64s:
        """The group of each row, 0 to `len(groups) - 1`."""
        return np.repeat(np.arange(len(self.starts)), self.sizes)

    @cached_property
    def sizes(self) -> Int64s:
        """Number of rows of each group."""
        return np.diff(self.starts, append=self.rows)

    @property
    def lasts(self) -> Int64s:
        """The last row of each group."""
        return np.append(self.starts[1:], self.rows)[: len(self.starts)] - 1

    def sum(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Sum of each group, in the type of `values`; integers wrap."""
        with np.errstate(invalid="ignore"):  # inf - inf is NaN, as it is one by one
            return np.add.reduceat(values, self.starts) if len(self) else values[:0]

    def min(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Smallest value of each group."""
        return np.minimum.reduceat(values, self.starts) if len(self) else values[:0]

    def max(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Largest value of each group; NaN is larger than any number."""
        return np.maximum.reduceat(values, self.starts) if len(self) else values[:0]

    def any(self, values: Bools) -> Bools:
        """Whether any row of each group is true."""
        return np.logical_or.reduceat(values, self.starts) if len(self) else values[:0]

    def all(self, values: Bools) -> Bools:
        """Whether every row of each group is true."""
        return np.logical_and.reduceat(values, self.starts) if len(self) else values[:0]


class VectorisedAggregate(AggregateFunction):
    """An `AggregateFunction` that can also work on arrays, group by group.

    Both forms must agree: folding a group's values one by one gives the accumulator that `accumulate`
    gives. Accumulators are Arrow arrays of `array_type`, which is `accumulator_type` unless there is a
    rest. That has to be declared, as has `result_type`.

    Example:
        >>> import pyarrow as pa, pyarrow.compute as pc, numpy as np
        >>> class Longest(VectorisedAggregate):
        ...     accumulator_type = result_type = pa.int64()
        ...
        ...     def create_accumulator(self):
        ...         return 0
        ...
        ...     def add(self, value, accumulator):
        ...         return max(accumulator, len(value["name"]))
        ...
        ...     merge = staticmethod(max)
        ...
        ...     def get_result(self, accumulator):
        ...         return accumulator
        ...
        ...     def accumulate(self, columns, timestamps, groups):
        ...         return pa.array(groups.max(pc.utf8_length(columns["name"]).to_numpy()), pa.int64())
        ...
        ...     def combine(self, accumulators, groups):
        ...         return pa.array(groups.max(accumulators.to_numpy()), pa.int64())
        ...
        ...     def finish(self, accumulators):
        ...         return accumulators
        >>> Longest().accumulate({"name": pa.array(["a", "bcd", "ef"])}, None, Groups(np.array([0, 2]), 3)).to_pylist()
        [3, 2]
    """

    rest_in_arrays: bool = False
    """Whether arrays hold the rest too; else what has one goes through the row operator."""

    @property
    def array_type(self) -> pa.DataType:
        """Type of the arrays of accumulators: with the rest beside what is stored, if arrays hold it."""
        if not self.rest_in_arrays:
            return self.accumulator_type
        return pa.struct([("stored", self.accumulator_type), ("rest", self.rest_type)])

    def with_rest(self, stored: pa.Array, rest: pa.Array) -> pa.Array:
        """Accumulators of what is stored and its rest, each null where there is none."""
        return pa.StructArray.from_arrays([stored, rest], fields=list(self.array_type))

    @property
    def sees_order(self) -> bool:
        # The elements of a group come in no order.
        return False

    @property
    def has_array_form(self) -> bool:
        return True

    @abstractmethod
    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        """The accumulator of each group of elements.

        Args:
            columns: the input columns by name, one value for each element.
            timestamps: int64 epoch milliseconds of each element; in no order within a group.
            groups: which elements belong together.
        """

    @abstractmethod
    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        """The accumulator of each group of accumulators."""

    @abstractmethod
    def finish(self, accumulators: pa.Array) -> pa.Array:
        """The result for each accumulator."""


def valid_of(values: pa.Array) -> Bools:
    """Which values are not null."""
    if not values.null_count:
        return np.ones(len(values), np.bool_)
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False))


def masked(values: npt.NDArray[np.generic], valid: Bools, kind: pa.DataType) -> pa.Array:
    """An Arrow array of a type, null where not valid."""
    mask = None if valid.all() else ~valid
    return pa.array(values, mask=mask).cast(kind)
