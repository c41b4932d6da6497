"""Recompute: windows are recomputed from a version of the source, and the panes that differ are corrected.

Reopening late rows and correcting changed rows both plan, compute and commit here. A recompute reads one version of the
source, so it never needs rows of earlier versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa

from tidegate.pipelines.correct.affected import plan_recompute
from tidegate.pipelines.correct.changed_rows import ChangedRows
from tidegate.pipelines.correct.difference import BEYOND, RecomputeJob
from tidegate.pipelines.correct.request import Asked, RecomputePlan
from tidegate.pipelines.correct.source_rows import SourceRows, events_within
from tidegate.pipelines.definition import rejects, results, state
from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.counters import REOPENED, RETRACTED
from tidegate.pipelines.definition.event_columns import STATUS
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch.closed import closed_through_of, raised_lateness_of
from tidegate.pipelines.epoch.exchange import is_exchange_cheaper
from tidegate.pipelines.epoch.operate import Reads, run_shards
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.epoch.shard import ShardOutcome, outcomes_of, written_files
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.ledger.manifest import DataFile, Deletion, Manifest, PartitionWatermark, Shard
from tidegate.pipelines.ledger.snapshots.commit import StateFiles, commit_epoch
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.snapshots.stages import NewEpoch, Published, RowsRead, TimeMoved
from tidegate.pipelines.ledger.step_log import log_step
from tidegate.pipelines.ledger.tables.files import write_rows
from tidegate.pipelines.ledger.tables.late_rows import write_deleted
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.sources.source_table import EvaluatedRows
from tidegate.windowing.time import Millis

Tell: TypeAlias = Callable[[str], None]

_COUNTED = ("fired_late", RETRACTED)


@dataclass(frozen=True, slots=True)
class Moved:
    """How a correction moves the position and the time of a pipeline; by default they stay.

    Args:
        positions: new positions, by source table.
        partitions: the source partitions after the epoch; None if they stay.
        clock: processing time after the epoch; None if it stays.
    """

    positions: Mapping[str, Position] = field(default_factory=dict)
    partitions: Mapping[str, PartitionWatermark] | None = None
    clock: Millis | None = None


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
        outcomes = computed_again(plan, rows)
        beyond = max((outcome.counters.get(BEYOND, 0) for outcome in outcomes), default=0)
        if not beyond:
            log_step("operated", plan.epoch.epoch)
            tell("operated")
            return plan, outcomes
        margin = max(2 * margin, beyond, plan.windows.assigner.gap_of_every_element or 0)


def computed_again(plan: RecomputePlan, rows: SourceRows) -> list[ShardOutcome]:
    """Compute the spans of a plan again, once for each shard with such spans, and compare them with what is published.

    Raises:
        SourceFileMissing: a file with rows of the spans no longer exists; the error has the windows that need it.
    """
    if not len(plan.work.wanted):
        return []
    job, files, engine, key = RecomputeJob.of(plan), rows.files_of(plan), rows.engine, plan.epoch.bound.key
    spans = plan.spans

    def events(judged: Iterator[EvaluatedRows]) -> Iterator[pa.Table]:
        return events_within(key, files, judged, spans)

    # Most corrections read few files, so each task reads all of them.
    tasks = min(engine.tasks(len(job.files), files.expected_rows), engine.cores)
    must_exchange = is_exchange_cheaper(files.expected_rows, min(len(job.files), engine.cores), engine.cores)
    # Shards without events run too, to retract published panes.
    markers = {number: str(number) for number in job.files}
    reads = Reads(job.shards.placing, files, events)
    with rows.located(lambda: files.parts, plan.windows):
        outcomes = outcomes_of(run_shards(engine, reads, markers, job.report, must_exchange, tasks))
    if sorted(outcome.shard for outcome in outcomes) != sorted(job.files):
        raise TidegateError(f"shards {sorted(job.files)} should report, but some did not. Nothing was committed")
    return outcomes


def commit_recomputed(
    plan: RecomputePlan,
    outcomes: Sequence[ShardOutcome],
    moved: Moved,
    seconds: float = 0.0,
    engine: str = "local",
) -> Manifest:
    """Commit the corrections, the late rows that they add, and the new position. Return the manifest.

    Raises:
        Refused: another driver committed since the plan was made, or a written file is missing.
    """
    epoch, head = plan.epoch, plan.head
    new = corrected_epoch(plan, outcomes, moved, seconds, engine)
    replaced = [head.manifest.shards[outcome.shard] for outcome in outcomes if outcome.changed]
    files = StateFiles.without_shards(epoch.tables, head, epoch.epoch, epoch.kind, replaced)
    return commit_epoch(epoch.tables, head.handle, new, files.with_files(written_files(outcomes, state.NAME)))


def corrected_epoch(
    plan: RecomputePlan, outcomes: Sequence[ShardOutcome], moved: Moved, seconds: float, engine: str
) -> NewEpoch:
    """Return the epoch that a plan and its outcomes make, after writing the rows that leave late and rejects."""
    epoch, changed = plan.epoch, plan.asked if isinstance(plan.asked, ChangedRows) else None
    quiet = NewEpoch.without_rows(epoch.kind, plan.head.manifest, epoch.started_at)
    files = written_files(outcomes, results.NAME)
    rejected = (_rejects_file(epoch, changed),) if changed is not None and len(changed.rejected) else ()
    return replace(
        quiet,
        read=_read(quiet.read, changed, moved),
        time=_time(quiet.time, plan, moved),
        computed=replace(
            quiet.computed,
            shards=_shards(quiet.computed.shards, plan, outcomes),
            code=quiet.computed.code.recomputing(epoch.bound, plan.head.manifest.stagger_offset),
            rows_out=sum(file.rows for file in files),
            phases={"job": seconds},
            engine=engine,
        ),
        published=Published(
            files={results.NAME: files, rejects.NAME: rejected},
            reopened=(plan.reopening,) if changed is None or any(plan.late_rows) else (),
        ),
        withdrawn=replace(quiet.withdrawn, deleted={} if changed is None else _deleted(epoch, changed)),
        run_id=epoch.run_id,
    )


def _read(before: RowsRead, changed: ChangedRows | None, moved: Moved) -> RowsRead:
    positions = {**before.positions, **moved.positions}
    if changed is None:
        return replace(before, positions=positions)
    return RowsRead(
        positions=positions,
        rows=changed.added_count,
        rejected=len(changed.rejected),
        dropped=changed.dropped,
        deleted=changed.deleted_count,
    )


def _time(before: TimeMoved, plan: RecomputePlan, moved: Moved) -> TimeMoved:
    epoch, watermark = plan.epoch, before.watermark
    return replace(
        before,
        clock=before.clock if moved.clock is None else moved.clock,
        partitions=before.partitions if moved.partitions is None else moved.partitions,
        closed_through=closed_through_of(epoch.bound, epoch.closed_through, watermark, passed=False),
        raised_lateness=raised_lateness_of(epoch.bound, epoch.tables, plan.head, watermark),
    )


def _shards(before: Sequence[Shard], plan: RecomputePlan, outcomes: Sequence[ShardOutcome]) -> tuple[Shard, ...]:
    done = {outcome.shard: outcome for outcome in outcomes}
    numbers = {REOPENED: plan.late_rows, **plan.counts}
    return tuple(
        _shard(shard, done.get(number), {name: of_shards[number] for name, of_shards in numbers.items()})
        for number, shard in enumerate(before)
    )


def _deleted(epoch: EpochPlan, changed: ChangedRows) -> dict[str, tuple[Deletion, ...]]:
    return {
        table: (write_deleted(epoch.tables, table, rows, epoch.epoch),)
        for table, rows in changed.deleted_by_table.items()
    }


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
