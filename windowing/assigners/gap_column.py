"""Gap of dynamic sessions from a column of the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class GapColumn:
    """Gap of each element from a column: milliseconds, an integer above zero.

    Unlike a function in user code, it compares by value, tells the plan which column it needs, and works on arrays.

    Example:
        >>> from tidegate.windowing.assigners import EventTimeSessionWindows
        >>> assigner = EventTimeSessionWindows.with_dynamic_gap(GapColumn("patience"))
        >>> [tuple(window) for window in assigner.assign_windows({"patience": 30}, 5, None)]
        [(5, 35)]
    """

    column: str

    def __call__(self, element: Any) -> Millis:
        gap: Millis = element[self.column]
        return gap
