"""Reader of a source's Parquet files: it opens a file, checks it against its source, and returns its row groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME, key_type
from tidegate.pipelines.definition.far_times import holds_times, parts_of
from tidegate.pipelines.errors import Refused, SourceFileMissing
from tidegate.pipelines.failures import in_words, may_be_intact
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.old_calendar import FIRST_SAME_TIME, OldCalendar
from tidegate.pipelines.sources.rules import Bools, Int64s
from tidegate.pipelines.sources.stored_fields import StoredField, converted, fields_of, has_numbers, place_of
from tidegate.pipelines.storage.warehouse import Warehouse, is_local
from tidegate.windowing.time import Millis

if TYPE_CHECKING:
    import pyarrow.parquet as pq


_ROWS, _ROWS_OF_TEXTS = 1_000_000, 65_536
"""Largest number of rows in a table: of numbers, times and keys only, and with texts, bytes or nested values."""
_INSTANT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class FileColumns:
    """The columns of one file as the table defines them: the types in which they are read, and how files store them.

    The file lacks the partition columns, which are constants. `deleted` has the positions of the rows that a deletion
    vector removes, ascending.
    """

    schema: pa.Schema
    stored: Mapping[str, StoredField]
    constants: Mapping[str, pa.Scalar]
    deleted: Int64s

    def dictionaries(self, in_file: pa.Schema) -> list[str]:
        """Return the columns that are read as dictionaries, by their names in the file."""
        read = [field.name for field in self.schema if pa.types.is_dictionary(field.type)]
        places = [place_of(self.stored[name], list(in_file)) for name in read if name not in self.constants]
        return [in_file.names[place] for place in places if place is not None]


class SourceParquet:
    """A Parquet file of the source. Row groups include the rows that a deletion vector removes.

    Raises:
        pa.ArrowInvalid: its columns can't be identified.
    """

    def __init__(self, file: pq.ParquetFile, columns: FileColumns) -> None:
        self._file = file
        self._columns = columns
        # The library converts it at each access, which takes long for many small files.
        self._schema = file.schema_arrow
        self._calendar = OldCalendar.of(file.metadata.metadata)
        by_number = any(field.number is not None for field in columns.stored.values())
        if by_number and not has_numbers(self._schema):
            raise pa.ArrowInvalid("its columns have no ids, but the table is mapped by id")

    @cached_property
    def _names(self) -> dict[str, str]:
        """Names, in the file, of the table's columns that it has."""
        in_file, fields = self._schema, list(self._schema)
        places = {
            name: place_of(field, fields)
            for name, field in self._columns.stored.items()
            if name not in self._columns.constants
        }
        return {name: in_file.names[place] for name, place in places.items() if place is not None}

    def rows_of(self, group: int) -> int:
        return int(self._file.metadata.row_group(group).num_rows)

    def size_of(self, group: int, names: Sequence[str]) -> int:
        metadata = self._file.metadata.row_group(group)
        in_file = {self._names[name] for name in names if name in self._names}
        size: int = sum(
            metadata.column(index).total_uncompressed_size for name in in_file for index in self._places[name]
        )
        constants = [self._columns.constants[name] for name in set(names) & self._columns.constants.keys()]
        return size + sum(_width(value) for value in constants) * self.rows_of(group)

    def groups(
        self, timestamp: str | None = None, since: Millis = FIRST_TIME, until: Millis = LAST_TIME
    ) -> Iterator[tuple[int, int]]:
        first = 0
        for group in range(self._file.metadata.num_row_groups):
            may_hold = timestamp is None or self._may_hold(group, timestamp, since, until)
            if may_hold and not self._is_deleted(first, group):
                yield first, group
            first += self.rows_of(group)

    def _may_hold(self, group: int, timestamp: str, since: Millis, until: Millis) -> bool:
        if since <= FIRST_TIME and until >= LAST_TIME:
            return True
        bounds = self.bounds(group, timestamp)
        if bounds is None or not pa.types.is_timestamp(kind := self._columns.schema.field(timestamp).type):
            return True
        return not kind.tz or (bounds[1] // 1000 >= since and bounds[0] // 1000 < until)

    def _is_deleted(self, first: int, group: int) -> bool:
        """Return True if a deletion vector removes every row of a row group."""
        kept = self.kept(first, group)
        return kept is not None and not kept.any()

    def kept(self, first: int, group: int) -> Bools | None:
        rows = self.rows_of(group)
        begin, end = np.searchsorted(self._columns.deleted, (first, first + rows))
        if begin == end:
            return None
        kept = np.ones(rows, np.bool_)
        kept[self._columns.deleted[begin:end] - first] = False
        return kept

    def bounds(self, group: int, name: str) -> tuple[int, int] | None:
        if name not in self._columns.constants:
            in_file = self._names.get(name)
            if in_file is None or pa.types.is_nested(self._schema.field(in_file).type):
                return None
        bounds = self.bounds_of_times(group, name)
        return bounds[0] if bounds else None

    def bounds_of_times(self, group: int, name: str) -> list[tuple[int, int]] | None:
        if name in self._columns.constants:
            value = self._columns.constants[name]
            micros = value.value if value.type == _INSTANT and value.is_valid else None
            return None if micros is None else [(micros, micros)]
        in_file = self._names.get(name)
        if in_file is None:
            return None
        bounds = []
        metadata = self._file.metadata.row_group(group)
        parts = parts_of(self._schema.field(in_file).type)
        for place, kind in zip(self._places[in_file], parts, strict=True):
            column = metadata.column(place)
            if holds_times(kind):
                has_bounds = column.physical_type == "INT64" and column.is_stats_set and column.statistics.has_min_max
                if kind != _INSTANT or not has_bounds:
                    return None
                low, high = int(column.statistics.min_raw), int(column.statistics.max_raw)
                if self._calendar is not None and low < FIRST_SAME_TIME:
                    return None
                bounds.append((low, high))
        return bounds or None

    def may_be_null(self, group: int, name: str) -> bool:
        if name in self._columns.constants:
            return not self._columns.constants[name].is_valid
        in_file = self._names.get(name)
        if in_file is None or pa.types.is_nested(self._schema.field(in_file).type):
            return True
        column = self._file.metadata.row_group(group).column(self._places[in_file][0])
        has_count = column.is_stats_set and column.statistics.has_null_count
        return not has_count or int(column.statistics.null_count) > 0

    @cached_property
    def _places(self) -> dict[str, range]:
        """Positions of each column's parts in the file. Paths are ambiguous: a column may have the name of a path."""
        places, first = {}, 0
        for field in self._schema:
            end = first + sum(1 for _ in parts_of(field.type))
            places[field.name], first = range(first, end), end
        return places

    def read(self, group: int, names: Sequence[str]) -> Iterator[pa.Table]:
        in_files = [self._names[name] for name in names if name in self._names]
        rows, at_a_time = self.rows_of(group), self._rows_at_a_time(names)
        if rows <= at_a_time:
            yield self._in_types(
                group, self._file.read_row_group(group, columns=in_files, use_threads=False), rows, names
            )
            return
        if not in_files:
            for begin in range(0, rows, at_a_time):
                yield self._in_types(group, pa.table({}), min(at_a_time, rows - begin), names)
            return
        for batch in self._file.iter_batches(at_a_time, row_groups=[group], columns=in_files, use_threads=False):
            yield self._in_types(group, pa.Table.from_batches([batch]), len(batch), names)

    def _rows_at_a_time(self, names: Sequence[str]) -> int:
        """Return the number of rows in a table: texts that repeat take little space in a file, but not in memory."""
        kinds = [self._columns.schema.field(name).type for name in names if name in self._names]
        return _ROWS_OF_TEXTS if any(rejects.is_text(kind) or pa.types.is_nested(kind) for kind in kinds) else _ROWS

    def _in_types(self, group: int, read: pa.Table, rows: int, names: Sequence[str]) -> pa.Table:
        """Return columns of a group in the types of the source table, including those that the file lacks."""
        columns = []
        for name in names:
            kind = self._columns.schema.field(name).type
            if name in self._columns.constants:
                as_key = pa.types.is_dictionary(kind)
                columns.append(constant(self._columns.constants[name], rows, as_key))
            elif name in self._names:
                stored = self._modern(read[self._names[name]], group, name)
                columns.append(converted(stored, kind, self._columns.stored[name]))
            else:
                columns.append(pa.chunked_array([pa.nulls(rows, kind)]))
        return pa.table(columns, names=list(names))

    def _modern(self, column: pa.ChunkedArray, group: int, name: str) -> pa.ChunkedArray:
        """Return a column as stored, but in the Gregorian calendar."""
        if self._calendar is None or not holds_times(column.type):
            return column
        metadata = self._file.metadata.row_group(group)
        physical = [metadata.column(place).physical_type for place in self._places[self._names[name]]]
        return self._calendar.modern(column, physical, name)


def constant(value: pa.Scalar, rows: int, as_key: bool = False) -> pa.ChunkedArray:
    """Return a column that has a value in every row. As a key, strings and bytes become a dictionary."""
    kind = value.type
    if not as_key or key_type(kind) == kind:
        return pa.chunked_array([pa.nulls(rows, kind) if not value.is_valid else pa.repeat(value, rows)])
    if not value.is_valid:
        return pa.chunked_array([pa.nulls(rows, key_type(kind))])
    places = pa.repeat(pa.scalar(0, pa.int32()), rows)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(places, pa.array([value.as_py()], kind))])


def _width(value: pa.Scalar) -> int:
    """Return the bytes that a constant takes per row. A string may be written out in each row."""
    if pa.types.is_string(value.type) or pa.types.is_binary(value.type):
        return 4 + (value.as_buffer().size if value.is_valid else 0)
    return max(1, int(value.type.bit_width) // 8)


ColumnsOf: TypeAlias = Callable[[int], FileColumns]
"""Function from the number of rows of a file to its columns."""


@dataclass(frozen=True, slots=True)
class Remedies:
    """Ends of messages that begin with the source: causes and remedies for a file that can't be used.

    Args:
        source: the source.
        gone: for a missing file.
        unreadable: for a file that can't be read.
        miscounted: for a file with another number of rows than its source says.
    """

    source: str
    gone: str
    unreadable: str
    miscounted: str = "it was replaced. Restore the committed file"


@dataclass(frozen=True, slots=True)
class ParquetReader:
    """Reader of plain Parquet files, whose columns have the names of the source."""

    warehouse: Warehouse
    folder: str
    columns: pa.Schema
    remedies: Remedies

    @contextmanager
    def open(self, part: FilePart) -> Iterator[SourceParquet]:
        stored = {field.name: field for field in fields_of(self.columns)}
        columns = FileColumns(self.columns, stored, {}, np.zeros(0, np.int64))
        with open_parquet(self.warehouse, self.folder, part, lambda rows: columns, self.remedies) as file:
            yield file


@contextmanager
def open_parquet(
    warehouse: Warehouse, folder: str, part: FilePart, columns_of: ColumnsOf, remedies: Remedies
) -> Iterator[SourceParquet]:
    """Open a Parquet file of a source. `columns_of` returns the columns of the file by the number of its rows.

    Raises:
        OSError: it can't be read for another reason, such as a missing permission.
        Refused: the file is missing or damaged, has another number of rows, or has old times that can't be converted.
    """
    # Commands that only read the log should not wait for this import.
    import pyarrow.parquet as pq

    file = f"{remedies.source}: file {part.path}"
    try:
        with warehouse.open_file(folder, part.path) as stream:
            metadata = pq.read_metadata(stream)
            if part.rows is not None and metadata.num_rows != part.rows:
                raise Refused(
                    f"{file} has {metadata.num_rows} rows, but the log says {part.rows}: {remedies.miscounted}"
                )
            columns = columns_of(metadata.num_rows)
            yield SourceParquet(
                pq.ParquetFile(
                    stream,
                    metadata=metadata,
                    read_dictionary=columns.dictionaries(metadata.schema.to_arrow_schema()),
                    pre_buffer=not is_local(folder),
                    coerce_int96_timestamp_unit="us",
                    page_checksum_verification=True,
                ),
                columns,
            )
    except FileNotFoundError as error:
        raise SourceFileMissing(f"{file} is missing: {remedies.gone}") from error
    except (OSError, pa.ArrowException) as error:
        if may_be_intact(error):
            # A permission may be missing, for example; the file itself may be intact.
            raise
        raise Refused(f"{file} can't be read: {in_words(error)}. {remedies.unreadable}") from error
