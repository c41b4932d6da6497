"""Rows of a test as the events of a slice: event time and status, as Spark computes them for a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.bound_input import BoundInput
from tidegate.pipelines.definition.event_columns import (
    COMMIT,
    DROPPED,
    FIRST_TIME,
    KEY_PREFIX,
    LAST_TIME,
    OK,
    ONLY_PARTITION,
    ROW,
    SIDE,
    TIME,
    VALUE_PREFIX,
)
from tidegate.pipelines.definition.pipeline import DeltaSource
from tidegate.pipelines.sources.limits import LONGEST_GAP, gap_column
from tidegate.pipelines.sources.rules import OF_TIME, ArrowRows, RuleSettings, rejected
from tidegate.pipelines.tables.columns import to_delta
from tidegate.windowing.operators.two_inputs import value_column
from tidegate.windowing.time import Millis, to_millis
from tidegate.windowing.watermarks import SeenEvent

Row: TypeAlias = Mapping[str, Any]

Derive: TypeAlias = Callable[[dict[str, Any]], Row | None]
"""Stands in for `columns` and `where`: the row with its derived columns, or None to drop it."""


def event_millis(source: DeltaSource, value: Any) -> Millis | None:
    """Event time as epoch milliseconds, microseconds floored; None where there is none."""
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            # Spark, too, takes the first of two equal wall-clock times, and goes on where one does not exist.
            value = value.replace(tzinfo=ZoneInfo(source.zone or "UTC"))
        return to_millis(value.astimezone(UTC))
    if isinstance(value, int) and not isinstance(value, bool):
        return value * (1000 if source.unit == "s" else 1)
    raise TypeError(
        f"source.timestamp = {source.timestamp!r} is {value!r}: give a datetime"
        f"{', not a date' if isinstance(value, date) else ''}, or an int where the source has a unit"
    )


def status(
    bound: BoundPipeline, row: Row | None, time: Millis | None, committed: Millis | None, one: BoundInput | None = None
) -> str:
    """`ok`, `dropped`, or why the row of an input (the first) is rejected.

    Args:
        bound: the pipeline.
        row: after `columns=`; None where `where` drops it.
        time: its event time.
        committed: commit time; None where no row can lie ahead.
        one: the input; None for the first.
    """
    if row is None:
        return DROPPED
    pipeline = bound.pipeline
    key = (one or bound.inputs[0]).input.key if pipeline.null_keys == "reject" else ()
    gap = gap_column(pipeline)
    # A time that Python's datetime can't hold is in no row of a test.
    settings = RuleSettings(key, pipeline.max_ahead_millis, gap, ())
    columns = {name: pa.array([None if row[name] is None else True]) for name in key}
    if gap is not None:
        columns[gap] = pa.array([None if row[gap] is None else _clipped(row[gap], 0, LONGEST_GAP + 1)], pa.int64())
    broken = rejected(settings, _judged(time, committed, pa.table(columns)))
    return next(iter(broken), OK)


def is_timely(bound: BoundPipeline, time: Millis | None, committed: Millis | None) -> bool:
    """Whether a row breaks no rule about event time."""
    settings = RuleSettings((), bound.pipeline.max_ahead_millis, None, ())
    return not rejected(settings, _judged(time, committed, pa.table({})), OF_TIME)


def _judged(time: Millis | None, committed: Millis | None, columns: pa.Table) -> ArrowRows:
    times = np.array([0 if time is None else _clipped(time, FIRST_TIME - 1, LAST_TIME)])
    return ArrowRows(times, np.array([time is not None]), columns, committed)


def _clipped(number: int, first: int, last: int) -> int:
    """A number of Python's as int64 holds it: one beyond the limits of a rule is as good as any other."""
    return max(first, min(number, last))


def joint(bound: BoundPipeline, one: BoundInput, source: Row, derived: Row) -> tuple[Row, Row]:
    """A source row and its derived row in the columns of both inputs; as they are where there is only one."""
    if one.side is None:
        return source, derived
    keys = {name: derived[own] for name, own in zip(bound.key.names, one.input.key, strict=True)}
    values = {value_column(one.side, name): derived[name] for name in one.used}
    return {**keys, "side": one.side, one.side: source}, {**dict.fromkeys(bound.used), **keys, SIDE: one.side, **values}


def events_table(bound: BoundPipeline, events: Sequence[tuple[int, Millis, Row, Row]]) -> pa.Table:
    """Usable rows as the tasks of an epoch get them: (commit, time, source row, derived row) of each."""
    kinds = {name: to_delta(bound.derived.field(name).type) for name in {*bound.key.names, *bound.used}}
    columns: dict[str, pa.Array] = {
        COMMIT: pa.array([commit for commit, _, _, _ in events], pa.int32()),
        TIME: pa.array([time for _, time, _, _ in events], pa.int64()),
        ROW: pa.array([source for _, _, source, _ in events], pa.struct(list(bound.source))),
    }
    for prefix, names in ((KEY_PREFIX, bound.key.names), (VALUE_PREFIX, bound.used)):
        for name in names:
            columns[f"{prefix}{name}"] = pa.array([row[name] for _, _, _, row in events], kinds[name])
    return pa.table(columns)


def seen_events(one: BoundInput, commit: int, rows: Sequence[tuple[Millis, Row]]) -> list[SeenEvent]:
    """Usable rows of a commit as a generator that sees every event gets them: by time, ties by their columns."""
    names = one.derived.names if one.input.uses is None else list(one.input.uses)
    ties = [name for name in names if not pa.types.is_nested(one.derived.field(name).type)]
    ordered = sorted(
        rows, key=lambda timed: (timed[0], [(timed[1][name] is not None, timed[1][name]) for name in ties])
    )
    return [
        SeenEvent(commit, partition_of(one, row), time, {name: row[name] for name in names}) for time, row in ordered
    ]


def partition_of(one: BoundInput, row: Row) -> str:
    """The source partition of a row."""
    by = one.input.watermark_by
    if by is None:
        return ONLY_PARTITION
    return "null" if row[by] is None else str(row[by])
