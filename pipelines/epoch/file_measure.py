"""Count the rows in a slice before the tasks run, from the files' statistics if possible, otherwise from their rows.

The statistics in a Parquet footer bound the values of a row group. If they show that every row of the group is usable
and within the interval, none of its rows are read. Deleted rows are subtracted. If `where` may drop rows, only its
columns are read, unless the plan needs event times, because statistics include the times of dropped rows.

The driver reads footers, and at most a few rows. If more rows have to be read, or if they go through Spark, tasks of
the engine count them.

Statistics don't bound the length of a key. So rows whose keys are too long count as usable here, and the tasks find
them (`operate`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.event_columns import DROPPED, FIRST_TIME, LAST_TIME, OK, ONLY_PARTITION
from tidegate.pipelines.definition.far_times import MICROS
from tidegate.pipelines.definition.names import count_of
from tidegate.pipelines.engine.base import Engine, balanced_groups
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.base import OpenPart
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.rules import Int64s, are_times_usable
from tidegate.pipelines.sources.source_columns import ColumnsToRead
from tidegate.pipelines.sources.source_table import EvaluatedRows
from tidegate.windowing.time import Millis

_COUNTED = pa.schema([("counted", pa.string())])


@dataclass(frozen=True, slots=True)
class Counted:
    """Number of rows of a part with one status and one source partition."""

    status: str
    rows: int
    partition: str = ONLY_PARTITION
    smallest: Millis = 0
    largest: Millis | None = 0
    size: int = 0


def measure_files(
    files: FileSlice, with_rejects: bool = True, engine: Engine | None = None, with_times: bool = True
) -> Measures:
    """Count the rows of a slice. If many rows have to be read, tasks of the engine read them.

    Rejected rows belong to no interval. Without `with_times`, fewer columns are read, and the event times of commits
    may be those of deleted or dropped rows.

    Args:
        files: the slice.
        with_rejects: True also counts rejected rows.
        engine: the engine; None reads all rows here, and the slice then has no rows that go through Spark.
        with_times: True if the event times of rows that count must be exact.
    """
    measures, count = Measures(), _Counting(files, with_rejects, with_times)
    here = [number for number in range(len(files.parts)) if not files.table_of(number).needs_spark]
    found = dict(count.by_statistics(number for number in here if not count.always_reads(number)))
    found |= count.by_rows([number for number in here if found.get(number) is None], engine)
    for number in here:
        measures.add_all(files.parts[number], number, found[number] or ())
    if files.needs_spark:
        assert engine is not None
        _measure_by_spark(engine, files, with_rejects, measures)
    return measures


_FEW_ROWS = 300_000
"""Largest number of rows that the driver reads itself: sending them to tasks, even running ones, saves no time."""


@dataclass(frozen=True)
class _Counting:
    """Counts the rows of parts that tasks read and evaluate; this value is sent to the tasks."""

    files: FileSlice
    with_rejects: bool
    with_times: bool

    def always_reads(self, number: int) -> bool:
        """Return True if statistics never suffice for a part, so that its footer need not be read first."""
        part, columns = self.files.parts[number], self.files.table_of(number).columns
        return (
            columns.drops_rows
            or columns.partition_by is not None
            or columns.time_in_files is None
            or bool(part.again)
            or any(map(columns.is_derived, (*columns.rules.key, *columns.limited)))
        )

    def by_statistics(self, numbers: Iterable[int]) -> Iterator[tuple[int, list[Counted] | None]]:
        """Yield the counts of each part, or None if its rows have to be read. Only footers are read here."""
        asked = list(numbers)
        for number, (file, closing) in zip(asked, self.files.opened(asked), strict=True):
            with closing:
                of_groups = [self._group_by_statistics(number, file, place) for place in self._groups(number, file)]
                known = [counts for counts in of_groups if counts is not None]
                yield number, [each for counts in known for each in counts] if len(known) == len(of_groups) else None

    def by_rows(self, numbers: Sequence[int], engine: Engine | None) -> dict[int, list[Counted]]:
        """Return the counts of parts whose rows are read if statistics don't suffice, in tasks if they are many."""
        asked = self.files.of([self.files.parts[number] for number in numbers])
        count = replace(self, files=asked)

        def run(places: Sequence[int]) -> Iterator[pa.RecordBatch]:
            for place, counts in count.of_parts(places):
                described = [asdict(counted) for counted in counts]
                yield pa.RecordBatch.from_pydict({"counted": [json.dumps([place, described])]})

        rows, places = asked.expected_rows, range(len(numbers))
        if engine is None or rows <= _FEW_ROWS:
            return {numbers[place]: counts for place, counts in count.of_parts(places)}
        groups = balanced_groups(asked.parts, places, engine.tasks(len(places), rows))
        batches = engine.in_place(groups, run, _COUNTED)
        texts = [text for batch in batches for text in batch.column(0).to_pylist()]
        return {numbers[place]: [Counted(**counted) for counted in counts] for place, counts in map(json.loads, texts)}

    def of_parts(self, numbers: Iterable[int]) -> Iterator[tuple[int, list[Counted]]]:
        """Yield the counts of each part, from statistics or rows."""
        asked = list(numbers)
        for number, (file, closing) in zip(asked, self.files.opened(asked), strict=True):
            found: list[Counted] = []
            with closing:
                for place in self._groups(number, file):
                    counts = self._group_by_statistics(number, file, place)
                    found += self._group_by_rows(number, file, place) if counts is None else counts
            yield number, found

    def _groups(self, number: int, file: OpenPart) -> Iterator[tuple[int, int]]:
        part, columns = self.files.parts[number], self.files.table_of(number).columns
        interval = (FIRST_TIME, LAST_TIME) if self.with_rejects else (part.since, part.until)
        return file.groups(columns.time_in_files, *interval)

    def _group_by_statistics(self, number: int, file: OpenPart, place: tuple[int, int]) -> list[Counted] | None:
        """Return the counts of a row group, or None if its rows have to be checked.

        If `where` may drop rows, this reads the columns of `where`.
        """
        (first, group), part, table = place, self.files.parts[number], self.files.table_of(number)
        columns = table.columns
        nullable, limited = _to_check(columns, file, group)
        if nullable or limited or columns.partition_by is not None or part.again:
            return None
        bounds = _usable_bounds(columns, part, file, group)
        if bounds is None:
            return None
        if bounds[1] < part.since or bounds[0] >= part.until:
            return []
        if bounds[0] < part.since or bounds[1] >= part.until:
            return None
        if self.with_times and (columns.drops_rows or file.kept(first, group) is not None):
            return None
        kept, dropped = table.count_kept(file, place)
        usable = Counted(OK, kept, smallest=bounds[0], largest=bounds[1])
        return [_sized(usable, columns, file, group), Counted(DROPPED, dropped, largest=None)]

    def _group_by_rows(self, number: int, file: OpenPart, place: tuple[int, int]) -> Iterator[Counted]:
        part, table, group = self.files.parts[number], self.files.table_of(number), place[1]
        columns = table.columns
        nullable, limited = _to_check(columns, file, group)
        by = [] if columns.partition_by is None else [columns.partition_by]
        names = list(dict.fromkeys([columns.timestamp, *nullable, *limited, *by]))
        for judged in table.evaluated_group(number, part, file, place, names):
            for counted in count_all(columns, judged, part, self.with_rejects):
                yield _sized(counted, columns, file, group) if counted.status == OK else counted


def _to_check(columns: ColumnsToRead, file: OpenPart, group: int) -> tuple[list[str], list[str]]:
    """Return the key columns of a row group that may be null, and the columns whose times may be out of bounds."""
    nullable = [name for name in columns.rules.key if columns.is_derived(name) or file.may_be_null(group, name)]
    limited = [name for name in columns.limited if columns.is_derived(name) or not _is_within(file, group, name)]
    return nullable, limited


def _sized(counted: Counted, columns: ColumnsToRead, file: OpenPart, group: int) -> Counted:
    """Return counted rows with their share of the size of a row group."""
    share = counted.rows / max(1, file.rows_of(group))
    return replace(counted, size=round(share * file.size_of(group, columns.reads(columns.names))))


def _measure_by_spark(engine: Engine, files: FileSlice, with_rejects: bool, measures: Measures) -> None:
    """Add the rows that go through Spark; if all were read, compare their number with the log."""
    numbers = [number for number in range(len(files.parts)) if files.table_of(number).needs_spark]
    parts = [files.parts[number] for number in numbers]
    # Rejected rows belong to no interval, so all rows are read to find them.
    read = files.of(replace(part, since=FIRST_TIME, until=LAST_TIME) if with_rejects else part for part in parts)

    def count(judged: Iterator[EvaluatedRows]) -> Iterator[pa.RecordBatch]:
        for rows in judged:
            part, columns = parts[rows.number], read.table_of(rows.number).columns
            seen = len(rows.times) + (0 if rows.dropped is None else len(rows.dropped))
            counts = [asdict(counted) for counted in count_all(columns, rows, part, with_rejects)]
            yield pa.RecordBatch.from_pydict({"counted": [json.dumps([rows.number, seen, counts])]})

    seen = dict.fromkeys(range(len(parts)), 0)
    for text in engine.over(read, count, _COUNTED)["counted"].to_pylist():
        place, rows, counts = json.loads(text)
        seen[place] += rows
        measures.add_all(parts[place], numbers[place], [Counted(**counted) for counted in counts])
    for input_, table in enumerate(files.tables):
        of_table = [place for place, part in enumerate(parts) if part.input == input_]
        expected = [parts[place].live for place in of_table]
        total = sum(seen[place] for place in of_table)
        if with_rejects and of_table and None not in expected and sum(filter(None, expected)) != total:
            raise Refused(
                f"source table {table.name}: {total} rows were read from {count_of(len(of_table), 'file')} with "
                f"{sum(filter(None, expected))} according to the log; the first is {parts[of_table[0]].path}. "
                "Nothing was committed. A file was replaced, or the statistics in the log are wrong: restore the "
                "committed files"
            )


def _is_within(file: OpenPart, group: int, name: str) -> bool:
    """Return True if statistics show that all times in the values of a column are within the accepted bounds."""
    bounds = file.bounds_of_times(group, name)
    return bounds is not None and all(first >= MICROS[0] and last < MICROS[1] for first, last in bounds)


def _usable_bounds(columns: ColumnsToRead, part: FilePart, file: OpenPart, group: int) -> tuple[Millis, Millis] | None:
    """Return the smallest and largest event time of a row group if statistics show that all are usable, or None."""
    if columns.time_in_files is None or file.may_be_null(group, columns.timestamp):
        return None
    bounds = file.bounds(group, columns.timestamp)
    if bounds is None:
        return None
    smallest, largest = bounds[0] // 1000, bounds[1] // 1000
    return (smallest, largest) if are_times_usable(columns.rules, smallest, largest, part.committed) else None


def count_all(columns: ColumnsToRead, judged: EvaluatedRows, part: FilePart, with_rejects: bool) -> Iterator[Counted]:
    """Count checked rows: those of the interval, rejected rows, and those that `where` drops."""
    yield from _count_dropped(columns, judged, part, with_rejects)
    if with_rejects:
        for reason, rows in judged.rejected.items():
            if reason != rejects.KEY_TOO_LONG:
                yield Counted(reason, int(np.count_nonzero(rows)))
    wanted = judged.counted(part.since, part.until)
    if wanted.any():
        yield from _by_partition(columns, OK, judged.table.filter(pa.array(wanted)), judged.times[wanted])


def _by_partition(columns: ColumnsToRead, status: str, table: pa.Table, times: Int64s) -> Iterator[Counted]:
    """Count rows of a status by source partition, with their earliest and latest times."""
    if columns.partition_by is None:
        yield Counted(status, len(times), smallest=int(times.min()), largest=int(times.max()))
        return
    counted = pa.table({"partition": columns.partitions(table), "time": times}).group_by("partition")
    for row in counted.aggregate([("time", "count"), ("time", "min"), ("time", "max")]).to_pylist():
        yield Counted(status, row["time_count"], row["partition"], row["time_min"], row["time_max"])


def _count_dropped(
    columns: ColumnsToRead, judged: EvaluatedRows, part: FilePart, with_placeless: bool
) -> Iterator[Counted]:
    """Count the rows that `where` drops: those of the interval, and those without a usable time."""
    if judged.dropped is None:
        return
    if not columns.has_time_of_dropped:
        if with_placeless:
            yield Counted(DROPPED, len(judged.dropped), largest=None)
        return
    by = [columns.partition_by] if columns.all_move and columns.partition_by is not None else []
    table = columns.derive(judged.dropped, [columns.timestamp, *by])
    times, timely = columns.timely(table[columns.timestamp], part.committed if columns.all_move else None)
    inside = timely & (times >= part.since) & (times < part.until)
    if columns.all_move and inside.any():
        yield from _by_partition(columns, DROPPED, table.filter(pa.array(inside)), times[inside])
    elif inside.any():
        yield Counted(DROPPED, int(np.count_nonzero(inside)), largest=None)
    if with_placeless and not timely.all():
        yield Counted(DROPPED, int(np.count_nonzero(~timely)), largest=None)


@dataclass(frozen=True)
class SliceCounts:
    """Counts of a slice's rows before the tasks run. `size` is the size of usable rows in bytes, or 0 if unknown."""

    usable: int = 0
    dropped: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    size: int = 0

    @property
    def total(self) -> int:
        """All rows."""
        return self.usable + self.dropped + sum(self.rejected.values())

    def __add__(self, other: SliceCounts) -> SliceCounts:
        statuses = {**self.rejected, **other.rejected}
        rejected = {status: self.rejected.get(status, 0) + other.rejected.get(status, 0) for status in statuses}
        return SliceCounts(self.usable + other.usable, self.dropped + other.dropped, rejected, self.size + other.size)


@dataclass
class Measures:
    """Counts of rows, and the event times of each commit by source partition.

    Args:
        counts: number of rows by status.
        largest: event time of the latest row that moves the watermark, by commit and source partition.
        smallest: event time of the earliest usable row, by commit.
        rows: number of all rows, by commit.
        size: size in bytes of the columns read from usable rows; 0 if it is unknown.
        rejecting: numbers of the parts with rejected rows.
    """

    counts: dict[str, int] = field(default_factory=dict)
    largest: dict[int, dict[str, Millis]] = field(default_factory=dict)
    smallest: dict[int, Millis] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    size: int = 0
    rejecting: set[int] = field(default_factory=set)

    def add_all(self, part: FilePart, number: int, counts: Iterable[Counted]) -> None:
        """Add the counts of the part with this number in its slice."""
        for counted in counts:
            if not counted.rows:
                continue
            self.add(part.commit, counted.status, counted.rows, counted.partition, counted.smallest, counted.largest)
            self.size += counted.size
            if counted.status not in (OK, DROPPED):
                self.rejecting.add(number)

    def add(
        self, commit: int, status: str, rows: int, partition: str, smallest: Millis | None, largest: Millis | None
    ) -> None:
        """Add rows of one commit, status and source partition.

        The largest time is that of a row that moves the watermark. A time is None if no row has one.
        """
        self.counts[status] = self.counts.get(status, 0) + rows
        self.rows[commit] = self.rows.get(commit, 0) + rows
        if status in (OK, DROPPED) and largest is not None:
            of_commit = self.largest.setdefault(commit, {})
            of_commit[partition] = max(of_commit.get(partition, largest), largest)
        if status == OK and smallest is not None:
            self.smallest[commit] = min(self.smallest.get(commit, smallest), smallest)

    @property
    def usable(self) -> int:
        """Number of rows that go to the operator."""
        return self.counts.get(OK, 0)

    @property
    def slice_counts(self) -> SliceCounts:
        """The counts for a plan."""
        rejected = {status: rows for status, rows in self.counts.items() if status not in (OK, DROPPED)}
        return SliceCounts(self.usable, self.counts.get(DROPPED, 0), rejected, self.size)
