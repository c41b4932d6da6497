"""A user's own aggregate in both forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates import Groups, VectorisedAggregate


class Longest(VectorisedAggregate):
    """The length of the longest text of a column, or 0 if it has only nulls."""

    accumulator_type = pa.int64()
    result_type = pa.struct([("longest", pa.int64())])

    def __init__(self, column: str) -> None:
        self._column = column

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return max(accumulator, len(value[self._column] or ""))

    def merge(self, accumulator: int, other: int) -> int:
        return max(accumulator, other)

    def get_result(self, accumulator: int) -> dict[str, int]:
        return {"longest": accumulator}

    def accumulate(self, columns: Mapping[str, pa.Array], timestamps: Any, groups: Groups) -> pa.Array:
        lengths = pc.utf8_length(columns[self._column].fill_null("")).cast(pa.int64())
        return pa.array(groups.max(lengths.to_numpy()))

    def combine(self, accumulators: pa.Array, groups: Groups) -> pa.Array:
        return pa.array(groups.max(accumulators.to_numpy()))

    def finish(self, accumulators: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays([accumulators], fields=list(self.result_type))


class LongestInParts(Longest):
    """The same, but it says that parts of a window merge exactly."""

    merges_exactly = True
