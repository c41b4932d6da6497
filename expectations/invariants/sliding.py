"""A rule for sliding windows: each element is in every window that covers it.

The numbers of elements in the windows determine the number in each slide of time: a window and its predecessor share
all slides but the first and the last. If a window is lost or doubled, the computed number for a slide is negative.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd

from tidegate.expectations.invariants.rule import Rule, milliseconds


class ExpectElementsInEverySlidingWindow(Rule):
    """Counts of neighbouring windows of a key agree: each element is in `size / slide` of them.

    `count` names the column with the number of elements. Windows up to the watermark (milliseconds)
    must exist; a window without elements has no row. Windows that begin before `since` (milliseconds) are left out:
    a check may look at newer windows only.
    """

    key: list[str]
    count: str
    size: int
    slide: int
    offset: int = 0
    watermark: int
    lateness: int = 0
    since: int | None = None

    success_keys: ClassVar[tuple[str, ...]] = ("key", "count", "size", "slide", "offset", "watermark", "lateness")
    text: ClassVar[str] = (
        "Windows of $size ms begin every $slide ms; each element of one $key is in every window that covers it."
    )

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        index = (milliseconds(rows["window_start"]) - self.offset) // self.slide
        last_final = (self.watermark + 1 - self.lateness - self.size - self.offset) // self.slide
        first_known = None if self.since is None else -((self.offset - self.since) // self.slide)
        rows = rows if first_known is None else rows[index >= first_known]
        broken = pd.Series(False, index=index.index)
        groups = rows.groupby(self.key, dropna=False).groups if self.key else {None: rows.index}
        for members in groups.values():
            starts = index[members].to_numpy()
            if len(starts):
                bad = self._bad_starts(starts, rows.loc[members, self.count].to_numpy(), last_final, first_known)
                broken[members] = np.isin(starts, bad)
        return broken

    def _bad_starts(
        self, starts: np.ndarray, counts: np.ndarray, last_final: int, first_known: int | None
    ) -> np.ndarray:
        """Return the numbers of the windows whose counts no elements can explain."""
        per_element = self.size // self.slide
        first = int(starts.min())
        total = max(int(last_final), int(starts.max())) - first + 1
        windows = np.zeros(total, dtype=np.int64)
        np.add.at(windows, starts - first, counts)
        change = np.diff(windows, prepend=0)
        if first == first_known:
            # The window before the first one is left out, so the first change is unknown.
            change[0] = 0
        # change[i] is the number in the slide that window i has and i - 1 has not, minus that in the slide that only
        # i - 1 has, per_element slides before it; so sums over each residue class give the number in each slide.
        padded = np.pad(change, (0, -total % per_element)).reshape(-1, per_element)
        elements = padded.cumsum(axis=0).ravel()[:total]
        if first == first_known:
            # Each class of slides may begin with a number that keeps its sums from being negative; together these
            # numbers must fit into the first window.
            least = np.maximum(0, -padded.cumsum(axis=0).min(axis=0))
            fits = least.sum() <= windows[0]
            bad = np.empty(0, np.int64) if fits else np.flatnonzero((elements == -least.max()) & (change < 0)) + first
        else:
            bad = np.flatnonzero((elements < 0) & (change < 0)) + first
        return np.concatenate([bad - 1, bad])
