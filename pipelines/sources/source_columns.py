"""The columns of a source that are read: their types, event time by Arrow, and what the rules go by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.event_columns import LAST_TIME, key_type
from tidegate.pipelines.sources.rules import Bools, Int64s, RuleSettings
from tidegate.pipelines.tables.far_times import holds_times
from tidegate.windowing.time import Millis
from tidegate.windowing.timestamps import floored_millis


@dataclass(frozen=True)
class SourceColumns:
    """The columns of a source that are read, and how its rows are judged.

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
            return floored_millis(column), valid
        numbers = _numbers(column.cast(pa.int64()))
        if self.unit == "ms":
            return numbers, valid
        # As Spark's side has it: what lies beyond the last usable second lies beyond it by whatever factor.
        return np.clip(numbers, -LAST_TIME, LAST_TIME) * 1000, valid

    @cached_property
    def rules(self) -> RuleSettings:
        """What the rules that reject a row go by."""
        kinds = {name: self.schema.field(name).type for name in dict.fromkeys((*self.key, *self.used))}
        return RuleSettings(
            key=self.key if self.reject_null_keys else (),
            max_ahead=self.max_ahead,
            gap=self.gap,
            times=tuple((name, kind) for name, kind in kinds.items() if holds_times(kind)),
        )

    @cached_property
    def limited(self) -> list[str]:
        """The columns of events whose values have limits: gaps, times and dates, and values that have such in them."""
        limited = {self.rules.gap, *(name for name, _ in self.rules.times)}
        return [name for name in dict.fromkeys((*self.key, *self.used)) if name in limited]


def _numbers(column: pa.ChunkedArray) -> Int64s:
    return np.asarray(column.fill_null(0).to_numpy())


def _flags(column: pa.ChunkedArray) -> Bools:
    return np.asarray(column.to_numpy())
