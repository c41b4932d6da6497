"""What a slice of files holds, told before the tasks run: from the files' own statistics, else from their times.

The statistics in a Parquet footer bound the values of a row group exactly. Where they show that every
row of it can be used and lies in the interval, nothing of it is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME, OK, ONLY_PARTITION, plain
from tidegate.pipelines.sources.file_slice import FilePart, FileSlice
from tidegate.pipelines.sources.measures import Measures
from tidegate.pipelines.sources.rules import ArrowRows, are_times_usable, rejected
from tidegate.pipelines.sources.source_parquet import SourceParquet
from tidegate.pipelines.tables.far_times import MICROS
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class _Counted:
    """Rows of one row group with one status, of one source partition."""

    status: str
    rows: int
    partition: str = ONLY_PARTITION
    smallest: Millis = 0
    largest: Millis = 0
    size: int = 0


def measure_files(files: FileSlice, partition_by: str | None = None, with_rejects: bool = True) -> Measures:
    """Count the rows of files, by threads of this process.

    Args:
        files: the files.
        partition_by: column of source partitions.
        with_rejects: whether rows that can't be used are counted too; they lie in no interval.

    Raises:
        Refused: a file is gone or can't be read.
    """
    found = Measures()

    def measure(part: FilePart) -> list[_Counted]:
        with files.open(part) as file:
            return list(_measure(files, part, file, partition_by, with_rejects))

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads:
        for part, counts in zip(files.parts, threads.map(measure, files.parts), strict=True):
            for one in counts:
                found.add(part.commit, one.status, one.rows, one.partition, one.smallest, one.largest)
                found.size += one.size
    return found


def _measure(
    files: FileSlice, part: FilePart, file: SourceParquet, partition_by: str | None, with_rejects: bool
) -> Iterator[_Counted]:
    columns = files.columns
    interval = (FIRST_TIME, LAST_TIME) if with_rejects else (part.since, part.until)

    def sized(counted: _Counted, group: int) -> _Counted:
        share = counted.rows / max(1, file.rows_of(group))
        return replace(counted, size=round(share * file.size_of(group, columns.names)))

    for _, group in file.groups(columns.timestamp, *interval):
        nullable = [name for name in columns.rules.key if file.may_be_null(group, name)]
        limited = [name for name in columns.limited if not _is_within(file, group, name)]
        if not nullable and not limited and partition_by is None:
            known = _by_statistics(files, part, file, group)
            if known is not None:
                yield sized(known, group)
                continue
        names = [columns.timestamp, *nullable, *limited, *([partition_by] if partition_by else [])]
        table = file.read(group, list(dict.fromkeys(names)))
        for one in _count(files, part, table, partition_by):
            if one.status == OK:
                yield sized(one, group)
            elif with_rejects:
                yield one


def _is_within(file: SourceParquet, group: int, name: str) -> bool:
    """Whether statistics show that all times of a column, or in its values, can be used."""
    bounds = file.bounds_of_times(group, name)
    return bounds is not None and all(first >= MICROS[0] and last < MICROS[1] for first, last in bounds)


def _by_statistics(files: FileSlice, part: FilePart, file: SourceParquet, group: int) -> _Counted | None:
    """A row group all of whose rows can be used and lie in the interval, as its statistics show."""
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


def _count(files: FileSlice, part: FilePart, table: pa.Table, partition_by: str | None) -> Iterator[_Counted]:
    columns = files.columns
    times, valid = columns.millis(table[columns.timestamp])
    wanted = (times >= part.since) & (times < part.until)
    for reason, rows in rejected(columns.rules, ArrowRows(times, valid, table, part.committed)).items():
        wanted &= ~rows
        yield _Counted(reason, int(np.count_nonzero(rows)))
    if not wanted.any():
        return
    if partition_by is None:
        kept = times[wanted]
        yield _Counted(OK, len(kept), smallest=int(kept.min()), largest=int(kept.max()))
        return
    partitions = plain(table[partition_by]).cast(pa.string()).fill_null("null")
    kept = pa.table({"partition": partitions, "time": times}).filter(pa.array(wanted))
    bounds = kept.group_by("partition").aggregate([("time", "count"), ("time", "min"), ("time", "max")])
    for row in bounds.to_pylist():
        yield _Counted(OK, row["time_count"], row["partition"], row["time_min"], row["time_max"])
