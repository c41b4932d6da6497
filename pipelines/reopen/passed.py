"""Windows that an element missed although it was not late: others of its windows, which end later, took it.

Only overlapping windows have that. No table tells it of a row, but the watermark that the row's version
of the source was judged against does. Where that is not known (the log was cleaned up, or files were
compacted), it is taken for the newest, which only means that more windows are compared. So nothing is to be done
where the source's log was cleaned up, as long as the version that was read can be opened.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import gcd

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate.pipelines.definition.event_columns import COMMIT, OK, STATUS, TIME
from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.plan_interval import may_lie_within
from tidegate.pipelines.manifest import Interval
from tidegate.pipelines.reopen.stretches import END, START, windows_at
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.sources.log import SourceFile
from tidegate.pipelines.sources.source import Source
from tidegate.pipelines.storage import read_table
from tidegate.pipelines.tables import epochs
from tidegate.pipelines.tables.columns import quoted
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, to_millis

_SLOT, _JUDGED_AT = "__slot", "__judged_at"


class JudgedAt:
    """Against which watermark the rows of each version of the source were judged, as table epochs tells it.

    Exact for the first version that an epoch read, and not too small for the others. Where event time goes on by
    the clock it does so up to a commit before the rows of that commit are judged, which no table tells: there it is
    not too small for the first one either.

    Args:
        made: rows of table epochs that are not stale; the oldest may have been removed.
        newest: watermark of the snapshot.
        by_clock: whether event time may go on between two commits.
    """

    def __init__(self, made: pa.Table, newest: Millis, by_clock: bool = False) -> None:
        self._newest = newest
        self._versions: list[int] = []
        self._first: list[tuple[int, Millis, Millis]] = []
        read, watermark = -1, MIN_TIMESTAMP
        for number, row in enumerate(made.sort_by("epoch").to_pylist()):
            after = newest if row["watermark"] is None else to_millis(row["watermark"])
            if row["source_version"] is not None and row["source_version"] > read:
                if row["interval_start"] is not None and (number or row["parent"] is None):
                    # In event order every row of a run is judged against where the run began.
                    first = rest = watermark
                else:
                    rest = after
                    first = rest if by_clock or (number == 0 and row["parent"] is not None) else watermark
                self._versions.append(row["source_version"])
                self._first.append((read + 1, first, rest))
                read = row["source_version"]
            watermark = max(watermark, after)

    @property
    def alike_until(self) -> int:
        """The newest of the first versions whose rows are all judged alike; -1 where there are none."""
        if not self._versions or self._first[0][1] != self._first[0][2]:
            return -1
        return self._versions[0]

    def __call__(self, version: int | None) -> Millis:
        """Epoch milliseconds; the smallest time where nothing was judged before."""
        place = len(self._versions) if version is None else bisect_left(self._versions, version)
        if place == len(self._versions):
            return self._newest
        first, exact, rest = self._first[place]
        return exact if version == first else rest


def judged_at(tables: PipelineTables, newest: Millis, by_clock: bool = False) -> JudgedAt:
    """The watermarks that the versions of a pipeline's source were judged against."""
    handle = tables.open(epochs.NAME)
    columns = ["epoch", "parent", "source_version", "interval_start", "watermark"]
    # Those that took rows away read none, and may be of a line that was left.
    counts = ~pc.field("stale") & ~pc.field("kind").isin(sorted(epochs.ERASING))
    return JudgedAt(read_table(tables.warehouse, handle, columns, counts), newest, by_clock)


def marks_of(
    source: Source, files: Sequence[SourceFile], version: int, judged_at: JudgedAt, within: Interval
) -> dict[str, Millis]:
    """By path of each file of a version, the watermark that its rows were judged against.

    The log is asked about files that may have rows in the interval, as far back as watermarks differ.
    """
    meant = [
        file
        for file in files
        if not source.has_instants
        or ((file.newest is None or file.newest >= within.start) and (file.oldest is None or file.oldest < within.end))
    ]
    versions = source.log.versions_of(meant, version, judged_at.alike_until) if meant else {}
    return {file.path: judged_at(versions.get(file.path)) for file in files}


class Passed:
    """Finds such windows with Spark.

    Args:
        spark: the session.
        source: as it is now.
        head: the snapshot that has read it.
    """

    def __init__(self, spark: SparkSession, source: Source, head: Snapshot, tables: PipelineTables) -> None:
        self._spark = spark
        self._source = source
        self._position = source.settled(source.position_of(head.manifest))
        by_clock = EventTimes.of(source.bound.pipeline, head.manifest).move_by_clock
        self._judged_at = judged_at(tables, head.manifest.watermark, by_clock)

    def windows(self, windows: Windows, within: Interval) -> pa.Table:
        """The windows that rows with event times within an interval have, each once, with the key columns."""
        key, lateness = self._source.bound.key, windows.lateness
        grid = windows.assigner.window_grid
        assert grid is not None, windows.assigner
        slot, offset = gcd(grid.slide, grid.size), grid.offset
        behind = self._rows(within).where(F.col(TIME) <= F.col(_JUDGED_AT) - F.lit(lateness))
        # All times between two bounds of windows lie in the same windows.
        number = F.floor((F.col(TIME) - F.lit(offset)) / F.lit(slot)).cast("long")
        names = [F.col(quoted(name)) for name in key.names]
        found = behind.groupBy(*names, number.alias(_SLOT)).agg(F.max(_JUDGED_AT).alias(_JUDGED_AT)).toArrow()
        times = np.asarray(found[_SLOT].to_numpy(), np.int64) * slot + offset
        missed = windows_at(windows, key, found, times, also=(_JUDGED_AT,))
        passed = pc.less_equal(missed[END], pc.add(missed[_JUDGED_AT], 1 - lateness))
        return (
            missed.filter(passed)
            .select([*key.names, START, END])
            .cast(pa.schema([*(pa.field(*one) for one in zip(key.names, key.types, strict=True)), *_SPAN]))
        )

    def _rows(self, within: Interval) -> DataFrame:
        """Every usable row of whole versions in an interval with the watermark it was judged against."""
        source, position = self._source, self._position
        files = source.log.active(source.bound.pipeline.source.timestamp, position.version)
        marks = marks_of(source, files, position.version, self._judged_at, within)
        known = sorted(set(marks.values()))
        origins = {file.path: (known.index(marks[file.path]), file.written) for file in files}
        frame = source.frames.judged(source.frames.snapshot(position.version), source.bound.source, origins)
        judged = self._spark.createDataFrame(list(enumerate(known)), f"{COMMIT} int, {_JUDGED_AT} long")
        inside = may_lie_within(source, within) & (F.col(TIME) >= within.start) & (F.col(TIME) < within.end)
        usable = (F.col(STATUS) == OK) & inside
        if position.frontier is not None:
            usable = usable & (F.col(TIME) < position.frontier)
        return frame.where(usable).join(F.broadcast(judged), COMMIT)


_SPAN = (pa.field(START, pa.int64()), pa.field(END, pa.int64()))
