"""Backfill: one epoch per interval in event order, or the source's commits one after the other in arrival order.

An interval must begin where its parent's event time ends. An interval that has run before is skipped while code and
rows are the same; otherwise it runs again on a new timeline, from its parent's snapshot.

A replay, in arrival order, gives the results of a stream that had always been running, including late rows and
processing-time windows: commit times are its clock, and determine the order of commits of two sources. Unlike a stream,
a replay runs no clock epochs after the newest commit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from tidegate.pipelines.correct.correct import correct_since, first_changed, has_changes
from tidegate.pipelines.definition.names import count_of
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan_commits import plan_commits, plan_end
from tidegate.pipelines.epoch.plan_interval import plan_interval, rows_added_since
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Interval, Manifest, StaleInterval
from tidegate.pipelines.ledger.snapshots.compatibility import ready
from tidegate.pipelines.ledger.snapshots.head import Snapshot, lineage, read_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.run.intervals import describe
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.next_commits import UNREAD, next_commits
from tidegate.pipelines.run.rerun import IntervalHistory
from tidegate.pipelines.sources.base import ChangeFilesMissing
from tidegate.pipelines.sources.commits import SourceCommit
from tidegate.windowing.time import MAX_TIMESTAMP, show_millis


@dataclass(frozen=True)
class IntervalRun:
    """The outcome of one interval.

    Args:
        interval: the span of event time.
        state: `done`, or `unchanged` if it ran before and nothing has changed.
        manifest: manifest of the snapshot at its end.
        corrected: manifest of the epoch that corrected windows because rows of the source had changed; None if none
            did.
    """

    interval: Interval
    state: Literal["done", "unchanged"]
    manifest: Manifest
    corrected: Manifest | None = None


def backfill(
    driver: Driver, intervals: Iterable[Interval], and_following: bool = False, again: bool = False
) -> Iterator[IntervalRun]:
    """Run intervals one after the other.

    Args:
        driver: the driver, which holds the lease.
        intervals: the intervals in order, without gaps.
        and_following: True to also rerun the intervals that a re-run made stale.
        again: True to run an interval again although code and rows seem unchanged.

    Raises:
        Refused: an interval does not begin at the current end of event time, or a stream has taken over; or the
            interval was run before, and the snapshot that it continued from is no longer retained.
        Stopped: `tidegate driver stop` requested the end between two intervals.
    """
    driver.recover()
    for interval in intervals:
        driver.heed_stop()
        yield _run(driver, interval, again)
    while and_following and (stale := _stale(driver)):
        driver.heed_stop()
        yield _run(driver, stale[0])


def rerun_stale(driver: Driver) -> Remedy | None:
    """Return the remedy that reruns the intervals that a correction left stale, None if there are none."""
    stale = _stale(driver)
    return _over(Act.RERUN_STALE, driver.pipeline.name, stale[0]) if stale else None


def _over(act: Act, pipeline: str, interval: Interval) -> Remedy:
    return Remedy(act, pipeline, start=interval.start, end=interval.end)


def _stale(driver: Driver) -> list[Interval]:
    """Return the intervals that a correction left stale, in order."""
    head = read_snapshot(driver.tables)
    stale = () if head is None else head.manifest.stale
    return [Interval(start=item.start, end=item.end) for item in sorted(stale, key=lambda item: item.start)]


def end_of_input(driver: Driver) -> Manifest | None:
    """End event time after a backfill's last interval, so that open windows fire. Return None if it had ended already.

    Raises:
        Refused: nothing has run yet, a stream has taken over, or stale intervals have to be run again first.
    """
    head, name = driver.recover(), driver.pipeline.name
    driver.times.begin()
    if head is None:
        raise Refused(f"pipeline {name!r} has no snapshot yet", Remedy(Act.FIRST_BACKFILL, name))
    source = OpenInput.open(driver.engine, driver.tables, driver.pipeline)
    head = ready(driver.tables, source.bound, head) or head
    if head.manifest.position_in(driver.pipeline.source.table).frontier is None:
        raise Refused(f"pipeline {name!r} is a stream at epoch {head.manifest.epoch}", Remedy(Act.END_INPUT, name))
    if (again := rerun_stale(driver)) is not None:
        raise Refused(
            f"pipeline {name!r} has {count_of(len(head.manifest.stale), 'interval')} that a correction left stale, to "
            "run again before its input ends",
            again,
        )
    plan = plan_end(driver.basis(source, head))
    if plan is None:
        return None
    manifest = driver.run(plan)
    driver.measure()
    return manifest


def _run(driver: Driver, interval: Interval, again: bool = False) -> IntervalRun:
    driver.times.begin()
    source = OpenInput.open(driver.engine, driver.tables, driver.pipeline)
    head = ready(driver.tables, source.bound, read_snapshot(driver.tables))
    frontier = _frontier(driver, head, interval)
    is_rerun = head is not None and frontier is not None and frontier > interval.start
    corrected, rebuilt = None, None
    is_first = False
    if head is not None and is_rerun and again:
        history = IntervalHistory.of(driver.tables, head)
        is_first = history.find(interval)[0].parent is None
        rebuilt = _rebuilt(source, history, interval)
    if head is not None and not is_first and rebuilt is None:
        # A rerun of the first interval starts from scratch, so changes don't affect it.
        try:
            corrected = correct_since(driver, source, head)
        except ChangeFilesMissing as gone:
            raise _without_changes(gone, source, head, IntervalHistory.of(driver.tables, head)) from None
        head = head if corrected is None else read_snapshot(driver.tables)
    parent = head
    replaced: tuple[StaleInterval, ...] = ()
    if head is not None and is_rerun:
        history = IntervalHistory.of(driver.tables, head)
        run, replaced = history.find(interval)
        snapshot = None if again else history.snapshot_of(run)
        if not again:
            if snapshot is None:
                raise history.unknown(run)
            history.check_source(run, head, snapshot)
            if reason_to_run(source, snapshot, interval, run.corrected) is None:
                return IntervalRun(interval, "unchanged", snapshot.manifest, corrected)
        parent = history.parent_of(run)
        history.check_source(run, head, parent)
        # A correction changed windows of earlier intervals. A run from an older snapshot would undo it.
        if (
            parent is not None
            and rebuilt is None
            and (run.corrected is not None or has_changes(source, source.position_of(parent.manifest)))
        ):
            if snapshot is None or snapshot.manifest.fingerprint != source.bound.fingerprint or not source.corrects:
                raise history.changed(run)
            # Rows were only added, so a further correction includes them.
            corrected = correct_since(driver, source, head, appended=True) or corrected
            return IntervalRun(interval, "unchanged", snapshot.manifest, corrected)
    plan = plan_interval(driver.basis(source, head), interval, parent, replaced, rebuilt)
    manifest = driver.run(plan)
    driver.measure()
    return IntervalRun(interval, "done", manifest, corrected)


def _rebuilt(source: OpenInput, history: IntervalHistory, interval: Interval) -> list[SourceCommit] | None:
    """Return the changes since the parent of an interval, if all of them lie in the interval or after it.

    Then the parent's snapshot holds no changed row, so the interval and all later ones can be recomputed from the
    current source, even if files are missing. Return None if rows before it may have changed, or if nothing changed.
    """
    run, _ = history.find(interval)
    parent = None if run.parent not in history.versions else history.parent_of(run)
    if parent is None or run.corrected is not None:
        # A correction's epoch belongs to a later interval, and its panes would stay until that one is rerun.
        return None
    position = source.position_of(parent.manifest)
    if not has_changes(source, position) or (changed := first_changed(source, position)) is None:
        return None
    first, came = changed
    return [came] if first >= interval.start else None


def _without_changes(gone: ChangeFilesMissing, source: OpenInput, head: Snapshot, history: IntervalHistory) -> Refused:
    """Return the error with the remedy that recomputes what a change may affect if the changed files are missing."""
    changed = first_changed(source, source.position_of(head.manifest))
    first = None if changed is None else changed[0]
    for run in history.ran:
        is_touched = first is not None and run.interval.start <= first < run.interval.end
        if is_touched and _rebuilt(source, history, run.interval) is not None:
            return Refused(
                f"{gone.message}. According to the statistics of its files, it affects nothing before "
                f"{show_millis(run.interval.start)}",
                *gone.remedies,
                _over(Act.RERUN_FROM, history.tables.pipeline, run.interval),
            )
    return Refused(
        f"{gone.message}. The statistics of its files and the retained snapshots show no interval but the first that "
        "precedes all affected windows",
        *gone.remedies,
        *history.rerun_all(),
    )


def _frontier(driver: Driver, head: Snapshot | None, interval: Interval) -> int | None:
    """Return the current end of event time, or None before the first run.

    Raises:
        Refused: a stream has taken over, the input has ended, or the interval begins later.
    """
    if head is None:
        return None
    name = driver.pipeline.name
    frontier = head.manifest.position_in(driver.pipeline.source.table).frontier
    if frontier is None:
        epoch, ways = head.manifest.epoch, ways_to_backfill(driver.tables, head)
        has_none = (
            "" if ways[0].act is Act.RESTORE_BACKFILL else ", and there is no snapshot of a backfill to go back to"
        )
        raise Refused(
            f"interval {describe(interval)} of {name}: a stream has taken over at epoch {epoch}{has_none}",
            Remedy(Act.KEEP_STREAM, name),
            *ways,
        )
    if frontier < interval.start:
        raise Refused(
            f"interval {describe(interval)} of {name} begins at {show_millis(interval.start)}, but the backfill has "
            f"only reached {show_millis(frontier)}: the rows in between would be lost. Start at "
            f"{show_millis(frontier)}, or run the intervals in between with --fill-gaps"
        )
    if head.manifest.watermark == MAX_TIMESTAMP and frontier == interval.start:
        line = (entry.manifest for entry in lineage(driver.tables, head.manifest.epoch))
        before = next((fields["epoch"] for fields in line if fields["watermark"] != MAX_TIMESTAMP), "EPOCH")
        raise Refused(
            f"interval {describe(interval)} of {name}: its input has ended, so all of its rows would be late",
            Remedy(Act.RESTORE, name, before),
        )
    return frontier


def ways_to_backfill(tables: PipelineTables, head: Snapshot) -> list[Remedy]:
    """Return the remedies that backfill a pipeline that runs as a stream."""
    name = tables.pipeline
    before = (entry.manifest for entry in lineage(tables, head.manifest.epoch) if entry.manifest["interval"])
    newest = next(before, None)
    if newest is not None:
        return [Remedy(Act.RESTORE_BACKFILL, name, newest["epoch"]), Remedy(Act.NEW_NAME, name)]
    return [Remedy(Act.NEW_NAME, name), Remedy(Act.STREAM_FROM_SCRATCH, name)]


def reason_to_run(source: OpenInput, snapshot: Snapshot, interval: Interval, corrected: int | None) -> str | None:
    """Return why an interval would run again: its code or its rows have changed since. None if nothing has.

    Args:
        source: the source as it is now.
        snapshot: the snapshot at the end of the interval's run.
        interval: the interval.
        corrected: version of the source up to which a later epoch corrected changed rows; None if none did.
    """
    manifest = snapshot.manifest
    if manifest.fingerprint != source.bound.fingerprint:
        return "the code has changed"
    versions = []
    for input_ in source.inputs:
        position = manifest.position_in(input_.table)
        input_.log.check(position)
        versions.append(position.version if corrected is None else max(corrected, position.version))
    inputs = zip(source.inputs, versions, strict=True)
    added = any(rows_added_since(input_, interval, version) > 0 for input_, version in inputs)
    return "rows were added" if added else None


def replay(driver: Driver, commits_per_epoch: int | None = None) -> Iterator[Manifest]:
    """Run epochs over every source commit that the pipeline has not read, and yield the manifest of each.

    Args:
        driver: the driver, which holds the lease.
        commits_per_epoch: number of source commits in an epoch; None for all of them. It does not affect results.

    Raises:
        Refused: the pipeline is a backfill in event order, or the log entry of a commit no longer exists.
        Stopped: `tidegate driver stop` requested the end between two epochs.
    """
    driver.recover()
    source = OpenInput.open(driver.engine, driver.tables, driver.pipeline)
    ready(driver.tables, source.bound, read_snapshot(driver.tables))
    for number, input_ in enumerate(source.inputs):
        for commit in input_.log.unread(_positions(driver, source)[number].version):
            if commit.changes:
                raise Refused(
                    f"pipeline {driver.pipeline.name!r} can't be replayed: version {commit.version} of its source "
                    "changed rows. Backfill it in event order, or as a stream, which corrects their windows",
                    Remedy(Act.STREAM, driver.pipeline.name),
                )
    # Only the number of commits limits an epoch, so commits are never read partially.
    limits = EpochLimits(files=sys.maxsize, commits=commits_per_epoch)
    while commits := next_commits(source, _positions(driver, source), limits):
        driver.heed_stop()
        driver.times.begin()
        plan = plan_commits(driver.basis(source, read_snapshot(driver.tables)), commits)
        manifest = driver.run(plan)
        driver.measure()
        yield manifest


def _positions(driver: Driver, source: OpenInput) -> list[Position]:
    head = read_snapshot(driver.tables)
    if head is None:
        return [UNREAD] * len(source.inputs)
    positions = [head.manifest.position_in(input_.table) for input_ in source.inputs]
    if any(position.frontier is not None for position in positions):
        raise Refused(
            f"pipeline {driver.pipeline.name!r} was backfilled in event order, up to epoch {head.manifest.epoch}: "
            "--order arrival can't continue that. Replay a pipeline with another name, or continue as a stream",
            Remedy(Act.STREAM, driver.pipeline.name),
        )
    return positions
