"""Rules for windows: their bounds, the numbers and timing of their panes, and the windows of a key together.

**Bounds.** Windows of a fixed size are aligned to a grid; a session is at least as long as its gap. `by_epoch` holds
what each version of the code declared, with the first epoch that ran it. A window that was open when the code changed
keeps its bounds, so a window matches the declaration of its epoch or of an earlier one.

**Panes.** `op` is "+" for a pane, and "-" for the retraction of that pane and all before it. When a session merges with
one that had fired more often, its numbers continue from the larger one. A window that was retracted and reappears in a
later epoch begins again with pane 0.

**Sessions.** Sessions that touch are merged, so between two sessions of a key the gap without elements is longer than
the session gap. In arrival order there is one valid exception, as in Flink: an element behind the watermark may open a
session next to one that is already closed. The two may overlap. The younger one ends later, and with further elements
behind the watermark it may grow over the closed one; but no session is created inside a closed one.

**Sliding windows.** The element counts of the windows determine the count in each slide, because a window and its
predecessor share all slides but the first and the last. If a window is lost or duplicated, the computed count for a
slide is negative.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd

from tidegate.expectations.invariants.rule import Rule, milliseconds
from tidegate.expectations.needs import Needs


class ExpectWindowsToBeAligned(Rule):
    """Every window is `[n * slide + offset, n * slide + offset + size)`.

    Args:
        size: milliseconds.
        slide: milliseconds.
        offset: milliseconds.
        by_epoch: first epoch, size, slide and offset of each version of the code; empty if they never changed. The size
            is 0 for a version whose windows have no fixed size, such as days of a time zone: any window matches.
    """

    size: int
    slide: int
    offset: int = 0
    by_epoch: list[list[int]] = []  # noqa: RUF012 (a field of the model)

    shown: ClassVar[tuple[str, ...] | None] = ()
    lengths: ClassVar[tuple[str, ...]] = ("size", "slide", "offset")
    text: ClassVar[str] = "Windows are $size long and begin at multiples of $slide shifted by $offset."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        start, end = milliseconds(rows["window_start"]), milliseconds(rows["window_end"])
        fits = pd.Series(False, index=rows.index)
        for epoch, size, slide, offset in self.by_epoch or [[0, self.size, self.slide, self.offset]]:
            fits |= _since(rows, epoch) & ((end - start == size) & ((start - offset) % slide == 0) | (size == 0))
        return ~fits


class ExpectWindowsToBeAtLeast(Rule):
    """Every window has at least this length, because a session ends one gap after its last element.

    Args:
        length: milliseconds.
        by_epoch: first epoch and minimum length of each version of the code; empty if it never changed.
    """

    length: int
    by_epoch: list[list[int]] = []  # noqa: RUF012 (a field of the model)

    shown: ClassVar[tuple[str, ...] | None] = ()
    lengths: ClassVar[tuple[str, ...]] = ("length",)
    text: ClassVar[str] = "Windows are at least $length long."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        lengths = milliseconds(rows["window_end"]) - milliseconds(rows["window_start"])
        fits = pd.Series(False, index=rows.index)
        for epoch, length in self.by_epoch or [[0, self.length]]:
            fits |= _since(rows, epoch) & (lengths >= length)
        return ~fits


def _since(rows: pd.DataFrame, epoch: int) -> pd.Series:
    """Mark the rows of an epoch and later ones. Epoch 0 marks all rows, even without an epoch column."""
    return rows["epoch"] >= epoch if epoch else pd.Series(True, index=rows.index)


_TIMINGS = {"early": 0, "on_time": 1, "late": 2}


_ORDER = ["epoch", "pane", "op"]
"""Columns by which the rows of a window are ordered: `-` sorts after `+`."""


class ExpectPanesToBeDense(Rule):
    """Panes of a window are numbered 0, 1, 2 and so on; numbers may be skipped only after a merge.

    After a retraction, the numbers may begin again in a later epoch.
    """

    key: list[str]

    shown: ClassVar[tuple[str, ...] | None] = ("window_id", "pane", "timing", "op", "epoch")
    text: ClassVar[str] = "Panes of a window of one $key are numbered 0, 1, 2 and so on."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        of_window = [*self.key, "window_id"]
        ordered = rows.sort_values([*of_window, *_ORDER], kind="stable")
        before = ordered.groupby(of_window, dropna=False)[_ORDER].shift()
        number = before["pane"].fillna(-1)
        again = (ordered["pane"] == 0) & (before["op"] == "-") & (before["epoch"] < ordered["epoch"])
        jumps = ordered[(ordered["op"] == "+") & (ordered["pane"] != number + 1) & ~again]
        by = [*self.key, "epoch", "pane"]
        merged = rows.loc[rows["op"] == "-", by].drop_duplicates()
        merged["pane"] += 1
        # Pandas adds a column that may have the name of a key, so the columns are numbered.
        numbers = list(range(len(by)))
        sides = [side[by].set_axis(numbers, axis=1) for side in (jumps, merged)]
        explained = sides[0].merge(sides[1], on=numbers, how="left", indicator=True)["_merge"] == "both"
        doubled = jumps["pane"] == number[jumps.index]
        broken = pd.Series(False, index=rows.index)
        broken[jumps.index] = ~explained.to_numpy() | doubled.to_numpy()
        return broken


class ExpectOneOnTimePaneBeforeLateOnes(Rule):
    """The panes of a window that are not retracted are early ones, then at most one on-time pane, then late ones."""

    key: list[str]

    shown: ClassVar[tuple[str, ...] | None] = ("window_id", "pane", "timing", "op", "epoch")
    text: ClassVar[str] = "Each window of one $key has at most one on-time pane, after early and before late ones."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        by = [*self.key, "window_id"]
        in_order = rows.sort_values([*by, *_ORDER], kind="stable")
        # Each row's number of retractions from it on.
        newest_first = (in_order["op"] == "-").astype(int)[::-1]
        retracted = newest_first.groupby([in_order[name][::-1] for name in by], dropna=False).cumsum()[::-1]
        ordered = in_order[(in_order["op"] == "+") & (retracted == 0)]
        timing = ordered["timing"].map(_TIMINGS)
        before = timing.groupby([ordered[name] for name in by], dropna=False).shift()
        on_time = _TIMINGS["on_time"]
        wrong = (timing < before) | ((timing == on_time) & (before == on_time))
        broken = pd.Series(False, index=rows.index)
        broken[ordered.index] = wrong
        return broken


def _latest_end_before(rows: pd.DataFrame, key: list[str]) -> pd.Series:
    """Return, for each session by start, the latest end among its key's earlier sessions; NaN for the first."""
    ends = milliseconds(rows["window_end"])
    if not key:
        return ends.cummax().shift()
    by = [rows[name] for name in key]
    return ends.groupby(by, dropna=False).cummax().groupby(by, dropna=False).shift()


def _by_start(rows: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    return rows.sort_values([*key, "window_start", "window_end"], kind="stable")


class ExpectSessionsToLieApart(Rule):
    """No two sessions of a key overlap or touch: their elements are more than the session gap apart.

    Args:
        key: the key columns.
    """

    key: list[str]

    needs: ClassVar[Needs] = "neighbours"
    shown: ClassVar[tuple[str, ...] | None] = ()
    text: ClassVar[str] = "Sessions of one $key neither overlap nor touch."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        ordered = _by_start(rows, self.key)
        return (milliseconds(ordered["window_start"]) <= _latest_end_before(ordered, self.key)).reindex(rows.index)


class ExpectNoSessionInsideAnother(Rule):
    """No session of a key is inside one that existed before. This also holds in arrival order."""

    key: list[str]

    shown: ClassVar[tuple[str, ...] | None] = ("watermark",)
    text: ClassVar[str] = "No session of one $key is inside another that fired before it."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        ordered = _by_start(rows, self.key)
        ends = milliseconds(ordered["window_end"])
        inside = ends <= _latest_end_before(ordered, self.key)
        if not inside.any():
            return inside.reindex(rows.index)
        starts, fired = milliseconds(ordered["window_start"]), milliseconds(ordered["watermark"])
        is_late = ordered["timing"] == "late"
        of_key = ordered.groupby(self.key, dropna=False).ngroup() if self.key else pd.Series(0, ordered.index)
        for row in ordered.index[inside]:
            around = (of_key == of_key[row]) & (starts <= starts[row]) & (ends >= ends[row]) & (ordered.index != row)
            # A session that opened after the inner one was closed fires at a later watermark, or late at the same one.
            behind = (fired > fired[row]) | ((fired == fired[row]) & is_late)
            inside[row] = (around & ~behind).any()
        return inside.reindex(rows.index)


class ExpectElementsInEverySlidingWindow(Rule):
    """Counts of neighbouring windows of a key agree: each element is in `size / slide` of them.

    `count` names the column with the number of elements. Windows up to the watermark (milliseconds) must exist; windows
    without elements have no row. Windows that begin before `since` (milliseconds) are ignored: a check may cover newer
    windows only.
    """

    key: list[str]
    count: str
    size: int
    slide: int
    offset: int = 0
    watermark: int
    lateness: int = 0
    since: int | None = None

    lengths: ClassVar[tuple[str, ...]] = ("size", "slide", "offset", "lateness")
    times: ClassVar[tuple[str, ...]] = ("watermark", "since")
    text: ClassVar[str] = (
        "Windows of $size begin every $slide; each element of one $key is in every window that covers it."
    )

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        index = (milliseconds(rows["window_start"]) - self.offset) // self.slide
        last_final = (self.watermark + 1 - self.lateness - self.size - self.offset) // self.slide
        first_known = None if self.since is None else -((self.offset - self.since) // self.slide)
        if (older := rows[self.count].isna()).any():
            # Windows that are older than the count don't count their elements.
            first_known = max(int(index[older].max()) + 1, index.min() if first_known is None else first_known)
        rows = rows if first_known is None else rows[index >= first_known]
        broken = pd.Series(False, index=index.index)
        groups = rows.groupby(self.key, dropna=False).groups if self.key else {None: rows.index}
        for members in groups.values():
            starts = index[members].to_numpy()
            if len(starts):
                bad = self._bad_starts(
                    starts, rows.loc[members, self.count].to_numpy(np.int64), last_final, first_known
                )
                broken[members] = np.isin(starts, bad)
        return broken

    def _bad_starts(
        self, starts: np.ndarray, counts: np.ndarray, last_final: int, first_known: int | None
    ) -> np.ndarray:
        """Return the numbers of the windows whose counts are impossible for any set of elements."""
        per_element = self.size // self.slide
        first = int(starts.min())
        total = max(int(last_final), int(starts.max())) - first + 1
        windows = np.zeros(total, dtype=np.int64)
        np.add.at(windows, starts - first, counts)
        change = np.diff(windows, prepend=0)
        if first == first_known:
            # The window before the first one is not included, so the first change is unknown.
            change[0] = 0
        # change[i] is the count in the slide that window i has and window i - 1 lacks, minus the count in the slide
        # that only window i - 1 has, which is per_element slides earlier. So sums over each residue class give the
        # count in each slide.
        padded = np.pad(change, (0, -total % per_element)).reshape(-1, per_element)
        elements = padded.cumsum(axis=0).ravel()[:total]
        if first == first_known:
            # Each residue class may start with a count that keeps its sums non-negative; these counts together must fit
            # into the first window.
            least = np.maximum(0, -padded.cumsum(axis=0).min(axis=0))
            fits = least.sum() <= windows[0]
            bad = np.empty(0, np.int64) if fits else np.flatnonzero((elements == -least.max()) & (change < 0)) + first
        else:
            bad = np.flatnonzero((elements < 0) & (change < 0)) + first
        return np.concatenate([bad - 1, bad])
