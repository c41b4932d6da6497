"""Sliding windows: windows of a fixed size, with a new window every `slide`. They may overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from tidegate.windowing.assigners.arrays import Assignment, WindowGrid
from tidegate.windowing.assigners.base import AssignerContext, InTimeDomain, WindowAssigner
from tidegate.windowing.assigners.tumbling import checked_size_and_offset
from tidegate.windowing.errors import MissingTimestamp
from tidegate.windowing.time import EVENT_TIME, PROCESSING_TIME, Duration, Millis, positive_millis
from tidegate.windowing.windows import TimeWindow, aligned_window


@dataclass(frozen=True, slots=True)
class SlidingWindows(InTimeDomain, WindowAssigner):
    """Sliding windows of a time domain: `[n * slide + offset, n * slide + offset + size)`.

    Args:
        size: size of a window, milliseconds (`of` takes a timedelta).
        slide: distance between the starts of two windows. If it is larger than `size`, elements in the gaps between
            windows are in no window.
        offset: shift of all windows, |offset| < slide.

    Raises:
        IllegalArgument: size <= 0, slide <= 0 or |offset| >= slide.
    """

    size: Millis
    slide: Millis
    offset: Millis = 0

    def __post_init__(self) -> None:
        slide, offset = checked_size_and_offset(self.slide, self.offset, "slide")
        object.__setattr__(self, "size", positive_millis(self.size, "size"))
        object.__setattr__(self, "slide", slide)
        object.__setattr__(self, "offset", offset)

    @classmethod
    def of(cls, size: Duration, slide: Duration, offset: Duration = 0) -> Self:
        """Create the assigner, named as in Flink."""
        return cls(positive_millis(size, "size"), *checked_size_and_offset(slide, offset, "slide"))

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        # The latest start comes first. A slide larger than the size leaves gaps without a window.
        time = timestamp if self.domain is EVENT_TIME else ctx.current_processing_time
        if time is None:
            raise MissingTimestamp
        size, slide = self.size, self.slide
        last = time - (time - self.offset) % slide
        return [aligned_window(start, size) for start in range(last, time - size, -slide)]

    @property
    def needs_rows(self) -> None:
        return None

    @property
    def array_assignment(self) -> Assignment | None:
        return self.window_grid.assign if self.domain is EVENT_TIME else None

    @property
    def window_grid(self) -> WindowGrid:
        return WindowGrid(self.size, self.slide, self.offset)


class SlidingEventTimeWindows(SlidingWindows):
    """Sliding windows of event time. Source: Flink's `SlidingEventTimeWindows`."""

    __slots__ = ()

    domain = EVENT_TIME


class SlidingProcessingTimeWindows(SlidingWindows):
    """Sliding windows of processing time. Source: Flink's `SlidingProcessingTimeWindows`."""

    __slots__ = ()

    domain = PROCESSING_TIME


# Ingestion time equals processing time here: see the package.
SlidingIngestionTimeWindows = SlidingProcessingTimeWindows
