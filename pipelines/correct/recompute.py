"""Recompute: windows are recomputed from a version of the source, and the panes that differ are corrected.

Reopening late rows and correcting changed rows both plan, compute and commit here. A recompute reads one version of the
source, so it never needs rows of earlier versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from tidegate.pipelines.correct.affected import plan_recompute
from tidegate.pipelines.correct.changed_rows import ChangedRows
from tidegate.pipelines.correct.correct import BEYOND
from tidegate.pipelines.correct.recompute_plan import Asked, RecomputePlan
from tidegate.pipelines.correct.recompute_rows import SourceRows
from tidegate.pipelines.definition import late, rejects, results, state
from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.counters import REOPENED, RETRACTED, ROWS_GONE, ROWS_OUT
from tidegate.pipelines.definition.event_columns import STATUS
from tidegate.pipelines.definition.window_shape import kept_facts, kept_shape
from tidegate.pipelines.epoch.closed import closed_through_of, raised_lateness_of
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.epoch.shard import ShardOutcome
from tidegate.pipelines.ledger.manifest import DataFile, Manifest, Publish, Shard
from tidegate.pipelines.ledger.snapshots.commit import check_files, commit_snapshot, manifest_without_input, remaining
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.step_log import log_step
from tidegate.pipelines.ledger.tables.files import write_rows
from tidegate.pipelines.ledger.tables.late_rows import write_departed
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.storage.warehouse import arrow_schema
from tidegate.windowing.time import Millis

Tell: TypeAlias = Callable[[str], None]

_COUNTED = ("fired_late", RETRACTED)


def recompute(
    tables: PipelineTables,
    bound: BoundPipeline,
    head: Snapshot,
    asked: Asked,
    rows: SourceRows,
    now: Millis,
    tell: Tell = lambda step: None,
) -> tuple[RecomputePlan, list[ShardOutcome]]:
    """Plan which windows to recompute, and recompute them. Return the plan and the outcome of each shard.

    If the session gap has grown, two former sessions may now be one. Then a computed session reaches beyond its span,
    and spans within that distance are computed together. The gaps of the rows limit the reach, so this terminates,
    usually with the second plan.
    """
    margin: Millis = 0
    while True:
        plan = plan_recompute(tables, bound, head, asked, rows, now, margin)
        if not margin:
            log_step("planned", plan.epoch.epoch, plan.epoch.kind)
        tell("planned")
        outcomes = rows.correct(plan) if len(plan.work.wanted) else []
        beyond = max((outcome.counters.get(BEYOND, 0) for outcome in outcomes), default=0)
        if not beyond:
            log_step("operated", plan.epoch.epoch)
            tell("operated")
            return plan, outcomes
        margin = max(2 * margin, beyond, plan.windows.assigner.gap_of_every_element or 0)


def commit_recomputed(
    plan: RecomputePlan,
    outcomes: Sequence[ShardOutcome],
    moved: Mapping[str, object] = MappingProxyType({}),
    seconds: float = 0.0,
    engine: str = "local",
) -> Manifest:
    """Commit the corrections, the late rows that they add, and the new position. Return the manifest.

    `moved` has fields of the manifest that change, such as the positions.

    Raises:
        Refused: another driver committed since the plan was made, or a written file is missing.
    """
    epoch, changed = plan.epoch, plan.asked if isinstance(plan.asked, ChangedRows) else None
    head, fingerprint = epoch.head, epoch.bound.fingerprint
    assert head is not None
    done = {outcome.shard: outcome for outcome in outcomes}
    files = tuple(outcome.files[results.NAME] for outcome in outcomes if results.NAME in outcome.files)
    work = {table: Publish() for table in PUBLISHED}
    work[results.NAME] = Publish(files=files)
    reopened = (plan.reopening,) if changed is None or any(plan.late_rows) else ()
    work[late.NAME] = Publish(reopened=reopened)
    totals: dict[str, int] = {}
    if changed is not None:
        rejected = [_rejects_file(epoch, changed)] if len(changed.rejected) else []
        work[rejects.NAME] = Publish(files=tuple(rejected))
        for table, rows in changed.departed.items():
            left = (write_departed(epoch.tables, table, rows, epoch.epoch),)
            work[table] = work[table].model_copy(update={"departed": left})
        totals = {
            "events_in": changed.added_count,
            "rejected": len(changed.rejected),
            "dropped": changed.dropped,
            ROWS_GONE: changed.deleted_count,
        }
    manifest = manifest_without_input(head.manifest, epoch.kind, work, epoch.started_at)
    numbers = {REOPENED: plan.late_rows, **plan.counts}
    counted = {name: sum(outcome.counters[name] for outcome in outcomes) for name in _COUNTED}
    counted |= {name: sum(of_shards) for name, of_shards in numbers.items()}
    counted[ROWS_OUT] = sum(file.rows for file in files)
    shards = tuple(
        _shard(shard, done.get(number), {name: of_shards[number] for name, of_shards in numbers.items()})
        for number, shard in enumerate(manifest.shards)
    )
    counted["open_windows"] = sum(shard.counters.get("open_windows", 0) for shard in shards)
    manifest = manifest.model_copy(
        update={
            "counters": {**manifest.counters, **counted, **totals},
            "shards": shards,
            "phases": {"job": seconds},
            "closed_through": closed_through_of(
                epoch.bound, epoch.closed_through, head.manifest.watermark, passed=False
            ),
            "raised_lateness": raised_lateness_of(epoch.bound, epoch.tables, head, head.manifest.watermark),
            "shape": kept_shape(epoch.bound.pipeline, head.manifest.stagger_offset),
            **kept_facts(epoch.bound.pipeline),
            "run_id": epoch.run_id,
            "engine": engine,
            "recomputed_by": None if fingerprint == head.manifest.fingerprint else fingerprint,
            **moved,
        }
    )
    check_files(epoch.tables, manifest)
    replaced = [head.manifest.shards[outcome.shard] for outcome in outcomes if outcome.changed]
    prefix = f"{state.NAME}-{manifest.epoch:06d}-{epoch.kind}"
    added, whole = remaining(epoch.tables, head, prefix, replaced)
    added += [outcome.files[state.NAME] for outcome in outcomes if state.NAME in outcome.files]
    kept = {file["path"] for file in whole}
    commit_snapshot(epoch.tables, head.handle, manifest, arrow_schema(head.handle), added, kept)
    return manifest


def _rejects_file(epoch: EpochPlan, changed: ChangedRows) -> DataFile:
    """Write the unusable added rows to a file for table rejects, and return the file."""
    rows, schema = changed.rejected_rows(), epoch.bound.table_schemas[rejects.NAME]
    reasons, rows = rows[STATUS], rows.drop_columns(STATUS)
    path = epoch.tables.path(rejects.NAME)
    table = rejects.rows_of(rows, reasons, schema, epoch.timeline, epoch.epoch)
    (file,) = write_rows(epoch.tables.warehouse, path, f"{rejects.NAME}-{epoch.epoch:06d}", table)
    return file


def _shard(before: Shard, outcome: ShardOutcome | None, numbers: Mapping[str, int]) -> Shard:
    """Return a shard after the epoch, with the panes that the epoch emitted in it, and with further counts."""
    after: dict[str, object] = {}
    counters = {**before.counters, **numbers}
    if outcome is not None:
        counters |= {name: count for name, count in outcome.counters.items() if name in (*_COUNTED, "open_windows")}
        if outcome.changed:
            after = {"rows": outcome.rows, "next_event_time_timer": outcome.next_event_time_timer}
    return before.model_copy(update={**after, "counters": counters})
