"""Slices of plans whose tasks read the source's files themselves: the files, the rows to read, and their number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate.pipelines.definition.event_columns import DROPPED, FIRST_TIME, LAST_TIME, OK, STATUS
from tidegate.pipelines.epoch.plan import SliceCounts, SliceFrames
from tidegate.pipelines.epoch.read_commits import ReadCommit
from tidegate.pipelines.manifest import Interval, Position
from tidegate.pipelines.sources.commits import FilePart, SourceCommit, SourceFile
from tidegate.pipelines.sources.file_measure import measure_files
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.measures import Measures
from tidegate.pipelines.sources.open_input import OpenInput
from tidegate.windowing.time import MIN_TIMESTAMP, Millis

_DAY = 86_400_000


def of_commits(files: FileSlice, commits: Sequence[ReadCommit]) -> FileSlice:
    """Return the slice of a stream's epoch."""
    return replace(
        files,
        parts=tuple(FilePart.of(file, read.step, read.commit.time) for read in commits for file in read.files),
    )


def of_rest(source: OpenInput, files: FileSlice, position: Position) -> FileSlice:
    """Return the slice of a hand-over: the rows of the backfill's source version from the frontier on."""
    assert position.frontier is not None
    active = source.log.active(files.columns.time_in_files or "", position.version, to_read=True)
    return replace(
        files, parts=_parts(_of_interval(files, active, position.frontier, LAST_TIME), position.frontier, LAST_TIME)
    )


def of_interval(
    source: OpenInput, files: FileSlice, interval: Interval, recent: Sequence[SourceCommit] | None
) -> tuple[SliceFrames, SliceCounts]:
    """Return the rows of an interval, with the stragglers and the unusable rows of recent versions.

    Args:
        source: the source.
        files: slice of the source without files.
        interval: the span of event time.
        recent: versions since the parent; None for a first run, which reads all versions.
    """
    active = source.log.active(files.columns.time_in_files or "", to_read=True)
    inside = replace(
        files, parts=_parts(_of_interval(files, active, interval.start, interval.end), interval.start, interval.end)
    )
    within = measure_files(inside, with_rejects=False)
    if recent is None:
        # A first run reports the unusable rows of all files, whatever their times are.
        before = replace(files, parts=())
        stragglers, late = 0, 0
        seen = measure_files(replace(files, parts=_parts(active, FIRST_TIME, LAST_TIME)))
        dropped = seen.placeless
    else:
        new = [file for commit in recent for file in commit.files]
        before = replace(files, parts=_parts(new, FIRST_TIME, interval.start))
        seen = measure_files(before)
        stragglers, late, dropped = seen.usable, seen.size, seen.counts.get(DROPPED, 0)
    unusable = None
    if seen.rejected:
        unusable = unusable_rows(source.rows_at(source.log.head) if recent is None else source.rows_of(new))
    parts = (inside.parts if within.usable else ()) + (before.parts if stragglers else ())
    return (
        SliceFrames(None, None, unusable, replace(files, parts=parts, traced=stragglers > 0) if parts else None),
        SliceCounts(
            usable=within.usable + stragglers,
            dropped=within.counts.get(DROPPED, 0) + dropped,
            rejected=seen.rejected,
            size=within.size + late,
        ),
    )


def unusable_rows(judged: DataFrame) -> DataFrame:
    """Return those judged rows that go to table rejects."""
    return judged.where(~F.col(STATUS).isin(OK, DROPPED))


def may_be_late(
    measures: Measures, watermarks: Sequence[Millis], lateness: Millis | None, closed_through: Millis = MIN_TIMESTAMP
) -> dict[int, Millis]:
    """Return, for each commit, the time up to which its rows may be late; a commit without such rows has no entry.

    Args:
        measures: measures of the slice.
        watermarks: watermark before each commit.
        lateness: allowed lateness of the computation; None if nothing is ever late.
        closed_through: end of the windows that were closed before the epoch, with any lateness.
    """
    if lateness is None:
        return {}
    bounds = {index: max(watermarks[index] - lateness, closed_through) for index in measures.smallest}
    return {index: bounds[index] for index, smallest in measures.smallest.items() if smallest <= bounds[index]}


def _of_interval(slice_: FileSlice, files: Sequence[SourceFile], since: Millis, until: Millis) -> list[SourceFile]:
    """Return the files that may have rows of an interval. The log truncates the largest time to milliseconds.

    Bounds of wall-clock times are in their zone, at most a day from UTC.
    """
    margin = 1 if slice_.columns.zone is None else _DAY
    return [
        file
        for file in files
        if (file.newest is None or file.newest + margin >= since)
        and (file.oldest is None or file.oldest - margin < until)
    ]


def _parts(files: Sequence[SourceFile], since: Millis, until: Millis) -> tuple[FilePart, ...]:
    return tuple(FilePart.of(file, 0, file.written, since, until) for file in files)
