"""A Parquet file of a source: its row groups, their statistics, and its columns in the types of a schema."""

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
        """Names of columns in the file, by folded name. Names in Delta may differ from them in case."""
        return {name.casefold(): name for name in self._file.schema_arrow.names}

    def rows_of(self, group: int) -> int:
        """Return the number of rows in a row group."""
        return int(self._file.metadata.row_group(group).num_rows)

    def size_of(self, group: int, names: Sequence[str]) -> int:
        """Return the uncompressed bytes of columns of a row group."""
        in_file = {self._names[name.casefold()] for name in names if name.casefold() in self._names}
        metadata = self._file.metadata.row_group(group)
        return sum(metadata.column(index).total_uncompressed_size for name in in_file for index in self._places[name])

    def groups(
        self, timestamp: str | None = None, since: Millis = FIRST_TIME, until: Millis = LAST_TIME
    ) -> Iterator[tuple[int, int]]:
        """Yield the row groups that may hold rows of an interval, each after the place of its first row."""
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
        """Return the smallest and largest value of a column of microseconds; None if statistics lack them."""
        in_file = self._names.get(name.casefold())
        if in_file is None or pa.types.is_nested(self._file.schema_arrow.field(in_file).type):
            return None
        bounds = self.bounds_of_times(group, name)
        return bounds[0] if bounds else None

    def bounds_of_times(self, group: int, name: str) -> list[tuple[int, int]] | None:
        """Return the smallest and largest microseconds of each time in a column's values; None if any are missing."""
        in_file = self._names.get(name.casefold())
        if in_file is None:
            return None
        bounds = []
        metadata = self._file.metadata.row_group(group)
        parts = parts_of(self._file.schema_arrow.field(in_file).type)
        for place, kind in zip(self._places[in_file], parts, strict=True):
            column = metadata.column(place)
            if holds_times(kind):
                has_bounds = column.physical_type == "INT64" and column.is_stats_set and column.statistics.has_min_max
                if kind != pa.timestamp("us", tz="UTC") or not has_bounds:
                    return None
                bounds.append((int(column.statistics.min_raw), int(column.statistics.max_raw)))
        return bounds or None

    def may_be_null(self, group: int, name: str) -> bool:
        """Return False if statistics show that a column of a row group has no nulls."""
        in_file = self._names.get(name.casefold())
        column = None if in_file is None else self._column(group, in_file)
        if column is None or not column.is_stats_set or not column.statistics.has_null_count:
            return True
        return int(column.statistics.null_count) > 0

    def _column(self, group: int, name: str) -> Any:
        """Return the metadata of a column; None for a nested one."""
        if pa.types.is_nested(self._file.schema_arrow.field(name).type):
            return None
        return self._file.metadata.row_group(group).column(self._places[name][0])

    @cached_property
    def _places(self) -> dict[str, range]:
        """Places of each column's parts in the file. Paths are ambiguous: a column may be named like a field's path."""
        places, first = {}, 0
        for field in self._file.schema_arrow:
            end = first + sum(1 for _ in parts_of(field.type))
            places[field.name], first = range(first, end), end
        return places

    def read(self, group: int, names: Sequence[str]) -> pa.Table:
        """Return columns of a row group in the types of the schema. Columns that the file lacks are null."""
        in_files = [self._names[name.casefold()] for name in names if name.casefold() in self._names]
        read = self._file.read_row_group(group, columns=in_files, use_threads=False)
        columns = []
        for name in names:
            kind = self._schema.field(name).type
            in_file = self._names.get(name.casefold())
            if in_file is None:
                columns.append(pa.chunked_array([pa.nulls(self.rows_of(group), kind)]))
                continue
            values = read[in_file]
            columns.append(values if values.type == kind else values.cast(kind))
        return pa.table(columns, names=list(names))
