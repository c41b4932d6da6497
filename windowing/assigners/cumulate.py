"""Cumulative windows: windows with a shared start that end one `step` apart, up to a maximum size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from tidegate.windowing.assigners.arrays import Assignment, WindowGrid
from tidegate.windowing.assigners.base import AssignerContext, InTimeDomain, WindowAssigner
from tidegate.windowing.assigners.tumbling import checked_size_and_offset
from tidegate.windowing.errors import IllegalArgument, MissingTimestamp
from tidegate.windowing.time import EVENT_TIME, PROCESSING_TIME, Duration, Millis, positive_millis
from tidegate.windowing.windows import TimeWindow


@dataclass(frozen=True, slots=True)
class CumulateWindows(InTimeDomain, WindowAssigner):
    """Cumulative windows of a time domain: `[n * max_size + offset, n * max_size + offset + k * step)`, k = 1, 2, ...

    The longest window lasts `max_size`. An element is in each window that ends after it: the day so far, hour by hour.

    Args:
        max_size: size of the longest window, milliseconds (`of` takes a timedelta).
        step: distance between the ends of two windows; `max_size` is a multiple of it.
        offset: shift of all windows, |offset| < max_size.

    Raises:
        IllegalArgument: max_size <= 0, step <= 0, max_size is not a multiple of step, or |offset| >= max_size.
    """

    max_size: Millis
    step: Millis
    offset: Millis = 0

    def __post_init__(self) -> None:
        max_size, offset = checked_size_and_offset(self.max_size, self.offset, "max_size")
        step = positive_millis(self.step, "step")
        if max_size % step:
            raise IllegalArgument("step", self.step, f"give a step that divides the max_size ({max_size} ms)")
        object.__setattr__(self, "max_size", max_size)
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "offset", offset)

    @classmethod
    def of(cls, max_size: Duration, step: Duration, offset: Duration = 0) -> Self:
        """Create the assigner; lengths are timedeltas or milliseconds."""
        max_millis, shift = checked_size_and_offset(max_size, offset, "max_size")
        return cls(max_millis, positive_millis(step, "step"), shift)

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        # The latest end comes first.
        time = timestamp if self.domain is EVENT_TIME else ctx.current_processing_time
        if time is None:
            raise MissingTimestamp
        start = time - (time - self.offset) % self.max_size
        return [TimeWindow(start, end) for end in range(start + self.max_size, time, -self.step)]

    @property
    def needs_rows(self) -> None:
        return None

    @property
    def array_assignment(self) -> Assignment | None:
        return self.window_grid.assign if self.domain is EVENT_TIME else None

    @property
    def window_grid(self) -> WindowGrid:
        return WindowGrid(self.max_size, self.max_size, self.offset, self.step)


class CumulateEventTimeWindows(CumulateWindows):
    """Cumulative windows of event time. Source: Flink's window table-valued function `CUMULATE`."""

    __slots__ = ()

    domain = EVENT_TIME


class CumulateProcessingTimeWindows(CumulateWindows):
    """Cumulative windows of processing time. Source: Flink's window table-valued function `CUMULATE`."""

    __slots__ = ()

    domain = PROCESSING_TIME


# Ingestion time equals processing time here: see the package.
CumulateIngestionTimeWindows = CumulateProcessingTimeWindows
