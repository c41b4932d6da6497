"""Rules for sessions: final sessions of a key lie apart.

Sessions that touch are merged, so between two sessions of a key the gap without elements is longer than the session
gap. In arrival order there is one valid exception, as in Flink: an element behind the watermark may open a session,
not yet closed itself, beside one that is closed. The two may overlap, but the younger one ends later.
"""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from tidegate.expectations.invariants.rule import Rule, milliseconds


def _latest_end_before(rows: pd.DataFrame, key: list[str]) -> pd.Series:
    """Return for each session, sorted by start, the latest end among earlier ones of its key; NaN for the first."""
    ends = milliseconds(rows["window_end"])
    if not key:
        return ends.cummax().shift()
    by = [rows[name] for name in key]
    return ends.groupby(by, dropna=False).cummax().groupby(by, dropna=False).shift()


def _by_start(rows: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    return rows.sort_values([*key, "window_start", "window_end"], kind="stable")


class ExpectSessionsToLieApart(Rule):
    """No two sessions of a key overlap or touch: their elements are further apart than the session gap."""

    key: list[str]

    success_keys: ClassVar[tuple[str, ...]] = ("key",)
    shown: ClassVar[tuple[str, ...] | None] = ()
    text: ClassVar[str] = "Sessions of one $key neither overlap nor touch."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        ordered = _by_start(rows, self.key)
        return (milliseconds(ordered["window_start"]) <= _latest_end_before(ordered, self.key)).reindex(rows.index)


class ExpectNoSessionInsideAnother(Rule):
    """No session of a key ends before an earlier one does; this holds in arrival order too."""

    key: list[str]

    success_keys: ClassVar[tuple[str, ...]] = ("key",)
    shown: ClassVar[tuple[str, ...] | None] = ()
    text: ClassVar[str] = "No session of one $key lies inside another."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        ordered = _by_start(rows, self.key)
        return (milliseconds(ordered["window_end"]) <= _latest_end_before(ordered, self.key)).reindex(rows.index)
