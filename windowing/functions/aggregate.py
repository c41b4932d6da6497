"""The aggregate function: incremental contents of a window, kept as a small accumulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import pyarrow as pa

from tidegate.windowing.facts import HasFacts, fact
from tidegate.windowing.time import Millis


class AggregateFunction(HasFacts, ABC):
    """Folds elements into an accumulator, and accumulators into one.

    Source: Flink's `AggregateFunction`.

    A subclass names the Arrow type of its accumulator, and of its result where results go to a
    table, so that snapshots are typed. Accumulators are values of those types: numbers, text, lists, dicts.

    The facts at the end have safe answers (windowing/facts.py); a function that knows better overrides them, such as
    `sees_order = False` in one whose result follows from the set of elements.
    """

    accumulator_type: pa.DataType | None = None
    result_type: pa.DataType | None = None
    takes_time: ClassVar[bool] = False
    """True if elements go to `add_at` instead of `add`: those of a `TimedAggregateFunction`."""
    rest_type: pa.DataType | None = None
    """Type of what an accumulator holds beyond `accumulator_type`: a snapshot has a column for it; None for nothing."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """A new accumulator, for a window without elements."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator with one element more; may change and return the same one."""

    def add_at(self, value: Any, timestamp: Millis | None, accumulator: Any) -> Any:
        """As `add`, with the element's timestamp, int64 epoch milliseconds; None without one."""
        return self.add(value, accumulator)

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

    # --- facts -------------------------------------------------------------------------------

    @property
    @fact
    def sees_order(self) -> bool:
        """True if the result depends on the order in which elements arrive."""
        return True

    @property
    @fact
    def has_array_form(self) -> bool:
        """True if the function works on arrays, as `VectorisedAggregate` describes."""
        return False
