"""Windows as values: a half-open span of time, or the global window.

Windows are tuples. The row operator uses them as dictionary keys for every element, and tuples hash and compare in C
(docs/decisions/windows-and-time.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import FIRST_TIME, LAST_TIME, MAX_TIMESTAMP, Millis, in_range, show_millis


class TimeWindow(NamedTuple):
    """Window `[start, end)`, int64 epoch milliseconds. Source: Flink's `TimeWindow`."""

    start: Millis
    end: Millis

    @property
    def max_timestamp(self) -> Millis:
        """Last millisecond inside the window, which is also the timestamp of its result."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Return True if the windows overlap or touch. Sessions that touch are one session."""
        return self.start <= other.end and other.start <= self.end

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that contains both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))


class GlobalWindow(NamedTuple):
    """The global window, which has no bounds. Source: Flink's `GlobalWindow`."""

    @property
    def max_timestamp(self) -> Millis:
        """Largest timestamp. The watermark reaches it only at the end of input."""
        return MAX_TIMESTAMP


GLOBAL_WINDOW = GlobalWindow()

Window: TypeAlias = TimeWindow | GlobalWindow


def start_and_end(window: Window | None) -> tuple[Millis | None, Millis | None]:
    """Return the bounds of a window; (None, None) for the global window and for None."""
    return (window.start, window.end) if isinstance(window, TimeWindow) else (None, None)


def check_window(window: Window, owner: object) -> None:
    """Check a window that an assigner returned.

    Args:
        window: the window.
        owner: the assigner, which the error names.

    Raises:
        IllegalArgument: a bound of the window is not an int, or is outside the range of times.
    """
    for bound in window:
        if type(bound) is not int or not in_range(bound):
            raise IllegalArgument(
                f"window of {type(owner).__name__}",
                window,
                f"give bounds in epoch milliseconds, ints from {show_millis(FIRST_TIME)} to "
                f"{show_millis(LAST_TIME - 1)} ({FIRST_TIME} to {LAST_TIME - 1})",
            )


@lru_cache(maxsize=4096)
def aligned_window(start: Millis, size: Millis) -> TimeWindow:
    """Return the window of `size` at `start`. Keys share the object, because few aligned windows are open at a time."""
    return TimeWindow(start, start + size)


class Merge(NamedTuple):
    """A merge of windows: `sources`, two or more, become `result`."""

    result: TimeWindow
    sources: list[TimeWindow]


def merge_time_windows(windows: Iterable[TimeWindow]) -> list[Merge]:
    """Return the merges of windows that overlap or touch.

    Equal windows count once; a window that touches no other is not merged. Merges and their sources are sorted by
    start. Source: Flink's `TimeWindow.mergeWindows`.
    """
    merges: list[Merge] = []
    cover: TimeWindow | None = None
    group: list[TimeWindow] = []
    for window in sorted(set(windows)):
        if cover is not None and cover.intersects(window):
            cover = cover.cover(window)
            group.append(window)
            continue
        if cover is not None and len(group) > 1:
            merges.append(Merge(cover, group))
        cover, group = window, [window]
    if cover is not None and len(group) > 1:
        merges.append(Merge(cover, group))
    return merges
