"""Limits of values: the longest gap of a session, and times that must fit Python's datetime.

Spark and Delta have times after the year 9999. A row operator, a process function and every command that shows rows
can't hold them. A row with such a time goes to table `rejects` with every operator, so the choice of the operator does
not change results.
"""

from __future__ import annotations

from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.windowing.compute import Windows

LONGEST_GAP = 2**60
"""Longest accepted gap in milliseconds, with which the end of a session always fits int64."""


def gap_column(pipeline: Pipeline) -> str | None:
    """Return the name of the column with the gaps of sessions; None if there is none."""
    windows: object = pipeline.compute
    return windows.assigner.column_of_gaps if isinstance(windows, Windows) else None
