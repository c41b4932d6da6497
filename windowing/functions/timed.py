"""The aggregate function with timestamps, for aggregates such as first and last by time."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from tidegate.windowing.errors import UnsupportedOperation
from tidegate.windowing.functions.aggregate import AggregateFunction
from tidegate.windowing.time import Millis


class TimedAggregateFunction(AggregateFunction):
    """An `AggregateFunction` whose `add_at` gets the element's timestamp; operators call it instead of `add`."""

    takes_time = True

    @abstractmethod
    def add_at(self, value: Any, timestamp: Millis | None, accumulator: Any) -> Any:
        """Return the accumulator with one more element.

        Args:
            value: the element.
            timestamp: time of the element, int64 epoch milliseconds; None if it has none.
            accumulator: may be changed and returned.
        """

    def add(self, value: Any, accumulator: Any) -> Any:
        raise UnsupportedOperation(f"{type(self).__name__} needs the element's timestamp: call add_at")
