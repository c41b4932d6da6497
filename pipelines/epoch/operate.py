"""Step 2 of an epoch: one Spark job moves the events to their shards, where the operator runs.

Events reach a shard in one of two ways. If the files are small, each task reads all of them and keeps the events
of its shards: one stage, without a shuffle. Tasks of one machine share what they read. Otherwise tasks read the files,
pack the events by shard, and Spark shuffles the packs. One marker row for each shard is part of the data. Without
markers, Spark's optimiser would run no task for an empty slice, and no timer would fire.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.pipelines.definition.event_columns import MARKER, SHARD
from tidegate.pipelines.epoch.exchange import PACKED, Placing, collected, is_exchange_cheaper, unpacked
from tidegate.pipelines.epoch.job import ShardJob
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.epoch.shard import RESULT_SCHEMA, Marker, ShardOutcome, run_shard
from tidegate.pipelines.epoch.shared_reading import shared_reading
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.manifest import Shard
from tidegate.pipelines.snapshots.compatibility import left_behind, migration_of
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.slice_rows import run_over, tasks_of
from tidegate.pipelines.sources.source_table import JudgedRows
from tidegate.pipelines.spark.connect import count_cores, runs_here
from tidegate.pipelines.spark.versions import place_by_number
from tidegate.pipelines.tables import rejects
from tidegate.pipelines.tables.columns import to_delta
from tidegate.pipelines.tables.files import write_file
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.time import MIN_TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def operate(spark: SparkSession, plan: EpochPlan) -> list[ShardOutcome]:
    """Run the epoch's tasks, and return the outcome of each shard; shard -1 stands for the rejected rows.

    Raises:
        TidegateError: a shard did not report, or reported twice.
    """
    job = job_of(plan)
    began = perf_counter()
    must_exchange = _must_exchange(spark, plan)
    tasks = min(len(plan.shards), tasks_of(spark))
    with shared_reading(job.files, 1 if must_exchange or not runs_here(spark) else tasks) as shared:
        if must_exchange:
            reports = _exchanged(spark, plan, job)
        else:
            reports = _in_place(spark, plan, replace(job, shared=shared), tasks)
        if (unusable := plan.rows.unusable) is not None:
            write = partial(write_rejects, job, unusable)
            reports = reports.unionByName(run_over(spark, unusable, write, RESULT_SCHEMA))
        outcomes = [ShardOutcome.from_json(row["info"]) for row in reports.collect()]
    _check_complete(plan, outcomes)
    for outcome in outcomes:
        outcome.seconds["job"] = perf_counter() - began
    return outcomes


def _must_exchange(spark: SparkSession, plan: EpochPlan) -> bool:
    """Return True if the events must be shuffled: they go through Spark, or all shards together would read too much."""
    events = plan.rows.events
    if events is not None and events.needs_spark:
        return True
    return is_exchange_cheaper(plan.counts.usable, len(plan.shards), count_cores(spark))


def _in_place(spark: SparkSession, plan: EpochPlan, job: ShardJob, tasks: int) -> DataFrame:
    """Let each task read the files of the slice, and keep the events of its shards.

    A task costs more than a shard without events, so each task runs several shards, one after the other.
    """
    markers = markers_of(plan)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            shards = batch.column(0).to_pylist()
            # The first shard of the task reads, so that its time to receive includes the reading.
            events = cache(partial(job.read, shards))
            for shard in shards:
                yield run_shard(job, markers[shard], lambda: events().pop(shard, None))  # noqa: B023 - called at once

    return spark.range(0, len(markers), 1, tasks).mapInArrow(run, RESULT_SCHEMA)


def _exchanged(spark: SparkSession, plan: EpochPlan, job: ShardJob) -> DataFrame:
    """Let tasks pack the events that they read, and shuffle the packs to the shards."""
    markers = [(marker.shard, marker.to_json()) for marker in markers_of(plan)]
    frame = spark.createDataFrame(markers, f"{SHARD} int, {MARKER} string")
    if (events := plan.rows.events) is not None:
        packs = run_over(spark, events, partial(_packs, job.placing, events), PACKED)
        frame = frame.unionByName(packs, allowMissingColumns=True)
    placed = place_by_number(frame, SHARD, len(plan.shards))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        marker, packs = collected(batches)
        if marker is not None:
            yield run_shard(job, Marker.from_json(marker), lambda: unpacked(packs))

    return placed.mapInArrow(run, RESULT_SCHEMA)


def _packs(placing: Placing, files: FileSlice, judged: Iterator[JudgedRows]) -> Iterator[pa.RecordBatch]:
    """Yield the usable rows of a slice as events, packed by shard."""
    return placing.packs(map(files.events_of, judged))


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
