"""The trigger's contract: it decides when a window fires.

A trigger is a value without state of its own: what it must remember lives in the context, in one
cell for each key and window, and in timers. The hooks return what to do with the window. Source:
Flink's `Trigger`, `TriggerResult` and `Trigger.TriggerContext`.
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
    """The action that a hook asks the operator for."""

    CONTINUE = (False, False)
    FIRE = (True, False)
    PURGE = (False, True)
    FIRE_AND_PURGE = (True, True)

    def __init__(self, fire: bool, purge: bool) -> None:
        self.is_fire = fire
        self.is_purge = purge

    @staticmethod
    def of(*, fire: bool, purge: bool) -> TriggerResult:
        """The result with these two parts."""
        return FIRE_AND_PURGE if fire and purge else FIRE if fire else PURGE if purge else CONTINUE


CONTINUE = TriggerResult.CONTINUE
FIRE = TriggerResult.FIRE
PURGE = TriggerResult.PURGE
FIRE_AND_PURGE = TriggerResult.FIRE_AND_PURGE


class TriggerContext(Protocol):
    """The clocks, timers and state that a hook may read and change, for the current key and window."""

    current_watermark: Millis
    current_processing_time: Millis

    def register_event_time_timer(self, time: Millis) -> None:
        """Call `on_event_time` when the watermark reaches `time`."""

    def delete_event_time_timer(self, time: Millis) -> None:
        """Forget such a timer."""

    def register_processing_time_timer(self, time: Millis) -> None:
        """Call `on_processing_time` when the clock reaches `time`."""

    def delete_processing_time_timer(self, time: Millis) -> None:
        """Forget such a timer."""

    def get_partitioned_state(self, descriptor: StateDescriptor) -> Any:
        """A handle on declared state."""


class OnMergeContext(TriggerContext, Protocol):
    """The context of `on_merge`: the current window is the result of the merge."""

    def merge_partitioned_state(self, descriptor: StateDescriptor) -> None:
        """Fold the state of the merged windows into the result's."""


@dataclass(frozen=True, slots=True)
class ArrayFiring:
    """The way in which arrays fire windows: at their end, and after it once for each commit with late elements.

    Args:
        interval: milliseconds; windows also fire before their end, at each multiple of it. None if they do not.
        purges: whether a window is emptied when it fires.
    """

    interval: Millis | None = None
    purges: bool = False


class Trigger(HasFacts, ABC):
    """Decides when a window fires. Subclasses are frozen dataclasses: equal settings, equal triggers.

    The facts at the end have safe answers (windowing/facts.py); a trigger that knows better overrides them.
    """

    @abstractmethod
    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        """An element was added to the window. Without a timestamp (processing time) that is None."""

    def on_event_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        """An event-time timer of the window fired, or its cleanup time came."""
        return CONTINUE

    def on_processing_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        """A processing-time timer of the window fired, or its cleanup time came."""
        return CONTINUE

    def can_merge(self) -> bool:
        """True if the trigger works on windows that merge, such as sessions."""
        return False

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        """Windows merged into `window`: take over their state and set the timers that it needs."""
        raise UnsupportedOperation(f"{self!r} does not support merging windows: override can_merge and on_merge")

    @abstractmethod
    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """The window goes away: drop its state and timers."""

    def states(self) -> Sequence[StateDescriptor]:
        """The state this trigger keeps for a window, for the snapshot's schema."""
        return ()

    # --- facts -------------------------------------------------------------------------------

    @fact
    def may_lose_data(self, *, event_time: bool, lateness: Millis) -> bool:
        """Return whether a window may take an element and go away before the trigger has shown it.

        Args:
            event_time: whether the windows end by the watermark; else by the clock.
            lateness: how long after its end a window still takes elements, milliseconds.
        """
        return True

    @property
    @fact
    def sees_order(self) -> bool:
        """True if firings depend on the order in which the elements of a window arrive."""
        return True

    @property
    @fact
    def array_firing(self) -> ArrayFiring | None:
        """The form in which the columnar operator fires windows; None if it can't."""
        return None

    @property
    @fact
    def allows_split_commits(self) -> bool:
        """True if the same panes come out if an epoch ends inside a source commit."""
        return False

    @property
    @fact
    def bounds_state(self) -> bool:
        """True if the trigger empties windows, or fires them no more, so that those without an end need no bound."""
        return False

    @fact
    def counts_all(self, *, event_time: bool, merging: bool) -> bool:
        """Return whether each element is in the newest pane of its window, or is counted as never emitted.

        Args:
            event_time: whether the windows end by the watermark; else by the clock.
            merging: whether the windows may merge.
        """
        return False

    @property
    @fact
    def waits_for_end_only(self) -> bool:
        """True if the trigger keeps no state, and sets no timer but that at the end of the window."""
        return False
