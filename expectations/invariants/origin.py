"""Everything in the tables was put there by an epoch of the snapshot's line, through a commit of ours."""

from __future__ import annotations

from typing import ClassVar

import pandas as pd

from tidegate.expectations.commits import CHANGED, LOST, REWRITTEN, UNKNOWN
from tidegate.expectations.invariants.rule import Rule


class ExpectFilesToBeOfOurCommits(Rule):
    """No file is there that no commit of ours added, and none is missing that none removed."""

    text: ClassVar[str] = "Each file was added by a commit of tidegate, and removed by one if it is gone."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["fault"].isin((UNKNOWN, LOST))


class ExpectFilesToKeepTheirRows(Rule):
    """The rows of a file have the checksum that was recorded when it was written."""

    text: ClassVar[str] = "The rows of each file have the checksum that its commit recorded."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["fault"] == CHANGED


class ExpectNobodyElseToRewriteFiles(Rule):
    """No file was put together by somebody else, though it holds what ours held."""

    text: ClassVar[str] = "Nobody but tidegate put rows into other files."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows["fault"] == REWRITTEN


class ExpectEpochsToBeOfTheLine(Rule):
    """Rows that count are of epochs that led to the newest snapshot."""

    text: ClassVar[str] = "Each row is of an epoch that led to the newest snapshot."

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return ~rows["is_on_line"].astype(bool)
