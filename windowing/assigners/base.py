"""Contract of assigners, which put each element into windows, and the assigner of the global window.

Source: Flink's `WindowAssigner` and `MergingWindowAssigner`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tidegate.windowing.assigners.arrays import Assignment, WindowGrid
from tidegate.windowing.errors import MissingTimestamp, UnsupportedOperation
from tidegate.windowing.facts import HasFacts, fact
from tidegate.windowing.time import EVENT_TIME, Millis, TimeDomain
from tidegate.windowing.triggers import (
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    Trigger,
)
from tidegate.windowing.windows import GLOBAL_WINDOW, GlobalWindow, Merge, TimeWindow, Window, merge_time_windows


@dataclass(frozen=True, slots=True)
class GapColumn:
    """Takes each element's gap from a column that holds positive integers, in milliseconds.

    Unlike a user's function, it compares by value, declares which column it needs, and works on arrays.

    Example:
        >>> from tidegate.windowing.assigners import EventTimeSessionWindows
        >>> assigner = EventTimeSessionWindows.with_dynamic_gap(GapColumn("patience"))
        >>> [tuple(window) for window in assigner.assign_windows({"patience": 30}, 5, None)]
        [(5, 35)]
    """

    column: str

    def __call__(self, element: Any) -> Millis:
        gap: Millis = element[self.column]
        return gap


class AssignerContext(Protocol):
    """The clock for an assigner, int64 epoch milliseconds."""

    current_processing_time: Millis


class _NoClock:
    current_processing_time: Millis = 0


NO_CLOCK: AssignerContext = _NoClock()
"""Clock for assigners of event-time windows, which don't read it."""


class WindowAssigner(HasFacts, ABC):
    """An assigner, which puts each element into zero or more windows. Subclasses are frozen dataclasses.

    The facts at the end have safe answers (windowing/facts.py). An assigner with a better answer overrides them.
    """

    @abstractmethod
    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[Window]:
        """Return the windows of an element.

        Args:
            element: value of the element.
            timestamp: event time of the element, int64 epoch milliseconds; None if the element has no timestamp.
            ctx: the clock.

        Raises:
            MissingTimestamp: the assigner works in event time and `timestamp` is None.
        """

    @abstractmethod
    def get_default_trigger(self) -> Trigger:
        """Return the default trigger for windows."""

    @property
    @abstractmethod
    def is_event_time(self) -> bool:
        """True if windows end by the watermark; False if they end by the clock."""

    @property
    def merges(self) -> bool:
        """True if windows may merge, as those of a `MergingWindowAssigner` do."""
        return False

    @property
    def is_global(self) -> bool:
        """True if all elements of a key are in the global window, which never ends."""
        return False

    @property
    def column_of_gaps(self) -> str | None:
        """Input column with the session gaps if the field `gap_of` is a `GapColumn`; otherwise None."""
        gap_of = getattr(self, "gap_of", None)
        # A user's subclass may compute a different gap from the column.
        if isinstance(gap_of, GapColumn) and type(gap_of).__call__ is GapColumn.__call__:
            return gap_of.column
        return None

    @property
    def stagger_offset(self) -> Millis | None:
        """The chosen stagger in milliseconds; None before it is chosen, and for windows without a stagger."""
        return None

    def staggered(self, clock: Millis) -> WindowAssigner:
        """Return this assigner with its stagger chosen, or itself if that has been done or it has no stagger.

        Args:
            clock: processing time, int64 epoch milliseconds.
        """
        return self

    def with_stagger(self, offset: Millis) -> WindowAssigner:
        """Return this assigner with a stagger that was chosen earlier, or itself if its windows have no stagger."""
        return self

    # --- facts -------------------------------------------------------------------------------

    @property
    @fact
    def sees_order(self) -> bool:
        """True if windows may depend on more than an element and its event time, such as earlier elements."""
        return True

    @property
    @fact
    def reads_elements(self) -> bool:
        """True if windows may depend on any column of an element other than `column_of_gaps`."""
        return True

    @property
    @fact
    def needs_rows(self) -> str | None:
        """Reason why the columnar operator can't assign these windows; None if it can."""
        return f"{type(self).__name__} has no array form"

    @property
    @fact
    def array_assignment(self) -> Assignment | None:
        """Function that assigns many elements by event time alone; None if windows merge or depend on anything else."""
        return None

    @property
    @fact
    def window_grid(self) -> WindowGrid | None:
        """Regular grid of all windows; None if the windows form no grid."""
        return None

    @property
    @fact
    def forms_sessions(self) -> bool:
        """True if each element opens a window of event time, and windows that touch become a session."""
        return False

    @property
    @fact
    def longest_window(self) -> Millis | None:
        """Length of the longest window that an element opens, milliseconds; None if an element decides it.

        Each window of an element contains its time. If this is None, the operator checks each window of an element.
        """
        return None

    @property
    @fact
    def gap_of_every_element(self) -> Millis | None:
        """Session gap, milliseconds, if it is the same for all elements; otherwise None."""
        return None


def draw_stagger(assigner: WindowAssigner, clock: Millis) -> WindowAssigner:
    """Return the assigner with its stagger chosen, after checking that a snapshot can restore the same windows.

    Args:
        assigner: the assigner.
        clock: processing time, int64 epoch milliseconds.

    Raises:
        UnsupportedOperation: a user's class chooses a stagger that its `stagger_offset` and `with_stagger` don't
            preserve.
    """
    drawn = assigner.staggered(clock)
    offset = drawn.stagger_offset
    restored = assigner if offset is None else assigner.with_stagger(offset)
    # A class that is not a dataclass has no equality to compare by.
    if drawn != restored and (offset is None or type(drawn).__eq__ is not object.__eq__):
        raise UnsupportedOperation(
            f"assigner {drawn!r}, which `staggered` of {assigner!r} returned, would have different windows after a "
            f"restore: "
            f"its stagger_offset is {offset}, from which a restore makes {restored!r}. Keep everything that "
            "`staggered` draws in stagger_offset, as milliseconds"
        )
    return drawn


class MergingWindowAssigner(WindowAssigner):
    """An assigner whose windows may merge, such as sessions."""

    @property
    def merges(self) -> bool:
        return True

    def merge_windows(self, windows: Collection[TimeWindow]) -> list[Merge]:
        """Return the merges of windows. By default, windows that overlap or touch merge."""
        return merge_time_windows(windows)


class InTimeDomain(WindowAssigner):
    """Base of assigners for both time domains. Each public class sets the domain; the rest follows from it."""

    domain: ClassVar[TimeDomain]

    @property
    def sees_order(self) -> bool:
        """True if windows depend on the clock, and so on when an element arrives."""
        return self.domain is not EVENT_TIME

    @property
    def reads_elements(self) -> bool:
        return False

    @property
    def is_event_time(self) -> bool:
        """True if windows end by the watermark; False if they end by the clock."""
        return self.domain is EVENT_TIME

    def time_of(self, timestamp: Millis | None, ctx: AssignerContext) -> Millis:
        """Return the time that determines an element's windows: its timestamp or the clock.

        Raises:
            MissingTimestamp: the domain is event time, and the element has no timestamp.
        """
        time = timestamp if self.domain is EVENT_TIME else ctx.current_processing_time
        if time is None:
            raise MissingTimestamp
        return time

    @property
    def needs_rows(self) -> str | None:
        return None

    @property
    def array_assignment(self) -> Assignment | None:
        return None if self.window_grid is None or self.domain is not EVENT_TIME else self.window_grid.assign

    def get_default_trigger(self) -> Trigger:
        """Return the trigger that fires at the end of a window."""
        return EventTimeTrigger() if self.domain is EVENT_TIME else ProcessingTimeTrigger()


@dataclass(frozen=True, slots=True)
class GlobalWindows(WindowAssigner):
    """Assigner that puts every element of a key into the global window. Source: Flink's `GlobalWindows`.

    Args:
        end_of_stream: True makes the default trigger fire at the end of input. False makes it never fire.
    """

    end_of_stream: bool = False

    @classmethod
    def create(cls) -> GlobalWindows:
        """Create the assigner whose default trigger never fires, named as in Flink."""
        return cls()

    @classmethod
    def create_with_end_of_stream_trigger(cls) -> GlobalWindows:
        """Create the assigner whose default trigger fires at the end of input, named as in Flink."""
        return cls(end_of_stream=True)

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[GlobalWindow]:
        return (GLOBAL_WINDOW,)

    def get_default_trigger(self) -> Trigger:
        return EndOfStreamTrigger() if self.end_of_stream else NeverTrigger()

    @property
    def reads_elements(self) -> bool:
        return False

    @property
    def is_event_time(self) -> bool:
        return False

    @property
    def is_global(self) -> bool:
        return True

    @property
    def longest_window(self) -> Millis:
        return 0
