"""A slice of a plain source as files: read by Arrow where the rows are needed, without a way through Spark's rows.

A plain source is one whose rows are what its Parquet files hold (`plain.py` says when). Its rows know
the file and place they came from, so the columns that only late rows need are fetched again for those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.errors import Refused
from pipelines.sources.columns import (
    COMMIT,
    FILE,
    FIRST_TIME,
    KEY_PREFIX,
    LAST_TIME,
    PLACE,
    TIME,
    VALUE_PREFIX,
    key_type,
)
from pipelines.storage import Warehouse
from pipelines.tables import rejects
from windowing.time import Millis

if TYPE_CHECKING:
    import pyarrow.parquet as pq

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


@dataclass(frozen=True, slots=True)
class FilePart:
    """The rows of one file with an event time in `[since, until)`.

    Args:
        path: relative to the table.
        rows: in the whole file, where the log tells.
        commit: index of its source commit within the epoch.
        committed: when it was written, int64 epoch milliseconds.
        since: int64 epoch milliseconds.
        until: not included.
    """

    path: str
    rows: int | None
    commit: int
    committed: Millis
    since: Millis = FIRST_TIME
    until: Millis = LAST_TIME


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
    """

    schema: pa.Schema
    timestamp: str
    unit: str | None
    key: tuple[str, ...]
    used: tuple[str, ...]
    reject_null_keys: bool
    max_ahead: Millis

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

    def unusable(self, part: FilePart, times: Int64s, valid: Bools | None, null_key: Bools | None) -> dict[str, Bools]:
        """The rows that can't be used, by reason; a row has one reason, and only reasons that occur are named."""
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
        return found


@dataclass(frozen=True)
class FileSlice:
    """The files of a slice; it travels to the tasks.

    Args:
        warehouse: where the source is.
        table: path of the source.
        columns: which are read, and how rows are judged.
        parts: the files, and which of their rows.
        traced: whether events say which row of which file they are, because some may be late.
    """

    warehouse: Warehouse
    table: str
    columns: SourceColumns
    parts: tuple[FilePart, ...]
    traced: bool = True

    def events(self, numbers: Iterable[int] | None = None) -> Iterator[pa.Table]:
        """The usable rows of parts, a row group at a time: event time, commit, origin, key and used columns.

        Keys of text or bytes are dictionaries.

        Args:
            numbers: of the parts; None for all.

        Raises:
            Refused: a file is missing or can't be read as Spark would; the message names it.
        """
        columns = self.columns
        for number in range(len(self.parts)) if numbers is None else numbers:
            part = self.parts[number]
            with self.open(part) as file:
                for first, group in file.groups(columns.timestamp, part.since, part.until):
                    table = file.read(group, columns.names)
                    yield self._events_of(table, part, number, first)

    def _events_of(self, table: pa.Table, part: FilePart, number: int, first: int) -> pa.Table:
        columns = self.columns
        times, valid = columns.millis(table[columns.timestamp])
        null_key = null_flags([table[name] for name in columns.key])
        wanted = np.ones(len(times), np.bool_)
        for unusable in columns.unusable(part, times, valid, null_key).values():
            wanted &= ~unusable
        if len(times) and (int(times.min()) < part.since or int(times.max()) >= part.until):
            wanted &= (times >= part.since) & (times < part.until)
        rows = len(times)
        events = {
            TIME: pa.array(times),
            COMMIT: pa.repeat(pa.scalar(part.commit, pa.int32()), rows),
            **{f"{KEY_PREFIX}{name}": table[name] for name in columns.key},
            **{f"{VALUE_PREFIX}{name}": plain(table[name]) for name in columns.used},
        }
        if self.traced:
            events[FILE] = pa.repeat(pa.scalar(number, pa.int32()), rows)
            events[PLACE] = pa.array(np.arange(first, first + rows))
        made = pa.table(events)
        return made if wanted.all() else made.filter(pa.array(wanted))

    def source_rows(self, files: Int64s, places: Int64s) -> pa.Table:
        """All columns of the source of some rows, in the order asked for.

        Args:
            files: number of each row's part.
            places: of each row in its file.
        """
        found, order = [], []
        for number in np.unique(files).tolist():
            asked = np.flatnonzero(files == number)
            with self.open(self.parts[number]) as file:
                for first, group in file.groups():
                    inside = asked[(places[asked] >= first) & (places[asked] < first + file.rows_of(group))]
                    if len(inside):
                        rows = file.read(group, self.columns.schema.names)
                        found.append(rows.take(pa.array(places[inside] - first)))
                        order.append(inside)
        if not found:
            return self.columns.schema.empty_table()
        back = np.argsort(np.concatenate(order), kind="stable")
        names = self.columns.schema.names
        return pa.concat_tables(
            [pa.table([plain(part[name]) for name in names], schema=self.columns.schema) for part in found]
        ).take(pa.array(back))

    @contextmanager
    def open(self, part: FilePart) -> Iterator[SourceParquet]:
        """One file of the source.

        Raises:
            Refused: it is missing, damaged, or written with another calendar.
        """
        # Commands that only look at the log should not wait for this import.
        import pyarrow.parquet as pq

        filesystem, root = self.warehouse.filesystem(self.table)
        schema = self.columns.as_read
        texts = {field.name.casefold() for field in schema if pa.types.is_dictionary(field.type)}
        try:
            with filesystem.open_input_file(f"{root}/{part.path}" if root else part.path) as stream:
                metadata = pq.read_metadata(stream)
                names = metadata.schema.to_arrow_schema().names
                yield SourceParquet(
                    pq.ParquetFile(
                        stream,
                        metadata=metadata,
                        # Names that the file spells otherwise, or does not have, are no error here.
                        read_dictionary=[name for name in names if name.casefold() in texts],
                        pre_buffer=not self.warehouse.is_local,
                        coerce_int96_timestamp_unit="us",
                        page_checksum_verification=True,
                    ),
                    schema,
                )
        except FileNotFoundError as error:
            raise Refused(
                f"source table {self.table}: file {part.path} is gone: it was compacted and vacuumed before this "
                "pipeline read it. Start a new pipeline with a backfill of the table as it is now"
            ) from error
        except (OSError, pa.ArrowException) as error:
            raise Refused(
                f"source table {self.table}: file {part.path} can't be read: {error}. If Spark can read it, give "
                "the pipeline's DeltaSource reader='spark'"
            ) from error


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
        own = {self._names.get(name.casefold()) for name in names}
        metadata = self._file.metadata.row_group(group)
        columns = (metadata.column(index) for index in range(metadata.num_columns))
        return sum(
            column.total_uncompressed_size for column in columns if column.path_in_schema.partition(".")[0] in own
        )

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
        if own is None or self._file.schema_arrow.field(own).type != pa.timestamp("us", tz="UTC"):
            return None
        column = self._column(group, own)
        if column is None or column.physical_type != "INT64" or not column.is_stats_set:
            return None
        statistics = column.statistics
        return (int(statistics.min_raw), int(statistics.max_raw)) if statistics.has_min_max else None

    def may_be_null(self, group: int, name: str) -> bool:
        """Whether a column of a row group may have nulls, as far as its statistics tell."""
        own = self._names.get(name.casefold())
        column = None if own is None else self._column(group, own)
        if column is None or not column.is_stats_set or not column.statistics.has_null_count:
            return True
        return int(column.statistics.null_count) > 0

    def _column(self, group: int, own: str) -> Any:
        """Metadata of a plain column; None of a nested one."""
        metadata = self._file.metadata.row_group(group)
        for index in range(metadata.num_columns):
            if metadata.column(index).path_in_schema == own:
                return metadata.column(index)
        return None

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


def null_flags(columns: Sequence[pa.ChunkedArray]) -> Bools | None:
    """Rows with a null in any column; None where there is none."""
    flags: Bools | None = None
    for column in columns:
        if column.null_count:
            missing = _flags(column.is_null())
            flags = missing if flags is None else flags | missing
    return flags


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without its dictionary."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _numbers(column: pa.ChunkedArray) -> Int64s:
    return np.asarray(column.fill_null(0).to_numpy())


def _flags(column: pa.ChunkedArray) -> Bools:
    return np.asarray(column.to_numpy())
