"""A slice of a source as files. The tasks read them with Arrow, so rows don't pass through Spark.

The source's own reader opens each file. An event has the number of its file and its place there, so columns that only
late rows need are read later, for these rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.event_columns import (
    COMMIT,
    FILE,
    KEY_PREFIX,
    PLACE,
    TIME,
    VALUE_PREFIX,
    plain,
)
from tidegate.pipelines.sources.base import OpenPart, PartReader
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.rules import ArrowRows, Bools, Int64s, rejected
from tidegate.pipelines.sources.source_columns import SourceColumns
from tidegate.windowing.time import Millis


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
        reader: opens the files.
        columns: columns to read, with the rules for rejected rows.
        parts: the files, each with the interval of its rows.
        traced: True if each event has its file and place, because some events may be late.
    """

    reader: PartReader
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

    def judged(self, part: FilePart, file: OpenPart, group: int, first: int, names: Sequence[str]) -> JudgedRows:
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

    def open(self, part: FilePart) -> AbstractContextManager[OpenPart]:
        """Open a file of the source; see `PartReader.open`."""
        return self.reader.open(part)
