"""The aligned windows that many elements belong to, as their assigner gives them."""

from __future__ import annotations

from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.assigners.arrays import Assigned, Assignment

__all__ = ["Assigned", "Assignment", "assignment_of", "windows_of_an_element"]


def assignment_of(assigner: WindowAssigner) -> Assignment | None:
    """Return the assignment of windows by event time alone, None if an assigner needs more."""
    return assigner.array_assignment


def windows_of_an_element(assigner: WindowAssigner) -> int:
    """Return the number of windows that an element belongs to at most."""
    return 1 if assigner.window_grid is None else assigner.window_grid.windows_of_an_element
