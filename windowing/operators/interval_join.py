"""The interval join: pairs of elements of two inputs with near times. Source: Flink's `IntervalJoinOperator`.

Each side keeps its elements in buckets of one millisecond. An element joins the buckets of the other side that are
within the bounds, and stays until the watermark shows that no partner can follow.

    lower -1, upper 2       left at t joins right from t - 1 to t + 2
    left bucket t           is removed at watermark t + 2, after its last possible partner
    right bucket t          is removed at watermark t + 1
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.windowing.compute import IntervalJoin
from tidegate.windowing.declared import row_checker
from tidegate.windowing.errors import IllegalState
from tidegate.windowing.operators.join import JoinOperator
from tidegate.windowing.operators.records import ElementResult
from tidegate.windowing.operators.two_inputs import LEFT, RIGHT, SIDES, checked_side
from tidegate.windowing.state.rows import BUCKET, StateRow
from tidegate.windowing.time import Millis, saturating_add
from tidegate.windowing.timers import Slot, TimersSnapshot
from tidegate.windowing.windows import TimeWindow


class JoinBuffer:
    """The elements of one key and side, by time, in arrival order within a millisecond."""

    __slots__ = ("buckets", "times")

    def __init__(self) -> None:
        self.times: list[Millis] = []
        self.buckets: dict[Millis, list[Any]] = {}

    def add(self, time: Millis, values: Iterable[Any]) -> None:
        """Append elements of one millisecond."""
        bucket = self.buckets.get(time)
        if bucket is None:
            bucket = self.buckets[time] = []
            insort(self.times, time)
        bucket.extend(values)

    def remove(self, time: Millis) -> None:
        """Remove a bucket; do nothing if it does not exist."""
        if self.buckets.pop(time, None) is not None:
            del self.times[bisect_left(self.times, time)]

    def between(self, first: Millis, last: Millis) -> Iterator[tuple[Millis, Any]]:
        """Yield the elements from `first` to `last`, both inclusive, with their times."""
        for time in self.times[bisect_left(self.times, first) : bisect_right(self.times, last)]:
            for value in self.buckets[time]:
                yield time, value


class IntervalJoinOperator(JoinOperator):
    """Joins the inputs `left` and `right`. A result has the larger timestamp of its two elements.

    An element is late when `timestamp < watermark`; at the watermark itself it is on time, unlike in windows.

    Args:
        join: the computation: bounds, and the function of a pair.
        late_output: True emits late elements; False only counts them, as `late_dropped`.
    """

    def __init__(self, join: IntervalJoin, *, late_output: bool = True) -> None:
        super().__init__(late_output=late_output)
        self._buffers: dict[str, dict[Any, JoinBuffer]] = {LEFT: {}, RIGHT: {}}
        lower, upper = join.bounds
        self._reach = {LEFT: (lower, upper), RIGHT: (-upper, -lower)}
        self._join = join.join
        self._fit = row_checker(join.result_type, join.join or join)

    def process_element(self, key: Any, value: Any, timestamp: Millis | None, side: str | None = None) -> None:
        timestamp, side = self._came(timestamp, side)
        if timestamp < self.timers.current_watermark:
            self._late(key, value, timestamp, side)
            return
        self._buffer(side, key).add(timestamp, (value,))
        lower, upper = self._reach[side]
        other = self._buffers[RIGHT if side == LEFT else LEFT].get(key)
        if other is not None:
            for time, partner in other.between(timestamp + lower, timestamp + upper):
                pair = (value, partner) if side == LEFT else (partner, value)
                result = pair if self._join is None else self._fit(self._join(*pair))
                self.output.append(ElementResult(result, max(timestamp, time), key))
        self.timers.event_time.add(saturating_add(timestamp, max(0, upper)), (key, (side, timestamp)))

    def on_event_time(self, time: Millis, slot: Slot) -> None:
        """Remove the bucket of the slot, which can no longer join; the timer service calls this."""
        key, (side, bucket) = slot
        buffer = self._buffers[side].get(key)
        if buffer is not None:
            buffer.remove(bucket)
            if not buffer.times:
                del self._buffers[side][key]

    def state_rows(self) -> Iterator[StateRow]:
        """Yield a row for each key, side and millisecond, with the timer that removes it."""
        timers = self.timers.snapshot()
        for position, side in enumerate(SIDES):
            for key, buffer in self._buffers[side].items():
                for time in buffer.times:
                    contents: list[Any] = [None] * len(SIDES)
                    contents[position] = buffer.buckets[time]
                    yield StateRow(
                        key,
                        BUCKET,
                        TimeWindow(time, saturating_add(time, 1)),
                        side=side,
                        event_time_timers=(timers.get((key, (side, time))) or ([], []))[0],
                        contents=contents,
                    )

    def restore_state(self, rows: Iterable[StateRow]) -> None:
        for row in rows:
            side = checked_side(row.side)
            if not isinstance(row.window, TimeWindow) or row.contents is None:
                raise IllegalState(
                    f"a state row of a join needs the time and elements of a bucket; it has {row.window!r}"
                )
            self._buffer(side, row.key).add(row.window.start, row.contents[SIDES.index(side)])
            self.timers.restore((row.key, (side, row.window.start)), TimersSnapshot(row.event_time_timers, []))

    def num_state_entries(self) -> int:
        return sum(len(buffer.times) for buffers in self._buffers.values() for buffer in buffers.values())

    def _buffer(self, side: str, key: Any) -> JoinBuffer:
        buffer = self._buffers[side].get(key)
        if buffer is None:
            buffer = self._buffers[side][key] = JoinBuffer()
        return buffer
