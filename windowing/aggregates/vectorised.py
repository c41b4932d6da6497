"""Aggregates over arrays, for the columnar operator, which computes many windows at once.

Values are sorted, so that each group is one run. A built-in aggregate works on single values and on arrays, with the
same accumulators. User-defined aggregates can do the same.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

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
        starts: first row of each group, int64, ascending from 0.
        rows: number of rows of all groups.
    """

    starts: Int64s
    rows: int

    @classmethod
    def of_firsts(cls, first: Bools) -> Groups:
        """Create groups that begin at each row for which `first` is True. It must be True for row 0."""
        return cls(np.flatnonzero(first), len(first))

    @classmethod
    def of_sizes(cls, sizes: Int64s) -> Groups:
        """Create consecutive groups with these numbers of rows."""
        ends = np.cumsum(sizes)
        return cls(ends - sizes, int(ends[-1]) if len(ends) else 0)

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def ids(self) -> Int64s:
        """Index of each row's group, 0 to `len(groups) - 1`."""
        return np.repeat(np.arange(len(self.starts)), self.sizes)

    @cached_property
    def sizes(self) -> Int64s:
        """Number of rows of each group."""
        sizes = np.empty_like(self.starts)
        if len(sizes):
            np.subtract(self.starts[1:], self.starts[:-1], out=sizes[:-1])
            sizes[-1] = self.rows - self.starts[-1]
        return sizes

    @cached_property
    def lasts(self) -> Int64s:
        """Last row of each group."""
        return np.append(self.starts[1:], self.rows)[: len(self.starts)] - 1

    def sum(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Return the sum of each group, in the type of `values`. Integers wrap."""
        # As for single values, inf - inf is NaN, and a sum that is too large is inf.
        with np.errstate(invalid="ignore", over="ignore"):
            return np.add.reduceat(values, self.starts) if len(self) else values[:0]

    def min(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Return the smallest value of each group."""
        return np.minimum.reduceat(values, self.starts) if len(self) else values[:0]

    def max(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Return the largest value of each group. NaN is larger than any number."""
        return np.maximum.reduceat(values, self.starts) if len(self) else values[:0]

    def any(self, values: Bools) -> Bools:
        """Return a flag for each group: whether any of its rows is true."""
        # Checking all rows at once is much cheaper than checking each group.
        if not values.any():
            return np.zeros(len(self), np.bool_)
        return np.logical_or.reduceat(values, self.starts) if len(self) else values[:0]

    def all(self, values: Bools) -> Bools:
        """Return a flag for each group: whether all of its rows are true."""
        if values.all():
            return np.ones(len(self), np.bool_)
        return np.logical_and.reduceat(values, self.starts) if len(self) else values[:0]


class Hashed(NamedTuple):
    """A function of Arrow's hash aggregation, without its prefix `hash_`, and its column; None for `count_all`."""

    function: str
    column: pa.Array | None = None


class VectorisedAggregate(AggregateFunction):
    """An `AggregateFunction` that can also work on arrays, group by group.

    Both must agree: adding the values of a group one by one must give the accumulator that `accumulate` returns.
    Accumulators are Arrow arrays of `array_type`, which is `accumulator_type` if there is no remainder. A subclass must
    declare `accumulator_type` and `result_type`.

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
    """True if arrays can hold the remainder too. If False, accumulators with a remainder go to the row operator."""

    @property
    def array_type(self) -> pa.DataType:
        """Type of the arrays of accumulators: a struct of stored value and remainder, if there are remainders."""
        if not self.rest_in_arrays:
            return self.accumulator_type
        return pa.struct([("stored", self.accumulator_type), ("rest", self.rest_type)])

    def with_rest(self, stored: pa.Array, rest: pa.Array) -> pa.Array:
        """Return accumulators made of stored values and their remainders; a remainder is null if there is none."""
        return pa.StructArray.from_arrays([stored, rest], fields=list(self.array_type))

    @property
    def sees_order(self) -> bool:
        # The elements of a group come in no particular order.
        return False

    @property
    def has_array_form(self) -> bool:
        return True

    @abstractmethod
    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Int64s, groups: Groups) -> pa.Array:
        """Return the accumulator of each group of elements.

        Args:
            columns: the input columns by name, with a value for each element.
            timestamps: time of each element, int64 epoch milliseconds; in no particular order within a group.
            groups: the groups of elements.
        """

    def hashed(self, columns: Mapping[str, pa.Array]) -> Hashed | None:
        """Return how Arrow's hash aggregation gives the accumulators that `accumulate` returns.

        It needs no sorting. None, the default, if it can't give them exactly.
        """
        return None

    @abstractmethod
    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        """Return the merged accumulator of each group of accumulators."""

    @abstractmethod
    def finish(self, accumulators: pa.Array) -> pa.Array:
        """Return the result of each accumulator."""


class ExactlyMerging(VectorisedAggregate):
    """A `VectorisedAggregate` whose result is the same if partial accumulators are merged, in any order.

    By default, an accumulator is the result.
    """

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def finish(self, accumulators: pa.Array) -> pa.Array:
        return accumulators

    @property
    def merges_exactly(self) -> bool:
        return True


def valid_of(values: pa.Array) -> Bools:
    """Return a flag for each value: whether it is not null."""
    if not values.null_count:
        return np.ones(len(values), np.bool_)
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False))


def masked(values: npt.NDArray[np.generic], valid: Bools, kind: pa.DataType) -> pa.Array:
    """Return an Arrow array of this type, with null in place of each invalid value."""
    mask = None if valid.all() else ~valid
    return pa.array(values, mask=mask).cast(kind)
