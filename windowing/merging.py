"""The windows in flight of one key, for assigners whose windows merge.

The window operator keeps the contents of a window under the window itself, and moves them at a merge: so this set
holds the windows alone. Flink's `MergingWindowSet` leaves contents where they are and names, for each window, the
*state window* that holds them; the conformance cases keep those names beside this set. In a state row `state_window`
is what a window was when it first fired (docs/decisions/0071-windows-in-flight.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidegate.windowing.assigners.base import MergingWindowAssigner
from tidegate.windowing.errors import IllegalState
from tidegate.windowing.windows import TimeWindow, Window


class PlannedMerge(NamedTuple):
    """A merge of windows in flight: `sources` (without the new window), by start, become `result`."""

    result: TimeWindow
    sources: list[TimeWindow]


class Addition(NamedTuple):
    """What adding a window will do: the window it ends up in, and the merges on the way."""

    window: TimeWindow
    merges: list[PlannedMerge]


_NO_MERGES: list[PlannedMerge] = []

# Addition(...) takes twice as long, and most windows of most keys meet no other.
_new = tuple.__new__


class MergingWindowSet:
    """Windows in flight.

    Args:
        assigner: says which windows merge.
        restored: the windows in flight of a snapshot.
    """

    __slots__ = ("_assigner", "_covers", "_windows")

    def __init__(self, assigner: MergingWindowAssigner, restored: Iterable[TimeWindow] = ()) -> None:
        self._assigner = assigner
        self._covers = type(assigner).merge_windows is MergingWindowAssigner.merge_windows
        self._windows = set(restored)

    def plan(self, window: TimeWindow) -> Addition:
        """Return what adding a window will do; changes nothing.

        A window inside one in flight causes no merge, and one equal to it keeps the contents.
        """
        if not self._covers:
            return self._plan_merges(window)
        start, end = window
        met = [other for other in self._windows if other[0] <= end and start <= other[1]]
        return self._plan_cover(window, met) if met else _new(Addition, (window, _NO_MERGES))

    def apply(self, addition: Addition) -> None:
        """Carry out a plan that was made for the set as it is."""
        for merge in addition.merges:
            self._windows.difference_update(merge.sources)
            self._windows.add(merge.result)
        self._windows.add(addition.window)

    def retire(self, window: Window) -> None:
        """Forget a window.

        Raises:
            IllegalState: it is not in flight.
        """
        if window not in self._windows:
            raise IllegalState(f"window {tuple(window)} is not in the set of windows in flight")
        self._windows.remove(window)

    def __contains__(self, window: Window) -> bool:
        return window in self._windows

    def __iter__(self) -> Iterator[TimeWindow]:
        return iter(self._windows)

    def __len__(self) -> int:
        return len(self._windows)

    def _plan_cover(self, new: TimeWindow, met: list[TimeWindow]) -> Addition:
        """Windows that touch are always apart in the set, so one pass finds all that a new one meets."""
        met.sort()
        result = TimeWindow(min(new[0], met[0][0]), max(new[1], max(window[1] for window in met)))
        if len(met) == 1 and met[0] == result:
            return Addition(result, _NO_MERGES)
        return Addition(result, [PlannedMerge(result, met)])

    def _plan_merges(self, new: TimeWindow) -> Addition:
        target, merges = new, []
        for merge in self._assigner.merge_windows({*self._windows, new}):
            if new in merge.sources or new == merge.result:
                target = merge.result
            sources = sorted({source for source in merge.sources if source in self._windows})
            if sources and sources != [merge.result]:
                merges.append(PlannedMerge(merge.result, sources))
        return Addition(target, merges)
