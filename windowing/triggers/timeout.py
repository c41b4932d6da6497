"""Fire with another trigger, or when processing time has gone on for too long without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa

from tidegate.windowing.state.descriptors import StateDescriptor, ValueStateDescriptor
from tidegate.windowing.time import Duration, Millis, positive_millis
from tidegate.windowing.triggers.base import FIRE, FIRE_AND_PURGE, Trigger, TriggerContext, TriggerResult
from tidegate.windowing.windows import Window


@dataclass(frozen=True, slots=True)
class ProcessingTimeoutTrigger(Trigger):
    """Fires with `nested`, or `timeout` after the first element. Source: Flink's `ProcessingTimeoutTrigger`.

    Any timer of the window fires it, the nested trigger's too. Like Flink's, it can't merge.

    Args:
        nested: the trigger that usually fires.
        timeout: processing time after which the window fires in any case.
        reset_timer_on_new_record: whether each element starts the timeout anew.
        clear_on_timeout: whether the nested trigger is cleared when a timer fires.
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
        """The trigger; Flink's spelling."""
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
        # Any timer fires it, also the one that cleans the window.
        return False

    def states(self) -> Sequence[StateDescriptor]:
        return (self._timeout, *self.nested.states())

    @property
    def _timeout(self) -> ValueStateDescriptor:
        # One inside another, whatever stands between, has the name: snapshots tell states by it.
        taken = {state.name for state in self.nested.states()}
        names = (f"timeout_{number}" if number > 1 else "timeout" for number in count(1))
        return ValueStateDescriptor(next(name for name in names if name not in taken), pa.int64())

    def _timed_out(self, result: TriggerResult, window: Window, ctx: TriggerContext) -> TriggerResult:
        if self.clear_on_timeout:
            self.clear(window, ctx)
        return FIRE_AND_PURGE if result.is_purge else FIRE
