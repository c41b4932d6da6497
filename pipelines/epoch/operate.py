"""Step 2 of an epoch: the engine's tasks move the events to their shards, where the operator runs.

Events reach a shard in one of two ways. If the files are small, each task reads all of them and keeps the events of its
shards: one stage, without an exchange. Tasks of one machine share what they read. Otherwise tasks read the files and
pack the events by shard, and the engine moves the packs. Each shard runs, also without events: its timers may be due.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from time import perf_counter
from typing import Any

import pyarrow as pa

from tidegate.pipelines.engine.base import Engine, split
from tidegate.pipelines.epoch.exchange import is_exchange_cheaper, unpacked
from tidegate.pipelines.epoch.job import ShardJob
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.epoch.shard import RESULT_SCHEMA, Marker, ShardOutcome, outcomes_of, run_shard
from tidegate.pipelines.epoch.shared_reading import shared_reading
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.manifest import Shard
from tidegate.pipelines.snapshots.compatibility import left_behind, migration_of
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_table import JudgedRows
from tidegate.pipelines.tables import rejects
from tidegate.pipelines.tables.columns import to_delta
from tidegate.pipelines.tables.files import write_file
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.time import MIN_TIMESTAMP


def operate(engine: Engine, plan: EpochPlan) -> list[ShardOutcome]:
    """Run the epoch's tasks, and return the outcome of each shard; shard -1 stands for the rejected rows.

    Raises:
        TidegateError: a shard did not report, or reported twice.
    """
    job = job_of(plan)
    began = perf_counter()
    reports = _exchanged(engine, plan, job) if _must_exchange(engine, plan) else _in_place(engine, plan, job)
    if (unusable := plan.rows.unusable) is not None:
        reports += engine.over(unusable, partial(write_rejects, job, unusable), RESULT_SCHEMA).to_batches()
    outcomes = outcomes_of(reports)
    _check_complete(plan, outcomes)
    for outcome in outcomes:
        outcome.seconds["job"] = perf_counter() - began
    return outcomes


def _must_exchange(engine: Engine, plan: EpochPlan) -> bool:
    """Return True if the events must be exchanged: they go through Spark, or all tasks together would read too much."""
    events = plan.rows.events
    if events is not None and events.needs_spark:
        return True
    return is_exchange_cheaper(plan.counts.usable, len(plan.shards), engine.cores)


def _in_place(engine: Engine, plan: EpochPlan, job: ShardJob) -> list[pa.RecordBatch]:
    """Let each task read the files of the slice, and keep the events of its shards."""
    markers = markers_of(plan)
    state_rows = 0 if plan.parent is None else sum(shard.rows for shard in plan.parent.manifest.shards)
    tasks = split(len(markers), engine.tasks(len(markers), plan.counts.usable + state_rows))
    with shared_reading(job.files, len(tasks) if engine.is_on_one_machine else 1) as shared:
        shards = replace(job, shared=shared)

        def run(numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
            # The first shard of the task reads, so that its time to receive includes the reading.
            events = cache(partial(shards.read, numbers))
            for number in numbers:
                yield run_shard(shards, markers[number], lambda: events().pop(number, None))  # noqa: B023 - called at once

        return engine.in_place(tasks, run, RESULT_SCHEMA)


def _exchanged(engine: Engine, plan: EpochPlan, job: ShardJob) -> list[pa.RecordBatch]:
    """Let tasks pack the events that they read, and exchange the packs by shard."""
    events = plan.rows.events
    markers = {marker.shard: marker.to_json() for marker in markers_of(plan)}

    def pack(judged: Iterator[JudgedRows]) -> Iterator[pa.RecordBatch]:
        assert events is not None
        return job.placing.packs(map(events.events_of, judged))

    def run(marker: str, packs: Sequence[pa.Buffer]) -> Iterator[pa.RecordBatch]:
        yield run_shard(job, Marker.from_json(marker), lambda: unpacked(packs))

    return engine.exchanged(events, pack, markers, run, RESULT_SCHEMA)


def job_of(plan: EpochPlan) -> ShardJob:
    """Return the job of an epoch: those values of its plan that the tasks need."""
    bound, tables = plan.bound, plan.tables
    schemas = bound.table_schemas
    return ShardJob(
        warehouse=tables.warehouse,
        paths={name: tables.path(name) for name in schemas},
        schemas=schemas,
        compute=plan.compute,
        panes=_panes(plan),
        key=bound.key,
        used=bound.used,
        value_types=tuple(to_delta(bound.derived.field(name).type) for name in bound.used),
        state=bound.state,
        shards=plan.shards,
        files=plan.rows.events,
        max_parallelism=bound.pipeline.max_parallelism,
        order=plan.order,
        steps=plan.steps,
        watermark_before=plan.watermark_before,
        clock_before=plan.clock_before,
        epoch=plan.epoch,
        timeline=plan.timeline,
        now=plan.started_at,
        old_format=None if plan.parent is None else migration_of(bound, plan.parent.manifest),
        left_behind=left_behind(bound.pipeline),
        # A correction numbers its panes by itself.
        next_panes=() if plan.parent is None or plan.kind in ("reopen", "change") else plan.parent.manifest.next_panes,
    )


def _panes(plan: EpochPlan) -> PanePolicy:
    """Return the pane policy of the pipeline. Closed windows stay closed, unless the epoch corrects them."""
    closed = MIN_TIMESTAMP if plan.kind in ("reopen", "change") else plan.closed_through
    return replace(plan.bound.panes, closed_through=closed)


def markers_of(plan: EpochPlan) -> list[Marker]:
    """Return a marker for each shard."""
    parent = plan.parent
    files = () if parent is None else parent.files
    rewrite = must_rewrite(plan, files)
    before: dict[tuple[int, int], Shard] = {}
    if parent is not None and not any(position.files for position in parent.manifest.positions.values()):
        before = {(shard.first, shard.last): shard for shard in parent.manifest.shards}
    return [
        Marker(
            index,
            tuple(
                file["path"]
                for file in files
                if file["min.key_group"] <= shard.last and file["max.key_group"] >= shard.first
            ),
            rewrite,
            before.get((shard.first, shard.last)),
        )
        for index, shard in enumerate(plan.shards)
    ]


def must_rewrite(plan: EpochPlan, files: Sequence[dict[str, Any]]) -> bool:
    """Return True if all shards must rewrite their state: rows are migrated, or a file has rows of several shards."""
    if plan.parent is not None and migration_of(plan.bound, plan.parent.manifest) is not None:
        return True
    return any(
        not any(shard.first <= file["min.key_group"] and file["max.key_group"] <= shard.last for shard in plan.shards)
        for file in files
    )


def write_rejects(job: ShardJob, files: FileSlice, judged: Iterator[JudgedRows]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a slice that can't be used, with all columns and the reason."""
    schema = job.schemas[rejects.NAME]
    parts = []
    for rows in judged:
        for reason, flags in rows.rejected.items():
            whole, count = files.as_rows(rows, flags), int(flags.sum())
            constants = (
                (reason, pa.string()),
                (job.timeline, pa.int64()),
                (job.epoch, pa.int64()),
                (False, pa.bool_()),
            )
            columns = [*whole.columns, *(pa.array([value] * count, kind) for value, kind in constants)]
            typed = [column.cast(field.type) for field, column in zip(schema, columns, strict=True)]
            parts.append(pa.table(typed, schema=schema))
    if not parts:
        return
    table = pa.concat_tables(parts)
    file = write_file(job.warehouse, job.paths[rejects.NAME], f"{rejects.NAME}-{job.epoch:06d}", table)
    outcome = ShardOutcome(-1, True, files={} if file is None else {rejects.NAME: file})
    outcome.counters = {"rejected": len(table)}
    yield pa.RecordBatch.from_pydict({"shard": pa.array([-1], pa.int32()), "info": [outcome.to_json()]})


def _check_complete(plan: EpochPlan, outcomes: Sequence[ShardOutcome]) -> None:
    reported = sorted(outcome.shard for outcome in outcomes if outcome.shard >= 0)
    if reported != list(range(len(plan.shards))):
        raise TidegateError(
            f"epoch {plan.epoch} of {plan.tables.pipeline}: shards {list(range(len(plan.shards)))} were to report, "
            f"{reported} did. Nothing was committed; run it again"
        )
    elements = sum(outcome.counters.get("elements", 0) for outcome in outcomes)
    rejected = sum(outcome.counters.get("rejected", 0) for outcome in outcomes)
    counted = sum(plan.counts.rejected.values())
    if (elements, rejected) != (plan.counts.usable, counted):
        raise TidegateError(
            f"epoch {plan.epoch} of {plan.tables.pipeline}: the slice was counted as {plan.counts.usable} usable and "
            f"{counted} rejected rows, and the tasks saw {elements} and {rejected}. The source gave different rows "
            "when it was read twice. "
            "Nothing was committed"
        )
