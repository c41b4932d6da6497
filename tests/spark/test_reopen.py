"""Late rows reopened with Spark: the law holds over commits, files and versions of a real source."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.lake import DAY0, Lake, at, conserved, hourly_pipeline, session_pipeline, windows_of
from tidegate.pipelines import Pipeline
from tidegate.pipelines.epoch.recompute_plan import Selection
from tidegate.pipelines.examples.flights.duty import aircraft_duty
from tidegate.pipelines.examples.flights.hours import airport_hours
from tidegate.pipelines.examples.flights.source import load_flights
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.run.corrections import reopen
from tidegate.windowing import Count, SlidingEventTimeWindows, Sum, WatermarkStrategy, Windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(minutes=20))


def sliding_pipeline(name: str, **options: object) -> Pipeline:
    assigner = SlidingEventTimeWindows.of(timedelta(hours=1), timedelta(minutes=20))
    return hourly_pipeline(
        name, compute=Windows(assigner, aggregate={"events": Count(), "total": Sum("value")}), **options
    )


def reopen_all(spark: SparkSession, lake: Lake, pipeline: Pipeline) -> Manifest | None:
    with lake.driver(spark, pipeline) as driver:
        return reopen(driver, Selection())[0]


@pytest.mark.parametrize(
    "make", [session_pipeline, sliding_pipeline, pytest.param(hourly_pipeline, marks=pytest.mark.long)]
)
def test_a_stream_and_then_everything_reopened_is_the_backfill(
    spark: SparkSession, lake: Lake, make: Callable[..., Pipeline]
) -> None:
    draw = random.Random(11)
    stream, batch = make(name="stream", watermark=STRATEGY), make(name="batch", watermark=STRATEGY)
    for commit in range(4):
        minutes = [max(0, 90 * commit + 90 - int(draw.expovariate(1 / 60))) for _ in range(60)]
        lake.append(*[(f"user{draw.randrange(9)}", DAY0 + timedelta(minutes=m), draw.randrange(99)) for m in minutes])
        if commit % 2:
            lake.stream(spark, stream)
    made = reopen_all(spark, lake, stream)
    assert made is not None
    assert reopen_all(spark, lake, stream) is None
    lag = 2 if make is session_pipeline else 1
    lake.backfill(spark, batch, DAY0 - timedelta(days=1), DAY0 + timedelta(milliseconds=made.watermark + lag - _DAY0))
    assert windows_of(lake.final(stream), (*_OWN, "window_id")).equals(
        windows_of(lake.final(batch), (*_OWN, "window_id"))
    )
    assert conserved(lake.rows(stream, "epochs").to_pylist())
    assert {row["reopened"] for row in lake.rows(stream, "late").to_pylist()} == {made.epoch}


_DAY0 = int(DAY0.timestamp() * 1000)
_OWN = ("epoch", "timeline", "emitted_at", "watermark", "pane", "timing", "op", "final_at", "stale")


def test_a_derived_key_is_derived_for_late_rows_too(spark: SparkSession, lake: Lake) -> None:
    pipeline = hourly_pipeline(columns={"team": "substr(user, 1, 1)"}, key=("team",), watermark=STRATEGY)
    lake.append(("ann", at("10:10"), 1), ("bob", at("10:10"), 2), ("ann", at("14:10"), 3))
    lake.append(("amy", at("10:20"), 10))
    lake.stream(spark, pipeline)
    assert reopen_all(spark, lake, pipeline) is not None
    totals = {(row["team"], row["window_start"]): row["total"] for row in lake.final(pipeline).to_pylist()}
    assert totals == {("a", at("10:00")): 11, ("b", at("10:00")): 2}


@pytest.mark.long
@pytest.mark.parametrize("pipeline", [aircraft_duty, airport_hours], ids=lambda pipeline: pipeline.name)
def test_a_month_of_flights_streamed_and_reopened_is_the_backfill(
    spark: SparkSession, lake: Lake, pipeline: Pipeline
) -> None:
    """Flights come when they have landed, and hours before others that left earlier."""
    load_flights(lake.path("flights"), 31)
    stream = replace(pipeline, name="stream", watermark=STRATEGY)
    batch = replace(pipeline, name="batch")
    lake.stream(spark, stream, files=20)
    assert len(lake.rows(stream, "late")) > 100
    made = reopen_all(spark, lake, stream)
    assert made is not None
    lag = 2 if pipeline is aircraft_duty else 1
    end = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=made.watermark + lag)
    lake.backfill(spark, batch, datetime(2012, 12, 31, tzinfo=UTC), end)
    assert windows_of(lake.final(stream), (*_OWN, "window_id")).equals(
        windows_of(lake.final(batch), (*_OWN, "window_id"))
    )
