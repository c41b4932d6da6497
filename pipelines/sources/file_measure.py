"""Counts of the rows in a slice of files, before the tasks run: from the files' statistics, else from their rows.

The statistics in a Parquet footer bound the values of a row group exactly. If they show that every row of the group is
usable and lies in the interval, none of its rows are read. A group with deleted rows is always read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.event_columns import DROPPED, FIRST_TIME, LAST_TIME, OK, ONLY_PARTITION, plain
from tidegate.pipelines.sources.base import OpenPart
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.file_slice import FileSlice, JudgedRows
from tidegate.pipelines.sources.measures import Measures
from tidegate.pipelines.sources.rules import OF_TIME, ArrowRows, Int64s, are_times_usable, rejected
from tidegate.pipelines.sources.source_columns import SourceColumns
from tidegate.pipelines.tables.far_times import MICROS
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class _Counted:
    """Number of rows of a row group with one status and one source partition."""

    status: str
    rows: int
    partition: str = ONLY_PARTITION
    smallest: Millis = 0
    largest: Millis | None = 0
    size: int = 0
    is_placeless: bool = False


def measure_files(files: FileSlice, partition_by: str | None = None, with_rejects: bool = True) -> Measures:
    """Count the rows of files, in threads of this process.

    Args:
        files: the files.
        partition_by: column of source partitions.
        with_rejects: True counts rejected rows too, which lie in no interval.

    Raises:
        Refused: a file is gone or can't be read.
    """
    measures = Measures()

    def measure(part: FilePart) -> list[_Counted]:
        with files.open(part) as file:
            return list(_measure(files, part, file, partition_by, with_rejects))

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads:
        for part, counts in zip(files.parts, threads.map(measure, files.parts), strict=True):
            for counted in counts:
                measures.add(
                    part.commit, counted.status, counted.rows, counted.partition, counted.smallest, counted.largest
                )
                measures.size += counted.size
                measures.placeless += counted.rows if counted.is_placeless else 0
    return measures


def _measure(
    files: FileSlice, part: FilePart, file: OpenPart, partition_by: str | None, with_rejects: bool
) -> Iterator[_Counted]:
    columns = files.columns
    interval = (FIRST_TIME, LAST_TIME) if with_rejects else (part.since, part.until)

    def sized(counted: _Counted, group: int) -> _Counted:
        share = counted.rows / max(1, file.rows_of(group))
        return replace(counted, size=round(share * file.size_of(group, columns.reads(columns.names))))

    for first, group in file.groups(columns.time_in_files, *interval):
        nullable = [name for name in columns.rules.key if columns.is_derived(name) or file.may_be_null(group, name)]
        limited = [name for name in columns.limited if columns.is_derived(name) or not _is_within(file, group, name)]
        # Statistics count deleted rows, and their times may be the smallest or largest.
        is_whole = not _needs_rows(columns) and file.kept(first, group) is None
        if not nullable and not limited and partition_by is None and is_whole:
            whole_group = _by_statistics(files, part, file, group)
            if whole_group is not None:
                yield sized(whole_group, group)
                continue
        names = [columns.timestamp, *nullable, *limited, *([partition_by] if partition_by else [])]
        judged = files.judged(part, file, group, first, list(dict.fromkeys(names)))
        yield from _count_dropped(columns, judged, part, partition_by, with_rejects)
        for counted in _count(judged, part, partition_by):
            if counted.status == OK:
                yield sized(counted, group)
            elif with_rejects:
                yield counted


def _is_within(file: OpenPart, group: int, name: str) -> bool:
    """Return True if statistics show that all times in the values of a column are within the accepted bounds."""
    bounds = file.bounds_of_times(group, name)
    return bounds is not None and all(first >= MICROS[0] and last < MICROS[1] for first, last in bounds)


def _by_statistics(files: FileSlice, part: FilePart, file: OpenPart, group: int) -> _Counted | None:
    """Return the count of a row group if statistics show that all its rows are usable and in the interval, or None."""
    columns = files.columns
    bounds = file.bounds(group, columns.timestamp)
    if bounds is None or file.may_be_null(group, columns.timestamp):
        return None
    smallest, largest = bounds[0] // 1000, bounds[1] // 1000
    if smallest < part.since or largest >= part.until:
        return None
    if not are_times_usable(columns.rules, smallest, largest, part.committed):
        return None
    return _Counted(OK, file.rows_of(group), smallest=smallest, largest=largest)


def _needs_rows(columns: SourceColumns) -> bool:
    """Return True if statistics can't tell which rows there are: of a condition, or of a derived event time."""
    return columns.time_in_files is None or (columns.sql is not None and columns.sql.where is not None)


def _count(judged: JudgedRows, part: FilePart, partition_by: str | None) -> Iterator[_Counted]:
    for reason, rows in judged.rejected.items():
        yield _Counted(reason, int(np.count_nonzero(rows)))
    wanted = judged.usable(part.since, part.until)
    if wanted.any():
        yield from _by_partition(OK, judged.table.filter(pa.array(wanted)), judged.times[wanted], partition_by)


def _by_partition(status: str, table: pa.Table, times: Int64s, partition_by: str | None) -> Iterator[_Counted]:
    """Count rows of a status by source partition, with their earliest and latest times."""
    if partition_by is None:
        yield _Counted(status, len(times), smallest=int(times.min()), largest=int(times.max()))
        return
    partitions = plain(table[partition_by]).cast(pa.string()).fill_null("null")
    counted = pa.table({"partition": partitions, "time": times}).group_by("partition")
    for row in counted.aggregate([("time", "count"), ("time", "min"), ("time", "max")]).to_pylist():
        yield _Counted(status, row["time_count"], row["partition"], row["time_min"], row["time_max"])


def _count_dropped(
    columns: SourceColumns, judged: JudgedRows, part: FilePart, partition_by: str | None, with_placeless: bool
) -> Iterator[_Counted]:
    """Count the rows that `where` drops: those of the interval, and those whose time lies in no interval."""
    if judged.dropped is None or columns.sql is None:
        return
    table = columns.derive(judged.dropped, [columns.timestamp, *([partition_by] if partition_by else [])])
    times, valid = columns.millis(table[columns.timestamp])
    committed = part.committed if columns.sql.all_move else None
    timely = np.ones(len(times), np.bool_)
    for untimely in rejected(columns.rules, ArrowRows(times, valid, pa.table({}), committed), OF_TIME).values():
        timely &= ~untimely
    inside = timely & (times >= part.since) & (times < part.until)
    if columns.sql.all_move and inside.any():
        yield from _by_partition(DROPPED, table.filter(pa.array(inside)), times[inside], partition_by)
    elif inside.any():
        yield _Counted(DROPPED, int(np.count_nonzero(inside)), largest=None)
    if with_placeless and not timely.all():
        yield _Counted(DROPPED, int(np.count_nonzero(~timely)), largest=None, is_placeless=True)
