"""Timers of keys and namespaces, in event time and in processing time, and the service that operators use for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, Protocol, TypeAlias

from tidegate.windowing.errors import UnsupportedOperation
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, checked_time

Slot: TypeAlias = tuple[Any, Any]
"""The owner of a timer: (key, namespace)."""

Bucket: TypeAlias = Slot | dict[Slot, None]

_namespace_of = itemgetter(1)
_STALE_TIMES = 64


class TimerQueue:
    """A set of timers (time, key, namespace), which fire in time order.

    `silent` timers were deleted by their owner but are still needed elsewhere: they fire, but are neither counted nor
    in a snapshot. `firing` is the timer whose callback is running, or whose callback raised an error.
    """

    # A time in the heap without a bucket is stale: its timers were deleted, or have already fired.
    __slots__ = ("_buckets", "_size", "_times", "added", "deleted", "fired", "firing", "silent")

    def __init__(self) -> None:
        self._times: list[Millis] = []
        self._buckets: dict[Millis, Bucket] = {}
        self._size = 0
        self.silent: set[tuple[Millis, Slot]] = set()
        self.added = 0
        self.fired = 0
        self.deleted = 0
        self.firing: tuple[Millis, Slot] | None = None

    def add(self, time: Millis, slot: Slot) -> bool:
        """Register a timer. Return True if it is new."""
        bucket = self._buckets.get(time)
        if bucket is None:
            self._buckets[time] = slot
            heappush(self._times, time)
        elif type(bucket) is dict:
            if slot in bucket:
                return self._wake(time, slot)
            bucket[slot] = None
        elif bucket == slot:
            return self._wake(time, slot)
        else:
            self._buckets[time] = {bucket: None, slot: None}  # type: ignore[dict-item]
        self._size += 1
        self.added += 1
        return True

    def put_back(self, slot: Slot, times: Iterable[Millis]) -> None:
        """Register timers from a snapshot without counting them: they were counted when they were first registered."""
        counted = self.added
        for time in times:
            self.add(time, slot)
        self.added = counted

    def remove(self, time: Millis, slot: Slot) -> bool:
        """Delete a timer. Return True if it was registered."""
        if not self._take(time, slot):
            return False
        if (time, slot) in self.silent:
            self.silent.discard((time, slot))
            return False
        self.deleted += 1
        if len(self._times) > 2 * len(self._buckets) + _STALE_TIMES:
            self._times[:] = self._buckets
            heapify(self._times)
        return True

    def silence(self, time: Millis, slot: Slot) -> None:
        """Delete a timer, but still let it fire; do nothing if it is not registered."""
        bucket = self._buckets.get(time)
        if (slot in bucket if type(bucket) is dict else bucket == slot) and (time, slot) not in self.silent:
            self.silent.add((time, slot))
            self.deleted += 1

    def peek(self) -> Millis | None:
        """Return the smallest time of all timers; None if there are none."""
        times = self._times
        while times:
            if times[0] in self._buckets:
                return times[0]
            heappop(times)
        return None

    def drain(self, limit: Millis, fire: Callable[[Millis, Slot], None]) -> None:
        """Remove and fire every timer with a time up to and including `limit`.

        If `fire` registers a due timer, that timer fires in the same drain, in time order. If `fire` deletes a timer,
        it does not fire. Timers of a key that are due at the same time fire in the order of their namespaces, so that a
        restore does not change the order.
        """
        times, buckets = self._times, self._buckets
        while times and times[0] <= limit:
            time = times[0]
            bucket = buckets.get(time)
            if type(bucket) is not dict:
                heappop(times)
                if bucket is not None:
                    del buckets[time]
                    self._size -= 1
                    self.fired += 1
                    self.firing = (time, bucket)  # type: ignore[assignment]
                    fire(time, bucket)  # type: ignore[arg-type]
                    self.firing = None
                continue
            for slot in sorted(bucket, key=_namespace_of):
                if slot not in bucket:
                    continue
                del bucket[slot]
                if not bucket:
                    del buckets[time]
                self._size -= 1
                self.fired += 1
                self.firing = (time, slot)
                fire(time, slot)
                self.firing = None
                if times and times[0] < time:
                    break

    def __len__(self) -> int:
        return self._size - len(self.silent)

    def __iter__(self) -> Iterator[tuple[Millis, Slot]]:
        for time in sorted(self._buckets):
            for slot in self._slots_at(time):
                if (time, slot) not in self.silent:
                    yield time, slot

    def _wake(self, time: Millis, slot: Slot) -> bool:
        if (time, slot) not in self.silent:
            return False
        self.silent.discard((time, slot))
        self.added += 1
        return True

    def _slots_at(self, time: Millis) -> list[Slot]:
        bucket = self._buckets[time]
        return list(bucket) if type(bucket) is dict else [bucket]  # type: ignore[list-item]

    def _take(self, time: Millis, slot: Slot) -> bool:
        bucket = self._buckets.get(time)
        if type(bucket) is dict:
            if slot not in bucket:
                return False
            del bucket[slot]
            if not bucket:
                del self._buckets[time]
        elif bucket == slot:
            del self._buckets[time]
        else:
            return False
        self._size -= 1
        return True


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


Timers: TypeAlias = tuple[list[Millis], list[Millis]]
"""Event-time and processing-time timers of a slot as its state row keeps them: ascending, int64 epoch milliseconds."""


@dataclass(slots=True)
class InternalTimerService:
    """Timers of an operator in both time domains, with namespaces.

    Args:
        target: the operator that the service calls back.
        current_key: key to which new timers belong.
        keyed: False on a stream without a key.
    """

    target: Triggerable
    current_key: Any = None
    keyed: bool = True
    event_time: TimerQueue = field(default_factory=TimerQueue)
    processing_time: TimerQueue = field(default_factory=TimerQueue)
    current_watermark: Millis = MIN_TIMESTAMP
    current_processing_time: Millis = 0

    def register_event_time_timer(self, namespace: Any, time: Millis) -> None:
        """Register a callback at watermark `time`. A timer in the past fires at the next watermark."""
        self.event_time.add(time, (self.current_key, namespace))

    def delete_event_time_timer(self, namespace: Any, time: Millis) -> None:
        """Delete a timer. Nothing happens if it is not registered."""
        self.event_time.remove(time, (self.current_key, namespace))

    def register_processing_time_timer(self, namespace: Any, time: Millis) -> None:
        """Register a callback at processing time `time`. A timer in the past fires at the next advance of the clock."""
        self.processing_time.add(time, (self.current_key, namespace))

    def delete_processing_time_timer(self, namespace: Any, time: Millis) -> None:
        """Delete a timer. Nothing happens if it is not registered."""
        self.processing_time.remove(time, (self.current_key, namespace))

    def advance_watermark(self, watermark: Millis) -> None:
        """Advance event time, never back, and fire due timers. Callbacks already see the new watermark."""
        self.current_watermark = max(self.current_watermark, watermark)
        self.event_time.drain(self.current_watermark, self.target.on_event_time)

    def advance_processing_time(self, clock: Millis, within: bool = False) -> None:
        """Advance processing time, never back, and fire due timers; see `KeyedOperator.process_processing_time`."""
        self.current_processing_time = max(self.current_processing_time, clock)
        self.processing_time.drain(self.current_processing_time - within, self.target.on_processing_time)

    def snapshot(self) -> dict[Slot, Timers]:
        """Return the timers of each slot that has timers. Slots with event-time timers come first."""
        slots: dict[Slot, Timers] = {}
        for domain, queue in enumerate((self.event_time, self.processing_time)):
            for time, slot in queue:
                timers = slots.get(slot)
                if timers is None:
                    timers = slots[slot] = ([], [])
                timers[domain].append(time)
        return slots

    def restore(self, slot: Slot, timers: Timers) -> None:
        """Restore the timers of a slot. Overdue timers fire at the next advance of their time domain."""
        self.event_time.put_back(slot, timers[0])
        self.processing_time.put_back(slot, timers[1])


@dataclass(frozen=True, slots=True)
class TimerService:
    """Timers of the current key for user functions, without namespaces. Times are int64 epoch milliseconds.

    Args:
        owner: the function, which errors name.

    Raises:
        UnsupportedOperation: a timer is set or deleted on a non-keyed stream.
        IllegalArgument: the time of a timer is not a whole number of milliseconds, or is outside the range of times.
    """

    _internal: InternalTimerService
    owner: object = None

    def current_processing_time(self) -> Millis:
        """Return processing time, int64 epoch milliseconds."""
        return self._internal.current_processing_time

    def current_watermark(self) -> Millis:
        """Return the watermark, int64 epoch milliseconds. A callback already sees the new one."""
        return self._internal.current_watermark

    def register_processing_time_timer(self, time: Millis) -> None:
        """Register a call of `on_timer` when the clock reaches `time`."""
        self._keyed().register_processing_time_timer(VOID_NAMESPACE, self._checked(time))

    def register_event_time_timer(self, time: Millis) -> None:
        """Register a call of `on_timer` when the watermark reaches `time`."""
        self._keyed().register_event_time_timer(VOID_NAMESPACE, self._checked(time))

    def delete_processing_time_timer(self, time: Millis) -> None:
        """Delete a processing-time timer of the current key."""
        self._keyed().delete_processing_time_timer(VOID_NAMESPACE, self._checked(time))

    def delete_event_time_timer(self, time: Millis) -> None:
        """Delete an event-time timer of the current key."""
        self._keyed().delete_event_time_timer(VOID_NAMESPACE, self._checked(time))

    def _checked(self, time: Millis) -> Millis:
        return checked_time(time, f"time of a timer of {type(self.owner).__name__}")

    def _keyed(self) -> InternalTimerService:
        if not self._internal.keyed:
            raise UnsupportedOperation(ON_NON_KEYED_STREAM)
        return self._internal
