"""Epochs made by hand: the product's shards, commit and publish run over given rows, in this process, without Spark."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from tests.commit_times import date_commit, newest_entry
from tests.lake import EVENTS, at, session_pipeline
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.definition.event_columns import COMMIT, KEY_PREFIX, ROW, TIME, VALUE_PREFIX
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch.commit import commit
from tidegate.pipelines.epoch.event_times import CommitStep
from tidegate.pipelines.epoch.file_measure import SliceCounts
from tidegate.pipelines.epoch.operate import job_of, markers_of
from tidegate.pipelines.epoch.plan import EpochPlan, cut_shards
from tidegate.pipelines.epoch.shard import ShardOutcome, run_shard
from tidegate.pipelines.ledger.manifest import Interval, Manifest, PartitionWatermark, StaleInterval
from tidegate.pipelines.ledger.snapshots.head import Snapshot, read_snapshot
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PipelineTables
from tidegate.pipelines.ledger.tables.table_log import TableLog
from tidegate.pipelines.storage.warehouse import Warehouse, read_table
from tidegate.windowing.time import to_millis

Row = tuple[str, datetime, int]
"""An event as tests write it: user, at, value."""

START_OF_DRIVER = 1_710_000_000_000
"""Clock of the first epoch, int64 epoch milliseconds."""


@dataclass
class ByHand:
    """A pipeline whose epochs a test runs one by one, each with the rows and the watermark that it names.

    Args:
        folder: folder for the warehouse.
        pipeline: a pipeline over the columns user, at and value.
        parallelism: number of shards of the next epochs.
        elsewhere: a warehouse outside the folder.
        templates: folder of warehouses that other tests of the run have filled; None if nothing is copied.
    """

    folder: Path
    pipeline: Pipeline = field(default_factory=session_pipeline)
    parallelism: int = 2
    elsewhere: Warehouse | None = None
    templates: Path | None = None

    @property
    def warehouse(self) -> Warehouse:
        """The warehouse in the folder, if it is not elsewhere."""
        return self.elsewhere or Warehouse(str(self.folder / "warehouse"))

    @property
    def tables(self) -> PipelineTables:
        """The pipeline's tables."""
        return PipelineTables(self.warehouse, self.pipeline.name)

    def head(self) -> Snapshot:
        """The newest snapshot."""
        snapshot = read_snapshot(self.tables)
        assert snapshot is not None
        return snapshot

    def rows(self, table: str) -> pa.Table:
        """All rows of one of the pipeline's tables."""
        return read_table(self.warehouse, self.tables.open(table))

    def epoch(self, *rows: Row, watermark: datetime, **planned: Any) -> Manifest:
        """Run an epoch of one source commit to its end."""
        manifest = self.committed(self.planned(rows, watermark, **planned))
        publish(self.tables, manifest)
        return manifest

    def hours(self, *numbers: int) -> None:
        """Run epochs that each have a session of ann at the full hour, and in which the session of the hour before
        fires.
        """

        def fill(by_hand: ByHand) -> None:
            for number in numbers:
                by_hand.epoch(("ann", at(f"{number:02d}:00"), number), watermark=at(f"{number:02d}:00"))

        self.filled(f"hours {numbers}", fill)

    def filled(self, name: str, fill: Callable[[ByHand], None]) -> None:
        """Fill a warehouse. An empty one gets a copy of what `fill` wrote in an earlier test of the run."""
        if self.templates is None or self.tables.exist or self != ByHand(self.folder, templates=self.templates):
            fill(self)
            return
        template = self.templates / name
        if not template.exists():
            fill(ByHand(template))
        shutil.copytree(template, self.folder, dirs_exist_ok=True)

    def planned(
        self,
        rows: Sequence[Row],
        watermark: datetime,
        kind: Literal["backfill", "stream"] = "stream",
        interval: tuple[datetime, datetime] | None = None,
        parent: Snapshot | None = None,
        stale: tuple[StaleInterval, ...] = (),
        partitions: Mapping[str, PartitionWatermark] | None = None,
    ) -> HandPlan:
        """Return the plan of an epoch that reads these rows and ends at a watermark."""
        head = read_snapshot(self.tables)
        # An epoch continues its parent's timeline only if the parent is the plan's newest snapshot itself.
        start = head if parent is None or (head is not None and parent.version == head.version) else parent
        number = 1 if head is None else head.manifest.epoch + 1
        before = to_millis(watermark) - 86_400_000 if start is None else start.manifest.watermark
        spans = None if interval is None else Interval(start=to_millis(interval[0]), end=to_millis(interval[1]))
        plan = EpochPlan(
            tables=self.tables,
            bound=bind(self.pipeline, EVENTS, EVENTS),
            parent=start,
            head=head,
            kind=kind,
            order=None,
            interval=spans,
            positions={
                self.pipeline.source.table: Position(version=number, frontier=None if spans is None else spans.end)
            },
            counts=SliceCounts(usable=len(rows)),
            steps=(CommitStep(START_OF_DRIVER + number * 60_000, to_millis(watermark)),),
            partitions=dict(partitions or {}),
            watermark_before=before,
            shards=cut_shards(self.parallelism, self.pipeline.max_parallelism),
            replaced_epochs=(),
            stale=stale,
            run_id=uuid.uuid4().hex,
            started_at=START_OF_DRIVER + number * 60_000,
        )
        return HandPlan(plan, tuple(rows))

    def dated(self, moment: datetime) -> None:
        """Set the time of the newest commit of each of the pipeline's tables, as recorded in their logs."""
        for table in ALL:
            date_commit(newest_entry(self.tables.path(table)), to_millis(moment))

    def committed(self, planned: HandPlan, step: Callable[[], None] = lambda: None) -> Manifest:
        """Operate and commit a plan; `step` is called in between."""
        outcomes = planned.operate()
        step()
        return commit(planned.plan, outcomes, {})


@dataclass(frozen=True)
class HandPlan:
    """A plan, and the rows that Spark would have read for it."""

    plan: EpochPlan
    rows: tuple[Row, ...]

    def operate(self) -> list[ShardOutcome]:
        """Run every shard, as its task would."""
        job = job_of(self.plan)
        return [
            ShardOutcome.from_json(report["info"])
            for marker in markers_of(self.plan)
            for report in run_shard(job, marker, partial(self._events, marker.shard)).to_pylist()
        ]

    def _events(self, shard: int) -> Iterator[pa.Table]:
        groups = self.plan.shards[shard]
        key, parallelism = self.plan.bound.key, self.plan.bound.pipeline.max_parallelism
        rows = [dict(zip(EVENTS.names, row, strict=True)) for row in self.rows]
        keys = [key.key_of([row[name] for name in key.names]) for row in rows]
        own = [
            row
            for row, value in zip(rows, keys, strict=True)
            if groups.first <= key.key_group_of(value, parallelism) <= groups.last
        ]
        columns: dict[str, pa.Array] = {
            TIME: pa.array([to_millis(row["at"]) for row in own], pa.int64()),
            COMMIT: pa.array([0] * len(own), pa.int32()),
        }
        for prefix, names in ((KEY_PREFIX, key.names), (VALUE_PREFIX, self.plan.bound.used)):
            for name in names:
                columns[f"{prefix}{name}"] = pa.array([row[name] for row in own], EVENTS.field(name).type)
        columns[ROW] = pa.array(own, pa.struct(list(EVENTS)))
        yield pa.table(columns)


def shorten_log(tables: PipelineTables, table: str, oldest: int) -> None:
    """Truncate the log of a table so that it begins at a version: a checkpoint for it, and no earlier entries."""
    log = TableLog(tables, table)
    if any(version < oldest for version in log.versions):
        log.keep((), oldest)
