"""Sessions: windows that grow while elements follow within a gap, and merge when they meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.windowing.assigners.base import AssignerContext, MergingWindowAssigner
from tidegate.windowing.errors import IllegalArgument, MissingTimestamp
from tidegate.windowing.time import Duration, Millis, positive_millis
from tidegate.windowing.triggers import EventTimeTrigger, ProcessingTimeTrigger, Trigger
from tidegate.windowing.windows import TimeWindow

GapExtractor = Callable[[Any], Millis]


@dataclass(frozen=True, slots=True)
class EventTimeSessionWindows(MergingWindowAssigner):
    """Sessions of event time: an element opens `[t, t + gap)`, and windows that touch are one.

    Args:
        gap: milliseconds (`with_gap` takes a timedelta).

    Raises:
        IllegalArgument: the gap is not greater than zero.

    Source: Flink's `EventTimeSessionWindows`.
    """

    gap: Millis

    def __post_init__(self) -> None:
        object.__setattr__(self, "gap", positive_millis(self.gap, "gap"))

    @classmethod
    def with_gap(cls, gap: Duration) -> EventTimeSessionWindows:
        """The assigner; Flink's spelling."""
        return cls(positive_millis(gap, "gap"))

    @staticmethod
    def with_dynamic_gap(gap_of: GapExtractor) -> DynamicEventTimeSessionWindows:
        """Sessions whose gap each element brings along."""
        return DynamicEventTimeSessionWindows(gap_of)

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        if timestamp is None:
            raise MissingTimestamp
        return (TimeWindow(timestamp, timestamp + self.gap),)

    def get_default_trigger(self) -> Trigger:
        return EventTimeTrigger()

    @property
    def is_event_time(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class ProcessingTimeSessionWindows(MergingWindowAssigner):
    """Sessions of processing time. Source: Flink's `ProcessingTimeSessionWindows`.

    Args:
        gap: milliseconds (`with_gap` takes a timedelta).

    Raises:
        IllegalArgument: the gap is not greater than zero.
    """

    gap: Millis

    def __post_init__(self) -> None:
        object.__setattr__(self, "gap", positive_millis(self.gap, "gap"))

    @classmethod
    def with_gap(cls, gap: Duration) -> ProcessingTimeSessionWindows:
        """The assigner; Flink's spelling."""
        return cls(positive_millis(gap, "gap"))

    @staticmethod
    def with_dynamic_gap(gap_of: GapExtractor) -> DynamicProcessingTimeSessionWindows:
        """Sessions whose gap each element brings along."""
        return DynamicProcessingTimeSessionWindows(gap_of)

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        now = ctx.current_processing_time
        return (TimeWindow(now, now + self.gap),)

    def get_default_trigger(self) -> Trigger:
        return ProcessingTimeTrigger()

    @property
    def is_event_time(self) -> bool:
        return False


def _gap(gap_of: GapExtractor, element: Any) -> Millis:
    gap = gap_of(element)
    if isinstance(gap, bool) or not isinstance(gap, int) or gap <= 0:
        raise IllegalArgument("gap", gap, f"the dynamic gap of {element!r} must be an int of milliseconds above zero")
    return gap


@dataclass(frozen=True, slots=True)
class DynamicEventTimeSessionWindows(MergingWindowAssigner):
    """Sessions of event time in which each element brings its own gap.

    Args:
        gap_of: the gap of an element, int milliseconds above zero.

    Source: Flink's `DynamicEventTimeSessionWindows`.
    """

    gap_of: GapExtractor

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        if timestamp is None:
            raise MissingTimestamp
        return (TimeWindow(timestamp, timestamp + _gap(self.gap_of, element)),)

    def get_default_trigger(self) -> Trigger:
        return EventTimeTrigger()

    @property
    def is_event_time(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class DynamicProcessingTimeSessionWindows(MergingWindowAssigner):
    """Sessions of processing time in which each element brings its own gap.

    Args:
        gap_of: the gap of an element, int milliseconds above zero.

    Source: Flink's `DynamicProcessingTimeSessionWindows`.
    """

    gap_of: GapExtractor

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        now = ctx.current_processing_time
        return (TimeWindow(now, now + _gap(self.gap_of, element)),)

    def get_default_trigger(self) -> Trigger:
        return ProcessingTimeTrigger()

    @property
    def is_event_time(self) -> bool:
        return False
