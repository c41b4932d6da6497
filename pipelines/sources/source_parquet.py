"""A Parquet file of a source: its row groups, what their statistics tell, its columns in the types asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.tables.far_times import holds_times, parts_of
from tidegate.windowing.time import Millis

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


class SourceParquet:
    """A Parquet file of the source, read with the columns and types of a schema."""

    def __init__(self, file: pq.ParquetFile, schema: pa.Schema) -> None:
        self._file = file
        self._schema = schema
        footer = file.metadata.metadata or {}
        if any(name in footer for name in _OLD_CALENDAR):
            raise pa.ArrowInvalid("its dates and times are in the calendar of Spark 2")

    @cached_property
    def _names(self) -> dict[str, str]:
        """The file's own names; those of Delta differ in case at most."""
        return {name.casefold(): name for name in self._file.schema_arrow.names}

    def rows_of(self, group: int) -> int:
        """How many rows a row group has."""
        return int(self._file.metadata.row_group(group).num_rows)

    def size_of(self, group: int, names: Sequence[str]) -> int:
        """Bytes of columns of a row group before they were compressed."""
        own = {self._names[name.casefold()] for name in names if name.casefold() in self._names}
        metadata = self._file.metadata.row_group(group)
        return sum(metadata.column(index).total_uncompressed_size for name in own for index in self._places[name])

    def groups(
        self, timestamp: str | None = None, since: Millis = FIRST_TIME, until: Millis = LAST_TIME
    ) -> Iterator[tuple[int, int]]:
        """The row groups that may hold rows of an interval, each with the place of its first row."""
        first = 0
        for group in range(self._file.metadata.num_row_groups):
            if timestamp is None or self._may_hold(group, timestamp, since, until):
                yield first, group
            first += self.rows_of(group)

    def _may_hold(self, group: int, timestamp: str, since: Millis, until: Millis) -> bool:
        if since <= FIRST_TIME and until >= LAST_TIME:
            return True
        bounds = self.bounds(group, timestamp)
        if bounds is None or not pa.types.is_timestamp(kind := self._schema.field(timestamp).type) or not kind.tz:
            return True
        return bounds[1] // 1000 >= since and bounds[0] // 1000 < until

    def bounds(self, group: int, name: str) -> tuple[int, int] | None:
        """Smallest and largest value of a column of microseconds, where the file's statistics tell."""
        own = self._names.get(name.casefold())
        if own is None or pa.types.is_nested(self._file.schema_arrow.field(own).type):
            return None
        bounds = self.bounds_of_times(group, name)
        return bounds[0] if bounds else None

    def bounds_of_times(self, group: int, name: str) -> list[tuple[int, int]] | None:
        """Smallest and largest microseconds of each time in a column's values; None if statistics don't tell all."""
        own = self._names.get(name.casefold())
        if own is None:
            return None
        found = []
        metadata = self._file.metadata.row_group(group)
        for place, kind in zip(self._places[own], parts_of(self._file.schema_arrow.field(own).type), strict=True):
            column = metadata.column(place)
            if holds_times(kind):
                is_told = column.physical_type == "INT64" and column.is_stats_set and column.statistics.has_min_max
                if kind != pa.timestamp("us", tz="UTC") or not is_told:
                    return None
                found.append((int(column.statistics.min_raw), int(column.statistics.max_raw)))
        return found or None

    def may_be_null(self, group: int, name: str) -> bool:
        """Whether a column of a row group may have nulls, as far as its statistics tell."""
        own = self._names.get(name.casefold())
        column = None if own is None else self._column(group, own)
        if column is None or not column.is_stats_set or not column.statistics.has_null_count:
            return True
        return int(column.statistics.null_count) > 0

    def _column(self, group: int, own: str) -> Any:
        """Metadata of a plain column; None of a nested one."""
        if pa.types.is_nested(self._file.schema_arrow.field(own).type):
            return None
        return self._file.metadata.row_group(group).column(self._places[own][0])

    @cached_property
    def _places(self) -> dict[str, range]:
        """By column, the places of its parts in the file. Paths don't tell: a column's name may be that of a field."""
        places, first = {}, 0
        for field in self._file.schema_arrow:
            end = first + sum(1 for _ in parts_of(field.type))
            places[field.name], first = range(first, end), end
        return places

    def read(self, group: int, names: Sequence[str]) -> pa.Table:
        """Columns of a row group in the types of the schema; what the file lacks is null."""
        known = [self._names[name.casefold()] for name in names if name.casefold() in self._names]
        read = self._file.read_row_group(group, columns=known, use_threads=False)
        columns = []
        for name in names:
            kind = self._schema.field(name).type
            own = self._names.get(name.casefold())
            if own is None:
                columns.append(pa.chunked_array([pa.nulls(self.rows_of(group), kind)]))
                continue
            values = read[own]
            columns.append(values if values.type == kind else values.cast(kind))
        return pa.table(columns, names=list(names))
