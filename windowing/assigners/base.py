"""The assigner's contract: it puts each element into windows.

Source: Flink's `WindowAssigner` and `MergingWindowAssigner`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Protocol

from tidegate.windowing.assigners.arrays import Assignment, WindowGrid
from tidegate.windowing.assigners.gap_column import GapColumn
from tidegate.windowing.facts import HasFacts, fact
from tidegate.windowing.time import Millis
from tidegate.windowing.time_domain import EVENT_TIME, TimeDomain
from tidegate.windowing.triggers import EventTimeTrigger, ProcessingTimeTrigger, Trigger
from tidegate.windowing.windows import Merge, TimeWindow, Window, merge_time_windows


class AssignerContext(Protocol):
    """The clock, which an assigner may know besides the element."""

    current_processing_time: Millis


class WindowAssigner(HasFacts, ABC):
    """Puts each element into zero or more windows. Subclasses are frozen dataclasses.

    The facts at the end have safe answers (windowing/facts.py); an assigner that knows better overrides them.
    """

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
        """True if windows end by the watermark (else by the clock)."""

    @property
    def merges(self) -> bool:
        """True if windows may merge; those of a `MergingWindowAssigner` do."""
        return False

    @property
    def is_global(self) -> bool:
        """True if all elements of a key are in the one global window, which never ends."""
        return False

    @property
    def column_of_gaps(self) -> str | None:
        """The column of the input that the assigner takes gaps from: that of a `GapColumn` in its field `gap_of`."""
        gap_of = getattr(self, "gap_of", None)
        return gap_of.column if isinstance(gap_of, GapColumn) else None

    @property
    def stagger_offset(self) -> Millis | None:
        """The stagger of the windows, milliseconds; None while it is not drawn, or if windows have none."""
        return None

    def staggered(self, clock: Millis) -> WindowAssigner:
        """This assigner with its stagger drawn; itself if it was drawn before or there is none.

        Args:
            clock: processing time, int64 epoch milliseconds.
        """
        return self

    def with_stagger(self, offset: Millis) -> WindowAssigner:
        """This assigner with a stagger that was drawn before; itself if its windows can't be staggered."""
        return self

    # --- facts -------------------------------------------------------------------------------

    @property
    @fact
    def sees_order(self) -> bool:
        """True if windows may depend on more than an element and its event time, such as what came before it."""
        return True

    @property
    @fact
    def needs_rows(self) -> str | None:
        """The reason for which the columnar operator can't assign these windows, in words; None if it can."""
        return f"{type(self).__name__} has no array form"

    @property
    @fact
    def array_assignment(self) -> Assignment | None:
        """The windows of many elements by event time alone; None if they depend on more, or merge."""
        return None

    @property
    @fact
    def window_grid(self) -> WindowGrid | None:
        """The regular grid that all windows lie on; None where there is none."""
        return None

    @property
    @fact
    def forms_sessions(self) -> bool:
        """True if each element opens a window of event time by itself, and windows that touch are one session."""
        return False

    @property
    @fact
    def gap_of_every_element(self) -> Millis | None:
        """The gap of sessions, milliseconds, where it is the same for all elements."""
        return None


class MergingWindowAssigner(WindowAssigner):
    """An assigner whose windows may merge, such as sessions."""

    @property
    def merges(self) -> bool:
        return True

    def merge_windows(self, windows: Collection[TimeWindow]) -> list[Merge]:
        """The merges of windows; by default those that overlap or touch become one."""
        return merge_time_windows(windows)


class InTimeDomain:
    """The part of an assigner that follows from its time domain, which each public class fixes."""

    __slots__ = ()

    domain: ClassVar[TimeDomain]

    @property
    def sees_order(self) -> bool:
        """True if windows depend on the clock, and so on when an element comes."""
        return self.domain is not EVENT_TIME

    @property
    def is_event_time(self) -> bool:
        """True if windows end by the watermark (else by the clock)."""
        return self.domain is EVENT_TIME

    def get_default_trigger(self) -> Trigger:
        """The trigger that fires at the end of a window."""
        return EventTimeTrigger() if self.domain is EVENT_TIME else ProcessingTimeTrigger()
