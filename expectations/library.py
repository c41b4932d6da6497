"""Expectations about windows, for a pipeline's own suite, or for using Great Expectations on its results directly.

Each works on rows in memory that have the columns `window_start` and `window_end`, one row per window. Lengths are
milliseconds. Rules that compare a window with the one before it get that window from the check, whichever epoch
published it; used directly, they compare the rows that they are given.

>>> import great_expectations as gx
>>> from tidegate.expectations.library import ExpectWindowsToFollowEachOther
>>> hours = gx.ExpectationSuite(name="hours")
>>> hours.expectations.append(ExpectWindowsToFollowEachOther(key=["origin"], length=0, severity="warning"))
"""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from tidegate.expectations.invariants.rule import Rule, milliseconds
from tidegate.expectations.invariants.windows import (
    ExpectSessionsToLieApart,
    ExpectWindowsToBeAligned,
    ExpectWindowsToBeAtLeast,
)
from tidegate.expectations.needs import Needs

__all__ = [
    "ExpectColumnToChangeByAtMost",
    "ExpectSessionsToLieApart",
    "ExpectWindowsToBeAligned",
    "ExpectWindowsToBeAtLeast",
    "ExpectWindowsToBeAtMost",
    "ExpectWindowsToFollowEachOther",
    "Needs",
    "Rule",
]


class ExpectWindowsToBeAtMost(Rule):
    """No window is longer than this. A session that never ends is often a device that keeps sending the same event.

    Args:
        length: milliseconds.
    """

    length: int

    shown: ClassVar[tuple[str, ...] | None] = ()
    lengths: ClassVar[tuple[str, ...]] = ("length",)
    text: ClassVar[str] = "Windows are at most $length long."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return milliseconds(rows["window_end"]) - milliseconds(rows["window_start"]) > self.length


def _before(rows: pd.DataFrame, key: list[str], values: pd.Series) -> pd.Series:
    """Return for each row the value of its key's previous window; null for the first."""
    ordered = rows.sort_values(["window_start", "window_end"], kind="stable").index
    values = values[ordered]
    if not key:
        return values.shift().reindex(rows.index)
    return values.groupby([rows.loc[ordered, name] for name in key], dropna=False).shift().reindex(rows.index)


class ExpectWindowsToFollowEachOther(Rule):
    """At most this much time lies between the end of a window and the start of its key's next one.

    A window without elements has no row, so a gap means that the source had no rows for the key.

    Args:
        key: the key columns; if empty, all windows are taken together.
        length: milliseconds; 0 requires windows without gaps.
    """

    key: list[str]
    length: int

    needs: ClassVar[Needs] = "neighbours"
    shown: ClassVar[tuple[str, ...] | None] = ()
    lengths: ClassVar[tuple[str, ...]] = ("length",)
    text: ClassVar[str] = "There is at most $length between two windows of one $key."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        before = _before(rows, self.key, milliseconds(rows["window_end"]))
        return milliseconds(rows["window_start"]) - before > self.length


class ExpectColumnToChangeByAtMost(Rule):
    """A value is at most `factor` times larger or smaller than in the previous window of its key.

    Windows where either value is null or not positive are ignored.

    Args:
        column: a column of numbers.
        key: the key columns; if empty, all windows are taken together.
        factor: at least 1; 3 allows a third to three times the previous value.
    """

    column: str
    key: list[str]
    factor: float

    needs: ClassVar[Needs] = "neighbours"
    text: ClassVar[str] = "$column of one $key changes by at most a factor of $factor from window to window."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        values = pd.to_numeric(rows[self.column]).astype("float64")
        positive = values.where(values > 0)
        ratio = positive / _before(rows, self.key, positive)
        return (ratio > self.factor) | (ratio < 1 / self.factor)
