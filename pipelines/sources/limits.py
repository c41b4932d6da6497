"""Limits of values: the longest gap of a session, and the columns whose times must fit Python's datetime.

Spark and Delta have times after the year 9999. A row operator, a process function and every command that shows rows
can't hold them. A row with such a time goes to table `rejects` with every operator, so the choice of the operator does
not change results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.windowing.compute import Windows

LONGEST_GAP = 2**60
"""Longest accepted gap in milliseconds, with which the end of a session always fits int64."""


def gap_column(pipeline: Pipeline) -> str | None:
    """Return the name of the column with the gaps of sessions; None if there is none."""
    windows: object = pipeline.compute
    return windows.assigner.column_of_gaps if isinstance(windows, Windows) else None


def columns_read(pipeline: Pipeline, part: Input, derived: Sequence[str]) -> list[str]:
    """Return the columns of an event that the computation reads, including its key.

    Args:
        pipeline: the pipeline's value.
        part: the input of the pipeline.
        derived: columns of the input after `columns=`.
    """
    windows: object = pipeline.compute
    read = set[str]()
    if isinstance(windows, Windows) and isinstance(windows.aggregate, Mapping):
        read = {column for aggregate in windows.aggregate.values() for column in aggregate.columns}
    if not isinstance(windows, Windows) or windows.reads_whole_elements:
        read |= set(derived if part.uses is None else part.uses)
    read |= {*part.key, *([gap] if (gap := gap_column(pipeline)) else [])}
    return [name for name in derived if name in read]
