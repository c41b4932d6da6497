"""Corrections: a driver recomputes windows because late rows are reopened or rows of the source changed.

    late rows       `reopen`: a command, or a stream by its `reopen_schedule`; from the version that was read
    changed rows    `correct_commit`: a stream, one epoch for each version that changed rows; a further epoch moves
                    the watermark if added rows are ahead of it
                    `correct_since`: a backfill before it runs an interval, one epoch up to the newest version

Both end in one recompute: plan, operate, commit, publish. docs/the-life-of-a-correction.md has the file of each step.

All selected late rows are reopened in one epoch if possible. If it is refused, the error often knows which windows it
is about. So `reopen_possible` first divides the selection at the bounds of these windows, and only then by halves,
until each part either has an epoch or belongs to a single window.

    01:00 | 02:00 03:00 | 14:00 15:00    the file with the rows of 01:00 and that of 14:00 are missing
    02:00 03:00, and 15:00               are reopened, each part in one epoch
    01:00, and 14:00                     remain in table late, with the reason
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from time import perf_counter

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.correct.changed_rows import ChangedRows, HeldRows, changed_rows
from tidegate.pipelines.correct.recompute import Moved, commit_recomputed, recompute
from tidegate.pipelines.correct.request import Asked, Selection, check_reopenable
from tidegate.pipelines.correct.source_rows import FirstRun, SourceRows
from tidegate.pipelines.correct.spans import have_window
from tidegate.pipelines.definition import late
from tidegate.pipelines.definition.counters import REOPENED
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.epoch.event_times import CommitStep, partitions_of, step_of, times_of
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.errors import NotReopenable, NoWindow, Refused
from tidegate.pipelines.failures import reported_as
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.compatibility import migration_of, ready
from tidegate.pipelines.ledger.snapshots.head import Snapshot, required
from tidegate.pipelines.ledger.tables.keys import are_of_key, key_of_texts
from tidegate.pipelines.ledger.tables.late_rows import within
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.sources.base import ChangingSource
from tidegate.pipelines.sources.commits import SourceCommit
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.time import Millis, to_millis
from tidegate.windowing.timestamps import epoch_millis

_DAY = 86_400_000


def reopen(driver: Driver, selection: Selection) -> tuple[Manifest | None, int]:
    """Add late rows to the windows that they belong to. Return the epoch's manifest and the number of late rows.

    If no late row is selected and every window is correct, there is no epoch, and the manifest is None.

    Args:
        driver: the driver, which holds the lease.
        selection: the late rows to reopen.

    Raises:
        Refused: the pipeline has no snapshot, or its results depend on the order of arrival.
    """
    pipeline, tables = driver.pipeline, driver.tables
    driver.times.begin()
    check_reopenable(pipeline)
    head = required(tables, driver.recover())
    source = OpenInput.open(driver.engine, tables, pipeline)
    head = ready(tables, source.bound, head) or head
    if migration_of(source.bound, head.manifest) is not None:
        raise Refused(
            f"the code of pipeline {pipeline.name!r} has changed, and its state must be migrated first",
            Remedy(Act.READ_ON, pipeline.name),
        )
    position = head.manifest.position_in(pipeline.source.table)
    if position.version < 0 and not position.files:
        raise Refused(
            f"late rows of pipeline {pipeline.name!r} can't be reopened yet: its source was reset, and nothing of it "
            "has been read yet",
            Remedy(Act.READ_ON, pipeline.name),
        )
    rows = SourceRows(driver.engine, source, head, tables)
    manifest = _recompute(driver, source, head, selection, rows, Moved())
    return manifest, 0 if manifest is None else manifest.counters[REOPENED]


def correct_commit(driver: Driver, source: OpenInput, head: Snapshot, commit: SourceCommit) -> Manifest:
    """Correct the windows of a stream whose rows a version changed. Return the manifest of the epoch.

    If added rows move the watermark, the position stays within the version, and the next epoch moves it.
    """
    head = _migrated(driver, source, head)
    source.position_of(head.manifest)
    version = commit.version
    # Versions between the position and this one are maintenance, which may have rewritten the same rows.
    first = FirstRun.of(driver.tables)
    changed = _changed(source, head, first, version - 1, version)
    moved = Moved({source.table: source.position(source.log.settled(version))})
    if changed.largest:
        times = times_of(source.bound.pipeline, head.manifest)
        step = step_of(times, source.number, changed.largest, commit.time)
        if step.watermark > head.manifest.watermark:
            times = times_of(source.bound.pipeline, head.manifest)
            step = step_of(times, source.number, changed.largest, commit.time, complete=False)
            moved = Moved({source.table: source.position(version - 1, files=len(commit.files))})
        moved = replace(moved, partitions=partitions_of(times), clock=step.clock)
    rows = SourceRows(driver.engine, source, head, driver.tables, source.position(version), lambda: first)
    manifest = _recompute(driver, source, head, changed, rows, moved)
    assert manifest is not None, "the position always moves"
    return manifest


def correct_since(driver: Driver, source: OpenInput, head: Snapshot, appended: bool = False) -> Manifest | None:
    """Correct the windows of a backfill whose rows changed since its newest epoch. Return None if nothing changed.

    All rows added since then with times before the end of event time go into their windows; none of them is late.

    Args:
        driver: the driver, which holds the lease.
        source: the source.
        head: the newest snapshot.
        appended: True to correct even if versions only added rows.
    """
    position = source.position_of(head.manifest)
    is_behind = appended and source.log.settled(position.version) < source.log.head
    if not (is_behind or has_changes(source, position)):
        return None
    head = _migrated(driver, source, head)
    first = FirstRun.of(driver.tables)
    changed = changed_since(source, head, position, first)
    moved = source.position(source.log.head, position.frontier)
    rows = SourceRows(driver.engine, source, head, driver.tables, moved, lambda: first)
    return _recompute(driver, source, head, changed, rows, Moved({source.table: moved}))


def changed_since(source: OpenInput, head: Snapshot, position: Position, first: FirstRun | None) -> ChangedRows:
    """Return the rows that changed since the position of a backfill and are before the end of its event time."""
    end = LAST_TIME if position.frontier is None else position.frontier
    # Maintenance right after the position rewrote the same rows to other files; the old ones may have been vacuumed.
    return _changed(source, head, first, source.log.settled(position.version), source.log.head, end)


def has_changes(source: OpenInput, position: Position) -> bool:
    """Return True if a version of an input after a position changed rows that are to be corrected."""
    return bool(changing_versions(source, position))


def first_changed(source: OpenInput, position: Position) -> tuple[Millis, SourceCommit] | None:
    """Return a time before which no row has changed since a position, and the changes since then as one commit.

    The time comes from the statistics of the files in which the versions differ, including removed files. Return None
    if a file lacks statistics.
    """
    log, columns = source.log, source.columns
    if columns.time_in_files is None or not isinstance(log, ChangingSource):
        return None
    changed = log.differing(position.version, columns.time_in_files)
    oldest = [file.oldest for file in (*changed.deleted, *changed.added)]
    recorded = [time for time in oldest if time is not None]
    if len(recorded) < len(oldest):
        return None
    # A wall-clock time of a zone differs from UTC by at most a day.
    first = min(recorded, default=LAST_TIME) - (0 if columns.zone is None else _DAY)
    return first, SourceCommit(log.head, log.time_of(log.head), changed.added, changes=True)


def changing_versions(source: OpenInput, position: Position) -> tuple[int, ...]:
    """Return the versions of an input after a position that changed rows and are to be corrected.

    Comparing two versions needs no files of versions in between, which may have been vacuumed.
    """
    log = source.log
    if not source.corrects:
        return ()
    if isinstance(log, ChangingSource):
        return tuple(log.changing(position.version))
    return tuple(commit.version for commit in log.unread(position.version) if commit.changes)


def _changed(
    source: OpenInput, head: Snapshot, first: FirstRun | None, after: int, until: int, end: int = LAST_TIME
) -> ChangedRows:
    log, pipeline = source.log, source.bound.pipeline
    reason = head.manifest.unrepeatable or pipeline.uncorrectable
    if not isinstance(log, ChangingSource):
        reason = f"a source of kind {type(log).__name__}, which can't report changes"
    if reason is not None or not isinstance(log, ChangingSource):
        raise Refused(
            f"version {until} of source {source.table} changed rows, and pipeline {pipeline.name!r} can't correct its "
            f"windows: it has {reason}. Start a new pipeline with a backfill of the source as it is now"
        )
    tables = PipelineTables(source.warehouse, pipeline.name)
    held = HeldRows(tables, source.bound, head.manifest)
    rows = changed_rows(source, log.changed(after, until), until, held, end)
    return rows.since(FIRST_TIME if first is None else first.start)


def _migrated(driver: Driver, source: OpenInput, head: Snapshot) -> Snapshot:
    """Return the head with a state in the current format: a correction replaces only part of the state."""
    if migration_of(source.bound, head.manifest) is None:
        return head
    manifest = head.manifest
    step = CommitStep(manifest.processing_time, manifest.watermark)
    times = times_of(source.bound.pipeline, manifest)
    plan = driver.basis(source, head).plan("clock", manifest.positions, (step,), times)
    driver.run(plan)
    return required(driver.tables, driver.recover())


def _recompute(
    driver: Driver, source: OpenInput, head: Snapshot, asked: Asked, rows: SourceRows, moved: Moved
) -> Manifest | None:
    """Recompute windows, commit and publish. Return None if late rows were requested and nothing differs."""
    driver.complete(head)
    began = perf_counter()
    name = driver.pipeline.name
    with reported_as(
        f"windows of {name} can't be recomputed", "Nothing of the epoch was committed; fix the cause and run again"
    ):
        plan, outcomes = recompute(driver.tables, source.bound, head, asked, rows, driver.clock(), driver.step)
    is_empty = not any(plan.late_rows) and not any(outcome.changed or outcome.files for outcome in outcomes)
    if is_empty and isinstance(asked, Selection):
        return None
    driver.lease.check()
    with reported_as(
        f"epoch {plan.epoch.epoch} of {name} can't be committed",
        "Fix the cause and run again: the run continues from the newest snapshot",
    ):
        manifest = commit_recomputed(plan, outcomes, moved, round(perf_counter() - began, 3), driver.engine.name)
    driver.step("committed")
    driver.publish(manifest)
    return manifest


@dataclass(frozen=True, slots=True)
class LeftLate:
    """Late rows that can't be reopened.

    Args:
        kind: name of the reason, as `NotReopenable.kind`.
        rows: number of late rows; 0 if only windows that missed an earlier row are affected.
        start: start of their window, int64 epoch milliseconds; None if they belong to no single window.
        reason: the error, with the remedy.
    """

    kind: str
    rows: int
    start: Millis | None
    reason: str


@dataclass(slots=True)
class ReopenedRows:
    """What a reopening did.

    Args:
        manifests: the manifests of its epochs, in order.
        rows: number of late rows that were added to their windows.
        left: the late rows that can't be reopened.
    """

    manifests: list[Manifest] = field(default_factory=list)
    rows: int = 0
    left: list[LeftLate] = field(default_factory=list)


def reopen_possible(driver: Driver, selection: Selection) -> ReopenedRows:
    """Reopen the selected late rows that can be reopened, and return what was done and what was left.

    Raises:
        Refused: no late row of the pipeline can be reopened, whatever the selection; see `reopen`.
    """
    done, parts = ReopenedRows(), [selection]
    while parts:
        part = parts.pop()
        try:
            manifest, rows = reopen(driver, part)
        except NotReopenable as error:
            starts = epoch_millis(_waiting(driver, part)["window_start"])
            if not (smaller := _divided(driver.pipeline, part, starts.drop_null(), error)):
                first = starts[0].as_py() if len(starts) else None
                done.left.append(LeftLate(error.kind, len(starts), first, str(error)))
                continue
            parts += smaller
            if part.start is None and part.end is None and starts.null_count:
                # A selection by time leaves out the rows that belong to no window.
                done.left.append(LeftLate(error.kind, starts.null_count, None, str(error)))
            continue
        if manifest is not None:
            done.manifests.append(manifest)
            done.rows += rows
    # Windows that miss a row are no window of a late row, so all those with the same reason are one entry.
    done.left = list(dict.fromkeys([*done.left, *_without_window(driver, selection)]))
    done.left.sort(key=lambda each: (each.start is not None, each.start or 0))
    return done


def check_windows_exist(driver: Driver, selection: Selection) -> None:
    """Check that every selected late row belongs to a window.

    Raises:
        NoWindow: a row belongs to none.
    """
    for each in _without_window(driver, selection):
        raise NoWindow(each.reason)


def _without_window(driver: Driver, selection: Selection) -> list[LeftLate]:
    """Return the late rows that belong to no window of the pipeline, by the window that they were late for."""
    windows = check_reopenable(driver.pipeline)
    rows = _waiting(driver, selection)
    rows = rows.filter(pa.array(~have_window(windows, late.event_times(rows))))
    name = driver.pipeline.name
    return [
        LeftLate(
            NoWindow.kind,
            count,
            None if start is None else to_millis(start),
            f"late rows of pipeline {name!r} belong to no window, because its windows have gaps since compute.assigner "
            "changed. Undo the change, or backfill the pipeline under another name",
        )
        for start, count in Counter(rows["window_start"].to_pylist()).items()
    ]


def _divided(pipeline: Pipeline, part: Selection, starts: pa.ChunkedArray, error: NotReopenable) -> list[Selection]:
    """Return the parts of a selection to reopen separately, or none if it can't be divided further.

    Args:
        pipeline: the pipeline.
        part: the selection, which was refused.
        starts: starts of the windows of its late rows.
        error: the reason.
    """
    known = {bound for span in error.concerns for bound in span if _is_inside(part, bound)}
    if known:
        return _cut(part, sorted(known))
    distinct: Sequence[Millis] = pc.unique(starts).sort().to_pylist()
    if len(distinct) > 1:
        return _cut(part, [distinct[len(distinct) // 2]])
    windows = check_reopenable(pipeline)
    grid = windows.assigner.window_grid
    if distinct and (windows.assigner.forms_sessions or (grid is not None and grid.windows_of_an_element > 1)):
        # Other windows, without a late row, may be what can't be corrected.
        (only,) = distinct
        return _cut(part, [bound for bound in (only, only + 1) if _is_inside(part, bound)])
    return []


def _is_inside(part: Selection, bound: Millis) -> bool:
    """Return True if windows of a selection begin before a time, and others at it or later."""
    return (FIRST_TIME if part.start is None else part.start) < bound < (LAST_TIME if part.end is None else part.end)


def _cut(part: Selection, bounds: Sequence[Millis]) -> list[Selection]:
    edges = [part.start, *bounds, part.end] if bounds else []
    return [replace(part, start=start, end=end) for start, end in pairwise(edges)]


def _waiting(driver: Driver, selection: Selection) -> pa.Table:
    """Return the selected late rows that are in no window, in ascending order of their windows."""
    tables = driver.tables
    rows = read_table(tables.warehouse, tables.newest(late.NAME), where=pc.field(late.REOPENED).is_null())
    rows = rows.filter(late.is_open(rows))
    if selection.key is not None:
        key = required(tables, driver.recover()).key
        rows = rows.filter(are_of_key(rows, key.names, key_of_texts(key, selection.key)))
    return rows.filter(within(epoch_millis(rows["window_start"]), selection.start, selection.end)).sort_by(
        "window_start"
    )
