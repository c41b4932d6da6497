"""Joins of two inputs: the interval join and the window join. They keep elements of both inputs in state rows.

The interval join pairs elements with near times (source: Flink's `IntervalJoinOperator`). Each side keeps its elements
in buckets of one millisecond. An element joins the buckets of the other side that are within the bounds, and stays
until the watermark shows that no partner can follow.

    lower -1, upper 2       left at t joins right from t - 1 to t + 2
    left bucket t           is removed at watermark t + 2, after its last possible partner
    right bucket t          is removed at watermark t + 1

The window join pairs elements that are in the same window (source: Flink's `WindowJoinOperator`). Each side keeps the
elements of a window until the watermark reaches its last millisecond. Then the window is joined once and removed.

    tumbling by 10, kind full        left 1 @ 3, right 5 @ 8, left 2 @ 12
    watermark 9                      (1, 5) in [0, 10)
    watermark 19                     (2, None) in [10, 20)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from tidegate.windowing.compute import IntervalJoin, Join, JoinKind, WindowJoin
from tidegate.windowing.declared import row_checker
from tidegate.windowing.errors import IllegalState, MissingTimestamp
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.lateness import is_late
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.operators.records import LATE, ElementResult, LateElement, WindowPair
from tidegate.windowing.operators.two_inputs import TwoInputOperator
from tidegate.windowing.sides import LEFT, RIGHT, SIDES, checked_side
from tidegate.windowing.state.rows import BUCKET, WINDOW, StateRow, StateSchema
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, saturating_add
from tidegate.windowing.timers import Slot
from tidegate.windowing.windows import TimeWindow, Window, check_window

WINDOW_JOIN = "window_join"
"""Kind of a snapshot that holds the state rows of a window join, which are rows of windows."""


def join_schema(
    join: Join, key: KeySchema, left_type: pa.DataType | None = None, right_type: pa.DataType | None = None
) -> StateSchema:
    """Return the schema of the state rows of a join."""
    types = {LEFT: left_type, RIGHT: right_type}
    contents = tuple((side, None if types[side] is None else pa.list_(types[side])) for side in SIDES)
    return StateSchema(key, contents, namespace=WINDOW_JOIN if isinstance(join, WindowJoin) else BUCKET)


class JoinOperator(TwoInputOperator):
    """A join of the inputs `left` and `right` in event time. Subclasses buffer the elements and join them.

    Args:
        late_output: True emits late elements; False only counts them, as `late_dropped`.
    """

    def __init__(self, *, late_output: bool) -> None:
        super().__init__()
        self._late_output = late_output

    def _added(self, timestamp: Millis | None, side: str | None) -> tuple[Millis, str]:
        """Count an element, and return its time and side.

        Raises:
            IllegalArgument: `side` names no input.
            MissingTimestamp: the element has no timestamp.
        """
        side = checked_side(side)
        self._counters.elements += 1
        if timestamp is None or timestamp == MIN_TIMESTAMP:
            raise MissingTimestamp
        return timestamp, side

    def _late(self, key: Any, value: Any, timestamp: Millis, side: str, window: Window | None = None) -> None:
        self._counters.late += 1
        if self._late_output:
            self.output.append(LateElement(key, value, timestamp, LATE, window, self.timers.current_watermark, side))
        else:
            self._counters.late_dropped += 1


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
        timestamp, side = self._added(timestamp, side)
        if self._is_late(timestamp):
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

    def _is_late(self, timestamp: Millis) -> bool:
        """Return True if the watermark has passed the time of an element. Source: Flink's interval join."""
        return timestamp < self.timers.current_watermark

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
                        TimeWindow(time, time + 1),
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
            self.timers.restore((row.key, (side, row.window.start)), (row.event_time_timers, []))

    def num_state_entries(self) -> int:
        return sum(len(buffer.times) for buffers in self._buffers.values() for buffer in buffers.values())

    def _buffer(self, side: str, key: Any) -> JoinBuffer:
        buffer = self._buffers[side].get(key)
        if buffer is None:
            buffer = self._buffers[side][key] = JoinBuffer()
        return buffer


class WindowJoinOperator(JoinOperator):
    """Joins the inputs `left` and `right`, window by window. A result has the window's last millisecond as its time.

    An element is late when the watermark has reached the end of all its windows.

    Args:
        join: the computation: assigner, kind, and the function of a pair.
        late_output: True emits late elements; False only counts them, as `late_dropped`.
    """

    def __init__(self, join: WindowJoin, *, late_output: bool = True) -> None:
        super().__init__(late_output=late_output)
        self._assigner = join.assigner
        self._kind = join.kind
        self._join = join.join
        self._fit = row_checker(join.result_type, join.join or join)
        self._windows: dict[tuple[Any, Window], dict[str, list[Any]]] = {}

    def process_element(self, key: Any, value: Any, timestamp: Millis | None, side: str | None = None) -> None:
        timestamp, side = self._added(timestamp, side)
        windows = self._assigner.assign_windows(value, timestamp, self.timers)
        if self._assigner.longest_window is None:
            for window in windows:
                check_window(window, self._assigner)
        open_windows = [window for window in windows if not self._is_late(window.max_timestamp)]
        for window in open_windows:
            self._sides(key, window)[side].append(value)
        if open_windows:
            return
        if self._is_late(timestamp):
            self._late(key, value, timestamp, side, windows[0] if windows else None)
        else:
            self._counters.no_window += 1

    @property
    def counters(self) -> Counters:
        """Counts since the operator was created, timers and open windows included."""
        counters = super().counters
        counters.open_windows = len(self._windows)
        return counters

    def _is_late(self, time: Millis) -> bool:
        """Return True if the watermark has reached a time: that of an element, or the last millisecond of a window."""
        return is_late(time, 0, self.timers.current_watermark)

    def on_event_time(self, time: Millis, slot: Slot) -> None:
        """Join the window of the slot, and remove it; the timer service calls this."""
        key, window = slot
        sides = self._windows.pop(slot)
        for left, right in joined(self._kind, sides[LEFT], sides[RIGHT]):
            row = WindowPair(window, left, right) if self._join is None else self._fit(self._join(left, right, window))
            self.output.append(ElementResult(row, time, key))

    def state_rows(self) -> Iterator[StateRow]:
        """Yield a row for each key, window and side that has elements, with the timer that joins the window."""
        for (key, window), sides in self._windows.items():
            for position, side in enumerate(SIDES):
                if not sides[side]:
                    continue
                contents: list[Any] = [None] * len(SIDES)
                contents[position] = sides[side]
                timers = [window.max_timestamp]
                yield StateRow(key, WINDOW, window, side=side, event_time_timers=timers, contents=contents)

    def restore_state(self, rows: Iterable[StateRow]) -> None:
        for row in rows:
            side = checked_side(row.side)
            if not isinstance(row.window, TimeWindow) or row.contents is None:
                raise IllegalState(
                    f"a state row of a window join needs a window and its elements; it has {row.window!r}"
                )
            self._sides(row.key, row.window, new=False)[side].extend(row.contents[SIDES.index(side)])

    def num_state_entries(self) -> int:
        return sum(bool(elements) for sides in self._windows.values() for elements in sides.values())

    def _sides(self, key: Any, window: Window, *, new: bool = True) -> dict[str, list[Any]]:
        """Return the elements of a window by side. A window without elements gets its timer.

        A `new` timer is counted; the timer of a restored window has been counted before.
        """
        slot = (key, window)
        sides = self._windows.get(slot)
        if sides is None:
            sides = self._windows[slot] = {LEFT: [], RIGHT: []}
            if new:
                self.timers.event_time.add(window.max_timestamp, slot)
            else:
                self.timers.restore(slot, ([window.max_timestamp], []))
        return sides


def joined(kind: JoinKind, left: list[Any], right: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs of a window; None stands for the element that an outer, semi or anti join lacks."""
    if kind in ("semi", "anti"):
        if bool(right) == (kind == "semi"):
            yield from ((each, None) for each in left)
        return
    for each in left:
        yield from ((each, partner) for partner in right)
        if not right and kind in ("left", "full"):
            yield each, None
    if not left and kind in ("right", "full"):
        yield from ((None, partner) for partner in right)
