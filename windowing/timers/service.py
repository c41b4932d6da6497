"""Timer services: operators use the internal one, with namespaces; user functions use the one without.

Time domain, time, key and namespace identify a timer, so a second registration of a timer has no effect. A timer fires
when the watermark or the clock reaches its time. Source: Flink's `InternalTimerServiceImpl` and `SimpleTimerService`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tidegate.windowing.errors import IllegalState, UnsupportedOperation
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.timers.queue import Slot, TimerQueue

# TimersSnapshot(...) takes twice as long, and a snapshot has one for each window.
_new = tuple.__new__

VOID_NAMESPACE = ()
"""Namespace of every timer of an operator whose timers belong to the key alone."""

ON_NON_KEYED_STREAM = (
    "setting and deleting timers is only supported on keyed streams: give the stream a key "
    "(a constant one if all elements belong together)"
)


class Triggerable(Protocol):
    """An operator that a timer service calls back."""

    def on_event_time(self, time: Millis, slot: Slot) -> None:
        """Handle a due event-time timer of `slot` = (key, namespace)."""

    def on_processing_time(self, time: Millis, slot: Slot) -> None:
        """Handle a due processing-time timer of `slot` = (key, namespace)."""


class TimersSnapshot(NamedTuple):
    """Timers of a slot as its state row keeps them: ascending times, int64 epoch milliseconds."""

    event_time: list[Millis]
    processing_time: list[Millis]


@dataclass(slots=True)
class KeyContext:
    """The current key, to which timers and state belong. None on a non-keyed stream."""

    current_key: Any = None
    keyed: bool = True


@dataclass(slots=True)
class InternalTimerService:
    """Timers of an operator in both time domains, with namespaces.

    Args:
        key_context: gives the current key.
    """

    key_context: KeyContext
    event_time: TimerQueue = field(default_factory=TimerQueue)
    processing_time: TimerQueue = field(default_factory=TimerQueue)
    current_watermark: Millis = MIN_TIMESTAMP
    current_processing_time: Millis = 0
    _target: Triggerable | None = None

    def start(self, target: Triggerable) -> None:
        """Set the operator that the service calls back."""
        self._target = target

    def register_event_time_timer(self, namespace: Any, time: Millis) -> None:
        """Register a callback at watermark `time`. A timer in the past fires at the next watermark."""
        self.event_time.add(time, (self.key_context.current_key, namespace))

    def delete_event_time_timer(self, namespace: Any, time: Millis) -> None:
        """Delete a timer. Nothing happens if it is not registered."""
        self.event_time.remove(time, (self.key_context.current_key, namespace))

    def register_processing_time_timer(self, namespace: Any, time: Millis) -> None:
        """Register a callback at processing time `time`. A timer in the past fires when the clock moves next."""
        self.processing_time.add(time, (self.key_context.current_key, namespace))

    def delete_processing_time_timer(self, namespace: Any, time: Millis) -> None:
        """Delete a timer. Nothing happens if it is not registered."""
        self.processing_time.remove(time, (self.key_context.current_key, namespace))

    def advance_watermark(self, watermark: Millis) -> None:
        """Advance event time, never back, and fire due timers. Callbacks already see the new watermark."""
        target = self._started()
        self.current_watermark = max(self.current_watermark, watermark)
        self.event_time.drain(self.current_watermark, target.on_event_time)

    def advance_processing_time(self, clock: Millis, within: bool = False) -> None:
        """Advance processing time, never back, and fire due timers; see `KeyedOperator.process_processing_time`."""
        target = self._started()
        self.current_processing_time = max(self.current_processing_time, clock)
        self.processing_time.drain(self.current_processing_time - within, target.on_processing_time)

    def snapshot(self) -> dict[Slot, TimersSnapshot]:
        """Return the timers of each slot that has timers. Slots with event-time timers come first."""
        slots: dict[Slot, TimersSnapshot] = {}
        for domain, queue in enumerate((self.event_time, self.processing_time)):
            for time, slot in queue:
                timers = slots.get(slot)
                if timers is None:
                    timers = slots[slot] = _new(TimersSnapshot, ([], []))
                timers[domain].append(time)
        return slots

    def restore(self, slot: Slot, snapshot: TimersSnapshot) -> None:
        """Restore the timers of a slot. Overdue timers fire when their time domain advances next."""
        if snapshot.event_time:
            self.event_time.put_back(slot, snapshot.event_time)
        if snapshot.processing_time:
            self.processing_time.put_back(slot, snapshot.processing_time)

    def _started(self) -> Triggerable:
        if self._target is None:
            raise IllegalState("the timer service was not started: call start(...) before time is moved")
        return self._target


@dataclass(frozen=True, slots=True)
class TimerService:
    """Timers of the current key for user functions, without namespaces.

    Raises:
        UnsupportedOperation: a timer is set or deleted on a non-keyed stream.
    """

    _internal: InternalTimerService

    def current_processing_time(self) -> Millis:
        """Return processing time, int64 epoch milliseconds."""
        return self._internal.current_processing_time

    def current_watermark(self) -> Millis:
        """Return the watermark, int64 epoch milliseconds. A callback already sees the new one."""
        return self._internal.current_watermark

    def register_processing_time_timer(self, time: Millis) -> None:
        """Register a call of `on_timer` when the clock reaches `time`."""
        self._keyed().register_processing_time_timer(VOID_NAMESPACE, time)

    def register_event_time_timer(self, time: Millis) -> None:
        """Register a call of `on_timer` when the watermark reaches `time`."""
        self._keyed().register_event_time_timer(VOID_NAMESPACE, time)

    def delete_processing_time_timer(self, time: Millis) -> None:
        """Delete a processing-time timer of the current key."""
        self._keyed().delete_processing_time_timer(VOID_NAMESPACE, time)

    def delete_event_time_timer(self, time: Millis) -> None:
        """Delete an event-time timer of the current key."""
        self._keyed().delete_event_time_timer(VOID_NAMESPACE, time)

    def _keyed(self) -> InternalTimerService:
        if not self._internal.key_context.keyed:
            raise UnsupportedOperation(ON_NON_KEYED_STREAM)
        return self._internal
