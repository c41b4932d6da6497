"""The windows in flight of a key, for assigners whose windows merge.

The window operator stores the contents of a window under the window itself, and moves them in a merge. So this set
holds only the windows. Flink's `MergingWindowSet` does not move contents: for each window it names the *state window*
that holds them, and the conformance cases track those names separately. In a state row, `state_window` is the window as
it was at its first firing (docs/decisions/windows-and-time.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidegate.windowing.assigners.base import MergingWindowAssigner
from tidegate.windowing.errors import IllegalState
from tidegate.windowing.windows import Merge, TimeWindow, Window


class Addition(NamedTuple):
    """The effect of adding a window: the window that holds it afterwards, and the necessary merges.

    The sources of a merge are windows in flight, without the new window.
    """

    window: TimeWindow
    merges: list[Merge]


_NO_MERGES: list[Merge] = []

# Calling Addition(...) takes twice as long, and this is the common case: most windows touch no other.
_new = tuple.__new__


class MergingWindowSet:
    """The set of windows in flight of a key."""

    __slots__ = ("_assigner", "_covers", "_windows")

    def __init__(self, assigner: MergingWindowAssigner, restored: Iterable[TimeWindow] = ()) -> None:
        self._assigner = assigner
        self._covers = type(assigner).merge_windows is MergingWindowAssigner.merge_windows
        self._windows = set(restored)

    def plan(self, window: TimeWindow) -> Addition:
        """Return the effect of adding a window, without changing the set.

        A window that lies inside a window in flight, or equals it, causes no merge.
        """
        if not self._covers:
            return self._plan_merges(window)
        start, end = window
        met = [other for other in self._windows if other[0] <= end and start <= other[1]]
        return self._plan_cover(window, met) if met else _new(Addition, (window, _NO_MERGES))

    def apply(self, addition: Addition) -> None:
        """Carry out a plan. The set must not have changed since `plan` returned it."""
        for merge in addition.merges:
            self._windows.difference_update(merge.sources)
            self._windows.add(merge.result)
        self._windows.add(addition.window)

    def retire(self, window: Window) -> None:
        """Remove a window.

        Raises:
            IllegalState: the window is not in flight.
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
        """Plan the merge of a new window with those that it touches. Windows in the set never touch each other."""
        met.sort()
        result = TimeWindow(min(new[0], met[0][0]), max(new[1], max(window[1] for window in met)))
        if len(met) == 1 and met[0] == result:
            return Addition(result, _NO_MERGES)
        return Addition(result, [Merge(result, met)])

    def _plan_merges(self, new: TimeWindow) -> Addition:
        target, merges = new, []
        for merge in self._assigner.merge_windows({*self._windows, new}):
            if new in merge.sources or new == merge.result:
                target = merge.result
            sources = sorted({source for source in merge.sources if source in self._windows})
            if sources and sources != [merge.result]:
                merges.append(Merge(merge.result, sources))
        return Addition(target, merges)
