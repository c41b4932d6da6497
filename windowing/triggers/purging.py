"""Purging trigger, which empties the window at each firing of another trigger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.windowing.state.descriptors import StateDescriptor
from tidegate.windowing.time import Millis
from tidegate.windowing.triggers.base import (
    FIRE_AND_PURGE,
    ArrayFiring,
    OnMergeContext,
    Trigger,
    TriggerContext,
    TriggerResult,
)
from tidegate.windowing.windows import Window


@dataclass(frozen=True, slots=True)
class PurgingTrigger(Trigger):
    """Trigger that fires with `nested`, and purges the window at each firing. Source: Flink's `PurgingTrigger`.

    A purge removes the contents of the window. The state and the timers of the trigger stay.

    Args:
        nested: trigger that decides when the window fires.
    """

    nested: Trigger

    @classmethod
    def of(cls, nested: Trigger) -> PurgingTrigger:
        """Create the trigger, named as in Flink."""
        return cls(nested)

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested.on_element(element, timestamp, window, ctx))

    def on_event_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested.on_event_time(time, window, ctx))

    def on_processing_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested.on_processing_time(time, window, ctx))

    def may_lose_data(self, *, event_time: bool, lateness: Millis) -> bool:
        return self.nested.may_lose_data(event_time=event_time, lateness=lateness)

    @property
    def sees_order(self) -> bool:
        return self.nested.sees_order

    @property
    def reads_elements(self) -> bool:
        return self.nested.reads_elements

    @property
    def may_purge_unfired(self) -> bool:
        return self.nested.may_purge_unfired

    @property
    def array_firing(self) -> ArrayFiring | None:
        firing = self.nested.array_firing
        return None if firing is None or firing.interval is not None else ArrayFiring(purges=True)

    @property
    def bounds_state(self) -> bool:
        return True

    def can_merge(self) -> bool:
        return self.nested.can_merge()

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        self.nested.on_merge(window, ctx)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        self.nested.clear(window, ctx)

    def states(self) -> Sequence[StateDescriptor]:
        return self.nested.states()


def _purging(result: TriggerResult) -> TriggerResult:
    return FIRE_AND_PURGE if result.is_fire else result
