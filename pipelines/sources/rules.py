"""Rules that reject a row. Each rule has a reason, and the rules are checked in order.

The reason of a rejected row is that of the first rule that it breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.definition.far_times import far_rows, within
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import Millis

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Settings of the rules of an input.

    Args:
        key: columns in which a null makes a row unusable.
        max_ahead: how far an event time may be after its commit, milliseconds.
        gap: column of session gaps; None if there is none.
        times: columns with their types that the computation reads and that contain timestamps or dates at any depth.
    """

    key: tuple[str, ...]
    max_ahead: Millis
    gap: str | None
    times: tuple[tuple[str, pa.DataType], ...]


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows that the rules check.

    Args:
        times: event times, int64 epoch milliseconds.
        valid: True for each event time that is not null; None if none is null.
        table: columns of the rows. If a column is absent, its values break no rule.
        committed: commit time, int64 epoch milliseconds; None if no row can be ahead.
    """

    times: Int64s
    valid: Bools | None
    table: pa.Table
    committed: Millis | None


class Rule(NamedTuple):
    """Rule that rejects a row for a reason; `broken` is None if no row can break it.

    `of_time` is True if it depends only on the event time.
    """

    reason: str
    broken: Callable[[RuleSettings, ArrowRows], Bools | None]
    of_time: bool = False


def _null_key(settings: RuleSettings, rows: ArrowRows) -> Bools | None:
    flags: Bools | None = None
    for name in _present(settings.key, rows):
        if rows.table[name].null_count:
            missing = _flags(rows.table[name].is_null())
            flags = missing if flags is None else flags | missing
    return flags


def _null_time(settings: RuleSettings, rows: ArrowRows) -> Bools | None:
    return None if rows.valid is None else ~rows.valid


def _time_out_of_range(settings: RuleSettings, rows: ArrowRows) -> Bools | None:
    times = rows.times
    if not len(times) or (int(times.min()) >= FIRST_TIME and int(times.max()) < LAST_TIME):
        return None
    return (times < FIRST_TIME) | (times >= LAST_TIME)


def _ahead(settings: RuleSettings, rows: ArrowRows) -> Bools | None:
    if rows.committed is None or not len(rows.times):
        return None
    latest = rows.committed + settings.max_ahead
    return rows.times > latest if int(rows.times.max()) > latest else None


def _null_gap(settings: RuleSettings, rows: ArrowRows) -> Bools | None:
    gaps = _gaps(settings, rows)
    return None if gaps is None or not gaps.null_count else _flags(gaps.is_null())


def _gap_out_of_range(settings: RuleSettings, rows: ArrowRows) -> Bools | None:
    gaps = _gaps(settings, rows)
    return None if gaps is None else ~within(gaps, 1, LONGEST_GAP + 1)


def _gaps(settings: RuleSettings, rows: ArrowRows) -> pa.ChunkedArray | None:
    if settings.gap is None or settings.gap not in rows.table.column_names:
        return None
    return rows.table[settings.gap].cast(pa.int64())


def _value_out_of_range(settings: RuleSettings, rows: ArrowRows) -> Bools | None:
    far: Bools | None = None
    for name in _present([name for name, _ in settings.times], rows):
        flags = far_rows(rows.table[name])
        far = flags if far is None else far | flags
    return far


RULES = (
    Rule(rejects.NULL_KEY, _null_key),
    Rule(rejects.NULL_TIMESTAMP, _null_time, of_time=True),
    Rule(rejects.OUT_OF_RANGE, _time_out_of_range, of_time=True),
    Rule(rejects.AHEAD, _ahead, of_time=True),
    Rule(rejects.NULL_GAP, _null_gap),
    Rule(rejects.GAP_OUT_OF_RANGE, _gap_out_of_range),
    Rule(rejects.VALUE_OUT_OF_RANGE, _value_out_of_range),
)

OF_TIME = tuple(rule for rule in RULES if rule.of_time)
"""Rules that depend only on the event time."""


def rejected(settings: RuleSettings, rows: ArrowRows, rules: Sequence[Rule] = RULES) -> dict[str, Bools]:
    """Return flags of the rejected rows by reason; a reason without rows has no entry."""
    by_reason: dict[str, Bools] = {}
    usable = np.ones(len(rows.times), np.bool_)
    for rule in rules:
        broken = rule.broken(settings, rows)
        if broken is None or not (broken := broken & usable).any():
            continue
        by_reason[rule.reason] = broken
        usable[broken] = False
    return by_reason


def are_times_usable(settings: RuleSettings, smallest: Millis, largest: Millis, committed: Millis) -> bool:
    """Return True if no event time from `smallest` to `largest`, both inclusive, breaks a rule about event time."""
    bounds = ArrowRows(np.array([smallest, largest]), None, pa.table({}), committed)
    return not rejected(settings, bounds, OF_TIME)


def _present(names: Sequence[str], rows: ArrowRows) -> list[str]:
    return [name for name in names if name in rows.table.column_names]


def _flags(column: pa.ChunkedArray) -> Bools:
    return np.asarray(column.to_numpy())


LONGEST_GAP = 2**60
"""Longest accepted gap in milliseconds, with which the end of a session always fits int64."""


def gap_column(pipeline: Pipeline) -> str | None:
    """Return the name of the column with session gaps; None if there is none."""
    windows: object = pipeline.compute
    return windows.assigner.column_of_gaps if isinstance(windows, Windows) else None
