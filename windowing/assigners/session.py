"""Session windows, which grow while elements arrive within a gap, and merge when they overlap or touch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tidegate.windowing.assigners.base import AssignerContext, InTimeDomain, MergingWindowAssigner
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import (
    EVENT_TIME,
    LONGEST_DURATION,
    PROCESSING_TIME,
    Duration,
    Millis,
    positive_millis,
    show_duration,
)
from tidegate.windowing.windows import TimeWindow

GapExtractor = Callable[[Any], Millis]


@dataclass(frozen=True, slots=True)
class SessionWindows(InTimeDomain, MergingWindowAssigner):
    """Sessions of a time domain: an element opens the window `[t, t + gap)`, and windows that touch merge.

    Args:
        gap: pause that ends a session, milliseconds (`with_gap` takes a timedelta).

    Raises:
        IllegalArgument: the gap is not greater than zero.
    """

    gap: Millis

    def __post_init__(self) -> None:
        object.__setattr__(self, "gap", positive_millis(self.gap, "gap"))

    @classmethod
    def with_gap(cls, gap: Duration) -> Self:
        """Create the assigner, named as in Flink."""
        return cls(positive_millis(gap, "gap"))

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        time = self.time_of(timestamp, ctx)
        return (TimeWindow(time, time + self.gap),)

    @property
    def forms_sessions(self) -> bool:
        return self.domain is EVENT_TIME

    @property
    def longest_window(self) -> Millis:
        return self.gap

    @property
    def gap_of_every_element(self) -> Millis:
        return self.gap


@dataclass(frozen=True, slots=True)
class DynamicSessionWindows(InTimeDomain, MergingWindowAssigner):
    """Sessions of a time domain with a gap for each element.

    Args:
        gap_of: function from an element to its gap, an int of milliseconds above zero and at most 365,000 days.
    """

    gap_of: GapExtractor

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        time = self.time_of(timestamp, ctx)
        gap = self.gap_of(element)
        if isinstance(gap, bool) or not isinstance(gap, int) or not 0 < gap <= LONGEST_DURATION:
            raise IllegalArgument(
                "gap",
                gap,
                f"the dynamic gap of {element!r} must be an int of milliseconds, above zero and at most "
                f"{show_duration(LONGEST_DURATION)}",
            )
        return (TimeWindow(time, time + gap),)

    @property
    def reads_elements(self) -> bool:
        return self.column_of_gaps is None

    @property
    def needs_rows(self) -> str | None:
        if self.column_of_gaps is not None:
            return None
        return f"gap function {self.gap_of!r} takes elements one by one: a GapColumn has an array form"

    @property
    def forms_sessions(self) -> bool:
        return self.domain is EVENT_TIME


class DynamicEventTimeSessionWindows(DynamicSessionWindows):
    """Dynamic sessions of event time. Source: Flink's `DynamicEventTimeSessionWindows`."""

    domain = EVENT_TIME


class DynamicProcessingTimeSessionWindows(DynamicSessionWindows):
    """Dynamic sessions of processing time. Source: Flink's `DynamicProcessingTimeSessionWindows`."""

    domain = PROCESSING_TIME


class EventTimeSessionWindows(SessionWindows):
    """Sessions of event time. Source: Flink's `EventTimeSessionWindows`."""

    domain = EVENT_TIME

    @staticmethod
    def with_dynamic_gap(gap_of: GapExtractor) -> DynamicEventTimeSessionWindows:
        """Create sessions with a gap for each element."""
        return DynamicEventTimeSessionWindows(gap_of)


class ProcessingTimeSessionWindows(SessionWindows):
    """Sessions of processing time. Source: Flink's `ProcessingTimeSessionWindows`."""

    domain = PROCESSING_TIME

    @staticmethod
    def with_dynamic_gap(gap_of: GapExtractor) -> DynamicProcessingTimeSessionWindows:
        """Create sessions with a gap for each element."""
        return DynamicProcessingTimeSessionWindows(gap_of)


# Ingestion time equals processing time here: see the package.
IngestionTimeSessionWindows = ProcessingTimeSessionWindows
DynamicIngestionTimeSessionWindows = DynamicProcessingTimeSessionWindows
