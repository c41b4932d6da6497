"""Contract of triggers, which decide when a window fires.

A trigger is a value without state. Its context keeps the state of each key and window, and the timers. The hooks return
the action for the window. Source: Flink's `Trigger`, `TriggerResult` and `Trigger.TriggerContext`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from tidegate.windowing.errors import UnsupportedOperation
from tidegate.windowing.facts import HasFacts, fact
from tidegate.windowing.state.descriptors import StateDescriptor
from tidegate.windowing.time import Millis
from tidegate.windowing.windows import Window


class TriggerResult(Enum):
    """Action for a window that a hook returns to the operator."""

    CONTINUE = (False, False)
    FIRE = (True, False)
    PURGE = (False, True)
    FIRE_AND_PURGE = (True, True)

    def __init__(self, fire: bool, purge: bool) -> None:
        self.is_fire = fire
        self.is_purge = purge

    @staticmethod
    def of(*, fire: bool, purge: bool) -> TriggerResult:
        """Return the result that fires, purges, does both or neither."""
        return FIRE_AND_PURGE if fire and purge else FIRE if fire else PURGE if purge else CONTINUE


CONTINUE = TriggerResult.CONTINUE
FIRE = TriggerResult.FIRE
PURGE = TriggerResult.PURGE
FIRE_AND_PURGE = TriggerResult.FIRE_AND_PURGE


class TriggerContext(Protocol):
    """Clocks, timers and state of the current key and window, for hooks."""

    current_watermark: Millis
    current_processing_time: Millis

    def register_event_time_timer(self, time: Millis) -> None:
        """Register a call of `on_event_time` when the watermark reaches `time`."""

    def delete_event_time_timer(self, time: Millis) -> None:
        """Delete the event-time timer of `time`. Nothing happens if it is not registered."""

    def register_processing_time_timer(self, time: Millis) -> None:
        """Register a call of `on_processing_time` when the clock reaches `time`."""

    def delete_processing_time_timer(self, time: Millis) -> None:
        """Delete the processing-time timer of `time`. Nothing happens if it is not registered."""

    def get_partitioned_state(self, descriptor: StateDescriptor) -> Any:
        """Return the handle of a declared state."""


class OnMergeContext(TriggerContext, Protocol):
    """Context of `on_merge`. The current window is the result of the merge."""

    def merge_partitioned_state(self, descriptor: StateDescriptor) -> None:
        """Merge the state of the merged windows into the state of the result."""


def register_timer(event_time: bool, time: Millis, ctx: TriggerContext) -> None:
    """Register a timer of event time, or else of processing time."""
    (ctx.register_event_time_timer if event_time else ctx.register_processing_time_timer)(time)


def delete_timer(event_time: bool, time: Millis, ctx: TriggerContext) -> None:
    """Delete a timer of event time, or else of processing time."""
    (ctx.delete_event_time_timer if event_time else ctx.delete_processing_time_timer)(time)


@dataclass(frozen=True, slots=True)
class ArrayFiring:
    """Form in which arrays fire windows: at their end, and after it once for each commit with late elements.

    Args:
        interval: milliseconds. Windows also fire before their end, at each multiple of the interval; None if they
            don't.
        purges: True purges a window when it fires.
    """

    interval: Millis | None = None
    purges: bool = False


class Trigger(HasFacts, ABC):
    """A trigger, which decides when a window fires. Subclasses are frozen dataclasses, so they compare by their values.

    The facts at the end have safe answers (windowing/facts.py). A trigger with a better answer overrides them.
    """

    @abstractmethod
    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Handle an element that was added to the window. `timestamp` is None if the element has none."""

    def on_event_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Handle an event-time timer of the window, or its cleanup time."""
        return CONTINUE

    def on_processing_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Handle a processing-time timer of the window, or its cleanup time."""
        return CONTINUE

    def can_merge(self) -> bool:
        """Return True if the trigger supports merging windows, such as sessions."""
        return False

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        """Merge the state of the windows that merged into `window`, and register the timers that it needs."""
        raise UnsupportedOperation(f"{self!r} does not support merging windows: override can_merge and on_merge")

    @abstractmethod
    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """Delete the state and the timers of a window that is removed."""

    def states(self) -> Sequence[StateDescriptor]:
        """Return the states that the trigger keeps for a window, for the schema of snapshots."""
        return ()

    # --- facts -------------------------------------------------------------------------------

    @fact
    def may_lose_data(self, *, event_time: bool, lateness: Millis) -> bool:
        """Return True if a window may accept an element and be removed before a pane shows it.

        Args:
            event_time: True if the windows end by the watermark; False if they end by the clock.
            lateness: allowed lateness of the windows, milliseconds.
        """
        return True

    @property
    @fact
    def sees_order(self) -> bool:
        """True if firings depend on the order in which the elements of a window arrive."""
        return True

    @property
    @fact
    def reads_elements(self) -> bool:
        """True if firings may depend on the columns of an element."""
        return True

    @property
    @fact
    def may_purge_unfired(self) -> bool:
        """True if a hook may purge a window that it does not fire."""
        return True

    @property
    @fact
    def array_firing(self) -> ArrayFiring | None:
        """Form in which the columnar operator fires windows; None if it can't."""
        return None

    @property
    @fact
    def allows_split_commits(self) -> bool:
        """True if the panes stay the same when an epoch ends inside a source commit."""
        return False

    @property
    @fact
    def bounds_state(self) -> bool:
        """True if the trigger bounds the state of windows that never end, for example because it purges."""
        return False

    @fact
    def counts_all(self, *, event_time: bool, merging: bool) -> bool:
        """Return True if each element is in the newest pane of its window, or is counted as never emitted.

        Args:
            event_time: True if the windows end by the watermark; False if they end by the clock.
            merging: True if the windows may merge.
        """
        return False

    @property
    @fact
    def waits_for_end_only(self) -> bool:
        """True if the trigger keeps no state, and its only timer is the event-time timer at the end of the window."""
        return False


class BuiltIn(Trigger):
    """A trigger of this library that reads no columns, purges no window unfired, and supports merging windows."""

    @property
    def reads_elements(self) -> bool:
        return False

    @property
    def may_purge_unfired(self) -> bool:
        return False

    def can_merge(self) -> bool:
        return True
