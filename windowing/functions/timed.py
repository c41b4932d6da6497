"""An aggregate function that also sees when an element happened: first and last by time."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from tidegate.windowing.errors import UnsupportedOperation
from tidegate.windowing.functions.aggregate import AggregateFunction
from tidegate.windowing.time import Millis


class TimedAggregateFunction(AggregateFunction):
    """An `AggregateFunction` whose `add_at` is called with the element's timestamp in place of `add`."""

    takes_time = True

    @abstractmethod
    def add_at(self, value: Any, timestamp: Millis | None, accumulator: Any) -> Any:
        """The accumulator with one element more. `timestamp`: int64 epoch milliseconds, None without one."""

    def add(self, value: Any, accumulator: Any) -> Any:
        raise UnsupportedOperation(f"{type(self).__name__} needs the element's timestamp: call add_at")
