"""Default triggers of windows: fire when the watermark, or the clock, reaches the end of the window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.windowing.time import Millis
from tidegate.windowing.triggers.base import (
    CONTINUE,
    FIRE,
    ArrayFiring,
    BuiltIn,
    OnMergeContext,
    TriggerContext,
    TriggerResult,
)
from tidegate.windowing.windows import Window


@dataclass(frozen=True, slots=True)
class EventTimeTrigger(BuiltIn):
    """Trigger that fires at the end of a window, and for each element after it. Source: Flink's `EventTimeTrigger`."""

    @classmethod
    def create(cls) -> EventTimeTrigger:
        """Create the trigger, named as in Flink."""
        return cls()

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        end = window.max_timestamp
        if end <= ctx.current_watermark:
            return FIRE
        ctx.register_event_time_timer(end)
        return CONTINUE

    def on_event_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return FIRE if time == window.max_timestamp else CONTINUE

    def may_lose_data(self, *, event_time: bool, lateness: Millis) -> bool:
        return not event_time

    @property
    def sees_order(self) -> bool:
        return False

    @property
    def array_firing(self) -> ArrayFiring:
        return ArrayFiring()

    @property
    def allows_split_commits(self) -> bool:
        return True

    def counts_all(self, *, event_time: bool, merging: bool) -> bool:
        return True

    @property
    def waits_for_end_only(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        # If the end has passed, the element that caused the merge fires the window immediately.
        if window.max_timestamp > ctx.current_watermark:
            ctx.register_event_time_timer(window.max_timestamp)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp)


@dataclass(frozen=True, slots=True)
class ProcessingTimeTrigger(BuiltIn):
    """Trigger that fires when processing time reaches the end of a window. Source: Flink's `ProcessingTimeTrigger`."""

    @classmethod
    def create(cls) -> ProcessingTimeTrigger:
        """Create the trigger, named as in Flink."""
        return cls()

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp)
        return CONTINUE

    def on_processing_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return FIRE

    def may_lose_data(self, *, event_time: bool, lateness: Millis) -> bool:
        return event_time

    def counts_all(self, *, event_time: bool, merging: bool) -> bool:
        return not event_time

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        if window.max_timestamp > ctx.current_processing_time:
            ctx.register_processing_time_timer(window.max_timestamp)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp)


@dataclass(frozen=True, slots=True)
class NeverTrigger(BuiltIn):
    """Trigger that never fires: the default of `GlobalWindows`. Source: Flink's `GlobalWindows.NeverTrigger`."""

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return CONTINUE

    def counts_all(self, *, event_time: bool, merging: bool) -> bool:
        return not event_time and not merging

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        """Do nothing, because the trigger has no state."""

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """Do nothing, because the trigger has no state."""


@dataclass(frozen=True, slots=True)
class EndOfStreamTrigger(BuiltIn):
    """Trigger that fires at the end of input. Source: Flink's `GlobalWindows.EndOfStreamTrigger`."""

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp)
        return CONTINUE

    def on_event_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return FIRE if time == window.max_timestamp else CONTINUE

    def may_lose_data(self, *, event_time: bool, lateness: Millis) -> bool:
        return not event_time

    @property
    def bounds_state(self) -> bool:
        return True

    def counts_all(self, *, event_time: bool, merging: bool) -> bool:
        return not event_time and not merging

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        ctx.register_event_time_timer(window.max_timestamp)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp)
