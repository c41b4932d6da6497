"""Triggers by time: at the end of the window, or at each multiple of an interval.

The default triggers fire when the watermark, or the clock, reaches the end of the window. Firings of continuous
triggers are aligned to multiples of the interval, not to the window. A firing after the end of the window is moved to
the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyarrow as pa

from tidegate.windowing.errors import MissingTimestamp
from tidegate.windowing.state.descriptors import ReducingStateDescriptor, StateDescriptor
from tidegate.windowing.time import (
    EVENT_TIME,
    PROCESSING_TIME,
    Duration,
    Millis,
    TimeDomain,
    aligned_before,
    positive_millis,
    saturating_add,
)
from tidegate.windowing.triggers.base import (
    CONTINUE,
    FIRE,
    ArrayFiring,
    BuiltIn,
    OnMergeContext,
    TriggerContext,
    TriggerResult,
    delete_timer,
    register_timer,
)
from tidegate.windowing.windows import GlobalWindow, Window


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
        # A timeout may clear this trigger without cleaning the window, whose content must still fire at the end.
        if not isinstance(window, GlobalWindow):
            ctx.delete_event_time_timer(window.max_timestamp)


# Windows that merge keep the earliest of their next firings.
_NEXT_FIRING = ReducingStateDescriptor("next_firing", min, pa.int64())


@dataclass(frozen=True, slots=True)
class ContinuousTrigger(BuiltIn):
    """Trigger that fires each time its time domain reaches a multiple of `interval`.

    Args:
        interval: milliseconds (`of` takes a timedelta).

    Raises:
        IllegalArgument: the interval is not greater than zero.
    """

    interval: Millis

    domain: ClassVar[TimeDomain]

    def __post_init__(self) -> None:
        object.__setattr__(self, "interval", positive_millis(self.interval, "interval"))

    @classmethod
    def of(cls, interval: Duration) -> Self:
        """Create the trigger, named as in Flink."""
        return cls(positive_millis(interval, "interval"))

    def may_lose_data(self, *, event_time: bool, lateness: Millis) -> bool:
        return event_time is not (self.domain is EVENT_TIME)

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        ctx.merge_partitioned_state(_NEXT_FIRING)
        firing = ctx.get_partitioned_state(_NEXT_FIRING).get()
        if firing is not None:
            register_timer(self.domain is EVENT_TIME, firing, ctx)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        state = ctx.get_partitioned_state(_NEXT_FIRING)
        firing = state.get()
        if firing is None:
            return
        delete_timer(self.domain is EVENT_TIME, firing, ctx)
        state.clear()

    def states(self) -> Sequence[StateDescriptor]:
        return (_NEXT_FIRING,)

    def _is_due(self, time: Millis, window: Window, ctx: TriggerContext) -> bool:
        """Return True if a timer is the next firing, and then register the firing after it."""
        state = ctx.get_partitioned_state(_NEXT_FIRING)
        if state.get() != time:
            return False
        state.clear()
        self._schedule(time, window, ctx)
        return True

    def _schedule(self, after: Millis, window: Window, ctx: TriggerContext) -> None:
        firing = min(saturating_add(after, self.interval), window.max_timestamp)
        ctx.get_partitioned_state(_NEXT_FIRING).add(firing)
        register_timer(self.domain is EVENT_TIME, firing, ctx)


class ContinuousEventTimeTrigger(ContinuousTrigger):
    """Continuous trigger of event time. It also fires at the end of the window, and for each element after the end.

    Elements need timestamps, even in windows of processing time. Flink uses the smallest long for a missing timestamp,
    and then fires once for each interval since then.

    Raises:
        IllegalArgument: the interval is not greater than zero.
        MissingTimestamp: an element has no timestamp.

    Source: Flink's `ContinuousEventTimeTrigger`.
    """

    domain = EVENT_TIME

    @property
    def array_firing(self) -> ArrayFiring:
        return ArrayFiring(self.interval)

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        if window.max_timestamp <= ctx.current_watermark:
            return FIRE
        ctx.register_event_time_timer(window.max_timestamp)
        if ctx.get_partitioned_state(_NEXT_FIRING).get() is None:
            if timestamp is None:
                raise MissingTimestamp
            self._schedule(aligned_before(timestamp, self.interval), window, ctx)
        return CONTINUE

    def on_event_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return FIRE if time == window.max_timestamp or self._is_due(time, window, ctx) else CONTINUE


class ContinuousProcessingTimeTrigger(ContinuousTrigger):
    """Continuous trigger of processing time. Source: Flink's `ContinuousProcessingTimeTrigger`."""

    domain = PROCESSING_TIME

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        if ctx.get_partitioned_state(_NEXT_FIRING).get() is None:
            self._schedule(aligned_before(ctx.current_processing_time, self.interval), window, ctx)
        return CONTINUE

    def on_processing_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        # Processing time may pass the end of an event-time window. The window stays, but never fires again.
        return FIRE if time == window.max_timestamp or self._is_due(time, window, ctx) else CONTINUE
