"""Source rows that tasks read again: the same windows and corrections as by rows that are looked at one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.conditions import is_kept
from tests.lake import LOCAL
from tests.pipelines.epoch.test_drawn import Drawn
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition.event_columns import OK
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.epoch.correct import RecomputeJob
from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.passed import judged_at
from tidegate.pipelines.epoch.recompute_plan import RecomputePlan
from tidegate.pipelines.epoch.recompute_rows import SourceRows
from tidegate.pipelines.epoch.shard import ShardOutcome
from tidegate.pipelines.epoch.spans import END, START
from tidegate.pipelines.ledger.manifest import Interval
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.project.harness_rows import event_millis, events_table, status
from tidegate.pipelines.run import corrections
from tidegate.windowing import Count, TumblingEventTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.time import Millis

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class OneByOne:
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


class BothRows(SourceRows):
    """Holds the answers of the product against those of the rows that are looked at one by one."""

    def __init__(self, engine: Engine, source: OpenInput, head: Snapshot, tables: PipelineTables) -> None:
        super().__init__(engine, source, head, tables)
        self.one_by_one = OneByOne(source, head, tables)

    def passed(self, windows: Windows, within: Interval) -> pa.Table:
        """The windows that both name."""
        given, expected = super().passed(windows, within), self.one_by_one.passed(windows, within)
        order = [(name, "ascending") for name in ("user", START, END)]
        assert set(map(str, expected.sort_by(order).to_pylist())) <= set(map(str, given.to_pylist()))
        return given

    def correct(self, plan: RecomputePlan) -> list[ShardOutcome]:
        """The outcomes of the rows that the product reads."""
        given, expected = super().correct(plan), self.one_by_one.correct(plan)
        assert [counted(outcome) for outcome in given] == [counted(outcome) for outcome in expected]
        return given


def counted(outcome: ShardOutcome) -> tuple[int, bool, dict[str, int], int]:
    return outcome.shard, outcome.changed, outcome.counters, outcome.rows


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterable[None]:
    """Tasks run in this process."""
    monkeypatch.setattr(corrections, "SourceRows", BothRows)
    return ()


@pytest.mark.first(1)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ["sessions", "sliding", "gaps"])
def test_tasks_read_the_rows_of_the_stretches(tmp_path: Path, both: Iterator[None], kind: str, seed: int) -> None:
    drawn = Drawn.of(tmp_path, kind, seed)
    drawn.arrive(8)
    drawn.stream()
    drawn.lake.reopen(LOCAL, drawn.pipeline)
    drawn.end()
    drawn.lake.reopen(LOCAL, drawn.pipeline)
    assert drawn.late() == 0


PIPELINE = Pipeline(
    name="hours",
    source=DeltaSource("events", timestamp="time", unit="ms"),
    key=("user",),
    watermark=WatermarkStrategy.for_bounded_out_of_orderness(10),
    watermark_by="user",
    compute=Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"n": Count()}),
)


def test_a_partition_behind_in_an_older_manifest_is_one_that_came_back() -> None:
    """They did not tell it from a new one, and waited for neither."""
    times = EventTimes.restored(PIPELINE, 0, 0, {}, {})
    step = times.step(0, {"a": 500, "b": 300}, 1_000)
    older = {name: partition.model_copy(update={"aligned": None}) for name, partition in times.partitions.items()}
    restored = EventTimes.restored(PIPELINE, 489, step.clock, older, {})
    assert restored.step(0, {"a": 800}, 1_010).watermark == 789
    assert restored.step(0, {"b": 850}, 1_020).watermark == 789, "from when it has caught up it counts"
    assert restored.step(0, {"a": 990}, 1_030).watermark == 839
