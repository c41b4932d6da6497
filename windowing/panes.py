"""Panes: the firings of a window, what they are called, and when they are taken back.

A window may fire often. Each firing is a pane with a number that only grows, and with a timing:
early (before the end of the window), on time (its end), late (after). A window that fired and is
then extended or absorbed by a merge has its pane withdrawn, so that nothing counts twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.windows import Window


class Timing(Enum):
    """Where a firing lies relative to the end of its window."""

    EARLY = "early"
    ON_TIME = "on_time"
    LATE = "late"

    # Members are single objects, and Enum's own hash is Python code on the path of every firing.
    __hash__ = object.__hash__


class Accumulation(Enum):
    """How the panes of one window relate."""

    ACCUMULATING = "accumulating"
    """Each pane holds everything so far, and replaces the one before."""

    DISCARDING = "discarding"
    """Each pane holds what came since the one before."""

    RETRACTING = "retracting"
    """As accumulating, and each pane is preceded by the withdrawal of the one before."""


@dataclass(frozen=True, slots=True)
class PanePolicy:
    """What an operator does beyond Flink's plain firing.

    Args:
        accumulation: how the panes of a window relate; accumulating leaves purging to the trigger.
        withdraw_merged: whether panes of windows that are extended or absorbed are withdrawn.
        coalesce_late: whether late firings wait for the end of the source commit, at most one for
            each window and commit.
        closed_through: a window whose last millisecond is this or earlier was closed before, under whatever lateness it
            had then, and does not begin anew; int64 epoch milliseconds. One that is in the state goes on.
    """

    accumulation: Accumulation = Accumulation.ACCUMULATING
    withdraw_merged: bool = False
    coalesce_late: bool = False
    closed_through: Millis = MIN_TIMESTAMP


class EmittedPane(NamedTuple):
    """A pane that went out and was not withdrawn: what a withdrawal must repeat."""

    identity: Window
    window: Window
    pane: int
    timing: Timing
    value: Any
