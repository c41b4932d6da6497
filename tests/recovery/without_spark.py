"""Streams without a JVM: what Spark does for one is done here in Python, and all else is the product.

Stood in for are the reading of files, the aggregate of a slice, the job that runs the shards, and the
query that cuts the source's log into batches. The driver, its steps, the position, event time, the
operators, commit, publish and recovery are the product's own.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import pyarrow as pa
import pytest

from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.binding import BoundPipeline, bind
from tidegate.pipelines.definition.event_columns import DROPPED, OK, ONLY_PARTITION, ROW, STATUS
from tidegate.pipelines.definition.retyped import with_renamed
from tidegate.pipelines.epoch import operate as operate_step
from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.plan import EpochPlan, SliceCounts, SliceFrames
from tidegate.pipelines.epoch.plan_commits import _position
from tidegate.pipelines.epoch.read_commits import ReadCommit, in_steps, steps_of
from tidegate.pipelines.epoch.shard import ShardOutcome, run_shard
from tidegate.pipelines.epoch.shards import cut_shards
from tidegate.pipelines.manifest import Position
from tidegate.pipelines.run import replay, stream
from tidegate.pipelines.run.spark_checkpoint import seed_checkpoint
from tidegate.pipelines.run.stream import Stream
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.sources.frames import SourceFrames
from tidegate.pipelines.sources.log import SourceLog
from tidegate.pipelines.sources.source import Source
from tidegate.pipelines.storage import Warehouse, arrow_schema
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.testing.rows import event_millis, events_table, status
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
            planted.setattr(Source, "open", _open)
            for module in (stream, replay):
                planted.setattr(module, "plan_commits", plan_commits)
            planted.setattr(stream, "_Running", Batches)
            planted.setattr(operate_step, "operate", operate)
        yield


@dataclass(frozen=True)
class Files:
    """Reads files of the source where Spark would."""

    warehouse: Warehouse
    path: str
    bound: BoundPipeline

    def rows(self, commit: ReadCommit) -> list[dict[str, Any]]:
        """The rows of a commit, or of the part of it that is read."""
        names = [file.path for file in commit.files]
        rows: list[dict[str, Any]] = self.warehouse.read_files(self.path, names, self.bound.source).to_pylist()
        return rows


@dataclass(frozen=True)
class Slice:
    """The rows of a slice: (commit, event time, source row, derived row), and those of no use with the reason."""

    usable: list[tuple[int, Millis, dict[str, Any], dict[str, Any]]]
    rejected: list[tuple[dict[str, Any], str]]
    dropped: list[dict[str, Any]] = field(default_factory=list)
    files: None = None


def _open(spark: object, tables: PipelineTables, pipeline: Pipeline) -> Source:
    path = tables.warehouse.path(pipeline.source.table)
    columns = arrow_schema(tables.warehouse.open(path))
    bound = with_renamed(bind(pipeline, columns, columns), tables)
    return Source(SourceLog(tables.warehouse, path), cast("SourceFrames", Files(tables.warehouse, path, bound)), bound)


def plan_commits(
    source: Source,
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
        source.position_of(manifest)
    before = MIN_TIMESTAMP if manifest is None else manifest.watermark
    times = EventTimes.of(pipeline, manifest)
    commits = in_steps(commits, times)
    found, largest = Slice([], []), defaultdict[int, dict[str, Millis]](dict)
    for read in commits:
        for row in cast("Files", source.frames).rows(read):
            time = event_millis(pipeline.source, row[pipeline.source.timestamp])
            judged = status(bound, row if is_kept(pipeline.where, row) else None, time, read.commit.time)
            if judged == DROPPED:
                found.dropped.append(row)
                continue
            if judged != OK or time is None:
                found.rejected.append((row, judged))
                continue
            found.usable.append((read.step, time, row, row))
            by = ONLY_PARTITION if pipeline.watermark_by is None else str(row[pipeline.watermark_by])
            largest[read.step][by] = max(largest[read.step].get(by, time), time)
    rejected = {reason: sum(found == reason for _, found in found.rejected) for _, reason in found.rejected}
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=head,
        head=head,
        kind="stream",
        positions=_position(source, commits, manifest),
        frames=cast("SliceFrames", found),
        counts=SliceCounts(usable=len(found.usable), dropped=len(found.dropped), rejected=rejected),
        steps=steps_of(commits, times, largest, lambda read: ()),
        partitions=times.partitions,
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


@dataclass
class Batches:
    """The query: batches of a given number of files, each with its end in the checkpoint before it is handed out."""

    stream: Stream
    source: Source
    positions: tuple[Position, ...]
    interval: object

    def __enter__(self) -> Batches:
        name = f"{self.stream.driver.pipeline.name}-{uuid.uuid4().hex}"
        self.checkpoint: Path = self.stream.work / "checkpoints" / name
        (position,) = self.positions
        if position.version >= 0:
            seed_checkpoint(self.checkpoint, [(self.source.log.table_id, position)])
        return self

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
        """Hand out everything that the log holds now."""
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
        for number, (version, index) in enumerate(self._ends(), start=1):
            offset = {"reservoirId": self.source.log.table_id, "reservoirVersion": version, "index": index}
            (self.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
            self.stream._take(self.checkpoint, number)
            (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")
        return True

    def _ends(self) -> Iterator[tuple[int, int]]:
        """The last file of each batch as Delta names it; after a version's last file, the next version."""
        (begin,), limit = self.positions, int(self.stream.options.get("maxFilesPerTrigger", "1000"))
        files = [
            (commit.version, index) if index + 1 < len(commit.files) else (commit.version + 1, -1)
            for commit in self.source.log.commits(begin.version)
            for index in range(begin.files if commit.version == begin.version + 1 else 0, len(commit.files))
        ]
        yield from files[limit - 1 :: limit]
        if len(files) % limit:
            yield files[-1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stream.shutil.rmtree(self.checkpoint, ignore_errors=True)
