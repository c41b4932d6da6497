"""Windows as values: a half-open span of time, or the one window that holds everything.

Windows are plain tuples underneath: they are dictionary keys on the hottest path of the row
operator, and a tuple hashes and compares in C (docs/decisions/0001-windows-are-tuples.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from tidegate.windowing.time import MAX_TIMESTAMP, Millis


class TimeWindow(NamedTuple):
    """The span `[start, end)`, int64 epoch milliseconds. Source: Flink's `TimeWindow`."""

    start: Millis
    end: Millis

    @property
    def max_timestamp(self) -> Millis:
        """The last millisecond inside: the timestamp of the window's result."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Whether the two overlap or merely touch: sessions that touch are one session."""
        return self.start <= other.end and other.start <= self.end

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window that holds both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))


class GlobalWindow(NamedTuple):
    """The one window without bounds. Source: Flink's `GlobalWindow`."""

    @property
    def max_timestamp(self) -> Millis:
        """The end of time, so that it never passes while input goes on."""
        return MAX_TIMESTAMP


GLOBAL_WINDOW = GlobalWindow()

Window: TypeAlias = TimeWindow | GlobalWindow


def start_and_end(window: Window | None) -> tuple[Millis | None, Millis | None]:
    """Return the bounds of a window; None and None of the global window, and of no window."""
    return (window.start, window.end) if isinstance(window, TimeWindow) else (None, None)


@lru_cache(maxsize=4096)
def aligned_window(start: Millis, size: Millis) -> TimeWindow:
    """The window of `size` at `start`: one object for all keys, since few aligned windows are open at a time."""
    return TimeWindow(start, start + size)


class Merge(NamedTuple):
    """Windows that become one: `sources` (two or more) merge into `result`."""

    result: TimeWindow
    sources: list[TimeWindow]


def merge_time_windows(windows: Iterable[TimeWindow]) -> list[Merge]:
    """Groups of windows that overlap or touch, each with the window that covers it.

    Equal windows count once; a window that stands alone makes no group. Groups and their sources
    come by start. Source: Flink's `TimeWindow.mergeWindows`.
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
