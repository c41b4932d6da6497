"""Measure how many rows the change feed of table `windows` shows for each window that really changed.

    python -m benchmarks.change_feed [--users 2000] [--days 30] [--commits 24] [--json FILE]

The feed shows the rows of whole files, so windows that share a file with a corrected one appear as deleted and inserted
with equal values. The history is a backfill of hourly windows, one slice a day. Then a stream follows: a commit an
hour, in which one row in fifty is up to a day late, within the allowed lateness. What changed is the difference of the
whole table between two versions, so the measurement does not rely on the feed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.event_table import EventTable
from benchmarks.figures import Figure, tell
from tidegate import Project
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.windowing import Count, Sum, TumblingEventTimeWindows, WatermarkStrategy, Windows

_FIRST = datetime(2026, 1, 1, tzinfo=UTC)
_HOUR = 3_600_000_000
_FIRST_EPOCHS = 2
"""Epochs whose late rows cut the files of the history; they are not counted."""
_LATE = 0.02
"""Share of the rows of a commit that are up to a day late."""

Partition = Literal["none", "day"]


def events(start: datetime, hours: int, users: int, late: float, seed: int) -> pa.Table:
    """Return the events of some hours in the order of arrival: a user is seen in two hours of three."""
    draws = np.random.default_rng(seed)
    count = users * hours * 2 // 3
    since = np.sort(draws.integers(0, hours * _HOUR, count))
    is_late = draws.random(count) < late
    since = np.where(is_late, since - draws.integers(_HOUR, 24 * _HOUR, count), since)
    times = pa.array(since + int(start.timestamp() * 1_000_000), pa.timestamp("us", tz="UTC"))
    keys = pa.array([f"user-{number}" for number in draws.integers(0, users, count)])
    return pa.table({"user": keys, "value": pa.array(draws.integers(0, 100, count)), "at": times})


def measure(users: int, days: int, commits: int) -> Iterator[Figure]:
    """Measure the feed for a table without partitions and for one with a partition a day."""
    for partition in get_args(Partition):
        with tempfile.TemporaryDirectory() as folder:
            yield from _of(Path(folder), partition, users, days, commits)


def _of(folder: Path, partition: Partition, users: int, days: int, commits: int) -> Iterator[Figure]:
    source = EventTable(folder / "events")
    source.append(events(_FIRST, 24 * days, users, 0, 0))
    hours = Pipeline(
        name="hours",
        source=DeltaSource(str(source.path), timestamp="at"),
        key=("user",),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(minutes=5)),
        compute=Windows(
            TumblingEventTimeWindows.of(timedelta(hours=1)),
            aggregate={"events": Count(), "total": Sum("value")},
            allowed_lateness=timedelta(days=1),
        ),
    )
    settings = {"hours": {"windows": {"partition_by": partition}}}
    lake, end = folder / "lake", _FIRST + timedelta(days=days)
    project = Project(warehouse=lake, work=folder / "work", pipelines=[hours], settings=settings, engine="local")
    project.backfill("hours", _FIRST, end)
    project.stream("hours")
    after, shown, differing = DeltaTable(lake / "hours" / "windows"), [], []
    for number in range(commits):
        before = after
        source.append(events(end + timedelta(hours=number), 1, users, _LATE, number + 1))
        project.stream("hours")
        after = DeltaTable(lake / "hours" / "windows")
        shown.append(_rows_of_feed(after, before.version() + 1))
        differing.append(_changes(before, after))
    pairs = [*zip(shown, differing, strict=True)][_FIRST_EPOCHS:]
    ratios = [rows / max(changed, 1) for rows, changed in pairs]
    yield Figure(
        f"rows of the feed for each change, partition_by = {partition}",
        median(ratios),
        "rows",
        None,
        f"feed {median(rows for rows, _ in pairs):,.0f} rows an epoch, of which "
        f"{median(changed for _, changed in pairs):,.0f} are changes, and at most {max(shown):,} in the first epochs; "
        f"{len(after.file_uris())} files with {len(after.to_pyarrow_table(columns=['user'])):,} windows",
    )


def _rows_of_feed(table: DeltaTable, first: int) -> int:
    if first > table.version():
        return 0
    return sum(batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.load_cdf(starting_version=first)))


def _changes(before: DeltaTable, after: DeltaTable) -> int:
    """Return the number of rows that only one of two versions has."""
    ours, theirs = ({tuple(row.items()) for row in table.to_pyarrow_table().to_pylist()} for table in (before, after))
    return len(ours ^ theirs)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--commits", type=int, default=24)
    parser.add_argument("--json", type=Path, help="file for the figures, one a line")
    options = parser.parse_args()
    tell(measure(options.users, options.days, options.commits), options.json)


if __name__ == "__main__":
    main()
