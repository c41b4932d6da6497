"""Rules that reject a row. Each rule has a reason, and the rules are checked in order.

A rejected row gets the reason of the first rule that it breaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.accepted_times import AcceptedTimes
from tidegate.pipelines.definition.far_times import far_rows, within
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import LONGEST_DURATION, Millis

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Settings of the rules of an input.

    Args:
        accepted: event times that the pipeline accepts.
        key: columns in which a null makes a row unusable.
        keys: key columns of text or bytes, whose values must not be too long.
        max_ahead: how far an event time may be after its commit, milliseconds.
        gap: column of session gaps; None if there is none.
        times: columns that the computation reads and that contain timestamps or dates at any depth.
    """

    accepted: AcceptedTimes
    key: tuple[str, ...]
    keys: tuple[str, ...]
    max_ahead: Millis
    gap: str | None
    times: tuple[str, ...]


def rejected(
    settings: RuleSettings, times: Int64s, valid: Bools | None, committed: Millis | None, table: pa.Table | None = None
) -> dict[str, Bools]:
    """Return flags of the rejected rows by reason; a reason without rows has no entry.

    Args:
        settings: settings of the rules.
        times: event times, int64 epoch milliseconds.
        valid: True for each event time that is not null; None if none is null.
        committed: commit time, int64 epoch milliseconds; None if no row can be ahead.
        table: columns of the rows. If a column is absent, its values break no rule; without a table, only the rules
            about event time are checked.
    """
    by_reason: dict[str, Bools] = {}
    usable = np.ones(len(times), np.bool_)
    for reason, flags in _broken(settings, times, valid, committed, table):
        if (broken := flags & usable).any():
            by_reason[reason] = by_reason[reason] | broken if reason in by_reason else broken
            usable[broken] = False
    return by_reason


def _broken(
    settings: RuleSettings, times: Int64s, valid: Bools | None, committed: Millis | None, table: pa.Table | None
) -> Iterator[tuple[str, Bools]]:
    """Yield the reason of each rule, in order, with flags of the rows that break it, unless no row can."""
    columns = {} if table is None else dict(zip(table.column_names, table.columns, strict=True))
    for name in settings.key:
        if name in columns and columns[name].null_count:
            yield rejects.NULL_KEY, flags_of(columns[name].is_null())
    if valid is not None:
        yield rejects.NULL_TIMESTAMP, ~valid
    accepted = settings.accepted
    if len(times):
        smallest, largest = int(times.min()), int(times.max())
        if smallest < accepted.first or largest >= accepted.end:
            yield rejects.OUT_OF_RANGE, (times < accepted.first) | (times >= accepted.end)
        if smallest < accepted.not_before:
            yield rejects.BEFORE, times < accepted.not_before
        if committed is not None and largest > committed + settings.max_ahead:
            yield rejects.AHEAD, times > committed + settings.max_ahead
    if settings.gap in columns:
        gaps = columns[settings.gap].cast(pa.int64())
        if gaps.null_count:
            yield rejects.NULL_GAP, flags_of(gaps.is_null())
        yield rejects.GAP_OUT_OF_RANGE, ~within(gaps, 1, LONGEST_DURATION + 1)
        # Only rows whose time and gap break no rule above are left, so the sum fits int64.
        ends = np.asarray(gaps.fill_null(0).to_numpy()) + np.clip(times, accepted.first, accepted.end)
        yield rejects.OUT_OF_RANGE, ends >= accepted.end
    for name in settings.times:
        if name in columns:
            yield rejects.VALUE_OUT_OF_RANGE, far_rows(columns[name])
    for name in settings.keys:
        if name in columns and (long := _too_long(columns[name])) is not None:
            yield rejects.KEY_TOO_LONG, long


def _too_long(column: pa.ChunkedArray) -> Bools | None:
    """Return a flag for each value: whether it is too long for a key; None if no value can be."""
    flags = [_too_long_in(chunk) for chunk in column.chunks]
    return np.concatenate(flags) if any(part.any() for part in flags) else None


def _too_long_in(chunk: pa.Array) -> Bools:
    in_dictionary = pa.types.is_dictionary(chunk.type)
    values = chunk.dictionary if in_dictionary else chunk
    # Usually a whole column takes less memory than one value that is too long.
    if values.nbytes <= rejects.LONGEST_KEY:
        return np.zeros(len(chunk), np.bool_)
    long: Bools = np.asarray(pc.greater(pc.binary_length(values), rejects.LONGEST_KEY).fill_null(False))
    if in_dictionary:
        indices = np.asarray(chunk.indices.fill_null(len(long)))
        long = np.append(long, False)[indices]
    return long


def are_times_usable(settings: RuleSettings, smallest: Millis, largest: Millis, committed: Millis) -> bool:
    """Return True if no event time from `smallest` to `largest`, both inclusive, breaks a rule about event time."""
    return not rejected(settings, np.array([smallest, largest]), None, committed)


def flags_of(column: pa.ChunkedArray) -> Bools:
    """Return a column of booleans without nulls as an array."""
    return np.asarray(column.to_numpy())


def gap_column(pipeline: Pipeline) -> str | None:
    """Return the name of the column with session gaps; None if there is none."""
    windows: object = pipeline.compute
    return windows.assigner.column_of_gaps if isinstance(windows, Windows) else None
