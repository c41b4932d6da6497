"""Values that a row may not have, wherever it is judged: gaps that are none, times that Python's datetime can't hold.

Spark and Delta hold times after the year 9999, which a row operator, a process function and every command that shows
rows can't. Such a row goes to table `rejects`, whichever operator computes, so that no choice of operator shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.windowing.compute import Windows

LONGEST_GAP = 2**60
"""Milliseconds up to which the end of a session can't leave int64."""


def gap_column(pipeline: Pipeline) -> str | None:
    """The column that the gaps of sessions are in, if any."""
    windows: object = pipeline.compute
    return windows.assigner.column_of_gaps if isinstance(windows, Windows) else None


def columns_read(pipeline: Pipeline, one: Input, derived: Sequence[str]) -> list[str]:
    """The columns of an event that the computation reads, its key among them.

    Args:
        pipeline: the value.
        one: which of its inputs.
        derived: the columns after `columns=`.
    """
    windows: object = pipeline.compute
    if isinstance(windows, Windows) and windows.process is None and isinstance(windows.aggregate, Mapping):
        read = {column for aggregate in windows.aggregate.values() for column in aggregate.columns}
    else:
        read = set(derived if one.uses is None else one.uses)
    read |= {*one.key, *([gap] if (gap := gap_column(pipeline)) else [])}
    return [name for name in derived if name in read]
