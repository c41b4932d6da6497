"""An epoch that reopens late rows: plan, correct, commit and publish. If nothing differs, there is no epoch."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.epoch.closed import closed_through_of
from tidegate.pipelines.epoch.shard import ShardOutcome
from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.pipelines.manifest import Manifest, Publish, Shard, line_after
from tidegate.pipelines.reopen.plan import ReadRows, ReopenPlan, plan_reopen
from tidegate.pipelines.reopen.selection import Selection, check_reopenable
from tidegate.pipelines.reopen.source_rows import SourceRows
from tidegate.pipelines.reopen.task import BEYOND
from tidegate.pipelines.run.driver import Driver, Tell
from tidegate.pipelines.snapshots.commit import check_files, commit_snapshot, remaining
from tidegate.pipelines.snapshots.compatibility import migration_of, ready
from tidegate.pipelines.snapshots.head import Snapshot, required
from tidegate.pipelines.snapshots.quiet import quiet_manifest
from tidegate.pipelines.sources.open_input import OpenInput
from tidegate.pipelines.storage import arrow_schema
from tidegate.pipelines.tables import late, results, state
from tidegate.pipelines.tables.counters import RETRACTED, ROWS_OUT
from tidegate.pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.windowing.time import Millis

_COUNTED = ("fired_late", RETRACTED)
_MARGINS = 8


def reopen(driver: Driver, selection: Selection) -> tuple[Manifest | None, int]:
    """Add late rows to the windows that they belong to; return the epoch's manifest and the number of late rows.

    If no late row is selected and every window has the right result, there is no epoch, and the manifest is None.

    Args:
        driver: the driver, which holds the lease.
        selection: the late rows to reopen.

    Raises:
        Refused: the pipeline has no snapshot, or its results depend on the order of arrival.
    """
    pipeline, tables = driver.pipeline, driver.tables
    check_reopenable(pipeline)
    head = required(tables, driver.recover())
    source = OpenInput.open(driver.spark, tables, pipeline)
    head = ready(tables, source.bound, head) or head
    if migration_of(source.bound, head.manifest) is not None:
        raise Refused(
            f"the code of pipeline {pipeline.name!r} has changed, and its state must be migrated first: run "
            f"`tidegate stream {pipeline.name} --available-now`, then reopen"
        )
    rows = SourceRows(driver.spark, source, head, tables)
    began = perf_counter()
    plan, outcomes = corrected(tables, source.bound, head, selection, rows, driver.clock(), driver.tell)
    if not any(plan.late_rows) and not any(outcome.changed or outcome.files for outcome in outcomes):
        return None, 0
    driver.lease.check()
    manifest = commit_reopened(plan, outcomes, round(perf_counter() - began, 3))
    driver.tell("committed")
    driver.recover()
    return manifest, sum(plan.late_rows)


def corrected(
    tables: PipelineTables,
    bound: BoundPipeline,
    head: Snapshot,
    selection: Selection,
    rows: ReadRows,
    now: Millis,
    tell: Tell = lambda step: None,
) -> tuple[ReopenPlan, list[ShardOutcome]]:
    """Plan to reopen late rows, and compute their windows; return the plan and the outcome of each shard.

    If the gap of sessions has grown, two former sessions may be one today. This shows when a computed session reaches
    beyond its stretch. Then the margin grows to that reach, and stretches within the margin are computed together.

    Raises:
        Refused: late rows of this pipeline can't be reopened.
        TidegateError: sessions reach beyond their stretches with every margin that was tried.
    """
    margin: Millis = 0
    for _ in range(_MARGINS):
        plan = plan_reopen(tables, bound, head, selection, rows, now, margin)
        tell("planned")
        outcomes = rows.correct(plan) if len(plan.wanted) else []
        beyond = max((outcome.counters.get(BEYOND, 0) for outcome in outcomes), default=0)
        if not beyond:
            tell("operated")
            return plan, outcomes
        margin = max(2 * margin, beyond, plan.windows.assigner.gap_of_every_element or 0)
    raise TidegateError(
        f"late rows of pipeline {bound.pipeline.name!r}: a session ends {beyond} ms after the last known window "
        f"and late row, even if those up to {margin} ms apart count as one session. Nothing was committed"
    )


def commit_reopened(plan: ReopenPlan, outcomes: Sequence[ShardOutcome], seconds: float = 0.0) -> Manifest:
    """Commit the corrections and the selection of reopened late rows; return the manifest.

    Raises:
        Refused: another driver committed since the plan was made, or a written file is missing.
    """
    epoch = plan.epoch
    head = epoch.head
    assert head is not None
    done = {outcome.shard: outcome for outcome in outcomes}
    shards = tuple(_shard(shard, done.get(number)) for number, shard in enumerate(head.manifest.shards))
    files = tuple(outcome.files[results.NAME] for outcome in outcomes if results.NAME in outcome.files)
    work = {table: Publish() for table in PUBLISHED}
    work[results.NAME] = Publish(files=files)
    work[late.NAME] = Publish(reopened=(plan.reopening,))
    line = line_after(head.manifest, epoch.epoch)
    manifest = quiet_manifest(
        head.manifest, "reopen", epoch.epoch, epoch.timeline, line, work, epoch.started_at, shards
    )
    counted = {name: sum(outcome.counters[name] for outcome in outcomes) for name in _COUNTED}
    counted["reopened"] = sum(plan.late_rows)
    counted[ROWS_OUT] = sum(file.rows for file in work[results.NAME].files)
    manifest = manifest.model_copy(
        update={
            "counters": {**manifest.counters, **counted},
            "shards": tuple(
                _counted(shard, done.get(number), late_rows)
                for number, (shard, late_rows) in enumerate(zip(manifest.shards, plan.late_rows, strict=True))
            ),
            "phases": {"job": seconds},
            "closed_through": closed_through_of(
                epoch.bound, head, epoch.closed_through, head.manifest.watermark, passed=False
            ),
            "run_id": epoch.run_id,
        }
    )
    check_files(epoch.tables, manifest)
    changed = [head.manifest.shards[outcome.shard] for outcome in outcomes if outcome.changed]
    added, whole = remaining(epoch.tables, head, f"{state.NAME}-{manifest.epoch:06d}-reopen", changed)
    added += [outcome.files[state.NAME] for outcome in outcomes if state.NAME in outcome.files]
    kept = {file["path"] for file in whole}
    commit_snapshot(epoch.tables, head.handle, manifest, arrow_schema(head.handle), added, kept)
    return manifest


def _shard(before: Shard, outcome: ShardOutcome | None) -> Shard:
    """Return a shard with its rows, open windows and next timer after the epoch."""
    if outcome is None or not outcome.changed:
        return before
    counters = {**before.counters, "open_windows": outcome.counters["open_windows"]}
    return before.model_copy(
        update={
            "rows": outcome.rows,
            "counters": counters,
            "next_event_time_timer": outcome.next_event_time_timer,
        }
    )


def _counted(shard: Shard, outcome: ShardOutcome | None, late_rows: int) -> Shard:
    """Return a shard with the counts of panes that the epoch emitted in it, and of late rows that it added."""
    counted = {} if outcome is None else {name: outcome.counters[name] for name in _COUNTED}
    return shard.model_copy(update={"counters": {**shard.counters, **counted, "reopened": late_rows}})
