"""Which columns of a source are read, in which types, and which of its rows can't be used and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME, key_type
from tidegate.pipelines.sources.limits import LONGEST_GAP
from tidegate.pipelines.tables import rejects
from tidegate.pipelines.tables.far_times import far_rows, holds_times, within
from tidegate.windowing.time import Millis

if TYPE_CHECKING:
    from tidegate.pipelines.sources.file_slice import FilePart

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SourceColumns:
    """Which columns of a source are read, and how its rows are judged.

    Args:
        schema: all columns of the source.
        timestamp: column of the event time.
        unit: what an integer timestamp counts: "s" or "ms"; None for a TIMESTAMP.
        key: key columns.
        used: columns that the computation reads.
        reject_null_keys: whether a null in a key makes a row unusable.
        max_ahead: how far a time may lie ahead of the commit, milliseconds.
        gap: column of the gaps of sessions, if there is one.
    """

    schema: pa.Schema
    timestamp: str
    unit: str | None
    key: tuple[str, ...]
    used: tuple[str, ...]
    reject_null_keys: bool
    max_ahead: Millis
    gap: str | None = None

    @cached_property
    def as_read(self) -> pa.Schema:
        """The columns of the source in the types that every file is read with."""
        return pa.schema(
            [(field.name, key_type(field.type) if field.name in self.key else field.type) for field in self.schema]
        )

    @property
    def names(self) -> list[str]:
        """The columns that events are made of."""
        return list(dict.fromkeys((self.timestamp, *self.key, *self.used)))

    def millis(self, column: pa.ChunkedArray) -> tuple[Int64s, Bools | None]:
        """Event times as int64 epoch milliseconds, and which are there (None: all)."""
        valid = None if column.null_count == 0 else _flags(column.is_valid())
        if self.unit is None:
            micros = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
            return np.floor_divide(_numbers(micros), 1000), valid
        numbers = _numbers(column.cast(pa.int64()))
        if self.unit == "ms":
            return numbers, valid
        # As Spark's side has it: what lies beyond the last usable second lies beyond it by whatever factor.
        return np.clip(numbers, -LAST_TIME, LAST_TIME) * 1000, valid

    @cached_property
    def limited(self) -> list[str]:
        """The columns of events whose values have limits: gaps, times and dates, and values that have such in them."""
        return [
            name
            for name in dict.fromkeys((*self.key, *self.used))
            if name == self.gap or holds_times(self.schema.field(name).type)
        ]

    def unusable(
        self, part: FilePart, times: Int64s, valid: Bools | None, null_key: Bools | None, table: pa.Table
    ) -> dict[str, Bools]:
        """The rows that can't be used, by reason; a row has one reason, and only reasons that occur are named.

        Args:
            part: the file.
            times: event times, int64 epoch milliseconds.
            valid: which of them are there; None for all.
            null_key: rows with a null in their key; None for none.
            table: columns of the rows; those of `limited` that it lacks are within their limits.
        """
        found: dict[str, Bools] = {}
        usable = np.ones(len(times), np.bool_)

        def judge(reason: str, rows: Bools) -> None:
            rows = rows & usable
            if rows.any():
                found[reason] = rows
                usable[rows] = False

        if null_key is not None and self.reject_null_keys:
            judge(rejects.NULL_KEY, null_key)
        if valid is not None:
            judge(rejects.NULL_TIMESTAMP, ~valid)
        if len(times) and (int(times.min()) < FIRST_TIME or int(times.max()) >= LAST_TIME):
            judge(rejects.OUT_OF_RANGE, (times < FIRST_TIME) | (times >= LAST_TIME))
        if len(times) and int(times.max()) > part.committed + self.max_ahead:
            judge(rejects.AHEAD, times > part.committed + self.max_ahead)
        limited = [name for name in self.limited if name in table.column_names]
        if self.gap in limited:
            gaps = table[self.gap].cast(pa.int64())
            if gaps.null_count:
                judge(rejects.NULL_GAP, _flags(gaps.is_null()))
            judge(rejects.GAP_OUT_OF_RANGE, ~within(gaps, 1, LONGEST_GAP + 1))
        for name in limited:
            if holds_times(table.schema.field(name).type):
                judge(rejects.VALUE_OUT_OF_RANGE, far_rows(table[name]))
        return found


def null_flags(columns: Sequence[pa.ChunkedArray]) -> Bools | None:
    """Rows with a null in any column; None where there is none."""
    flags: Bools | None = None
    for column in columns:
        if column.null_count:
            missing = _flags(column.is_null())
            flags = missing if flags is None else flags | missing
    return flags


def _numbers(column: pa.ChunkedArray) -> Int64s:
    return np.asarray(column.fill_null(0).to_numpy())


def _flags(column: pa.ChunkedArray) -> Bools:
    return np.asarray(column.to_numpy())
