"""Source rows that a snapshot has read. Spark reads them again to compute stretches."""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate.pipelines.definition.event_columns import (
    COMMIT,
    KEY_PREFIX,
    MARKER,
    OK,
    SHARD,
    STATUS,
    TIME,
    VALUE_PREFIX,
)
from tidegate.pipelines.epoch.plan_interval import may_lie_within
from tidegate.pipelines.epoch.shard import RESULT_SCHEMA, ShardOutcome
from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.pipelines.manifest import Interval
from tidegate.pipelines.reopen.passed import Passed
from tidegate.pipelines.reopen.plan import ReopenPlan
from tidegate.pipelines.reopen.stretches import END, START
from tidegate.pipelines.reopen.task import ReopenJob
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.sources.delta.frames import map_in_arrow
from tidegate.pipelines.sources.open_input import OpenInput
from tidegate.pipelines.spark.versions import place_by_number
from tidegate.pipelines.tables import late
from tidegate.pipelines.tables.columns import input_rows, quoted
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.compute import Windows
from tidegate.windowing.keys import SPARK_SEED

_NUMBER = "__number"


class SourceRows:
    """Source rows that a snapshot has read.

    Args:
        spark: the Spark session.
        source: the source at its newest version.
        head: the snapshot.
        tables: the pipeline's tables.

    Raises:
        Refused: the version that the snapshot has read can't be read any more.
    """

    def __init__(self, spark: SparkSession, source: OpenInput, head: Snapshot, tables: PipelineTables) -> None:
        self._spark = spark
        self._tables = tables
        self._source = source
        self._head = head
        self._position = source.settled(source.position_of(head.manifest))

    def keyed(self, late_rows: pa.Table) -> pa.Table:
        """Return rows of table late with the key columns of the pipeline added."""
        bound = self._source.bound
        inputs = input_rows(late_rows, late.TRAILING, bound.source, bound.renamed.get(late.NAME, {}))
        if set(bound.key.names) & set(bound.pipeline.columns) and len(inputs):
            numbered = inputs.append_column(_NUMBER, pa.array(range(len(inputs)), pa.int64()))
            derived = self._source.frames.derived(self._spark.createDataFrame(numbered))
            names = (_NUMBER, *bound.key.names)
            inputs = derived.select(*[F.col(quoted(name)) for name in names]).toArrow().sort_by(_NUMBER)
        for name, kind in zip(bound.key.names, bound.key.types, strict=True):
            column = inputs[name].cast(kind) if name in inputs.column_names else pa.nulls(0, kind)
            place = late_rows.schema.get_field_index(name)
            late_rows = (
                late_rows.append_column(name, column) if place < 0 else late_rows.set_column(place, name, column)
            )
        return late_rows

    def passed(self, windows: Windows, within: Interval) -> pa.Table:
        """Return the windows that missed a row because they had passed, while another window accepted the row."""
        return Passed(self._spark, self._source, self._head, self._tables).windows(windows, within)

    def correct(self, plan: ReopenPlan) -> list[ShardOutcome]:
        """Compute the stretches of a plan again, in one task for each shard with stretches.

        Raises:
            TidegateError: a shard did not report.
        """
        job = ReopenJob.of(plan)
        frame = self._events(plan).unionByName(self._markers(job), allowMissingColumns=True)
        placed = place_by_number(frame, SHARD, len(plan.epoch.shards))
        reports = map_in_arrow(placed, job.run_task, RESULT_SCHEMA).collect()
        outcomes = [ShardOutcome.from_json(row["info"]) for row in reports]
        if sorted(outcome.shard for outcome in outcomes) != sorted(job.files):
            raise TidegateError(f"shards {sorted(job.files)} should report, but some did not. Nothing was committed")
        return outcomes

    @cached_property
    def _rows(self) -> DataFrame:
        """Every usable row that was read, also from the version that was read in part."""
        source, position = self._source, self._position
        parts = []
        if position.version >= 0:
            parts.append(source.rows_at(position.version, self._head.manifest))
        if position.files:
            commits = source.commits(position.version, position.version + 1)
            begun = [file for commit in commits for file in commit.files[: position.files]]
            frame = source.frames.files(position.version + 1, [file.action for file in begun])
            origins = {file.path: (0, commits[0].time) for file in begun}
            parts.append(source.frames.judged(frame, source.bound.source, origins))
        if not parts:
            name = source.bound.pipeline.name
            raise Refused(f"pipeline {name!r} has read nothing yet: first run `tidegate stream {name} --available-now`")
        rows = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
        usable = F.col(STATUS) == OK
        return rows.where(usable if position.frontier is None else usable & (F.col(TIME) < position.frontier))

    def _events(self, plan: ReopenPlan) -> DataFrame:
        bound, spans = self._source.bound, plan.spans
        renamed = spans.rename_columns([f"__span_{name}" for name in plan.key] + [START, END])
        wanted = F.broadcast(self._spark.createDataFrame(renamed))
        within: Column = (F.col(TIME) >= F.col(START)) & (F.col(TIME) < F.col(END))
        for name in plan.key:
            within = within & F.col(quoted(name)).eqNullSafe(F.col(quoted(f"__span_{name}")))
        groups = bound.pipeline.max_parallelism
        names = [F.col(quoted(name)) for name in plan.key]
        key_group = F.pmod(F.xxhash64(*names) if names else F.lit(SPARK_SEED), F.lit(groups))
        first, last = (pc.min_max(spans[name]) for name in (START, END))
        all_of_it = Interval(start=first["min"].as_py(), end=last["max"].as_py())
        rows = self._rows.where(may_lie_within(self._source, all_of_it))
        return rows.join(wanted, within).select(
            _shard_of(plan, key_group).alias(SHARD),
            F.col(TIME),
            F.lit(0).alias(COMMIT),
            *[F.col(quoted(name)).alias(f"{KEY_PREFIX}{name}") for name in plan.key],
            *[F.col(quoted(name)).alias(f"{VALUE_PREFIX}{name}") for name in bound.used],
        )

    def _markers(self, job: ReopenJob) -> DataFrame:
        """Return a marker for each shard of the job. Shards without events run too, to retract published panes."""
        rows = [(number, str(number)) for number in job.files]
        return self._spark.createDataFrame(rows, f"{SHARD} int, {MARKER} string")


def _shard_of(plan: ReopenPlan, key_group: Column) -> Column:
    """Return the number of a key group's shard. The shards are those of the head, which may differ in size."""
    number = F.lit(0)
    for index, shard in enumerate(plan.epoch.shards):
        number = F.when(key_group >= shard.first, F.lit(index)).otherwise(number)
    return number.cast("int")
