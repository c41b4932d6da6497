"""Late rows of a stream over a real source reopened without Spark: what that reads is read here by Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from tests.conditions import is_kept
from tests.lake import LOCAL, Lake
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.event_columns import OK
from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.shard import ShardOutcome
from tidegate.pipelines.manifest import Interval, Manifest
from tidegate.pipelines.reopen.passed import judged_at
from tidegate.pipelines.reopen.recompute import commit_recomputed, recompute
from tidegate.pipelines.reopen.recompute_plan import RecomputePlan, Selection
from tidegate.pipelines.reopen.recompute_shard import RecomputeJob
from tidegate.pipelines.reopen.spans import END, START
from tidegate.pipelines.run.driver import Driver
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.snapshots.publish import publish
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.testing.rows import event_millis, events_table, status
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import Millis


@dataclass(frozen=True)
class LakeRows:
    """The usable rows of a plain source that a snapshot has read, each with its version."""

    source: OpenInput
    head: Snapshot
    tables: PipelineTables

    @cached_property
    def rows(self) -> list[tuple[int, Millis, dict[str, Any]]]:
        """Version, event time and columns."""
        bound, position = self.source.bound, self.source.position_of(self.head.manifest)
        found = []
        for commit in self.source.commits(-1, position.version):
            names = [file.path for file in commit.files]
            rows = self.source.warehouse.read_files(self.source.log.path, names, bound.source)
            for row in rows.to_pylist():
                time = event_millis(bound.pipeline.source, row[bound.pipeline.source.timestamp])
                kept = row if is_kept(bound.pipeline.where, row) else None
                if status(bound, kept, time, commit.time) == OK and time is not None:
                    found.append((commit.version, time, row))
        return found

    def keyed(self, late_rows: pa.Table) -> pa.Table:
        """The key is a column of the source, and of table late."""
        assert "user" in late_rows.column_names
        return late_rows

    def passed(self, windows: Windows, within: Interval) -> pa.Table:
        """Windows that had passed by the watermark that their row's version was judged against."""
        by_clock = EventTimes.of(self.source.bound.pipeline, self.head.manifest).move_by_clock
        judged = judged_at(self.tables, self.head.manifest.watermark, by_clock)
        found = {
            (row["user"], *window)
            for version, time, row in self.rows
            if within.start <= time < within.end
            for window in windows.assigner.assign_windows(row, time, None)  # type: ignore[arg-type]
            if window.max_timestamp + windows.lateness <= judged(version)
        }
        keys, starts, ends = zip(*sorted(found), strict=True) if found else ((), (), ())
        return pa.table(
            {"user": pa.array(keys, pa.string()), START: pa.array(starts, pa.int64()), END: pa.array(ends, pa.int64())}
        )

    def correct(self, plan: RecomputePlan) -> list[ShardOutcome]:
        """Every shard that has something to do, as its task would."""
        job, spans = RecomputeJob.of(plan), plan.spans.to_pylist()
        bound, parallelism = plan.epoch.bound, plan.epoch.bound.pipeline.max_parallelism
        inside = [
            (0, time, row, row)
            for _, time, row in self.rows
            if any(span["user"] == row["user"] and span[START] <= time < span[END] for span in spans)
        ]

        def own(number: int) -> pa.Table:
            shard = plan.epoch.shards[number]
            groups = [bound.key.key_group_of(row["user"], parallelism) for _, _, row, _ in inside]
            return events_table(
                bound,
                [event for event, group in zip(inside, groups, strict=True) if shard.first <= group <= shard.last],
            )

        return [job.run(number, own(number)) for number in job.files]


def reopen(lake: Lake, pipeline: Pipeline, selection: Selection | None = None) -> Manifest | None:
    """Reopen late rows, all by default; None where there was nothing to do."""
    with lake.driver(LOCAL, pipeline) as driver:
        return _reopened(driver, selection or Selection())


def _reopened(driver: Driver, selection: Selection) -> Manifest | None:
    head, source = driver.recover(), OpenInput.open(driver.engine, driver.tables, driver.pipeline)
    assert head is not None
    rows = LakeRows(source, head, driver.tables)
    plan, outcomes = recompute(driver.tables, source.bound, head, selection, rows, driver.clock())
    if not any(plan.late_rows) and not any(outcome.files for outcome in outcomes):
        return None
    manifest = commit_recomputed(plan, outcomes)
    publish(driver.tables, manifest)
    return manifest
