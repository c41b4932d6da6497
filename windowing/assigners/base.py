"""Which windows an element belongs to: the assigner's contract.

Source: Flink's `WindowAssigner` and `MergingWindowAssigner`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Protocol

from tidegate.windowing.time import Millis
from tidegate.windowing.time_domain import EVENT_TIME, TimeDomain
from tidegate.windowing.triggers import EventTimeTrigger, ProcessingTimeTrigger, Trigger
from tidegate.windowing.windows import Merge, TimeWindow, Window, merge_time_windows


class AssignerContext(Protocol):
    """What an assigner may know besides the element."""

    current_processing_time: Millis


class WindowAssigner(ABC):
    """Puts each element into zero or more windows. Subclasses are frozen dataclasses."""

    @abstractmethod
    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[Window]:
        """The windows of an element.

        Args:
            element: the element's value.
            timestamp: int64 epoch milliseconds, or None if it has none.
            ctx: gives the clock.

        Raises:
            MissingTimestamp: the assigner works in event time and `timestamp` is None.
        """

    @abstractmethod
    def get_default_trigger(self) -> Trigger:
        """The trigger of windows for which no other is given."""

    @property
    @abstractmethod
    def is_event_time(self) -> bool:
        """Whether windows end by the watermark (else by the clock)."""


class MergingWindowAssigner(WindowAssigner):
    """An assigner whose windows may merge, such as sessions."""

    def merge_windows(self, windows: Collection[TimeWindow]) -> list[Merge]:
        """Which windows merge into which; by default those that overlap or touch."""
        return merge_time_windows(windows)


class InTimeDomain:
    """The part of an assigner that follows from its time domain, which each public class fixes."""

    __slots__ = ()

    domain: ClassVar[TimeDomain]

    @property
    def is_event_time(self) -> bool:
        """Whether windows end by the watermark (else by the clock)."""
        return self.domain is EVENT_TIME

    def get_default_trigger(self) -> Trigger:
        """The trigger that fires at the end of a window."""
        return EventTimeTrigger() if self.domain is EVENT_TIME else ProcessingTimeTrigger()
