"""Columns of a source: their types, their event time by Arrow, and the settings of the rules that reject rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.event_columns import LAST_TIME, key_type
from tidegate.pipelines.sources.rules import Bools, Int64s, RuleSettings
from tidegate.pipelines.sources.wall_clock import instants
from tidegate.pipelines.tables.far_times import holds_times
from tidegate.windowing.time import Millis
from tidegate.windowing.timestamps import floored_millis

if TYPE_CHECKING:
    from tidegate.pipelines.sources.sql.derived import SourceSql


@dataclass(frozen=True)
class SourceColumns:
    """Columns to read from a source, with the settings of the rules that judge its rows.

    Args:
        schema: all columns of the source.
        timestamp: column of the event time.
        unit: unit of an integer timestamp, "s" or "ms"; None for a TIMESTAMP.
        key: key columns.
        used: columns that the computation reads.
        reject_null_keys: True if a null in a key makes a row unusable.
        max_ahead: longest accepted time between a commit and a later event time of its rows, milliseconds.
        gap: column of the gaps of sessions; None if there is none.
        zone: time zone of a wall-clock event time; None for other event times.
        sql: programs of `where` and `columns`; None if the pipeline has neither.
    """

    schema: pa.Schema
    timestamp: str
    unit: str | None
    key: tuple[str, ...]
    used: tuple[str, ...]
    reject_null_keys: bool
    max_ahead: Millis
    gap: str | None = None
    zone: str | None = None
    sql: SourceSql | None = None

    @property
    def of_events(self) -> pa.Schema:
        """Columns of the source after `columns=`."""
        return self.schema if self.sql is None else self.sql.schema

    def is_derived(self, name: str) -> bool:
        """Return True if a column is one of `columns`, so that a column of that name in the files is another one."""
        return self.sql is not None and name in self.sql.programs

    @property
    def time_in_files(self) -> str | None:
        """Column of the event time in the files, so that statistics bound it; None if it is derived."""
        return None if self.is_derived(self.timestamp) else self.timestamp

    def reads(self, names: Sequence[str]) -> list[str]:
        """Return the columns of the source that columns of events, and `where`, are made from."""
        return list(names) if self.sql is None else self.sql.reads(names) or self.schema.names[:1]

    def derive(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """Return columns of events for rows of the source.

        Raises:
            Refused: an expression fails for a row.
        """
        return rows if self.sql is None else self.sql.derive(rows, names, self.key)

    @cached_property
    def as_read(self) -> pa.Schema:
        """Columns of the source, with the types in which each file is read."""
        return pa.schema(
            [(field.name, key_type(field.type) if field.name in self.key else field.type) for field in self.schema]
        )

    @property
    def names(self) -> list[str]:
        """Columns that an event consists of."""
        return list(dict.fromkeys((self.timestamp, *self.key, *self.used)))

    def millis(self, column: pa.ChunkedArray) -> tuple[Int64s, Bools | None]:
        """Return event times as int64 epoch milliseconds, and flags of those that are not null (None: none is null)."""
        valid = None if column.null_count == 0 else _flags(column.is_valid())
        if self.unit is None:
            millis = floored_millis(column)
            return millis if self.zone is None else instants(millis, self.zone), valid
        numbers = _numbers(column.cast(pa.int64()))
        if self.unit == "ms":
            return numbers, valid
        # As in `frames.event_millis`: a number beyond the last usable time stays unusable when multiplied.
        return np.clip(numbers, -LAST_TIME, LAST_TIME) * 1000, valid

    @cached_property
    def rules(self) -> RuleSettings:
        """Settings of the rules that reject a row."""
        kinds = {name: self.of_events.field(name).type for name in dict.fromkeys((*self.key, *self.used))}
        return RuleSettings(
            key=self.key if self.reject_null_keys else (),
            max_ahead=self.max_ahead,
            gap=self.gap,
            times=tuple((name, kind) for name, kind in kinds.items() if holds_times(kind)),
        )

    @cached_property
    def limited(self) -> list[str]:
        """Columns of events whose values have limits: gaps, times and dates, and values that contain times or dates."""
        limited = {self.rules.gap, *(name for name, _ in self.rules.times)}
        return [name for name in dict.fromkeys((*self.key, *self.used)) if name in limited]


def _numbers(column: pa.ChunkedArray) -> Int64s:
    return np.asarray(column.fill_null(0).to_numpy())


def _flags(column: pa.ChunkedArray) -> Bools:
    return np.asarray(column.to_numpy())
