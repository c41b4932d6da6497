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

from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME, OK, ONLY_PARTITION, plain
from tidegate.pipelines.sources.file_slice import FilePart, FileSlice, JudgedRows
from tidegate.pipelines.sources.measures import Measures
from tidegate.pipelines.sources.rules import are_times_usable
from tidegate.pipelines.sources.source_parquet import SourceParquet
from tidegate.pipelines.tables.far_times import MICROS
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class _Counted:
    """Number of rows of a row group with one status and one source partition."""

    status: str
    rows: int
    partition: str = ONLY_PARTITION
    smallest: Millis = 0
    largest: Millis = 0
    size: int = 0


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
    return measures


def _measure(
    files: FileSlice, part: FilePart, file: SourceParquet, partition_by: str | None, with_rejects: bool
) -> Iterator[_Counted]:
    columns = files.columns
    interval = (FIRST_TIME, LAST_TIME) if with_rejects else (part.since, part.until)

    def sized(counted: _Counted, group: int) -> _Counted:
        share = counted.rows / max(1, file.rows_of(group))
        return replace(counted, size=round(share * file.size_of(group, columns.names)))

    for first, group in file.groups(columns.timestamp, *interval):
        nullable = [name for name in columns.rules.key if file.may_be_null(group, name)]
        limited = [name for name in columns.limited if not _is_within(file, group, name)]
        # Statistics count deleted rows, and their times may be the smallest or largest.
        if not nullable and not limited and partition_by is None and file.kept(first, group) is None:
            whole_group = _by_statistics(files, part, file, group)
            if whole_group is not None:
                yield sized(whole_group, group)
                continue
        names = [columns.timestamp, *nullable, *limited, *([partition_by] if partition_by else [])]
        judged = files.judged(part, file, group, first, list(dict.fromkeys(names)))
        for counted in _count(judged, part, partition_by):
            if counted.status == OK:
                yield sized(counted, group)
            elif with_rejects:
                yield counted


def _is_within(file: SourceParquet, group: int, name: str) -> bool:
    """Return True if statistics show that all times in the values of a column are within the accepted bounds."""
    bounds = file.bounds_of_times(group, name)
    return bounds is not None and all(first >= MICROS[0] and last < MICROS[1] for first, last in bounds)


def _by_statistics(files: FileSlice, part: FilePart, file: SourceParquet, group: int) -> _Counted | None:
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


def _count(judged: JudgedRows, part: FilePart, partition_by: str | None) -> Iterator[_Counted]:
    for reason, rows in judged.rejected.items():
        yield _Counted(reason, int(np.count_nonzero(rows)))
    wanted = judged.usable(part.since, part.until)
    if not wanted.any():
        return
    if partition_by is None:
        kept = judged.times[wanted]
        yield _Counted(OK, len(kept), smallest=int(kept.min()), largest=int(kept.max()))
        return
    partitions = plain(judged.table[partition_by]).cast(pa.string()).fill_null("null")
    kept = pa.table({"partition": partitions, "time": judged.times}).filter(pa.array(wanted))
    bounds = kept.group_by("partition").aggregate([("time", "count"), ("time", "min"), ("time", "max")])
    for row in bounds.to_pylist():
        yield _Counted(OK, row["time_count"], row["partition"], row["time_min"], row["time_max"])
