"""Triggers of the global window: never fire, or fire at the end of input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.windowing.time import Millis
from tidegate.windowing.triggers.base import CONTINUE, FIRE, BuiltIn, OnMergeContext, TriggerContext, TriggerResult
from tidegate.windowing.windows import Window


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
