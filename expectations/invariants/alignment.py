"""Rules for the bounds of windows: a fixed size lies on a grid, a session is at least as long as its gap."""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from tidegate.expectations.invariants.rule import Rule, milliseconds


class ExpectWindowsToBeAligned(Rule):
    """Every window is `[n * slide + offset, n * slide + offset + size)`; milliseconds."""

    size: int
    slide: int
    offset: int = 0

    success_keys: ClassVar[tuple[str, ...]] = ("size", "slide", "offset")
    shown: ClassVar[tuple[str, ...] | None] = ()
    text: ClassVar[str] = "Windows are $size ms long and begin at multiples of $slide ms shifted by $offset ms."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        start, end = milliseconds(rows["window_start"]), milliseconds(rows["window_end"])
        return (end - start != self.size) | ((start - self.offset) % self.slide != 0)


class ExpectWindowsToBeAtLeast(Rule):
    """Every window is at least so long, milliseconds: a session ends its gap after its last element."""

    length: int

    success_keys: ClassVar[tuple[str, ...]] = ("length",)
    shown: ClassVar[tuple[str, ...] | None] = ()
    text: ClassVar[str] = "Windows are at least $length ms long."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return milliseconds(rows["window_end"]) - milliseconds(rows["window_start"]) < self.length
