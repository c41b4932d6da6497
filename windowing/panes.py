"""Panes: the firings of a window, their timing, and their retraction.

A window may fire several times. Each firing is a pane. Its number increases with each firing, and its timing is early
(before the end of the window), on time (at the end) or late (after the end). If a merge extends or absorbs a window
that has fired, the operator can retract the pane of that window, so that no element counts twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.windows import Window


class Timing(Enum):
    """Time of a firing relative to the end of its window."""

    EARLY = "early"
    ON_TIME = "on_time"
    LATE = "late"

    # Members are singletons, and Enum's own hash is Python code that would run at every firing.
    __hash__ = object.__hash__


class Accumulation(Enum):
    """Relation between the panes of a window."""

    ACCUMULATING = "accumulating"
    """Each pane holds all contents so far, and replaces the pane before it."""

    DISCARDING = "discarding"
    """Each pane holds only the elements that arrived since the pane before it."""

    RETRACTING = "retracting"
    """Each pane holds all contents so far. The operator first retracts the previous pane."""


@dataclass(frozen=True, slots=True)
class PanePolicy:
    """Options for firings that Flink does not have.

    Args:
        accumulation: relation between the panes of a window. With accumulating, only the trigger purges.
        retract_merged: True retracts the panes of windows that a merge extends or absorbs.
        coalesce_late: True delays late firings to the end of the source commit: one firing per window and commit.
        closed_through: int64 epoch milliseconds. A window whose last millisecond is at or before this time was closed
            earlier and is not opened again, even if the lateness is now larger. A window in the state stays open.
    """

    accumulation: Accumulation = Accumulation.ACCUMULATING
    retract_merged: bool = False
    coalesce_late: bool = False
    closed_through: Millis = MIN_TIMESTAMP

    def keeps_panes(self, merging: bool) -> bool:
        """Return True if windows keep their panes for retractions. `merging` is True if the windows may merge."""
        return self.accumulation is Accumulation.RETRACTING or (self.retract_merged and merging)


class EmittedPane(NamedTuple):
    """A pane that was emitted and not retracted. A retraction repeats its values."""

    identity: Window
    window: Window
    pane: int
    timing: Timing
    value: Any
