"""Rules for sessions: final sessions of a key lie apart.

Sessions that touch are merged, so between two sessions of a key the gap without elements is longer than the session
gap. In arrival order there is one valid exception, as in Flink: an element behind the watermark may open a session,
not yet closed itself, beside one that is closed. The two may overlap. The younger one ends later, and with further
elements behind the watermark it may grow over the closed one; but no session is made inside a closed one.
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
    """No session of a key lies inside one that was there before; this holds in arrival order too."""

    key: list[str]

    success_keys: ClassVar[tuple[str, ...]] = ("key",)
    shown: ClassVar[tuple[str, ...] | None] = ("watermark",)
    text: ClassVar[str] = "No session of one $key lies inside another that fired before it."

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
            # One that opened after the inner one was closed fires behind it, or late at the same watermark.
            behind = (fired > fired[row]) | ((fired == fired[row]) & is_late)
            inside[row] = (around & ~behind).any()
        return inside.reindex(rows.index)
