"""Rows of a test as the events of a slice, with the event time and status that a run computes for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.bound_input import BoundInput
from tidegate.pipelines.definition.columns import to_delta
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
from tidegate.pipelines.definition.pipeline import Input, Pipeline, SourceDescription
from tidegate.pipelines.sources.rules import LONGEST_GAP, Bools, Int64s, RuleSettings, gap_column, rejected
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.operators.two_inputs import value_column
from tidegate.windowing.time import Millis, to_millis
from tidegate.windowing.watermarks import SeenEvent

Row: TypeAlias = Mapping[str, Any]

Derive: TypeAlias = Callable[[dict[str, Any]], Row | None]
"""A substitute for `columns` and `where`. It returns the row with its derived columns, or None to drop the row."""


DeriveAll: TypeAlias = Callable[[Sequence[Row]], Sequence[Row | None]]
"""A `Derive` for many rows."""


def derive_each(derive: Derive | None) -> DeriveAll:
    """Convert a function of one row to a function of many rows. For None, it returns the rows unchanged."""
    return (lambda rows: rows) if derive is None else lambda rows: [derive(dict(row)) for row in rows]


def derive_by_sql(pipeline: Pipeline, input_: Input, source: pa.Schema) -> tuple[pa.Schema, DeriveAll]:
    """Return the columns after `columns=`, and a function that evaluates `columns` and `where` as tasks do.

    Raises:
        IllegalArgument: a run leaves an expression to Spark; the error names it.
    """
    # Pipelines without SQL should not wait for this import.
    from tidegate.pipelines.sources.sql.expression import compile_input

    schema = pa.schema([field.with_type(to_delta(field.type)) for field in source])
    sql, expressions = compile_input(pipeline.name, input_, schema, {})
    for expression in expressions:
        if expression.reason is not None:
            raise IllegalArgument(
                expression.field,
                expression.text,
                f"Spark evaluates it in a run ({expression.reason}), and the harness has no Spark: give derive= a "
                "function that does the same for a row",
            )

    def derived(rows: Sequence[Row]) -> list[Row | None]:
        table = pa.Table.from_pylist([dict(row) for row in rows], schema)
        kept = sql.kept(table)
        places = range(len(rows)) if kept is None else np.flatnonzero(kept).tolist()
        programs = list(sql.programs)
        columns = sql.derive(table.take(pa.array(places, pa.int64())), programs) if programs else None
        values = [{}] * len(places) if columns is None else columns.to_pylist(maps_as_pydicts="lossy")
        all_rows: list[Row | None] = [None] * len(rows)
        for place, value in zip(places, values, strict=True):
            all_rows[place] = {**rows[place], **value}
        return all_rows

    return sql.schema, derived


def event_millis(source: SourceDescription, value: Any) -> Millis | None:
    """Return an event time as epoch milliseconds, rounding microseconds down. Return None for None."""
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            # As in Spark, an ambiguous wall-clock time means the first of the two, and a nonexistent time is moved
            # forward.
            value = value.replace(tzinfo=ZoneInfo(source.zone or "UTC"))
        return to_millis(value.astimezone(UTC))
    if isinstance(value, int) and not isinstance(value, bool):
        return value * (1000 if source.unit == "s" else 1)
    raise TypeError(
        f"source.timestamp = {source.timestamp!r} is {value!r}: give a datetime"
        f"{', not a date' if isinstance(value, date) else ''}, or an int where the source has a unit"
    )


def status(
    bound: BoundPipeline,
    row: Row | None,
    time: Millis | None,
    committed: Millis | None,
    input_: BoundInput | None = None,
) -> str:
    """Return `ok`, `dropped`, or the reason why a row of an input (None: the first) is rejected.

    The row has its columns after `columns=`; None if `where` drops it. Without a commit time, as in a backfill, rows
    can't be ahead of it.
    """
    if row is None:
        return DROPPED
    pipeline = bound.pipeline
    key = (input_ or bound.inputs[0]).input.key if pipeline.null_keys == "reject" else ()
    gap = gap_column(pipeline)
    # Times outside the range of Python's datetime are ignored, because no test row has one.
    settings = RuleSettings(key, pipeline.max_ahead_millis, gap, ())
    columns = {name: pa.array([None if row[name] is None else True]) for name in key}
    if gap is not None:
        columns[gap] = pa.array([None if row[gap] is None else _clipped(row[gap], 0, LONGEST_GAP + 1)], pa.int64())
    broken = rejected(settings, *_evaluated(time), committed, pa.table(columns))
    return next(iter(broken), OK)


def is_timely(bound: BoundPipeline, time: Millis | None, committed: Millis | None) -> bool:
    """Return True if a row with this event time breaks no rule about event time."""
    settings = RuleSettings((), bound.pipeline.max_ahead_millis, None, ())
    return not rejected(settings, *_evaluated(time), committed)


def _evaluated(time: Millis | None) -> tuple[Int64s, Bools]:
    """Return an event time, and whether there is one, as arrays."""
    times = np.array([0 if time is None else _clipped(time, FIRST_TIME - 1, LAST_TIME)])
    return times, np.array([time is not None])


def _clipped(number: int, first: int, last: int) -> int:
    """Clip a Python number to int64. All numbers beyond the limits of a rule are treated in the same way."""
    return max(first, min(number, last))


def joint(bound: BoundPipeline, input_: BoundInput, source: Row, derived: Row) -> tuple[Row, Row]:
    """Convert a source row and its derived row to the joint columns of two inputs; return them unchanged for one."""
    side = input_.side
    if side is None:
        return source, derived
    keys = {name: derived[column] for name, column in zip(bound.key.names, input_.input.key, strict=True)}
    values = {value_column(side, name): derived[name] for name in input_.used}
    return {**keys, "side": side, side: source}, {**dict.fromkeys(bound.used), **keys, SIDE: side, **values}


def events_table(bound: BoundPipeline, events: Sequence[tuple[int, Millis, Row, Row]]) -> pa.Table:
    """Return usable rows, each (commit, time, source row, derived row), as the table that the tasks of an epoch get."""
    kinds = {name: to_delta(bound.derived.field(name).type) for name in {*bound.key.names, *bound.used}}
    columns: dict[str, pa.Array] = {
        COMMIT: pa.array([commit for commit, _, _, _ in events], pa.int32()),
        TIME: pa.array([time for _, time, _, _ in events], pa.int64()),
    }
    for prefix, names in ((KEY_PREFIX, bound.key.names), (VALUE_PREFIX, bound.used)):
        for name in names:
            columns[f"{prefix}{name}"] = _column(name, [row[name] for _, _, _, row in events], kinds[name])
    columns[ROW] = pa.StructArray.from_arrays(
        [_column(each.name, [row.get(each.name) for _, _, row, _ in events], each.type) for each in bound.source],
        fields=list(bound.source),
    )
    return pa.table(columns)


def _column(name: str, values: Sequence[object], kind: pa.DataType) -> pa.Array:
    try:
        column = pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TypeError(f"rows: column {name!r} has type {kind}: {error}") from None
    # Arrow cuts 1.5 to a whole number and a time to its date, and takes a time without a zone as one in UTC.
    exact = not (pa.types.is_nested(kind) or pa.types.is_floating(kind))
    for given, held in zip(values, column.to_pylist(), strict=True) if exact else ():
        if given != held:
            raise TypeError(f"rows: column {name!r} has type {kind}, which can't hold {given!r}: give {held!r}")
    return column


def seen_events(input_: BoundInput, commit: int, rows: Sequence[tuple[Millis, Row]]) -> list[SeenEvent]:
    """Return the usable rows of a commit for a generator that sees every event: by time, then by their columns."""
    names = input_.derived.names if input_.input.uses is None else list(input_.input.uses)
    ties = [name for name in names if not pa.types.is_nested(input_.derived.field(name).type)]
    ordered = sorted(
        rows, key=lambda timed: (timed[0], [(timed[1][name] is not None, timed[1][name]) for name in ties])
    )
    return [
        SeenEvent(commit, partition_of(input_, row), time, {name: row[name] for name in names}) for time, row in ordered
    ]


def partition_of(input_: BoundInput, row: Row) -> str:
    """Return the source partition of a row."""
    column = input_.input.watermark_by
    if column is None:
        return ONLY_PARTITION
    return "null" if row[column] is None else str(row[column])
