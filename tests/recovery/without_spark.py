"""Streams without a JVM: what Spark does for one is done here in Python, and all else is the product.

Stood in for are the reading of files, the aggregate of a slice, and the job that runs the shards. The
driver, its steps, the loop over the source's log, its limits, the position, event time, the operators,
commit, publish and recovery are the product's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pytest

from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.event_columns import DROPPED, OK, ONLY_PARTITION, ROW, STATUS
from tidegate.pipelines.epoch import operate as operate_step
from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.plan import EpochPlan, SliceCounts, SliceFrames
from tidegate.pipelines.epoch.plan_commits import _position
from tidegate.pipelines.epoch.read_commits import ReadCommit, in_steps, steps_of
from tidegate.pipelines.epoch.shard import ShardOutcome, run_shard
from tidegate.pipelines.epoch.shards import cut_shards
from tidegate.pipelines.run import replay, stream
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.sources.base import Source, SparkReader
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.open_input import OpenInput
from tidegate.pipelines.sources.open_source import open_source
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.testing.rows import event_millis, events_table, joint, status
from tidegate.windowing.time import MIN_TIMESTAMP, Millis


class NoSpark:
    """Stands where the session would: nothing but the number of cores is asked of it."""

    class sparkContext:  # noqa: N801
        defaultParallelism = 2  # noqa: N815


CONDITIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "value % 3 <> 0": lambda row: row["value"] % 3 != 0,
    "value % 2 = 0": lambda row: row["value"] % 2 == 0,
    "value > 4": lambda row: row["value"] > 4,
}
"""Meanings of some conditions of `where`, since their SQL is Spark's."""


def is_kept(where: str | None, row: dict[str, Any]) -> bool:
    """True if `where` keeps a row."""
    return where is None or CONDITIONS[where](row)


@contextmanager
def standing_in(session: object) -> Iterator[None]:
    """Within it a stream runs in the session, and without a JVM where that is `NoSpark`."""
    with pytest.MonkeyPatch.context() as planted:
        if isinstance(session, NoSpark):
            planted.setattr(OpenInput, "open", _open)
            for module in (stream, replay):
                planted.setattr(module, "plan_commits", plan_commits)
            planted.setattr(operate_step, "operate", operate)
        yield


@dataclass(frozen=True)
class Files:
    """Reads one source where Spark would; its expressions have no columns of their own."""

    source: Source

    def schemas(self, version: int) -> tuple[pa.Schema, pa.Schema]:
        """The columns of the source, and the same as the columns after `columns=`."""
        columns = self.source.now().schema
        return columns, columns

    def rows(self, commit: ReadCommit, columns: pa.Schema) -> list[dict[str, Any]]:
        """The rows of a commit, or of the part of it that is read."""
        rows: list[dict[str, Any]] = []
        reader = self.source.now().reader(columns)
        for file in commit.files:
            with reader.open(FilePart.of(file, 0, 0)) as part:
                for _, group in part.groups():
                    rows += part.read(group, columns.names).to_pylist()
        return rows


@dataclass(frozen=True)
class Slice:
    """The rows of a slice: (commit, event time, source row, derived row), and those of no use with the reason."""

    usable: list[tuple[int, Millis, dict[str, Any], dict[str, Any]]]
    rejected: list[tuple[dict[str, Any], str]]
    dropped: list[dict[str, Any]] = field(default_factory=list)
    files: None = None


def _open(spark: object, tables: PipelineTables, pipeline: Pipeline) -> OpenInput:
    logs = [open_source(part.source, tables.warehouse) for part in pipeline.inputs]
    readers = [cast("SparkReader", Files(log)) for log in logs]
    return OpenInput._bound(pipeline, tables.warehouse, logs, readers)


def plan_commits(
    source: OpenInput,
    tables: PipelineTables,
    commits: Sequence[ReadCommit],
    head: Snapshot | None,
    now: Millis,
    shards: int,
) -> EpochPlan:
    """The plan of an epoch, its slice read and judged row by row."""
    bound, pipeline = source.bound, source.bound.pipeline
    manifest = None if head is None else head.manifest
    if manifest is not None:
        for input_ in source.inputs:
            input_.position_of(manifest)
    before = MIN_TIMESTAMP if manifest is None else manifest.watermark
    times = EventTimes.of(pipeline, manifest)
    commits = in_steps(commits, times)
    found, largest = Slice([], []), defaultdict[int, dict[str, Millis]](dict)
    for read in commits:
        input_, part = bound.inputs[read.number], source.inputs[read.number]
        for row in cast("Files", part.frames).rows(read, input_.source):
            time = event_millis(input_.input.source, row[input_.input.source.timestamp])
            kept = row if is_kept(input_.input.where, row) else None
            judged = status(bound, kept, time, read.commit.time, input_)
            if judged == DROPPED:
                found.dropped.append(row)
                continue
            whole, derived = joint(bound, input_, row, row)
            if judged != OK or time is None:
                found.rejected.append((dict(whole), judged))
                continue
            found.usable.append((read.step, time, dict(whole), dict(derived)))
            by = ONLY_PARTITION if input_.input.watermark_by is None else str(row[input_.input.watermark_by])
            largest[read.step][by] = max(largest[read.step].get(by, time), time)
    rejected = {reason: sum(found == reason for _, found in found.rejected) for _, reason in found.rejected}
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=head,
        head=head,
        kind="stream",
        positions={
            table: position
            for input_ in source.inputs
            for table, position in _position(input_, commits, manifest).items()
        },
        frames=cast("SliceFrames", found),
        counts=SliceCounts(usable=len(found.usable), dropped=len(found.dropped), rejected=rejected),
        steps=steps_of(commits, times, largest, lambda read: ()),
        partitions=times.partitions,
        input_watermarks=times.watermarks,
        watermark_before=before,
        shards=cut_shards(shards, pipeline.max_parallelism),
        stale=() if manifest is None else manifest.stale,
        started_at=now,
    )


def operate(spark: object, plan: EpochPlan) -> list[ShardOutcome]:
    """Run every shard, as its task would, and write what is rejected."""
    job = operate_step.job_of(plan)
    found = cast("Slice", plan.frames) if isinstance(plan.frames, Slice) else Slice([], [])
    markers = operate_step.markers_of(plan)
    # Files of a plain source are read by the product itself: in backfills, and where a stream takes over from one.
    read = job.read([marker.shard for marker in markers])
    events = partial(_events, plan, found) if job.files is None else read.get
    reports = [run_shard(job, marker, partial(events, marker.shard)) for marker in markers]
    if found.rejected:
        rows = [row for row, _ in found.rejected]
        columns = {
            ROW: pa.array(rows, pa.struct(list(plan.bound.source))),
            STATUS: [reason for _, reason in found.rejected],
        }
        reports += operate_step.write_rejects(job, iter([pa.RecordBatch.from_pydict(columns)]))
    outcomes = [ShardOutcome.from_json(row["info"]) for report in reports for row in report.to_pylist()]
    operate_step._check_complete(plan, outcomes)
    return outcomes


def _events(plan: EpochPlan, found: Slice, shard: int) -> pa.Table | None:
    groups, key = plan.shards[shard], plan.bound.key
    own = [
        event
        for event in found.usable
        if groups.first
        <= key.key_group_of(key.key_of([event[3][name] for name in key.names]), plan.bound.pipeline.max_parallelism)
        <= groups.last
    ]
    return events_table(plan.bound, own) if own else None
