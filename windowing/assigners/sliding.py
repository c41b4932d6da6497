"""Windows of one size, a new one every slide: an element is in `size / slide` of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.windowing.assigners.base import AssignerContext, WindowAssigner
from tidegate.windowing.assigners.tumbling import checked_size_and_offset
from tidegate.windowing.errors import MissingTimestamp
from tidegate.windowing.time import Duration, Millis, positive_millis
from tidegate.windowing.triggers import EventTimeTrigger, ProcessingTimeTrigger, Trigger
from tidegate.windowing.windows import TimeWindow, aligned_window


def _windows_at(time: Millis, size: Millis, slide: Millis, offset: Millis) -> Sequence[TimeWindow]:
    """Every window that holds `time`, the latest start first; none where slide > size leaves a gap."""
    last = time - (time - offset) % slide
    return [aligned_window(start, size) for start in range(last, time - size, -slide)]


@dataclass(frozen=True, slots=True)
class SlidingEventTimeWindows(WindowAssigner):
    """Windows `[n * slide + offset, n * slide + offset + size)` of event time.

    Args:
        size: of a window, milliseconds (`of` takes a timedelta).
        slide: distance of their starts; more than `size` leaves gaps whose elements are in no window.
        offset: shifts all windows, |offset| < slide.

    Raises:
        IllegalArgument: size <= 0, slide <= 0 or |offset| >= slide.

    Source: Flink's `SlidingEventTimeWindows`.
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
    def of(cls, size: Duration, slide: Duration, offset: Duration = 0) -> SlidingEventTimeWindows:
        """The assigner; Flink's spelling."""
        return cls(positive_millis(size, "size"), *checked_size_and_offset(slide, offset, "slide"))

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        if timestamp is None:
            raise MissingTimestamp
        return _windows_at(timestamp, self.size, self.slide, self.offset)

    def get_default_trigger(self) -> Trigger:
        return EventTimeTrigger()

    @property
    def is_event_time(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class SlidingProcessingTimeWindows(WindowAssigner):
    """Windows `[n * slide + offset, n * slide + offset + size)` of processing time.

    Arguments and errors as `SlidingEventTimeWindows`. Source: Flink's `SlidingProcessingTimeWindows`.
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
    def of(cls, size: Duration, slide: Duration, offset: Duration = 0) -> SlidingProcessingTimeWindows:
        """The assigner; Flink's spelling."""
        return cls(positive_millis(size, "size"), *checked_size_and_offset(slide, offset, "slide"))

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        return _windows_at(ctx.current_processing_time, self.size, self.slide, self.offset)

    def get_default_trigger(self) -> Trigger:
        return ProcessingTimeTrigger()

    @property
    def is_event_time(self) -> bool:
        return False
