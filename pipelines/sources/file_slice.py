"""A slice of a plain source as files: read by Arrow where the rows are needed, without a way through Spark's rows.

A plain source is one whose rows are what its Parquet files hold (`plain.py` says when). Its rows know
the file and place they came from, so the columns that only late rows need are fetched again for those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
from tidegate.pipelines.sources.rules import ArrowRows, Int64s, rejected
from tidegate.pipelines.sources.source_columns import SourceColumns
from tidegate.pipelines.sources.source_parquet import SourceParquet
from tidegate.pipelines.storage import Warehouse
from tidegate.windowing.time import Millis


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
        wanted = np.ones(len(times), np.bool_)
        for unusable in rejected(columns.rules, ArrowRows(times, valid, table, part.committed)).values():
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
                if part.rows is not None and metadata.num_rows != part.rows:
                    raise Refused(
                        f"source table {self.table}: file {part.path} has {metadata.num_rows} rows, and the log says "
                        f"{part.rows}: it was replaced. Put the file back that was committed"
                    )
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
                f"source table {self.table}: file {part.path} can't be read: {in_words(error)}. If Spark can read it, "
                "give the pipeline's DeltaSource reader='spark'"
            ) from error
