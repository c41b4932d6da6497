"""The timers of a time domain, sorted by time.

Timers that are due at the same millisecond share a bucket, and the heap holds each time once: if windows of 100,000
keys end together, the heap has a single entry for them. A bucket with a single timer is just the slot of that timer,
because sessions rarely end together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, TypeAlias

from tidegate.windowing.time import Millis

Slot: TypeAlias = tuple[Any, Any]
"""Owner of a timer: (key, namespace)."""

Bucket: TypeAlias = Slot | dict[Slot, None]

_namespace_of = itemgetter(1)
_STALE_TIMES = 64


class TimerQueue:
    """A set of timers (time, key, namespace), which fire in order of time.

    `silent` are timers that their owner deleted and that another use still needs: they fire, but they are neither
    counted nor in a snapshot.
    """

    # A time in the heap without a bucket is stale: its timers were deleted, or fired before.
    __slots__ = ("_buckets", "_size", "_times", "added", "deleted", "fired", "silent")

    def __init__(self) -> None:
        self._times: list[Millis] = []
        self._buckets: dict[Millis, Bucket] = {}
        self._size = 0
        self.silent: set[tuple[Millis, Slot]] = set()
        self.added = 0
        self.fired = 0
        self.deleted = 0

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
        """Register timers of a snapshot without counting them: they were counted when they were first registered."""
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
        """Delete a timer, but let it fire; nothing happens if it is not registered."""
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

        If `fire` registers a timer that is due, the timer fires in the same drain, in order of time. If `fire` deletes
        a timer, it does not fire. Timers of a key that are due at the same time fire in the order of their namespaces,
        so that a restore does not change the order.
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
                    fire(time, bucket)  # type: ignore[arg-type]
                continue
            for slot in sorted(bucket, key=_namespace_of):
                if slot not in bucket:
                    continue
                del bucket[slot]
                if not bucket:
                    del buckets[time]
                self._size -= 1
                self.fired += 1
                fire(time, slot)
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
