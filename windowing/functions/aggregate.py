"""The aggregate function: incremental contents of a window, kept as a small accumulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa


class AggregateFunction(ABC):
    """Folds elements into an accumulator, and accumulators into one.

    Source: Flink's `AggregateFunction`.

    A subclass names the Arrow type of its accumulator, and of its result where results go to a
    table, so that snapshots are typed. Accumulators are values of those types: numbers, text, lists, dicts.
    """

    accumulator_type: pa.DataType | None = None
    result_type: pa.DataType | None = None
    rest_type: pa.DataType | None = None
    """Type of what an accumulator holds beyond `accumulator_type`: a snapshot has a column for it; None for nothing."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """A new accumulator, for a window without elements."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator with one element more; may change and return the same one."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """The result for an accumulator, which stays as it is."""

    @abstractmethod
    def merge(self, accumulator: Any, other: Any) -> Any:
        """The accumulator of both; windows that merge call this."""

    def stored(self, accumulator: Any) -> tuple[Any, Any]:
        """An accumulator as a value of `accumulator_type` and its rest, None where that is nothing."""
        return accumulator, None

    def restored(self, value: Any, rest: Any) -> Any:
        """The accumulator of what `stored` gave; the rest is None in snapshots from before there was one."""
        return value
