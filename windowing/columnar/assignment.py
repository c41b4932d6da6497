"""Which aligned windows many elements belong to."""

from __future__ import annotations

from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.assigners.arrays import Assigned, Assignment

__all__ = ["Assigned", "Assignment", "assignment_of", "windows_of_an_element"]


def assignment_of(assigner: WindowAssigner) -> Assignment | None:
    """How an assigner assigns windows by event time alone, None where it does not."""
    return assigner.array_assignment


def windows_of_an_element(assigner: WindowAssigner) -> int:
    """How many windows an element belongs to at most."""
    return 1 if assigner.window_grid is None else assigner.window_grid.windows_of_an_element
