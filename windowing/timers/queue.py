"""The set of timers of one time domain, smallest time first.

Timers that are due at the same millisecond share a bucket, and only distinct times are in the
heap: the windows of 100,000 keys that end together cost one heap entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, TypeAlias

from windowing.time import Millis

Slot: TypeAlias = tuple[Any, Any]
"""Whose timer it is: (key, namespace)."""

_namespace_of = itemgetter(1)
_STALE_BUCKETS = 64


class TimerQueue:
    """A set of (time, key, namespace) that is drained in time order."""

    __slots__ = ("_buckets", "_empty", "_size", "_times", "added", "deleted", "fired")

    def __init__(self) -> None:
        self._times: list[Millis] = []
        self._buckets: dict[Millis, dict[Slot, None]] = {}
        self._size = 0
        self._empty = 0
        self.added = 0
        self.fired = 0
        self.deleted = 0

    def add(self, time: Millis, slot: Slot) -> bool:
        """Register a timer; whether it is new."""
        bucket = self._buckets.get(time)
        if bucket is None:
            self._buckets[time] = {slot: None}
            heappush(self._times, time)
        elif slot in bucket:
            return False
        else:
            if not bucket:
                self._empty -= 1
            bucket[slot] = None
        self._size += 1
        self.added += 1
        return True

    def remove(self, time: Millis, slot: Slot) -> bool:
        """Delete a timer; whether it was there."""
        bucket = self._buckets.get(time)
        if bucket is None or slot not in bucket:
            return False
        del bucket[slot]
        self._size -= 1
        self.deleted += 1
        if not bucket:
            self._empty += 1
            if self._empty > _STALE_BUCKETS and self._empty > len(self._times) // 2:
                self._drop_empty_buckets()
        return True

    def peek(self) -> Millis | None:
        """The smallest time of any timer, or None."""
        times, buckets = self._times, self._buckets
        while times:
            if buckets[times[0]]:
                return times[0]
            self._pop_empty_bucket()
        return None

    def poll(self) -> tuple[Millis, Slot] | None:
        """Take out one timer of the smallest time, or None."""
        time = self.peek()
        if time is None:
            return None
        bucket = self._buckets[time]
        slot = next(iter(bucket))
        del bucket[slot]
        self._size -= 1
        self._empty += not bucket
        return time, slot

    def drain(self, limit: Millis, fire: Callable[[Millis, Slot], None]) -> None:
        """Take out and fire every timer with a time up to and including `limit`.

        A timer that `fire` registers takes its place in the order and fires in the same drain when
        it is due; one that `fire` deletes does not fire. Timers of one key that are due together
        fire in the order of their namespaces, so that a restore can't change it.
        """
        times, buckets = self._times, self._buckets
        while times and times[0] <= limit:
            time = times[0]
            bucket = buckets[time]
            if not bucket:
                self._pop_empty_bucket()
                continue
            for slot in sorted(bucket, key=_namespace_of) if len(bucket) > 1 else tuple(bucket):
                if slot not in bucket:
                    continue
                del bucket[slot]
                self._size -= 1
                self.fired += 1
                if not bucket:
                    self._empty += 1
                fire(time, slot)
                if times and times[0] < time:
                    break

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[tuple[Millis, Slot]]:
        for time in sorted(self._buckets):
            for slot in self._buckets[time]:
                yield time, slot

    def count(self, namespace: Any) -> int:
        """How many timers there are in one namespace, over all keys. Walks the whole set."""
        return sum(1 for _, slot in self if slot[1] == namespace)

    def _pop_empty_bucket(self) -> None:
        del self._buckets[heappop(self._times)]
        self._empty -= 1

    def _drop_empty_buckets(self) -> None:
        for time in [time for time, bucket in self._buckets.items() if not bucket]:
            del self._buckets[time]
        self._times[:] = self._buckets
        heapify(self._times)
        self._empty = 0
