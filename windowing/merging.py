"""The windows in flight of one key, for assigners whose windows merge.

Contents stay where they are when windows merge: each window in flight names the *state window*
that holds its contents, and a merge keeps one of its sources' state windows. Ours is always the
one with the smallest start, so that every operator writes the same snapshot. Source: Flink's
`MergingWindowSet`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tidegate.windowing.assigners.base import MergingWindowAssigner
from tidegate.windowing.errors import IllegalState
from tidegate.windowing.windows import TimeWindow, Window


class PlannedMerge(NamedTuple):
    """A merge of windows in flight: `sources` (without the new window) become `result`.

    The contents under `merged_state_windows` are to be added to those under `state_window`.
    """

    result: TimeWindow
    sources: list[TimeWindow]
    state_window: TimeWindow
    merged_state_windows: list[TimeWindow]


class Addition(NamedTuple):
    """What adding a window will do: the window it ends up in, and the merges on the way."""

    window: TimeWindow
    merges: list[PlannedMerge]


_NO_MERGES: list[PlannedMerge] = []

# Addition(...) takes twice as long, and most windows of most keys meet no other.
_new = tuple.__new__

OnMerge = Callable[[PlannedMerge], None]


class MergingWindowSet:
    """Windows in flight, each with its state window."""

    __slots__ = ("_assigner", "_covers", "mapping")

    def __init__(self, assigner: MergingWindowAssigner, restored: Iterable[tuple[TimeWindow, TimeWindow]] = ()) -> None:
        self._assigner = assigner
        self._covers = type(assigner).merge_windows is MergingWindowAssigner.merge_windows
        self.mapping: dict[TimeWindow, TimeWindow] = dict(restored)

    def plan(self, window: TimeWindow) -> Addition:
        """What `add` would do with a window; changes nothing."""
        if not self._covers:
            return self._plan_merges(window)
        start, end = window
        met = [other for other in self.mapping if other[0] <= end and start <= other[1]]
        return self._plan_cover(window, met) if met else _new(Addition, (window, _NO_MERGES))

    def apply(self, window: TimeWindow, addition: Addition) -> None:
        """Carry out a plan that was made for the set as it is."""
        mapping = self.mapping
        for merge in addition.merges:
            for source in merge.sources:
                del mapping[source]
            mapping[merge.result] = merge.state_window
        if addition.window not in mapping:
            mapping[addition.window] = window

    def add(self, window: TimeWindow, on_merge: OnMerge) -> TimeWindow:
        """Add a window, merging as the assigner says; the window in flight that it is now part of.

        A window inside one in flight causes no merge, and one equal to it keeps the contents.
        """
        addition = self.plan(window)
        for merge in addition.merges:
            on_merge(merge)
        self.apply(window, addition)
        return addition.window

    def state_window(self, window: Window) -> TimeWindow | None:
        """The window that holds the contents of `window`, or None if it is not in flight."""
        return self.mapping.get(window)  # type: ignore[arg-type]

    def retire(self, window: Window) -> None:
        """Forget a window.

        Raises:
            IllegalState: it is not in flight.
        """
        if self.mapping.pop(window, None) is None:  # type: ignore[arg-type]
            raise IllegalState(f"window {tuple(window)} is not in the set of windows in flight")

    def persisted(self) -> list[tuple[TimeWindow, TimeWindow]]:
        """The pairs (window, state window) that a snapshot keeps."""
        return list(self.mapping.items())

    def __len__(self) -> int:
        return len(self.mapping)

    def _plan_cover(self, new: TimeWindow, met: list[TimeWindow]) -> Addition:
        """Windows that touch are always apart in the set, so one pass finds all that a new one meets."""
        met.sort()
        result = TimeWindow(min(new[0], met[0][0]), max(new[1], max(window[1] for window in met)))
        if len(met) == 1 and met[0] == result:
            return Addition(result, _NO_MERGES)
        return Addition(result, [self._planned(result, met)])

    def _plan_merges(self, new: TimeWindow) -> Addition:
        target, merges = new, []
        for merge in self._assigner.merge_windows({*self.mapping, new}):
            if new in merge.sources or new == merge.result:
                target = merge.result
            sources = sorted({source for source in merge.sources if source in self.mapping})
            if sources and sources != [merge.result]:
                merges.append(self._planned(merge.result, sources))
        return Addition(target, merges)

    def _planned(self, result: TimeWindow, sources: list[TimeWindow]) -> PlannedMerge:
        states = [self.mapping[source] for source in sources]
        kept = min(states)
        states.remove(kept)
        return PlannedMerge(result, sources, kept, states)
