"""Final sessions of a key lie apart.

Two sessions that touch are one, so between two of a key there is more than the gap without elements.
In arrival order one exception is right, in Flink too: an element behind the watermark whose session
is still open opens it beside one that has passed. Then they may overlap, but the younger one ends later.
"""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from tidegate.expectations.invariants.rule import Rule, milliseconds


def _latest_end_before(rows: pd.DataFrame, key: list[str]) -> pd.Series:
    """For each session, sorted by start, the latest end among the earlier ones of its key; NaN for the first."""
    ends = milliseconds(rows["window_end"])
    if not key:
        return ends.cummax().shift()
    by = [rows[name] for name in key]
    return ends.groupby(by, dropna=False).cummax().groupby(by, dropna=False).shift()


def _by_start(rows: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    return rows.sort_values([*key, "window_start", "window_end"], kind="stable")


class ExpectSessionsToLieApart(Rule):
    """No two sessions of a key overlap or touch: what lies between two elements of them is above the gap."""

    key: list[str]

    success_keys: ClassVar[tuple[str, ...]] = ("key",)
    text: ClassVar[str] = "Sessions of one $key neither overlap nor touch."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        ordered = _by_start(rows, self.key)
        return (milliseconds(ordered["window_start"]) <= _latest_end_before(ordered, self.key)).reindex(rows.index)


class ExpectNoSessionInsideAnother(Rule):
    """No session of a key ends before one does that began earlier: true in arrival order too."""

    key: list[str]

    success_keys: ClassVar[tuple[str, ...]] = ("key",)
    text: ClassVar[str] = "No session of one $key lies inside another."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        ordered = _by_start(rows, self.key)
        return (milliseconds(ordered["window_end"]) <= _latest_end_before(ordered, self.key)).reindex(rows.index)
