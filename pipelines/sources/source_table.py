"""A table of a slice: how a task reads the rows of its files, and checks them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.event_columns import KEPT, plain
from tidegate.pipelines.sources.base import OpenPart, PartReader, SparkTable
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.rules import Bools, Int64s, rejected
from tidegate.pipelines.sources.source_columns import ColumnsToRead
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class EvaluatedRows:
    """Rows of a part with their event times and the rules that they break. Deleted rows are not among them.

    Args:
        number: number of the part in its slice.
        table: columns of events.
        places: position of each row in its file.
        times: event times, int64 epoch milliseconds; 0 for null.
        rejected: flags of the rejected rows, by reason.
        dropped: rows that `where` drops, which are not among the others; None if it drops none. They have the columns
            of the source, or columns of events if Spark computed them.
        rows: the same rows with all columns of the source if Spark read them, otherwise None.
    """

    number: int
    table: pa.Table
    places: Int64s
    times: Int64s
    rejected: dict[str, Bools]
    dropped: pa.Table | None = None
    rows: pa.Table | None = None

    def usable(self, since: Millis, until: Millis) -> Bools:
        """Return a flag for each row: True if no rule rejects it and its time is in `[since, until)`."""
        usable = self.counted(since, until)
        if rejects.KEY_TOO_LONG in self.rejected:
            usable &= ~self.rejected[rejects.KEY_TOO_LONG]
        return usable

    def counted(self, since: Millis, until: Millis) -> Bools:
        """Return a flag for each row: True if the plan counts it as usable, so that its time moves the watermark.

        A plan counts most rows by statistics, which don't show whether a key is too long.
        """
        usable = np.ones(len(self.times), np.bool_)
        for reason, unusable in self.rejected.items():
            if reason != rejects.KEY_TOO_LONG:
                usable &= ~unusable
        if len(self.times) and (int(self.times.min()) < since or int(self.times.max()) >= until):
            usable &= (self.times >= since) & (self.times < until)
        return usable

    def times_of_all(self, part: FilePart, columns: ColumnsToRead) -> Int64s:
        """Return the event times in the part's span, including those of rows that are dropped or rejected."""
        times = self.times
        if self.dropped is not None:
            dropped = columns.derive(self.dropped, [columns.timestamp])[columns.timestamp]
            times = np.concatenate([times, columns.millis(dropped)[0]])
        return times[(times >= part.since) & (times < part.until)]

    def moving(self, part: FilePart, columns: ColumnsToRead, names: Sequence[str]) -> Iterator[tuple[pa.Table, Int64s]]:
        """Yield rows whose times move the watermark, as columns of events with their times."""
        wanted = self.counted(part.since, part.until)
        yield self.table.filter(pa.array(wanted)), self.times[wanted]
        if columns.all_move and self.dropped is not None:
            table = columns.derive(self.dropped, names)
            times, timely = columns.timely(table[columns.timestamp], part.committed)
            inside = timely & (times >= part.since) & (times < part.until)
            yield table.filter(pa.array(inside)), times[inside]


@dataclass(frozen=True)
class SourceTable:
    """A table of a slice; this value is sent to the tasks.

    `files` opens its files, and is None if Spark reads them; otherwise, `for_spark` is None. The side is `left`,
    `right`, or None for the only input. `is_far` is True if a store has the files, which are then opened ahead.
    """

    files: PartReader | None
    columns: ColumnsToRead
    side: str | None = None
    for_spark: SparkTable | None = None
    name: str = ""
    is_far: bool = False

    @property
    def needs_spark(self) -> bool:
        """True if rows go through Spark before they are checked."""
        return self.for_spark is not None or self.columns.by_spark is not None

    def open(self, part: FilePart) -> AbstractContextManager[OpenPart]:
        assert self.files is not None, self.name
        return self.files.open(part)

    def evaluated(self, number: int, part: FilePart, file: OpenPart, names: Sequence[str]) -> Iterator[EvaluatedRows]:
        """Yield the rows of an open file that tasks read and evaluate, at most one row group at a time."""
        for place in file.groups(self.columns.time_in_files, part.since, part.until):
            yield from self.evaluated_group(number, part, file, place, names)

    def evaluated_group(
        self, number: int, part: FilePart, file: OpenPart, place: tuple[int, int], names: Sequence[str]
    ) -> Iterator[EvaluatedRows]:
        """Read columns of a row group and check its rows. A large row group is read in several tables."""
        for table, places in self._read(file, place, self.columns.reads(names)):
            yield self.evaluated_rows(number, part, table, places, names)

    def evaluated_rows(
        self, number: int, part: FilePart, table: pa.Table, places: Int64s, names: Sequence[str]
    ) -> EvaluatedRows:
        """Evaluate `where` and `columns` for rows of the source, and check the rows."""
        columns = self.columns
        passed = None if columns.sql is None else columns.sql.kept(table)
        dropped = None if passed is None else table.filter(pa.array(~passed))
        if passed is not None:
            table, places = table.filter(pa.array(passed)), places[passed]
        return self._judge(number, part, columns.derive(table, names), places, dropped)

    def count_kept(self, file: OpenPart, place: tuple[int, int]) -> tuple[int, int]:
        """Return the number of rows of a row group that `where` keeps, and of those that it drops."""
        first, group = place
        sql = self.columns.sql
        if sql is None or sql.where is None:
            kept = file.kept(first, group)
            return file.rows_of(group) if kept is None else int(np.count_nonzero(kept)), 0
        rows = dropped = 0
        for table, _ in self._read(file, place, self.columns.reads(())):
            passed = sql.kept(table)
            of_table = len(table) if passed is None else int(np.count_nonzero(passed))
            rows, dropped = rows + of_table, dropped + len(table) - of_table
        return rows, dropped

    def stored(self, part: FilePart, names: Sequence[str]) -> Iterator[tuple[pa.Table, Int64s]]:
        """Yield source columns of a file, with the positions of the rows, for Spark to evaluate SQL."""
        with self.open(part) as file:
            for place in file.groups(self.columns.time_in_files, part.since, part.until):
                for table, places in self._read(file, place, names):
                    yield pa.table([plain(table[name]) for name in names], names=list(names)), places

    def evaluated_by_spark(
        self, number: int, part: FilePart, events: pa.Table, places: Int64s, rows: pa.Table | None
    ) -> EvaluatedRows:
        """Check rows whose columns of events Spark computed.

        The events include the flags of the rows that `where` keeps.
        """
        kept = np.asarray(events[KEPT].to_numpy()).astype(np.bool_)
        if kept.all():
            return self._judge(number, part, events, places, None, rows)
        flags = pa.array(kept)
        kept_rows = None if rows is None else rows.filter(flags)
        dropped = events.filter(pa.array(~kept))
        return self._judge(number, part, events.filter(flags), places[kept], dropped, kept_rows)

    def _read(self, file: OpenPart, place: tuple[int, int], names: Sequence[str]) -> Iterator[tuple[pa.Table, Int64s]]:
        """Yield columns of the rows of a group that are not deleted, with the positions of the rows in the file."""
        first, group = place
        kept, begin = file.kept(first, group), 0
        for table in file.read(group, names):
            places = np.arange(first + begin, first + begin + len(table))
            if kept is None:
                yield table, places
            else:
                of_table = kept[begin : begin + len(table)]
                yield table.filter(pa.array(of_table)), places[of_table]
            begin += len(table)

    def _judge(
        self,
        number: int,
        part: FilePart,
        events: pa.Table,
        places: Int64s,
        dropped: pa.Table | None,
        rows: pa.Table | None = None,
    ) -> EvaluatedRows:
        """Check the rows of a part. Every row that is an event or is counted passes through here."""
        times, valid = self.columns.millis(events[self.columns.timestamp])
        broken = rejected(self.columns.rules, times, valid, part.committed, events)
        if part.again and (again := np.isin(places, part.again)).any():
            for flags in broken.values():
                again &= ~flags
            broken[rejects.AHEAD] = broken.get(rejects.AHEAD, again) | again
        return EvaluatedRows(number, events, places, times, broken, dropped, rows)

    def source_rows(self, part: FilePart, places: Int64s) -> pa.Table:
        """Return rows of a file with all columns of the source, in the given order."""
        schema, tables, order = self.columns.schema, [], []
        with self.open(part) as file:
            for first, group in file.groups():
                if not ((places >= first) & (places < first + file.rows_of(group))).any():
                    continue
                for table in file.read(group, schema.names):
                    inside = np.flatnonzero((places >= first) & (places < first + len(table)))
                    rows = table.take(pa.array(places[inside] - first))
                    tables.append(pa.table([plain(rows[name]) for name in schema.names], schema=schema))
                    order.append(inside)
                    first += len(table)
        if not tables:
            return schema.empty_table()
        back = np.argsort(np.concatenate(order), kind="stable")
        return pa.concat_tables(tables).take(pa.array(back))
