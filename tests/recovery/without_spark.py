"""Streams without a JVM: the job that runs the shards is done here in this process, and all else is the product.

Sources are read by Arrow, and their SQL is proven, so that nothing else asks for Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from tidegate.pipelines.epoch import operate as operate_step
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.epoch.shard import ShardOutcome, run_shard
from tidegate.pipelines.reopen import passed
from tidegate.pipelines.reopen.plan import ReopenPlan
from tidegate.pipelines.reopen.source_rows import SourceRows, events_within
from tidegate.pipelines.reopen.task import ReopenJob
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.slice_rows import Run
from tidegate.pipelines.spark.on_demand import SparkOnDemand


class NoSpark:
    """Stands where the session would: nothing but its settings and the number of cores is asked of it."""

    class sparkContext:  # noqa: N801
        defaultParallelism = 2  # noqa: N815

    class conf:  # noqa: N801
        @staticmethod
        def get(name: str, default: None) -> None:
            """Return the default: nothing is set."""
            return default


NEVER_STARTED = SparkOnDemand(lambda: pytest.fail("Spark starts"), lambda name: None)
"""A session that is not needed: nothing is set, and its start fails the test."""

CONDITIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "value % 3 <> 0": lambda row: row["value"] % 3 != 0,
    "value % 2 = 0": lambda row: row["value"] % 2 == 0,
    "value > 4": lambda row: row["value"] > 4,
}
"""Meanings of some conditions of `where`, for tests that say what is right without the product."""


def is_kept(where: str | None, row: dict[str, Any]) -> bool:
    """True if `where` keeps a row."""
    return where is None or CONDITIONS[where](row)


@contextmanager
def standing_in(session: object) -> Iterator[None]:
    """Within it a stream runs in the session, and without a JVM where that is `NoSpark`."""
    with pytest.MonkeyPatch.context() as planted:
        if isinstance(session, NoSpark):
            planted.setattr(operate_step, "operate", operate)
            planted.setattr(SourceRows, "correct", correct)
            planted.setattr(passed, "run_over", _Batches)
        yield


class _Batches:
    """Stands where Spark's frame would: the batches that one task yields."""

    def __init__(self, spark: object, files: FileSlice, run: Run, schema: object) -> None:
        self.batches = list(run(files.judged()))
        self.names: list[str] | None = getattr(schema, "names", None)

    def toArrow(self) -> pa.Table:  # noqa: N802 - the name of Spark
        """Return the rows."""
        if not self.batches:
            return pa.table({name: pa.nulls(0) for name in self.names or ()})
        table = pa.Table.from_batches(self.batches)
        return table.rename_columns(self.names or table.column_names)


def correct(rows: SourceRows, plan: ReopenPlan) -> list[ShardOutcome]:
    """Compute the stretches of a plan again, as the tasks would."""
    job, files = ReopenJob.of(plan), rows.files_of(plan)
    events = events_within(plan.epoch.bound.key, files, files.judged(), plan.spans)
    reports = job.run_shards(list(job.files), events)
    return [ShardOutcome.from_json(row["info"]) for report in reports for row in report.to_pylist()]


def operate(spark: object, plan: EpochPlan) -> list[ShardOutcome]:
    """Run every shard, as its task would, and write what is rejected."""
    job, markers = operate_step.job_of(plan), operate_step.markers_of(plan)
    events = job.read([marker.shard for marker in markers])
    reports = [run_shard(job, marker, lambda marker=marker: events.get(marker.shard)) for marker in markers]  # type: ignore[misc]
    if (unusable := plan.rows.unusable) is not None:
        reports += operate_step.write_rejects(job, unusable, unusable.judged())
    outcomes = [ShardOutcome.from_json(row["info"]) for report in reports for row in report.to_pylist()]
    operate_step._check_complete(plan, outcomes)
    return outcomes
