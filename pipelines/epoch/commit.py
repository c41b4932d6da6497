"""The commit of an epoch, its third step: the state of the changed shards and the manifest.

This file creates the manifest. `commit_snapshot` in `ledger/snapshots/commit.py` makes the one Delta commit, the fence.
"""

from __future__ import annotations

from collections.abc import Sequence

from deltalake import DeltaTable

from tidegate.pipelines.definition import epochs, late, rejects, results, state
from tidegate.pipelines.definition.counters import OF_TASKS, ROWS_GONE, ROWS_OUT, VERSIONS_SKIPPED
from tidegate.pipelines.definition.window_shape import kept_facts, kept_shape
from tidegate.pipelines.epoch.closed import closed_through_of, raised_lateness_of
from tidegate.pipelines.epoch.event_times import sides_of
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.epoch.shard import ShardOutcome
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import DataFile, Manifest, Publish, Shard, line_after
from tidegate.pipelines.ledger.migrations import library_version
from tidegate.pipelines.ledger.snapshots.commit import check_files, commit_snapshot, outrun
from tidegate.pipelines.ledger.snapshots.erased import erasing_epochs
from tidegate.pipelines.ledger.tables.files import copied
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED
from tidegate.pipelines.storage.warehouse import active_files
from tidegate.windowing.columnar import choose_operator
from tidegate.windowing.columnar.slices import Slicing
from tidegate.windowing.compute import Windows


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
    manifest = _manifest(plan, outcomes, phases, engine)
    if (wrong := manifest.outside_range) is not None:
        raise Refused(
            f"epoch {plan.epoch} of {tables.pipeline} was not committed: its {wrong} is outside the years 1 to 9999. "
            "Correct the clock that dates the source's commits, or this machine's"
        )
    check_files(tables, manifest)
    written = [outcome.files[state.NAME] for outcome in outcomes if state.NAME in outcome.files]
    kept, returning = _of_parent(plan, outcomes, handle)
    commit_snapshot(tables, handle, manifest, plan.bound.table_schemas[state.NAME], [*written, *returning], kept)
    return manifest


def _of_parent(
    plan: EpochPlan, outcomes: Sequence[ShardOutcome], handle: DeltaTable
) -> tuple[set[str], list[DataFile]]:
    """Return the state files to keep: paths that remain in the newest version of the table, and files to add again."""
    changed = [plan.shards[outcome.shard] for outcome in outcomes if outcome.shard >= 0 and outcome.changed]
    stay = {path for outcome in outcomes for path in outcome.kept}
    unchanged = [
        file
        for file in (plan.parent.files if plan.parent is not None else ())
        if file["path"] in stay
        or not any(file["min.key_group"] <= shard.last and file["max.key_group"] >= shard.first for shard in changed)
    ]
    at_head = {file["path"] for file in active_files(handle)}
    kept = {file["path"] for file in unchanged if file["path"] in at_head}
    return kept, [copied(file, file["path"]) for file in unchanged if file["path"] not in at_head]


def _manifest(
    plan: EpochPlan, outcomes: Sequence[ShardOutcome], phases: dict[str, float], engine: str = "local"
) -> Manifest:
    bound, counts = plan.bound, plan.counts
    shards = sorted((outcome for outcome in outcomes if outcome.shard >= 0), key=lambda outcome: outcome.shard)
    counters = {name: sum(outcome.counters.get(name, 0) for outcome in shards) for name in OF_TASKS}
    counters |= {
        "events_in": counts.total,
        "dropped": counts.dropped,
        "rejected": sum(outcome.counters.get("rejected", 0) for outcome in outcomes),
        VERSIONS_SKIPPED: plan.skipped,
        ROWS_GONE: 0,
    }
    files = {
        table: tuple(outcome.files[table] for outcome in outcomes if table in outcome.files)
        for table in (results.NAME, late.NAME, rejects.NAME)
    }
    counters[ROWS_OUT] = sum(file.rows for file in files[results.NAME])
    stale = tuple(epoch for item in plan.stale for epoch in item.epochs)
    new_line = plan.head is not None and plan.timeline != plan.head.manifest.timeline
    # The epochs that removed rows on a user's request keep their rows in table epochs, which explain the missing rows
    # after a restore to an earlier epoch.
    erasures = erasing_epochs(plan.tables) if plan.replaced_epochs else set()
    replaced = dict.fromkeys(PUBLISHED, plan.replaced_epochs)
    replaced[epochs.NAME] = tuple(number for number in plan.replaced_epochs if number not in erasures)
    sliced = isinstance(choose_operator(bound.compute).slicing, Slicing)
    return Manifest(
        pipeline=bound.pipeline.name,
        timeline=plan.timeline,
        epoch=plan.epoch,
        parent=plan.parent.manifest.epoch if plan.parent is not None else None,
        line=line_after(plan.parent.manifest if plan.parent is not None else None, plan.epoch),
        kind=plan.kind,
        order="event" if plan.order is not None else "arrival",
        interval=plan.interval,
        positions=plan.positions,
        watermark=plan.watermark,
        partitions=plan.partitions,
        inputs=plan.input_watermarks,
        watermark_by={
            side: part.watermark_by
            for part, side in zip(bound.pipeline.inputs, sides_of(bound.pipeline), strict=True)
            if part.watermark_by is not None
        },
        processing_time=plan.clock,
        stagger_offset=plan.stagger_offset,
        max_parallelism=bound.pipeline.max_parallelism,
        shards=tuple(
            Shard(
                first=shard.first,
                last=shard.last,
                rows=outcome.rows,
                counters={name: outcome.counters.get(name, 0) for name in OF_TASKS},
                next_event_time_timer=outcome.next_event_time_timer,
                next_processing_time_timer=outcome.next_processing_time_timer,
            )
            for shard, outcome in zip(plan.shards, shards, strict=True)
        ),
        fingerprint=bound.fingerprint,
        schemas=bound.schemas,
        counters=counters,
        stale=plan.stale,
        closed_through=closed_through_of(bound, plan.closed_through, plan.watermark),
        raised_lateness=raised_lateness_of(bound, plan.tables, plan.parent, plan.watermark),
        shape=kept_shape(bound.pipeline, plan.stagger_offset),
        **kept_facts(bound.pipeline),
        ends_by_clock=isinstance(bound.compute, Windows) and bound.compute.ends_by_clock,
        publish={
            table: Publish(
                files=files.get(table, ()),
                remove_epochs=replaced[table],
                stale_epochs=stale if new_line else (),
            )
            for table in PUBLISHED
        },
        phases={**phases, **_slowest(shards)},
        run_id=plan.run_id,
        started_at=plan.started_at,
        library_version=library_version(),
        engine=engine,
        raised=any(outcome.counters.get("rejected") for outcome in shards)
        or (plan.parent is not None and plan.parent.manifest.raised),
        skipped=plan.skipped > 0 or (plan.parent is not None and plan.parent.manifest.skipped),
        slices=sliced or (plan.parent is not None and plan.parent.manifest.slices),
    )


def _slowest(outcomes: Sequence[ShardOutcome]) -> dict[str, float]:
    names = sorted({name for outcome in outcomes for name in outcome.seconds})
    return {name: round(max(outcome.seconds.get(name, 0.0) for outcome in outcomes), 3) for name in names}
