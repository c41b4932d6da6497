"""Rules for the bounds of windows: a fixed size lies on a grid, a session is at least as long as its gap.

`by_epoch` has what each code declared, with the first epoch that ran by it. A window that was open when the code
changed keeps its bounds, so a window fits what was declared in its epoch or before it.
"""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from tidegate.expectations.invariants.rule import Rule, milliseconds


class ExpectWindowsToBeAligned(Rule):
    """Every window is `[n * slide + offset, n * slide + offset + size)`; milliseconds.

    `by_epoch` has first epoch, size, slide and offset of each code.
    """

    size: int
    slide: int
    offset: int
    by_epoch: list[list[int]]

    success_keys: ClassVar[tuple[str, ...]] = ("size", "slide", "offset", "by_epoch")
    shown: ClassVar[tuple[str, ...] | None] = ()
    text: ClassVar[str] = "Windows are $size ms long and begin at multiples of $slide ms shifted by $offset ms."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        start, end = milliseconds(rows["window_start"]), milliseconds(rows["window_end"])
        fits = pd.Series(False, index=rows.index)
        for epoch, size, slide, offset in self.by_epoch:
            fits |= (rows["epoch"] >= epoch) & (end - start == size) & ((start - offset) % slide == 0)
        return ~fits


class ExpectWindowsToBeAtLeast(Rule):
    """Every window is at least so long, milliseconds: a session ends its gap after its last element.

    `by_epoch` has first epoch and least length of each code.
    """

    length: int
    by_epoch: list[list[int]]

    success_keys: ClassVar[tuple[str, ...]] = ("length", "by_epoch")
    shown: ClassVar[tuple[str, ...] | None] = ()
    text: ClassVar[str] = "Windows are at least $length ms long."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        lengths = milliseconds(rows["window_end"]) - milliseconds(rows["window_start"])
        fits = pd.Series(False, index=rows.index)
        for epoch, length in self.by_epoch:
            fits |= (rows["epoch"] >= epoch) & (lengths >= length)
        return ~fits
