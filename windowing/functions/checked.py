"""An aggregate function of user code, whose accumulators and results are checked against their declared types."""

from __future__ import annotations

from typing import Any

from tidegate.windowing.declared import checker, row_checker
from tidegate.windowing.functions.aggregate import AggregateFunction
from tidegate.windowing.time import Millis


def checked(function: AggregateFunction, column: str | None = None) -> AggregateFunction:
    """Return a function that checks what user code gives; the library's own functions need no check.

    Args:
        function: the function.
        column: name of the result column; None if a result is a whole row.
    """
    return function if type(function).__module__.startswith("tidegate.windowing.") else _Checked(function, column)


class _Checked(AggregateFunction):
    def __init__(self, function: AggregateFunction, column: str | None) -> None:
        self._function, self._column = function, column
        self.takes_time = function.takes_time  # type: ignore[misc]
        of_column = "" if column is None else f" of {column!r}"
        self._fit = checker(function.accumulator_type, f"accumulator{of_column}", function)
        self._fit_rest = checker(function.rest_type, f"rest of the accumulator{of_column}", function)
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
