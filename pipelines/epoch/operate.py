"""Step 2 of an epoch: one Spark job moves the events to their shards, where the operator runs.

The shards to be run are in the data, one marker row each: a slice that the optimiser proves empty
would otherwise run no task, and no timer would fire.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pipelines.epoch.plan import EpochPlan
from pipelines.epoch.shard import RESULT_SCHEMA, ShardJob, ShardOutcome, run_shard
from pipelines.errors import TidegateError
from pipelines.snapshots.compatibility import left_behind, migration_of
from pipelines.sources.columns import COMMIT, KEY_PREFIX, MARKER, ROW, SHARD, STATUS, TIME, VALUE_PREFIX
from pipelines.tables import rejects
from pipelines.tables.columns import to_delta
from pipelines.tables.files import write_file
from windowing.keys import SPARK_SEED


def operate(spark: SparkSession, plan: EpochPlan) -> list[ShardOutcome]:
    """Run the epoch's tasks; what each shard did, and (shard -1) what was rejected.

    Raises:
        TidegateError: a shard did not report, or reported twice.
    """
    job = job_of(plan)
    began = perf_counter()
    frame = _events(spark, plan).unionByName(_markers(spark, plan), allowMissingColumns=True)
    placed = frame.repartitionById(len(plan.shards), F.col(SHARD)).drop(SHARD)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_shard(job, batches)

    reports = placed.mapInArrow(run, RESULT_SCHEMA)
    if plan.frames.unusable is not None:
        reports = reports.unionByName(_rejected(job, plan.frames.unusable))
    outcomes = [ShardOutcome.from_json(row["info"]) for row in reports.collect()]
    _check_complete(plan, outcomes)
    for outcome in outcomes:
        outcome.seconds["job"] = perf_counter() - began
    return outcomes


def job_of(plan: EpochPlan) -> ShardJob:
    """What the epoch's tasks need to know of its plan."""
    bound, tables = plan.bound, plan.tables
    schemas = bound.table_schemas
    return ShardJob(
        warehouse=tables.warehouse,
        paths={name: tables.path(name) for name in schemas},
        schemas=schemas,
        compute=plan.compute,
        panes=bound.panes,
        key=bound.key,
        used=bound.used,
        value_types=tuple(to_delta(bound.derived.field(name).type) for name in bound.used),
        state=bound.state,
        shards=plan.shards,
        max_parallelism=bound.pipeline.max_parallelism,
        order=plan.order,
        steps=plan.steps,
        watermark_before=plan.watermark_before,
        clock_before=plan.clock_before,
        epoch=plan.epoch,
        timeline=plan.timeline,
        now=plan.started_at,
        found=None if plan.parent is None else migration_of(bound, plan.parent.manifest),
        dropped=left_behind(bound.pipeline),
    )


def _events(spark: SparkSession, plan: EpochPlan) -> DataFrame:
    """The usable rows with the columns that tasks need; only those that may be late carry all columns."""
    bound = plan.bound
    columns = [
        _shard_of(plan).alias(SHARD),
        F.col(TIME),
        F.col(COMMIT),
        *[F.col(f"`{name}`").alias(f"{KEY_PREFIX}{name}") for name in bound.key.names],
        *[F.col(f"`{name}`").alias(f"{VALUE_PREFIX}{name}") for name in bound.used],
    ]
    frames = plan.frames
    parts = []
    if frames.safe is not None:
        parts.append(frames.safe.select(*columns))
    if frames.candidates is not None:
        parts.append(frames.candidates.select(*columns, F.col(ROW)))
    if not parts:
        return spark.createDataFrame([], f"{SHARD} int")
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1], allowMissingColumns=True)


def _shard_of(plan: EpochPlan) -> Column:
    bound, groups = plan.bound, plan.bound.pipeline.max_parallelism
    names = [F.col(f"`{name}`") for name in bound.key.names]
    key_hash = F.xxhash64(*names) if names else F.lit(SPARK_SEED)
    key_group = F.pmod(key_hash, F.lit(groups))
    return F.floor(key_group * F.lit(len(plan.shards)) / F.lit(groups)).cast("int")


def _markers(spark: SparkSession, plan: EpochPlan) -> DataFrame:
    files = plan.parent.files if plan.parent is not None else ()
    rewrite = must_rewrite(plan, files)
    rows = []
    for index, shard in enumerate(plan.shards):
        own = [
            file["path"]
            for file in files
            if file["min.key_group"] <= shard.last and file["max.key_group"] >= shard.first
        ]
        rows.append((index, json.dumps({"shard": index, "files": own, "rewrite": rewrite})))
    return spark.createDataFrame(rows, f"{SHARD} int, {MARKER} string")


def must_rewrite(plan: EpochPlan, files: Sequence[dict[str, Any]]) -> bool:
    """Whether every shard must write its state anew: rows are migrated, or a file holds those of several shards."""
    if plan.parent is not None and migration_of(plan.bound, plan.parent.manifest) is not None:
        return True
    return any(
        not any(shard.first <= file["min.key_group"] and file["max.key_group"] <= shard.last for shard in plan.shards)
        for file in files
    )


def _rejected(job: ShardJob, unusable: DataFrame) -> DataFrame:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return write_rejects(job, batches)

    return unusable.select(F.col(ROW), F.col(STATUS)).mapInArrow(write, RESULT_SCHEMA)


def write_rejects(job: ShardJob, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows that can't be used, with all columns and the reason."""
    schema = job.schemas[rejects.NAME]
    ours = len(rejects.TRAILING)
    parts = []
    for batch in batches:
        count = len(batch)
        columns = [
            values.cast(field.type)
            for field, values in zip(list(schema)[:-ours], batch.column(0).flatten(), strict=True)
        ]
        columns.append(batch.column(1).cast(pa.string()))
        columns += [pa.array([value] * count, kind) for value, kind in _constants(job)]
        parts.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    if not parts:
        return
    table = pa.Table.from_batches(parts)
    file = write_file(job.warehouse, job.paths[rejects.NAME], f"{rejects.NAME}-{job.epoch:06d}", table)
    outcome = ShardOutcome(-1, True, files={} if file is None else {rejects.NAME: file})
    outcome.counters = {"rejected": len(table)}
    yield pa.RecordBatch.from_pydict({"shard": pa.array([-1], pa.int32()), "info": [outcome.to_json()]})


def _constants(job: ShardJob) -> tuple[tuple[Any, pa.DataType], ...]:
    return (job.timeline, pa.int64()), (job.epoch, pa.int64()), (False, pa.bool_())


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
            "when it was read twice: is there a non-deterministic expression in `columns` or `where`? "
            "Nothing was committed"
        )
