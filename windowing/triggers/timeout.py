"""Timeout trigger: fire with another trigger, or after a timeout in processing time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa

from tidegate.windowing.state.descriptors import StateDescriptor, ValueStateDescriptor
from tidegate.windowing.time import Duration, Millis, positive_millis
from tidegate.windowing.triggers.base import (
    FIRE,
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


@dataclass(frozen=True, slots=True)
class ProcessingTimeoutTrigger(Trigger):
    """Trigger that fires with `nested`, or `timeout` after the first element.

    Any timer of the window fires it, including timers of the nested trigger. It does not support merging windows.
    Source: Flink's `ProcessingTimeoutTrigger`.

    Args:
        nested: trigger that fires the window before the timeout.
        timeout: processing time after which the window fires regardless, milliseconds (`of` takes a timedelta).
        reset_timer_on_new_record: True restarts the timeout at each element.
        clear_on_timeout: True clears this trigger and the nested one when a timer fires.

    Raises:
        IllegalArgument: the timeout is not greater than zero.
    """

    nested: Trigger
    timeout: Millis
    reset_timer_on_new_record: bool = False
    clear_on_timeout: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "timeout", positive_millis(self.timeout, "timeout"))

    @classmethod
    def of(
        cls,
        nested: Trigger,
        timeout: Duration,
        reset_timer_on_new_record: bool = False,
        clear_on_timeout: bool = True,
    ) -> ProcessingTimeoutTrigger:
        """Create the trigger, named as in Flink."""
        return cls(nested, positive_millis(timeout, "timeout"), reset_timer_on_new_record, clear_on_timeout)

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        result = self.nested.on_element(element, timestamp, window, ctx)
        if result.is_fire:
            self.clear(window, ctx)
            return result
        state = ctx.get_partitioned_state(self._timeout)
        running = state.value()
        if running is not None and self.reset_timer_on_new_record:
            ctx.delete_processing_time_timer(running)
            running = None
        if running is None:
            due = ctx.current_processing_time + self.timeout
            state.update(due)
            ctx.register_processing_time_timer(due)
        return result

    def on_event_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return self._timed_out(self.nested.on_event_time(time, window, ctx), window, ctx)

    def on_processing_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return self._timed_out(self.nested.on_processing_time(time, window, ctx), window, ctx)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        state = ctx.get_partitioned_state(self._timeout)
        running = state.value()
        if running is not None:
            ctx.delete_processing_time_timer(running)
            state.clear()
        self.nested.clear(window, ctx)

    def may_lose_data(self, *, event_time: bool, lateness: Millis) -> bool:
        # Any timer fires the window, including the cleanup timer, and the pane shows the remaining elements.
        return self.nested.may_purge_unfired

    @property
    def reads_elements(self) -> bool:
        return self.nested.reads_elements

    @property
    def may_purge_unfired(self) -> bool:
        return self.nested.may_purge_unfired

    def states(self) -> Sequence[StateDescriptor]:
        return (self._timeout, *self.nested.states())

    @property
    def _timeout(self) -> ValueStateDescriptor:
        # Snapshots identify states by name, and a nested timeout trigger, at any depth, may already use a name.
        taken = {state.name for state in self.nested.states()}
        names = (f"timeout_{number}" if number > 1 else "timeout" for number in count(1))
        return ValueStateDescriptor(next(name for name in names if name not in taken), pa.int64())

    def _timed_out(self, result: TriggerResult, window: Window, ctx: TriggerContext) -> TriggerResult:
        if self.clear_on_timeout:
            self.clear(window, ctx)
        return FIRE_AND_PURGE if result.is_purge else FIRE
