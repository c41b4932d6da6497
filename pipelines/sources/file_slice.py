"""A slice of a source as files. The tasks read them with Arrow, so rows don't pass through Spark.

A part of a slice is a file with all that the log says about it: partition values and deleted rows. Each event has the
number of its file and its place there, so columns that only late rows need are read later, for these rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.event_columns import (
    COMMIT,
    FILE,
    FIRST_TIME,
    KEY_PREFIX,
    LAST_TIME,
    PLACE,
    TIME,
    VALUE_PREFIX,
    plain,
)
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.failures import in_words
from tidegate.pipelines.sources.commits import SourceFile
from tidegate.pipelines.sources.delta.deletion_vectors import DeletionVector
from tidegate.pipelines.sources.delta.partition_values import scalar_of
from tidegate.pipelines.sources.rules import ArrowRows, Bools, Int64s, rejected
from tidegate.pipelines.sources.source_columns import SourceColumns
from tidegate.pipelines.sources.source_parquet import FileColumns, SourceParquet
from tidegate.pipelines.sources.stored_fields import filled
from tidegate.pipelines.storage import Warehouse
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class FilePart:
    """The rows of a file with an event time in `[since, until)`.

    Args:
        path: path of the file, relative to the table.
        rows: number of rows in the whole file, with deleted rows; None if the log does not record it.
        commit: index of the source commit within the epoch.
        committed: time against which the rows' times are checked, int64 epoch milliseconds.
        since: int64 epoch milliseconds.
        until: int64 epoch milliseconds, exclusive.
        partition: names in the log and texts of the partition values.
        deleted: description of the file's deletion vector in the log; None if it has none.
    """

    path: str
    rows: int | None
    commit: int
    committed: Millis
    since: Millis = FIRST_TIME
    until: Millis = LAST_TIME
    partition: tuple[tuple[str, str | None], ...] = ()
    deleted: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls, file: SourceFile, commit: int, committed: Millis, since: Millis = FIRST_TIME, until: Millis = LAST_TIME
    ) -> FilePart:
        """Return the rows of a file with all that its add action says about them."""
        deleted = file.add.get("deletionVector") or None
        partition = tuple((file.add.get("partitionValues") or {}).items())
        return cls(file.path, file.stored, commit, committed, since, until, partition, deleted)


@dataclass(frozen=True, slots=True)
class JudgedRows:
    """Rows of a row group with their event times and the rules that they break. Deleted rows are not among them.

    Args:
        table: the columns that were read.
        places: place of each row in its file.
        times: event times, int64 epoch milliseconds; 0 for null.
        rejected: flags of the rejected rows, by reason.
        dropped: rows of the source that `where` drops, which are not among the others; None if it drops none.
    """

    table: pa.Table
    places: Int64s
    times: Int64s
    rejected: dict[str, Bools]
    dropped: pa.Table | None = None

    def usable(self, since: Millis, until: Millis) -> Bools:
        """Return True for each row that no rule rejects and whose time is in `[since, until)`."""
        usable = np.ones(len(self.times), np.bool_)
        for unusable in self.rejected.values():
            usable &= ~unusable
        if len(self.times) and (int(self.times.min()) < since or int(self.times.max()) >= until):
            usable &= (self.times >= since) & (self.times < until)
        return usable


@dataclass(frozen=True)
class FileSlice:
    """The files of a slice; this value travels to the tasks.

    Args:
        warehouse: the warehouse of the source.
        table: path of the source.
        columns: columns to read, with the rules for rejected rows.
        parts: the files, each with the interval of its rows.
        traced: True if each event has its file and place, because some events may be late.
    """

    warehouse: Warehouse
    table: str
    columns: SourceColumns
    parts: tuple[FilePart, ...]
    traced: bool = True

    def events(self, numbers: Iterable[int] | None = None) -> Iterator[pa.Table]:
        """Yield the usable rows of parts, a table for each row group: event time, commit, origin, key and used columns.

        Keys of text or bytes are dictionaries.

        Args:
            numbers: numbers of the parts; None for all.

        Raises:
            Refused: a file is missing or can't be read as Spark would read it; the message names the file.
        """
        columns = self.columns
        for number in range(len(self.parts)) if numbers is None else numbers:
            part = self.parts[number]
            with self.open(part) as file:
                for first, group in file.groups(columns.time_in_files, part.since, part.until):
                    yield self._events_of(self.judged(part, file, group, first, columns.names), part, number)

    def judged(self, part: FilePart, file: SourceParquet, group: int, first: int, names: Sequence[str]) -> JudgedRows:
        """Read columns of a row group and judge its rows. Every row that is an event or is counted comes through here.

        Args:
            part: the part.
            file: its file.
            group: number of the row group.
            first: place of the group's first row in the file.
            names: the columns; event time is among them.
        """
        columns, table, kept = self.columns, file.read(group, self.columns.reads(names)), file.kept(first, group)
        places = np.arange(first, first + len(table))
        if kept is not None:
            table, places = table.filter(pa.array(kept)), places[kept]
        passed = None if columns.sql is None else columns.sql.kept(table)
        dropped = None if passed is None else table.filter(pa.array(~passed))
        if passed is not None:
            table, places = table.filter(pa.array(passed)), places[passed]
        table = columns.derive(table, names)
        times, valid = columns.millis(table[columns.timestamp])
        broken = rejected(columns.rules, ArrowRows(times, valid, table, part.committed))
        return JudgedRows(table, places, times, broken, dropped)

    def _events_of(self, judged: JudgedRows, part: FilePart, number: int) -> pa.Table:
        columns, table, rows = self.columns, judged.table, len(judged.times)
        events = {
            TIME: pa.array(judged.times),
            COMMIT: pa.repeat(pa.scalar(part.commit, pa.int32()), rows),
            **{f"{KEY_PREFIX}{name}": table[name] for name in columns.key},
            **{f"{VALUE_PREFIX}{name}": plain(table[name]) for name in columns.used},
        }
        if self.traced:
            events[FILE] = pa.repeat(pa.scalar(number, pa.int32()), rows)
            events[PLACE] = pa.array(judged.places)
        table_of_events, wanted = pa.table(events), judged.usable(part.since, part.until)
        return table_of_events if wanted.all() else table_of_events.filter(pa.array(wanted))

    def source_rows(self, files: Int64s, places: Int64s) -> pa.Table:
        """Return rows with all columns of the source, in the given order.

        Args:
            files: number of each row's part.
            places: place of each row in its file.
        """
        parts, order = [], []
        for number in np.unique(files).tolist():
            asked = np.flatnonzero(files == number)
            with self.open(self.parts[number]) as file:
                for first, group in file.groups():
                    inside = asked[(places[asked] >= first) & (places[asked] < first + file.rows_of(group))]
                    if len(inside):
                        rows = file.read(group, self.columns.schema.names)
                        parts.append(rows.take(pa.array(places[inside] - first)))
                        order.append(inside)
        if not parts:
            return self.columns.schema.empty_table()
        back = np.argsort(np.concatenate(order), kind="stable")
        names = self.columns.schema.names
        return pa.concat_tables(
            [pa.table([plain(part[name]) for name in names], schema=self.columns.schema) for part in parts]
        ).take(pa.array(back))

    @contextmanager
    def open(self, part: FilePart) -> Iterator[SourceParquet]:
        """Open a file of the source.

        Raises:
            Refused: the file or its deletion vector is missing or damaged, a partition value can't be read, or the file
                was written with another calendar.
        """
        # Commands that only look at the log should not wait for this import.
        import pyarrow.parquet as pq

        filesystem, root = self.warehouse.filesystem(self.table)
        constants = self._constants(part)
        try:
            with filesystem.open_input_file(f"{root}/{part.path}" if root else part.path) as stream:
                metadata = pq.read_metadata(stream)
                if part.rows is not None and metadata.num_rows != part.rows:
                    raise Refused(
                        f"source table {self.table}: file {part.path} has {metadata.num_rows} rows, and the log says "
                        f"{part.rows}: it was replaced. Put the file back that was committed"
                    )
                deleted = self._deleted(part, metadata.num_rows)
                columns = FileColumns(self.columns.as_read, self.columns.stored, constants, deleted)
                yield SourceParquet(
                    pq.ParquetFile(
                        stream,
                        metadata=metadata,
                        read_dictionary=columns.dictionaries(metadata.schema.to_arrow_schema()),
                        pre_buffer=not self.warehouse.is_local,
                        coerce_int96_timestamp_unit="us",
                        page_checksum_verification=True,
                    ),
                    columns,
                )
        except FileNotFoundError as error:
            raise Refused(
                f"source table {self.table}: file {part.path} is gone: it was compacted and vacuumed before this "
                "pipeline read it. Start a new pipeline with a backfill of the table as it is now"
            ) from error
        except (OSError, pa.ArrowException) as error:
            raise Refused(
                f"source table {self.table}: file {part.path} can't be read: {in_words(error)}. If Spark can read it, "
                "give the pipeline's DeltaSource reader='spark'"
            ) from error

    def _constants(self, part: FilePart) -> dict[str, pa.Scalar]:
        """Return the values of the partition columns in a file.

        Raises:
            Refused: a value can't be read; the message names it.
        """
        texts, constants = dict(part.partition), {}
        for name in self.columns.partitions:
            text = texts.get(self.columns.stored[name].stored)
            try:
                value, length = scalar_of(text, self.columns.schema.field(name).type), self.columns.stored[name].length
                constants[name] = value if length is None else filled(pa.array([value]), length)[0]
            except ValueError as error:
                raise Refused(
                    f"source table {self.table}: file {part.path} has a partition value of column {name!r} that can't "
                    f"be read: {error}. Write the file's rows again with a right value; with reader='spark' in the "
                    "pipeline's DeltaSource, Spark decides what it means, mostly null"
                ) from error
        return constants

    def _deleted(self, part: FilePart, rows: int) -> Int64s:
        """Return the places of a file's deleted rows.

        Raises:
            Refused: the deletion vector is gone or damaged, or is not that of the file.
        """
        if part.deleted is None:
            return np.zeros(0, np.int64)
        try:
            return DeletionVector.of(part.deleted).rows(self.warehouse, self.table, rows)
        except FileNotFoundError as error:
            raise Refused(
                f"source table {self.table}: the deletion vector of file {part.path} is gone ({in_words(error)}): a "
                "VACUUM removed it before this pipeline read it. Start a new pipeline with a backfill of the table as "
                "it is now"
            ) from error
        except (OSError, ValueError) as error:
            raise Refused(
                f"source table {self.table}: the deletion vector of file {part.path} can't be used: {in_words(error)}. "
                "Put the file of the vector back that was committed, or start a new pipeline with a backfill after "
                "`REORG TABLE ... APPLY (PURGE)`"
            ) from error
