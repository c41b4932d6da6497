"""Columns of a source: their types, their event time in Arrow, and the settings of the rules that reject rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.accepted_times import AcceptedTimes
from tidegate.pipelines.definition.event_columns import LAST_TIME, ONLY_PARTITION, PARTITION, key_type, plain
from tidegate.pipelines.definition.far_times import holds_times
from tidegate.pipelines.definition.rejects import is_text
from tidegate.pipelines.sources.rules import Bools, Int64s, RuleSettings, flags_of, rejected
from tidegate.pipelines.sources.zones import offsets_of_walls
from tidegate.windowing.time import Millis
from tidegate.windowing.timestamps import floored_millis

if TYPE_CHECKING:
    # Tasks without SQL should not wait for sqlglot.
    from tidegate.pipelines.sources.sql.expression import SourceSql, SparkSql
    from tidegate.pipelines.sources.sql.program import Node


@dataclass(frozen=True)
class ColumnsToRead:
    """Columns to read from a source, with the settings of the rules that check its rows.

    Args:
        schema: all columns of the source.
        timestamp: column of the event time.
        unit: unit of an integer timestamp, "s" or "ms"; None for a TIMESTAMP.
        key: key columns.
        used: columns that the computation reads.
        accepted: event times that the pipeline accepts.
        reject_null_keys: True if a null in a key makes a row unusable.
        max_ahead: how far an event time may be after its commit, milliseconds.
        gap: column of session gaps; None if there is none.
        zone: time zone of a wall-clock event time; None for other event times.
        sql: programs of `where` and `columns`; None if there is neither, or if Spark evaluates them.
        by_spark: `where` and `columns` for Spark; None if Spark evaluates none of them.
        partition_by: column of source partitions; None if there is only one.
        partition: program of the string that names a row's source partition; None if Arrow's cast or Spark computes it.
    """

    schema: pa.Schema
    timestamp: str
    unit: str | None
    key: tuple[str, ...]
    used: tuple[str, ...]
    accepted: AcceptedTimes
    reject_null_keys: bool
    max_ahead: Millis
    gap: str | None = None
    zone: str | None = None
    sql: SourceSql | None = None
    by_spark: SparkSql | None = None
    partition_by: str | None = None
    partition: Node | None = None

    @property
    def _evaluated(self) -> SourceSql | SparkSql | None:
        return self.sql or self.by_spark

    @property
    def of_events(self) -> pa.Schema:
        """Columns of the source after `columns=`."""
        return self.schema if self._evaluated is None else self._evaluated.schema

    @property
    def all_move(self) -> bool:
        """True if the times of rows that `where` drops also move the watermark."""
        return self._evaluated is not None and self._evaluated.all_move

    @property
    def drops_rows(self) -> bool:
        """True if there is a condition that may drop rows."""
        return self._evaluated is not None and self._evaluated.where is not None

    @property
    def has_time_of_dropped(self) -> bool:
        """True if a row that `where` drops has an event time: `columns` are evaluated only for the kept rows."""
        return self.all_move or self.time_in_files is not None

    def is_derived(self, name: str) -> bool:
        """Return True if a column is one of `columns`; a column with that name in the files is then a different one."""
        return self._evaluated is not None and name in self._evaluated.programs

    @property
    def time_in_files(self) -> str | None:
        """Column of the event time in the files, which statistics bound; None if it is derived."""
        return None if self.is_derived(self.timestamp) else self.timestamp

    def reads(self, names: Sequence[str]) -> list[str]:
        """Return the columns of the source from which columns of events, and `where`, are computed."""
        return list(names) if self.sql is None else self.sql.reads(names) or self.schema.names[:1]

    def partitions(self, events: pa.Table) -> pa.ChunkedArray:
        """Return the name of each row's source partition."""
        if self.partition_by is None:
            return pa.chunked_array([pa.repeat(ONLY_PARTITION, len(events))])
        if PARTITION in events.column_names:
            return events[PARTITION].fill_null("null")
        column = plain(events[self.partition_by])
        if self.partition is None:
            return column.cast(pa.string()).fill_null("null")
        texts = [self.partition.evaluate(batch) for batch in pa.table({self.partition_by: column}).to_batches()]
        return pa.chunked_array(texts, pa.string()).fill_null("null")

    def derive(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """Return columns of events for rows of the source."""
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
        """Return event times as int64 epoch milliseconds, and flags of the non-null ones (None if none is null)."""
        valid = None if column.null_count == 0 else flags_of(column.is_valid())
        if self.unit is None:
            millis = floored_millis(column)
            return millis if self.zone is None else instants(millis, self.zone), valid
        numbers = np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy())
        if self.unit == "ms":
            return numbers, valid
        # A number beyond the last usable time stays unusable when multiplied.
        return np.clip(numbers, -LAST_TIME, LAST_TIME) * 1000, valid

    def timely(self, column: pa.ChunkedArray, committed: Millis | None) -> tuple[Int64s, Bools]:
        """Return event times, and a flag for each: True if it breaks no rule about event time.

        Without a commit time, no event time counts as ahead.
        """
        times, valid = self.millis(column)
        timely = np.ones(len(times), np.bool_)
        for untimely in rejected(self.rules, times, valid, committed).values():
            timely &= ~untimely
        return times, timely

    @cached_property
    def rules(self) -> RuleSettings:
        """Settings of the rules that reject a row."""
        kinds = {name: self.of_events.field(name).type for name in dict.fromkeys((*self.key, *self.used))}
        return RuleSettings(
            accepted=self.accepted,
            key=self.key if self.reject_null_keys else (),
            keys=tuple(name for name in self.key if is_text(kinds[name])),
            max_ahead=self.max_ahead,
            gap=self.gap,
            times=tuple(name for name, kind in kinds.items() if holds_times(kind)),
        )

    @cached_property
    def limited(self) -> list[str]:
        """Columns of events whose values have limits: gaps, times and dates, and values that contain times or dates."""
        limited = {self.rules.gap, *self.rules.times}
        return [name for name in dict.fromkeys((*self.key, *self.used)) if name in limited]


def without_metadata(schema: pa.Schema) -> pa.Schema:
    """Return a schema without the metadata of its fields, at any depth."""
    return pa.schema([_bare(field) for field in schema])


def _bare(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _bare_type(field.type), field.nullable)


def _bare_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_bare(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_bare(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_bare(kind.key_field), _bare(kind.item_field))
    return kind


def instants(wall: Int64s, zone: str) -> Int64s:
    """Return wall-clock times as instants, by the rules of Spark's `to_utc_timestamp`.

    Wall-clock times are int64 milliseconds since the midnight that began 1970 in the zone.
    """
    shifted: Int64s = wall - offsets_of_walls(np.floor_divide(wall, 1000), zone) * 1000
    return shifted
