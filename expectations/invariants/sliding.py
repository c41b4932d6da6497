"""Sliding windows: each element is in every window that covers it.

From the number of elements of each window follows how many lie in each slide of time: a window and
its predecessor share all slides but the first and the last. A lost or doubled window leaves a slide
with fewer than no elements.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd

from tidegate.expectations.invariants.rule import Rule, milliseconds


class ExpectElementsInEverySlidingWindow(Rule):
    """Counts of neighbouring windows of a key agree: each element is in `size / slide` of them.

    `count` names the column with the number of elements. Windows up to the watermark (milliseconds)
    must be there; a window without elements has no row. Windows that begin before `since` (milliseconds) are left out,
    as they are where only newer ones are looked at.
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
    text: ClassVar[str] = "Each element of one $key is in every window of $size ms each $slide ms that covers it."

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
        """Numbers of windows around which no elements explain the counts."""
        per_element = self.size // self.slide
        first = int(starts.min())
        known = max(int(last_final), int(starts.max())) - first + 1
        windows = np.zeros(known, dtype=np.int64)
        np.add.at(windows, starts - first, counts)
        change = np.diff(windows, prepend=0)
        if first == first_known:
            # There is one before it, whose elements nobody told: of the first window it is only known how many it has.
            change[0] = 0
        # Elements of the slide that window i has and i - 1 has not; summed up along its own residue class.
        padded = np.pad(change, (0, -known % per_element)).reshape(-1, per_element)
        elements = padded.cumsum(axis=0).ravel()[:known]
        if first == first_known:
            # Each class of slides may begin with as many as keep it from falling below none; the first window has room.
            least = np.maximum(0, -padded.cumsum(axis=0).min(axis=0))
            fits = least.sum() <= windows[0]
            found = np.empty(0, np.int64) if fits else np.flatnonzero((elements == -least.max()) & (change < 0)) + first
        else:
            found = np.flatnonzero((elements < 0) & (change < 0)) + first
        return np.concatenate([found - 1, found])
