"""Epochs of kind `change`: a version of the source changed rows, and the windows that they touch are corrected.

    stream      one epoch for each such version; a further epoch moves the watermark if rows came that are ahead of it
    backfill    one epoch from the version that was read to the newest one, before an interval is run

A correction reads the newer version. So it never asks what the rows in between were.
"""

from __future__ import annotations

from time import perf_counter

import pyarrow as pa

from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME, STATUS
from tidegate.pipelines.epoch.changed_rows import ChangedRows, changed_rows
from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.held_rows import HeldRows
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.epoch.plan_clock import without_data
from tidegate.pipelines.epoch.steps import CommitStep
from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.pipelines.manifest import DataFile, Manifest, Position
from tidegate.pipelines.reopen.change import ChangePlan, plan_change
from tidegate.pipelines.reopen.first_run import FirstRun
from tidegate.pipelines.reopen.run import commit_corrections, computed
from tidegate.pipelines.reopen.source_rows import SourceRows
from tidegate.pipelines.run.driver import Driver
from tidegate.pipelines.snapshots.compatibility import migration_of
from tidegate.pipelines.snapshots.head import Snapshot, required
from tidegate.pipelines.sources.base import ChangingSource
from tidegate.pipelines.sources.commits import SourceCommit
from tidegate.pipelines.tables import rejects
from tidegate.pipelines.tables.counters import ROWS_GONE
from tidegate.pipelines.tables.departed import write_departed
from tidegate.pipelines.tables.files import write_file
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis

_DAY = 86_400_000


def correct_commit(driver: Driver, source: OpenInput, head: Snapshot, commit: SourceCommit) -> Manifest:
    """Correct the windows of a stream whose rows a version changed; return the manifest of the epoch.

    If the rows that came move the watermark, the position stays within the version: its next epoch moves it.
    """
    head = _migrated(driver, source, head)
    source.position_of(head.manifest)
    version = commit.version
    # The versions between the position and this one are maintenance, which may have written the same rows anew.
    first = FirstRun.of(driver.tables)
    changed = _changed(source, head, first, version - 1, version)
    moved: dict[str, object] = {}
    positions = source.position(source.log.settled(version))
    if changed.largest:
        times = EventTimes.of(source.bound.pipeline, head.manifest)
        step = times.step(source.number, changed.largest, commit.time)
        if step.watermark > head.manifest.watermark:
            times = EventTimes.of(source.bound.pipeline, head.manifest)
            step = times.step(source.number, changed.largest, commit.time, complete=False)
            positions = source.position(version - 1, files=len(commit.files))
        moved = {"partitions": times.partitions, "processing_time": step.clock}
    position = source.position(version)[source.table]
    return _run(driver, source, head, changed, first, position, {**moved, "positions": positions})


def correct_since(driver: Driver, source: OpenInput, head: Snapshot, appended: bool = False) -> Manifest | None:
    """Correct the windows of a backfill whose rows changed since its newest epoch; return None if no version did it.

    All rows before the end of its event time that came since are taken into their windows: none of them is late.

    Args:
        driver: the driver, which holds the lease.
        source: the source.
        head: the newest snapshot.
        appended: True to take rows in also if versions only added rows.
    """
    position = source.position_of(head.manifest)
    is_behind = appended and source.log.settled(position.version) < source.log.head
    if not (is_behind or has_changes(source, position)):
        return None
    head = _migrated(driver, source, head)
    first = FirstRun.of(driver.tables)
    changed = changed_since(source, head, position, first)
    moved = source.position(source.log.head, position.frontier)
    return _run(driver, source, head, changed, first, moved[source.table], {"positions": moved})


def changed_since(source: OpenInput, head: Snapshot, position: Position, first: FirstRun | None) -> ChangedRows:
    """Return the rows before the end of a backfill that changed since its position."""
    end = LAST_TIME if position.frontier is None else position.frontier
    # Maintenance right after the position wrote the same rows into other files; the old ones may be vacuumed.
    return _changed(source, head, first, source.log.settled(position.version), source.log.head, end)


def has_changes(source: OpenInput, position: Position) -> bool:
    """Return True if a version of an input after a position changed rows, and is to be corrected."""
    return bool(changing_versions(source, position))


def first_changed(source: OpenInput, position: Position) -> tuple[Millis, SourceCommit] | None:
    """Return a time before which no row changed after a position, and what came since as one commit.

    The time is known by the statistics of the files in which the versions differ, also of files that are gone. None if
    a file lacks them.
    """
    log, columns = source.log, source.columns
    if columns.time_in_files is None or not isinstance(log, ChangingSource):
        return None
    changed = log.differing(position.version, columns.time_in_files)
    oldest = [file.oldest for file in (*changed.gone, *changed.came)]
    recorded = [time for time in oldest if time is not None]
    if len(recorded) < len(oldest):
        return None
    # A wall-clock time of a zone is at most a day from UTC.
    first = min(recorded, default=LAST_TIME) - (0 if columns.zone is None else _DAY)
    return first, SourceCommit(log.head, log.time_of(log.head), changed.came, changes=True)


def changing_versions(source: OpenInput, position: Position) -> tuple[int, ...]:
    """Return the versions of an input after a position that changed rows and are to be corrected.

    A comparison of two versions needs no file of those in between, so these may be vacuumed.
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
    reason = pipeline.uncorrectable
    if not isinstance(log, ChangingSource):
        reason = f"a source of kind {type(log).__name__}, which can't tell what changed"
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
    """Return the head with a state of today's code: a correction replaces only a part of the state."""
    if migration_of(source.bound, head.manifest) is None:
        return head
    manifest, now = head.manifest, driver.clock()
    step = CommitStep(manifest.processing_time, manifest.watermark)
    times = EventTimes.of(source.bound.pipeline, manifest)
    plan = without_data(source, driver.tables, head, now, driver.shards, manifest.positions, step, times)
    driver.step("planned")
    driver.run(plan)
    return required(driver.tables, driver.recover())


def _run(
    driver: Driver,
    source: OpenInput,
    head: Snapshot,
    changed: ChangedRows,
    first: FirstRun | None,
    position: Position,
    moved: dict[str, object],
) -> Manifest:
    """Compute the windows of changed rows again, commit and publish the corrections.

    Args:
        driver: the driver, which holds the lease.
        source: the source.
        head: the newest snapshot.
        changed: the rows.
        first: the first run of the pipeline; None if it began as a stream.
        position: the position up to which rows are read.
        moved: fields of the manifest that change.
    """
    tables, bound, now = driver.tables, source.bound, driver.clock()
    rows = SourceRows(driver.engine, source, head, tables, position, lambda: first)
    began = perf_counter()

    def planned(margin: int) -> ChangePlan:
        return plan_change(tables, bound, head, changed, rows, now, margin)

    plan, outcomes = computed(bound.pipeline.name, planned, lambda plan: plan.windows, rows, driver.step)
    driver.lease.check()
    epoch = plan.windows.epoch
    rejected = [] if not len(changed.rejected) else [_written(epoch, changed.rejected_rows())]
    departed = {
        table: write_departed(epoch.tables, table, rows, epoch.epoch) for table, rows in changed.departed.items()
    }
    totals = {
        "events_in": changed.number_came,
        "rejected": len(changed.rejected),
        "dropped": changed.dropped,
        ROWS_GONE: changed.number_gone,
    }
    seconds = round(perf_counter() - began, 3)
    manifest = commit_corrections(
        plan.windows, outcomes, plan.counts, totals, moved, rejected, departed, seconds, driver.engine.name
    )
    driver.step("committed")
    driver.publish(manifest)
    return manifest


def _written(epoch: EpochPlan, rows: pa.Table) -> DataFile:
    """Write rejected rows for table rejects, and return the file."""
    schema = epoch.bound.table_schemas[rejects.NAME]
    reasons, rows = rows[STATUS], rows.drop_columns(STATUS)
    constants = [pa.repeat(value, len(rows)) for value in (epoch.timeline, epoch.epoch, False)]
    columns = [*rows.columns, reasons, *constants]
    typed = [column.cast(field.type) for field, column in zip(schema, columns, strict=True)]
    table = pa.table(typed, schema=schema)
    path = epoch.tables.path(rejects.NAME)
    file = write_file(epoch.tables.warehouse, path, f"{rejects.NAME}-{epoch.epoch:06d}", table)
    if file is None:
        raise TidegateError(f"nothing to write to table {path}")
    return file
