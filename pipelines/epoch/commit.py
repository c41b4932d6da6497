"""The commit of an epoch, its third step: its stages, and the state files of the changed shards.

`commit_epoch` in `ledger/snapshots/commit.py` makes the manifest of the stages, and the one Delta commit, the fence.
"""

from __future__ import annotations

from collections.abc import Sequence

from deltalake import DeltaTable

from tidegate.pipelines.definition import epochs, late, rejects, results, state
from tidegate.pipelines.definition.counters import OF_TASKS
from tidegate.pipelines.epoch.closed import closed_through_of, raised_lateness_of
from tidegate.pipelines.epoch.event_times import sides_of
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.epoch.shard import ShardOutcome, written_files
from tidegate.pipelines.ledger.manifest import Manifest, Shard
from tidegate.pipelines.ledger.snapshots.commit import StateFiles, commit_epoch, outrun
from tidegate.pipelines.ledger.snapshots.erased import erasing_epochs
from tidegate.pipelines.ledger.snapshots.stages import (
    Code,
    Computed,
    NewEpoch,
    Published,
    RowsRead,
    TimeMoved,
    Withdrawn,
)
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED
from tidegate.windowing.columnar import choose_operator
from tidegate.windowing.columnar.slices import Slicing

_WRITTEN = (results.NAME, late.NAME, rejects.NAME)
"""Published tables whose files the tasks of an epoch write."""


def commit(
    plan: EpochPlan, outcomes: Sequence[ShardOutcome], phases: dict[str, float], engine: str = "local"
) -> Manifest:
    """Commit the state and the manifest of the epoch, and return the manifest.

    Raises:
        Refused: another driver has committed since the plan was made, or a written file is missing.
    """
    tables = plan.tables
    if plan.head is None:
        # From now on, a missing table means that it was lost together with its rows.
        tables.create(plan.bound.table_schemas)
    handle = plan.head.handle if plan.head is not None else tables.open(state.NAME)
    if plan.head is None and handle.transaction_version(tables.application) is not None:
        raise outrun(tables, plan.epoch, "no snapshot")
    new = new_epoch(plan, outcomes, phases, engine)
    return commit_epoch(tables, handle, new, _state(plan, outcomes, handle), plan.bound.table_schemas[state.NAME])


def new_epoch(
    plan: EpochPlan, outcomes: Sequence[ShardOutcome], phases: dict[str, float], engine: str = "local"
) -> NewEpoch:
    """Return the epoch that a plan and its outcomes make."""
    shards = sorted((outcome for outcome in outcomes if outcome.shard >= 0), key=lambda outcome: outcome.shard)
    return NewEpoch(
        pipeline=plan.bound.pipeline.name,
        kind=plan.kind,
        epoch=plan.epoch,
        timeline=plan.timeline,
        parent=None if plan.parent is None else plan.parent.manifest,
        read=_read(plan, outcomes),
        time=_time(plan),
        computed=_computed(plan, shards, phases, engine),
        published=Published(files={table: written_files(outcomes, table) for table in _WRITTEN}),
        withdrawn=_withdrawn(plan),
        run_id=plan.run_id,
        started_at=plan.started_at,
    )


def _read(plan: EpochPlan, outcomes: Sequence[ShardOutcome]) -> RowsRead:
    return RowsRead(
        positions=plan.positions,
        interval=plan.interval,
        rows=plan.counts.total,
        rejected=sum(outcome.counters.get("rejected", 0) for outcome in outcomes),
        dropped=plan.counts.dropped,
        skipped=plan.skipped,
    )


def _time(plan: EpochPlan) -> TimeMoved:
    bound = plan.bound
    sides = zip(bound.pipeline.inputs, sides_of(bound.pipeline), strict=True)
    return TimeMoved(
        watermark=plan.watermark,
        clock=plan.clock,
        partitions=plan.partitions,
        inputs=plan.input_watermarks,
        watermark_by={side: part.watermark_by for part, side in sides if part.watermark_by is not None},
        stagger_offset=plan.stagger_offset,
        closed_through=closed_through_of(bound, plan.closed_through, plan.watermark),
        raised_lateness=raised_lateness_of(bound, plan.tables, plan.parent, plan.watermark),
    )


def _computed(plan: EpochPlan, outcomes: Sequence[ShardOutcome], phases: dict[str, float], engine: str) -> Computed:
    before = None if plan.parent is None else plan.parent.manifest
    is_sliced = isinstance(choose_operator(plan.bound.compute).slicing, Slicing)
    return Computed(
        shards=tuple(_shard(shard, outcome) for shard, outcome in zip(plan.shards, outcomes, strict=True)),
        code=Code.of(plan.bound, plan.stagger_offset),
        order="event" if plan.order is not None else "arrival",
        rows_out=sum(file.rows for file in written_files(outcomes, results.NAME)),
        slices=is_sliced or (before is not None and before.slices),
        raised=any(outcome.counters.get("rejected") for outcome in outcomes) or (before is not None and before.raised),
        skipped=plan.skipped > 0 or (before is not None and before.skipped),
        phases={**phases, **_slowest(outcomes)},
        engine=engine,
    )


def _shard(shard: Shard, outcome: ShardOutcome) -> Shard:
    return Shard(
        first=shard.first,
        last=shard.last,
        rows=outcome.rows,
        counters={name: outcome.counters.get(name, 0) for name in OF_TASKS},
        next_event_time_timer=outcome.next_event_time_timer,
        next_processing_time_timer=outcome.next_processing_time_timer,
    )


def _withdrawn(plan: EpochPlan) -> Withdrawn:
    stale = tuple(epoch for item in plan.stale for epoch in item.epochs)
    is_new_timeline = plan.head is not None and plan.timeline != plan.head.manifest.timeline
    # The epochs that removed rows on a user's request keep their rows in table epochs, which explain the missing rows
    # after a restore to an earlier epoch.
    erasures = erasing_epochs(plan.tables) if plan.replaced_epochs else set()
    replaced = dict.fromkeys(PUBLISHED, plan.replaced_epochs)
    replaced[epochs.NAME] = tuple(number for number in plan.replaced_epochs if number not in erasures)
    return Withdrawn(
        epochs=replaced,
        stale_epochs=dict.fromkeys(PUBLISHED, stale) if is_new_timeline else {},
        intervals=plan.stale,
    )


def _state(plan: EpochPlan, outcomes: Sequence[ShardOutcome], handle: DeltaTable) -> StateFiles:
    """Return the state files after the epoch: written ones, and those of the parent for unchanged shards."""
    changed = [plan.shards[outcome.shard] for outcome in outcomes if outcome.shard >= 0 and outcome.changed]
    stay = {path for outcome in outcomes for path in outcome.kept}
    unchanged = [
        file
        for file in (plan.parent.files if plan.parent is not None else ())
        if file["path"] in stay
        or not any(file["min.key_group"] <= shard.last and file["max.key_group"] >= shard.first for shard in changed)
    ]
    return StateFiles.of_older(handle, unchanged, written_files(outcomes, state.NAME))


def _slowest(outcomes: Sequence[ShardOutcome]) -> dict[str, float]:
    names = sorted({name for outcome in outcomes for name in outcome.seconds})
    return {name: round(max(outcome.seconds.get(name, 0.0) for outcome in outcomes), 3) for name in names}
