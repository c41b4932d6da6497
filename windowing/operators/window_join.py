"""The window join: the elements of two inputs that are in the same window. Source: Flink's `WindowJoinOperator`.

Each side keeps the elements of a window until the watermark reaches its last millisecond. Then the window is joined
once and removed.

    tumbling by 10, kind full        left 1 @ 3, right 5 @ 8, left 2 @ 12
    watermark 9                      (1, 5) in [0, 10)
    watermark 19                     (2, None) in [10, 20)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.windowing.compute import JoinKind, WindowJoin
from tidegate.windowing.declared import row_checker
from tidegate.windowing.errors import IllegalState
from tidegate.windowing.operators.join import JoinOperator
from tidegate.windowing.operators.records import ElementResult, WindowPair
from tidegate.windowing.operators.two_inputs import LEFT, RIGHT, SIDES, checked_side
from tidegate.windowing.state.rows import WINDOW, StateRow
from tidegate.windowing.time import Millis
from tidegate.windowing.timers import Slot, TimersSnapshot
from tidegate.windowing.windows import TimeWindow, Window


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
        timestamp, side = self._came(timestamp, side)
        windows = self._assigner.assign_windows(value, timestamp, self.timers)
        open_windows = [window for window in windows if not self._is_late(window.max_timestamp)]
        for window in open_windows:
            self._sides(key, window)[side].append(value)
        if open_windows:
            return
        if self._is_late(timestamp):
            self._late(key, value, timestamp, side, windows[0] if windows else None)
        else:
            self._counters.no_window += 1

    def _is_late(self, time: Millis) -> bool:
        """Return True if the watermark has reached a time: that of an element, or the last millisecond of a window."""
        return time <= self.timers.current_watermark

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

        A `new` timer is counted; that of a restored window was counted already.
        """
        slot = (key, window)
        sides = self._windows.get(slot)
        if sides is None:
            sides = self._windows[slot] = {LEFT: [], RIGHT: []}
            if new:
                self.timers.event_time.add(window.max_timestamp, slot)
            else:
                self.timers.restore(slot, TimersSnapshot([window.max_timestamp], []))
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
