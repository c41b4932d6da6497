"""Slices of plans: the files, the rows to read from them, and the number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.epoch.file_measure import Measures, SliceCounts
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.ledger.manifest import Interval, Manifest
from tidegate.pipelines.sources.commits import FilePart, SourceCommit, SourceFile
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.windowing.time import MIN_TIMESTAMP, Millis

_DAY = 86_400_000


@dataclass(frozen=True)
class IntervalParts:
    """The rows of one input that a backfill's run reads, and their number.

    They are the rows in the interval, the rows before it that were committed since the parent and may be late, and the
    parts with rows for table rejects.
    """

    inside: tuple[FilePart, ...]
    before: tuple[FilePart, ...]
    unusable: tuple[FilePart, ...]
    counts: SliceCounts


def of_version(
    source: OpenInput,
    version: int,
    after: Manifest | None,
    since: Millis = FIRST_TIME,
    until: Millis = LAST_TIME,
    *,
    only_ahead: bool = False,
) -> FileSlice:
    """Return the rows of a version with event times in `[since, until)`. In event order, they count as one commit.

    Rows that the lineage of `after` rejected are rejected again; with `only_ahead`, those whose time was ahead.
    """
    columns = source.columns
    active = source.log.active(columns.time_in_files or "", version, to_read=True)
    within = files_within(active, since, until, is_wall_clock=columns.zone is not None)
    times = _commit_times(source, within, version)
    files = source.files.of(
        FilePart.of(file, 0, times.get(file.path, file.written), since, until, input=source.number, version=version)
        for file in within
    )
    return files if after is None else source.rejecting_again(files, after, only_ahead)


def _commit_times(source: OpenInput, files: Iterable[SourceFile], version: int) -> dict[str, Millis]:
    """Return the commit times, by path, of files that may have rows with times after the file was written.

    A writer may write its files long before it commits them, and a stream compares rows with the time of the commit.
    The time of writing is used if the log was cleaned up, and for files that OPTIMIZE or an UPDATE wrote, which have
    rows of several commits. Only the files that need it are looked up, because this reads log entries one by one.
    """
    columns = source.columns
    margin = columns.max_ahead - (_DAY if columns.zone is not None else 1)
    doubtful = [file for file in files if file.newest is None or file.newest > file.written + margin]
    if not doubtful:
        return {}
    added_by = source.log.versions_of(doubtful, version)
    times = {added: source.log.time_of(added) for added in {*added_by.values()} if added is not None}
    return {path: times[added] for path, added in added_by.items() if added is not None}


def files_within(
    files: Iterable[SourceFile], since: Millis, until: Millis, is_wall_clock: bool = False
) -> list[SourceFile]:
    """Return the files that may have rows with event times in `[since, until)`.

    Rows with times outside the accepted range belong to no interval: they are found only if nothing bounds that side.
    Bounds that are wall-clock times of a zone differ from UTC by at most a day.
    """
    # Statistics in the log may truncate the largest time to milliseconds.
    margin = _DAY if is_wall_clock else 1
    return [
        file
        for file in files
        if (since <= FIRST_TIME or file.newest is None or file.newest + margin >= since)
        and (until >= LAST_TIME or file.oldest is None or file.oldest - margin < until)
    ]


def of_added(
    source: OpenInput, commits: Sequence[SourceCommit], since: Millis = FIRST_TIME, until: Millis = LAST_TIME
) -> FileSlice:
    """Return the rows of files that commits added, with event times in `[since, until)`. They count as one commit."""
    return source.files.of(part for commit in commits for part in parts_of(source, commit, since, until))


def parts_of(
    source: OpenInput, commit: SourceCommit, since: Millis = FIRST_TIME, until: Millis = LAST_TIME
) -> tuple[FilePart, ...]:
    """Return the parts of the files that a commit added, with event times in `[since, until)`."""
    return tuple(
        FilePart.of(file, 0, commit.time, since, until, input=source.number, version=commit.version)
        for file in commit.files
    )


def of_interval(
    source: OpenInput, interval: Interval, recent: Sequence[SourceCommit] | None, after: Manifest | None
) -> IntervalParts:
    """Return the rows of an interval, with the stragglers and the unusable rows of recent versions.

    `recent` holds the versions since the parent. Without it, this is a first run, which reads all versions, and in
    which the code judges all rows. Rows that the lineage of `after` rejected are rejected again.
    """
    inside = of_version(source, source.log.head, after, interval.start, interval.end, only_ahead=recent is None)
    if recent is None:
        # A first run reports the unusable rows of all files, regardless of their times; the same pass counts them.
        whole = of_version(source, source.log.head, after, only_ahead=True)
        every = whole.of(replace(part, since=interval.start, until=interval.end) for part in whole.parts)
        seen = source.measure(every, with_times=False)
        return IntervalParts(
            inside.parts if seen.usable else (),
            (),
            rejecting(every, seen),
            seen.slice_counts,
        )
    within = source.measure(inside, with_rejects=False, with_times=False)
    before = of_added(source, recent, FIRST_TIME, interval.start)
    seen = source.measure(before, with_times=False)
    return IntervalParts(
        inside.parts if within.usable else (),
        before.parts if seen.usable else (),
        rejecting(before, seen),
        within.slice_counts + seen.slice_counts,
    )


def rejecting(files: FileSlice, measures: Measures) -> tuple[FilePart, ...]:
    """Return the parts of a slice that have rejected rows, which belong to no interval."""
    return tuple(
        replace(files.parts[number], since=FIRST_TIME, until=LAST_TIME) for number in sorted(measures.rejecting)
    )


def may_be_late(
    measures: Measures, watermarks: Sequence[Millis], lateness: Millis | None, closed_through: Millis = MIN_TIMESTAMP
) -> dict[int, Millis]:
    """Return, by commit, the time up to which its rows may be late. A commit without such rows has no entry.

    Without a lateness, nothing is ever late. Windows up to `closed_through` were closed before the epoch, whatever the
    lateness.
    """
    if lateness is None:
        return {}
    bounds = {index: max(watermarks[index] - lateness, closed_through) for index in measures.smallest}
    return {index: bounds[index] for index, smallest in measures.smallest.items() if smallest <= bounds[index]}
