"""The aggregate function: it aggregates the contents of a window incrementally in a small accumulator.

Accumulators and results of user code are checked against their declared types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import pyarrow as pa

from tidegate.windowing.declared import checker, row_checker
from tidegate.windowing.errors import UnsupportedOperation
from tidegate.windowing.facts import HasFacts, fact
from tidegate.windowing.time import Millis


class AggregateFunction(HasFacts, ABC):
    """A function that folds elements into an accumulator, and merges accumulators.

    A subclass declares the Arrow type of its accumulator, so that snapshots are typed, and the type of its result if
    results go to a table. Accumulators are values of the declared type: numbers, strings, lists, dicts. Source: Flink's
    `AggregateFunction`.

    The facts at the end have safe answers (windowing/facts.py). A function with a better answer overrides them, such as
    `sees_order = False` in a function whose result depends only on the set of elements.
    """

    accumulator_type: pa.DataType | None = None
    result_type: pa.DataType | None = None
    takes_time: ClassVar[bool] = False
    """True if elements go to `add_at` instead of `add`: those of a `TimedAggregateFunction`."""
    rest_type: pa.DataType | None = None
    """Type of the remainder, the part of an accumulator that `accumulator_type` can't hold, in a snapshot; or None."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Return a new accumulator, for a window without elements."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Return the accumulator with one more element. It may change and return the given accumulator."""

    def add_at(self, value: Any, timestamp: Millis | None, accumulator: Any) -> Any:
        """Return the accumulator with one more element, given its timestamp (int64 epoch milliseconds, or None)."""
        return self.add(value, accumulator)

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Return the result of an accumulator. It must not change the accumulator."""

    @abstractmethod
    def merge(self, accumulator: Any, other: Any) -> Any:
        """Merge two accumulators into one. Called when windows merge."""

    def stored(self, accumulator: Any) -> tuple[Any, Any]:
        """Return an accumulator as a value of `accumulator_type` and its remainder, or None if there is none."""
        return accumulator, None

    def restored(self, value: Any, rest: Any) -> Any:
        """Return the accumulator from the pair that `stored` returned. Older snapshots have no remainder (None)."""
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

    @property
    @fact
    def merges_exactly(self) -> bool:
        """True if merging parts of a window gives the same result as adding all of its elements, in any order."""
        return False


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


def checked(function: AggregateFunction, column: str | None = None) -> AggregateFunction:
    """Return a function that checks values from user code; the library's own functions need no check.

    `column` is the result column in errors; None if a result is a whole row.
    """
    return function if type(function).__module__.startswith("tidegate.windowing.") else _Checked(function, column)


class _Checked(AggregateFunction):
    def __init__(self, function: AggregateFunction, column: str | None) -> None:
        self._function, self._column = function, column
        self.takes_time = function.takes_time  # type: ignore[misc]
        of_column = "" if column is None else f" of {column!r}"
        self._fit = checker(function.accumulator_type, f"accumulator{of_column}", function)
        self._fit_rest = checker(function.rest_type, f"remainder of the accumulator{of_column}", function)
        self._is_stored_otherwise = type(function).stored is not AggregateFunction.stored
        self._fit_result = (
            row_checker(function.result_type, function)
            if column is None
            else checker(function.result_type, f"result column {column!r}", function, takes_millis=True)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _Checked, (self._function, self._column)

    def create_accumulator(self) -> Any:
        return self._function.create_accumulator()

    def add(self, value: Any, accumulator: Any) -> Any:
        return self._fitting(self._function.add(value, accumulator))

    def add_at(self, value: Any, timestamp: Millis | None, accumulator: Any) -> Any:
        return self._fitting(self._function.add_at(value, timestamp, accumulator))

    def merge(self, accumulator: Any, other: Any) -> Any:
        return self._fitting(self._function.merge(accumulator, other))

    def get_result(self, accumulator: Any) -> Any:
        return self._fit_result(self._function.get_result(accumulator))

    def _fitting(self, accumulator: Any) -> Any:
        if not self._is_stored_otherwise:
            return self._fit(accumulator)
        value, rest = self._function.stored(accumulator)
        return self._function.restored(self._fit(value), self._fit_rest(rest))
