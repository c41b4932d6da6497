"""Rules for the origin of rows: an epoch on the snapshot's line wrote them, in a commit of tidegate."""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from tidegate.expectations.commits import CHANGED, LOST, REWRITTEN, UNKNOWN, UNREADABLE
from tidegate.expectations.invariants.rule import Rule


class ExpectFilesToBeOfOurCommits(Rule):
    """A commit of tidegate added each file that exists, and removed each file that is gone."""

    text: ClassVar[str] = (
        "A commit of tidegate added each file, and a commit of tidegate removed each file that is gone."
    )

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["fault"].isin((UNKNOWN, LOST))


class ExpectFilesToKeepTheirRows(Rule):
    """A file that is listed is there, and its rows have the checksum that was recorded when it was written."""

    text: ClassVar[str] = "Each file is there, and its rows have the checksum that its commit recorded."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["fault"].isin((CHANGED, UNREADABLE))


class ExpectNobodyElseToRewriteFiles(Rule):
    """No foreign commit rewrote files of tidegate, even with the same rows."""

    text: ClassVar[str] = "No other program rewrote files of tidegate."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["fault"] == REWRITTEN


class ExpectEpochsToBeOfTheLine(Rule):
    """Each row that counts is of an epoch that led to the newest snapshot."""

    text: ClassVar[str] = "The epoch of each row led to the newest snapshot."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return ~rows["is_on_line"].astype(bool)
