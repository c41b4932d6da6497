"""Which aligned windows many elements belong to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.assigners import (
    Calendar,
    CalendarEventTimeWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from tidegate.windowing.assigners.stagger import WindowStagger
from tidegate.windowing.epochs.arrays import ParallelArrays

_DAY = 86_400_000


@dataclass(frozen=True, kw_only=True)
class Assigned(ParallelArrays):
    """Elements and their windows, an element once for each window; of one element the first window first.

    Args:
        rows: the element.
        starts: of the window, int64 epoch milliseconds.
        ends: of the window, not included.
    """

    rows: Int64s
    starts: Int64s
    ends: Int64s


Assignment: TypeAlias = Callable[[Int64s], Assigned]
"""From timestamps to windows."""


def assignment_of(assigner: WindowAssigner) -> Assignment | None:
    """How an assigner assigns windows by event time alone, None where it does not."""
    match assigner:
        case TumblingEventTimeWindows(size, offset, stagger, _, drawn):
            if stagger is not WindowStagger.ALIGNED and drawn is None:
                return None
            return lambda timestamps: _tumbling(timestamps, size, offset + (drawn or 0))
        case CalendarEventTimeWindows(calendar):
            return lambda timestamps: _calendar(timestamps, calendar)
        case SlidingEventTimeWindows(size, slide, offset):
            return lambda timestamps: _sliding(timestamps, size, slide, offset)
        case _:
            return None


def windows_of_an_element(assigner: WindowAssigner) -> int:
    """How many windows an element belongs to at most."""
    return -(-assigner.size // assigner.slide) if isinstance(assigner, SlidingEventTimeWindows) else 1


def _tumbling(timestamps: Int64s, size: int, offset: int) -> Assigned:
    starts = timestamps - (timestamps - offset) % size
    return Assigned(rows=np.arange(len(timestamps)), starts=starts, ends=starts + size)


def _calendar(timestamps: Int64s, calendar: Calendar) -> Assigned:
    # A period is at least a local day, so the windows of an UTC day are few, and one after the other.
    windows = set()
    for day in np.unique(timestamps // _DAY).tolist():
        window = calendar.window_at(day * _DAY)
        windows.add(window)
        while window.end < (day + 1) * _DAY:
            window = calendar.window_at(window.end)
            windows.add(window)
    bounds = np.array(sorted(windows), np.int64).reshape(-1, 2)
    places = np.searchsorted(bounds[:, 0], timestamps, side="right") - 1
    return Assigned(rows=np.arange(len(timestamps)), starts=bounds[places, 0], ends=bounds[places, 1])


def _sliding(timestamps: Int64s, size: int, slide: int, offset: int) -> Assigned:
    last = timestamps - (timestamps - offset) % slide
    starts = last[:, None] - np.arange(-(-size // slide)) * slide
    rows, places = np.nonzero(starts > (timestamps - size)[:, None])
    chosen = starts[rows, places]
    return Assigned(rows=rows, starts=chosen, ends=chosen + size)
