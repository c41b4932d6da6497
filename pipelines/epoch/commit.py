"""Step 3 of an epoch: replace the state of the changed shards, and the manifest with it. The commit point.

The commit is the fence: it is made on the handle that was planned with and allows no retry, so of
two drivers that started from one snapshot the second fails here, before anything of it is published.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from pipelines.epoch.plan import EpochPlan
from pipelines.epoch.shard import ShardOutcome
from pipelines.errors import Refused
from pipelines.snapshots.manifest import DataFile, Manifest, Publish, Shard
from pipelines.storage import active_files
from pipelines.tables import late, rejects, results, state
from pipelines.tables.files import add_action, check_written, remove_action, write_file
from pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables

COUNTERS = (
    "on_time",
    "late",
    "no_window",
    "fired_early",
    "fired_on_time",
    "fired_late",
    "withdrawn",
    "timers_registered",
    "timers_fired",
    "timers_deleted",
    "open_windows",
)


def commit(plan: EpochPlan, outcomes: Sequence[ShardOutcome], phases: dict[str, float]) -> Manifest:
    """Commit the epoch's state and manifest; the manifest.

    Raises:
        Refused: another driver committed since the plan was made, or a file is not where it was written.
    """
    tables = plan.tables
    tables.create(plan.bound.table_schemas)
    handle = plan.head.handle if plan.head is not None else tables.open(state.NAME)
    if plan.head is None and handle.transaction_version(tables.application) is not None:
        raise _outrun(plan, "no snapshot")
    manifest = _manifest(plan, outcomes, phases)
    check_files(tables, manifest)
    schema = plan.bound.table_schemas[state.NAME]
    row = write_file(
        tables.warehouse,
        tables.path(state.NAME),
        f"manifest-{plan.epoch:06d}",
        state.manifest_row(manifest.model_dump_json(), schema),
    )
    written = [outcome.files[state.NAME] for outcome in outcomes if state.NAME in outcome.files]
    check_written(tables.warehouse, tables.path(state.NAME), [*written, *([row] if row else [])])
    removes, adds = _state_actions(plan, outcomes, handle)
    adds += [add_action(file) for file in (*written, row) if file is not None]
    try:
        handle.create_write_transaction(
            [*adds, *removes],
            "append",
            Schema.from_arrow(schema),
            commit_properties=CommitProperties(
                custom_metadata={"tidegate": manifest.short()},
                max_commit_retries=0,
                app_transactions=[Transaction(tables.application, plan.epoch)],
            ),
            post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
        )
    except CommitFailedError as error:
        raise _outrun(plan, f"version {handle.version()}") from error
    return manifest


def _outrun(plan: EpochPlan, planned_at: str) -> Refused:
    return Refused(
        f"epoch {plan.epoch} of {plan.tables.pipeline}: somebody else committed to table state since it was planned "
        f"at {planned_at}. Nothing of this epoch counts; run it again once the other driver has ended"
    )


def check_files(tables: PipelineTables, manifest: Manifest) -> None:
    """Refuse a manifest that lists a file which is not there with its size."""
    for table, work in manifest.publish.items():
        check_written(tables.warehouse, tables.path(table), work.files)


def _state_actions(
    plan: EpochPlan, outcomes: Sequence[ShardOutcome], handle: DeltaTable
) -> tuple[list[RemoveAction], list[AddAction]]:
    """What leaves table state, and which files of the parent snapshot stay or come back."""
    changed = [plan.shards[outcome.shard] for outcome in outcomes if outcome.shard >= 0 and outcome.changed]
    kept = [
        file
        for file in (plan.parent.files if plan.parent is not None else ())
        if not any(file["min.key_group"] <= shard.last and file["max.key_group"] >= shard.first for shard in changed)
    ]
    at_head = {file["path"]: file for file in active_files(handle)}
    staying = {file["path"] for file in kept if file["path"] in at_head}
    removes = [remove_action(file) for path, file in at_head.items() if path not in staying]
    returning = [file for file in kept if file["path"] not in at_head]
    tables = plan.tables
    adds = [_as_data_file(file) for file in returning]
    check_written(tables.warehouse, tables.path(state.NAME), adds)
    return removes, [add_action(file) for file in adds]


def _as_data_file(file: dict[str, Any]) -> DataFile:
    bounds = {"key_group": file["min.key_group"]}, {"key_group": file["max.key_group"]}
    stats = {
        "numRecords": file["num_records"],
        "minValues": bounds[0],
        "maxValues": bounds[1],
        "nullCount": {"key_group": 0},
    }
    return DataFile(path=file["path"], size=file["size_bytes"], rows=file["num_records"], stats=json.dumps(stats))


def _manifest(plan: EpochPlan, outcomes: Sequence[ShardOutcome], phases: dict[str, float]) -> Manifest:
    bound, counts = plan.bound, plan.counts
    shards = sorted((outcome for outcome in outcomes if outcome.shard >= 0), key=lambda outcome: outcome.shard)
    counters = {name: sum(outcome.counters.get(name, 0) for outcome in shards) for name in COUNTERS}
    counters |= {
        "events_in": counts.total,
        "dropped": counts.dropped,
        "rejected": sum(counts.rejected.values()),
    }
    files = {
        table: tuple(outcome.files[table] for outcome in outcomes if table in outcome.files)
        for table in (results.NAME, late.NAME, rejects.NAME)
    }
    stale = tuple(epoch for item in plan.stale for epoch in item.epochs)
    new_line = plan.head is not None and plan.timeline != plan.head.manifest.timeline
    return Manifest(
        pipeline=bound.pipeline.name,
        timeline=plan.timeline,
        epoch=plan.epoch,
        parent=plan.parent.manifest.epoch if plan.parent is not None else None,
        kind=plan.kind,
        order="event" if plan.order is not None else "arrival",
        interval=plan.interval,
        positions=plan.positions,
        watermark=plan.watermark,
        partitions=plan.partitions,
        processing_time=plan.clock,
        max_parallelism=bound.pipeline.max_parallelism,
        shards=tuple(
            Shard(
                first=shard.first,
                last=shard.last,
                rows=outcome.rows,
                counters={name: outcome.counters.get(name, 0) for name in COUNTERS},
                next_event_time_timer=outcome.next_event_time_timer,
                next_processing_time_timer=outcome.next_processing_time_timer,
            )
            for shard, outcome in zip(plan.shards, shards, strict=True)
        ),
        fingerprint=bound.fingerprint,
        schemas=bound.schemas,
        counters=counters,
        stale=plan.stale,
        publish={
            table: Publish(
                files=files.get(table, ()),
                remove_epochs=plan.replaced_epochs,
                stale_epochs=stale if new_line else (),
            )
            for table in PUBLISHED
        },
        phases={**phases, **_slowest(shards)},
        run_id=plan.run_id,
        started_at=plan.started_at,
        library_version=version("tidegate"),
    )


def _slowest(outcomes: Sequence[ShardOutcome]) -> dict[str, float]:
    names = sorted({name for outcome in outcomes for name in outcome.seconds})
    return {name: round(max(outcome.seconds.get(name, 0.0) for outcome in outcomes), 3) for name in names}
