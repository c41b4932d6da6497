"""The law of changes: whatever happens to a source, the final windows are those of one backfill of it as it is now.

Sources are drawn: rows come, go, change and come back. The pipeline reads as a stream, of which all late rows are
reopened, or as a backfill interval by interval. No JVM runs.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.lake import DAY0, Clock, Lake, conserved, hourly_pipeline, session_pipeline
from tests.pipelines.looping import NO_SPARK, available
from tests.pipelines.sources.changing import Changing
from tests.recovery.without_spark import NoSpark, standing_in
from tidegate.expectations.pinned import pin
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.reopen.selection import Selection
from tidegate.pipelines.run.reopen_late import reopen
from tidegate.windowing import (
    Accumulation,
    Count,
    EventTimeSessionWindows,
    GapColumn,
    Max,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.time import to_millis

pytestmark = pytest.mark.slow

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
CORRECTING = DeltaSource("events", timestamp="at", changes="correct")
SUMS: dict[str, Any] = {"aggregate": {"events": Count(), "total": Sum("value"), "largest": Max("value")}}
OPTIONS: dict[str, Any] = {
    "source": CORRECTING,
    "max_ahead": timedelta(days=99),
    "watermark": WatermarkStrategy.for_bounded_out_of_orderness(20 * MINUTE),
    "parallelism": 2,
}


def windows(assigner: Any, **options: Any) -> Pipeline:
    return hourly_pipeline(compute=Windows(assigner, **SUMS, **options), **OPTIONS)


HOURS = TumblingEventTimeWindows.of(HOUR)
PIPELINES = {
    "hours": windows(HOURS),
    "hours with lateness": windows(HOURS, allowed_lateness=2 * HOUR),
    "hours, discarding": windows(HOURS, accumulation=Accumulation.DISCARDING),
    "hours, retracting": windows(HOURS, allowed_lateness=HOUR, accumulation=Accumulation.RETRACTING),
    "sliding": windows(SlidingEventTimeWindows.of(HOUR, 20 * MINUTE)),
    "sliding with gaps": windows(SlidingEventTimeWindows.of(20 * MINUTE, 30 * MINUTE), allowed_lateness=HOUR),
    "sessions": session_pipeline(12 * MINUTE, **OPTIONS),
    "sessions, discarding": windows(
        EventTimeSessionWindows.with_gap(12 * MINUTE), accumulation=Accumulation.DISCARDING
    ),
    "gaps": windows(EventTimeSessionWindows.with_dynamic_gap(GapColumn("value"))),
    "by user": replace(windows(HOURS), watermark_by="user"),
    "no key": replace(windows(HOURS), key=()),
    "where": replace(windows(HOURS), where="value > 700000", columns={"value": "value * 2"}),
}


def scratch(lake: Lake, pipeline: Pipeline, watermark: int, folder: Path) -> list[tuple[Any, ...]]:
    """The final windows of one fresh backfill of the table as it is now, up to a watermark."""
    merges = pipeline.compute.assigner.merges  # type: ignore[union-attr]
    fresh = replace(pipeline, name=f"fresh{lake.clock.now}")
    lake.clock.now += 1
    end = DAY0 + timedelta(milliseconds=watermark - to_millis(DAY0) + (2 if merges else 1))
    with standing_in(NoSpark()):
        lake.backfill(NO_SPARK, fresh, DAY0 - timedelta(days=1), end)
    return compared(lake.final(fresh).to_pylist())


def compared(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("user", "window_start", "window_end", "events", "total")
    return sorted(tuple(row.get(name) for name in names) for row in rows)


def reopened(lake: Lake, pipeline: Pipeline) -> None:
    with standing_in(NoSpark()), lake.driver(NO_SPARK, pipeline) as driver:
        reopen(driver, Selection())


def check_counts(lake: Lake, pipeline: Pipeline) -> None:
    """Each row of table epochs, and the ledger with the elements in windows, must add up."""
    assert conserved(lake.rows(pipeline, "epochs").to_pylist())
    ledger = pin(lake.tables(pipeline), pipeline).ledger
    assert ledger[ledger["counted"] != ledger["found"]].to_dict("records") == []


def drawn(folder: Path, seed: str) -> Changing:
    changing = Changing(Lake(folder, Clock(to_millis(DAY0) + 3_600_000)), random.Random(seed))
    changing.append()
    changing.settle()
    return changing


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PIPELINES)
def test_a_stream_with_everything_reopened_is_a_backfill_of_the_table_as_it_is(
    tmp_path: Path, name: str, seed: int
) -> None:
    changing, pipeline = drawn(tmp_path, f"{name} {seed}"), PIPELINES[name]
    lake, happened = changing.lake, list[str]()
    for _ in range(3):
        for _ in range(3):
            happened.append(changing.happen())
            if changing.draw.random() < 0.6:
                available(lake, pipeline)
        available(lake, pipeline)
        if changing.draw.random() < 0.6:
            reopened(lake, pipeline)
    reopened(lake, pipeline)
    watermark = lake.snapshot(pipeline).manifest.watermark
    assert compared(lake.final(pipeline).to_pylist()) == scratch(lake, pipeline, watermark, tmp_path), happened
    check_counts(lake, pipeline)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PIPELINES)
def test_a_backfill_by_intervals_is_a_backfill_of_the_table_as_it_is(tmp_path: Path, name: str, seed: int) -> None:
    changing, pipeline = drawn(tmp_path, f"backfill {name} {seed}"), PIPELINES[name]
    lake, happened = changing.lake, list[str]()
    with standing_in(NoSpark()):
        for hour in range(changing.hours + 1):
            for _ in range(changing.draw.randrange(3)):
                happened.append(changing.happen())
            lake.backfill(NO_SPARK, pipeline, DAY0 + hour * HOUR, DAY0 + (hour + 1) * HOUR)
        changing.delete_a_user()
        changing.settle()
        lake.backfill(NO_SPARK, pipeline, DAY0, DAY0 + HOUR)
    reopened(lake, pipeline)
    watermark = lake.snapshot(pipeline).manifest.watermark
    assert compared(lake.final(pipeline).to_pylist()) == scratch(lake, pipeline, watermark, tmp_path), happened
    check_counts(lake, pipeline)
