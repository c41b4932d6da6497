"""An epoch is counted once, when it is published: the counters agree with table epochs, whatever dies in between."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dateutil.relativedelta import relativedelta

from tests.lake import LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.observe.metrics.measuring import Read, counted, measured_driver
from tests.recovery.arrivals import STEPS, Crash
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition import counters
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.errors import StoreFailed
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.metrics import catalog
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.intervals import cut
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stream import Stream
from tidegate.pipelines.storage.warehouse import active_files
from tidegate.windowing import Count, PurgingTrigger, TumblingEventTimeWindows, Windows
from tidegate.windowing.errors import LostElementsWarning
from tidegate.windowing.time import to_millis
from tidegate.windowing.triggers import CountTrigger

HOUR = timedelta(hours=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.append(("ann", at("10:00"), 1), ("bob", at("10:30"), 2), ("ann", None, 3))
    lake.append(("ann", at("14:00"), 1), ("bob", at("08:00"), 2))
    lake.append(("ann", at("18:00"), 1), ("bob", at("09:00"), 2), ("bob", at("17:30"), 4))
    return lake


def published(lake: Lake, pipeline: Pipeline) -> Counter[str]:
    """Return the same counters, from table epochs."""
    names = [counter for metric in catalog.COUNTERS for _, counter in metric.counts]
    rows = lake.rows(pipeline, "epochs").to_pylist()
    return Counter({name: sum(row[name] or 0 for row in rows) for name in names})


def stream(lake: Lake, pipeline: Pipeline, tell: Any = lambda step: None) -> Read:
    with measured_driver(lake, pipeline, tell) as (driver, read):
        Stream(driver, lambda manifest: None, EpochLimits(commits=1)).run_available()
    return read


def test_each_counter_of_an_epoch_is_in_one_metric_or_is_a_sum_of_others() -> None:
    shown = [counter for metric in catalog.COUNTERS for _, counter in metric.counts]
    assert len(shown) == len(set(shown))
    # Events in are the sum of their outcomes, and open windows a gauge.
    assert {counter.name for counter in counters.KEPT} - set(shown) == {"events_in", "open_windows"}


@pytest.mark.first(1)
@pytest.mark.parametrize("make", [hourly_pipeline, session_pipeline])
def test_a_stream_counts_what_table_epochs_has(lake: Lake, make: Any) -> None:
    pipeline = make()
    read = stream(lake, pipeline)
    series = read.series()
    assert counted(series) == published(lake, pipeline)
    assert series["tidegate.source.events", ("late",)] > 0
    assert series["tidegate.source.events", ("rejected",)] == 1
    head = lake.snapshot(pipeline)
    size = sum(file["size_bytes"] for file in (*head.files, *head.manifest_files))
    assert series["tidegate.window.open", ()] == head.manifest.counters["open_windows"] > 0
    assert series["tidegate.state.rows", ()] == sum(shard.rows for shard in head.manifest.shards) > 0
    assert series["tidegate.state.size", ()] == size
    assert series["tidegate.windows.rows", ()] == series["tidegate.windows.files", ()] == 0
    assert series["tidegate.epoch.number", ()] == head.manifest.epoch == 3
    assert series["tidegate.epoch.time", ()] == series["tidegate.source.poll.time", ()] == lake.clock.now / 1000
    assert series["tidegate.watermark.time", ()] == to_millis(at("17:00")) / 1000 - 0.001
    assert series["tidegate.epoch.duration", ("stream", "arrays")] == 3
    assert {series["tidegate.step.duration", ("arrays", step)] for step in catalog.STEPS} == {3}
    assert series["tidegate.result.delay", ()] == 3
    lake.clock.now += 60_000
    grown = read.series()["tidegate.watermark.lag", ()] - series["tidegate.watermark.lag", ()]
    assert grown == pytest.approx(60), "it grows while nothing happens"


def test_the_rows_and_files_of_table_windows_are_measured(lake: Lake) -> None:
    pipeline = hourly_pipeline()
    with measured_driver(lake, pipeline) as (driver, read):
        driver.windows = WindowsTable()
        Stream(driver, lambda manifest: None, EpochLimits(commits=1)).run_available()
        driver.measure()
    series, rows = read.series(), lake.rows(pipeline, "windows")
    assert series["tidegate.windows.rows", ()] == len(lake.latest(pipeline)) == len(rows) > 0
    assert series["tidegate.windows.files", ()] == len(active_files(lake.tables(pipeline).newest("windows"))) > 0


IN_SHORT = ("operated", "committed", "published epochs")


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=() if step in IN_SHORT else pytest.mark.long) for step in STEPS]
)
def test_an_epoch_whose_run_dies_after_any_step_is_counted_once(lake: Lake, step: str) -> None:
    pipeline, planned = hourly_pipeline(), list[str]()

    def tell(done: str) -> None:
        planned.extend([done] if done == "planned" else [])
        if done == step and len(planned) == 2:
            raise Crash

    with measured_driver(lake, pipeline, tell) as (driver, dead), pytest.raises(Crash):
        Stream(driver, lambda manifest: None, EpochLimits(commits=1)).run_available()
    assert driver.lease is not None
    alive = stream(lake, pipeline)
    assert counted(dead.series()) + counted(alive.series()) == +published(lake, pipeline)
    assert alive.series()["tidegate.epoch.number", ()] == 3


def test_a_run_that_finds_nothing_new_counts_nothing_and_shows_the_newest_snapshot(lake: Lake) -> None:
    pipeline = hourly_pipeline()
    stream(lake, pipeline)
    series = stream(lake, pipeline).series()
    assert set(counted(series).values()) == {0}, "a series exists before its first count, or increase() would miss it"
    assert series["tidegate.epoch.number", ()] == 3
    assert series["tidegate.window.open", ()] > 0
    assert series["tidegate.state.size", ()] > 0
    assert series["tidegate.epoch.time", ()] == lake.snapshot(pipeline).manifest.started_at / 1000


def test_a_backfill_has_no_lag_because_its_user_chose_the_interval(lake: Lake) -> None:
    pipeline = hourly_pipeline()
    with measured_driver(lake, pipeline) as (driver, read):
        list(backfill(driver, cut(at("08:00"), at("20:00"), None)))
    series = read.series()
    assert counted(series) == published(lake, pipeline)
    assert ("tidegate.watermark.lag", ()) not in series
    assert series["tidegate.watermark.time", ()] == lake.snapshot(pipeline).manifest.watermark / 1000
    assert series["tidegate.epoch.duration", ("backfill", "arrays")] == 1
    assert series["tidegate.state.size", ()] > 0
    with lake.driver(LOCAL, pipeline) as unmeasured:
        assert not unmeasured.metrics.is_on


def test_a_store_that_fails_when_only_metrics_read_it_ends_no_backfill(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(tables: PipelineTables) -> None:
        raise StoreFailed("the store does not answer")

    monkeypatch.setattr("tidegate.pipelines.epoch.driver.read_snapshot", away)
    pipeline = hourly_pipeline()
    with measured_driver(lake, pipeline) as (driver, read):
        list(backfill(driver, cut(at("08:00"), at("20:00"), relativedelta(hours=6))))
    assert counted(read.series()) == published(lake, pipeline)
    assert len(lake.rows(pipeline, "epochs")) == 2


def test_events_that_a_trigger_removed_are_lost(lake: Lake) -> None:
    windows = Windows(
        TumblingEventTimeWindows.of(HOUR), trigger=PurgingTrigger.of(CountTrigger.of(2)), aggregate={"n": Count()}
    )
    with pytest.warns(LostElementsWarning):
        pipeline = hourly_pipeline(compute=windows)
    series = stream(lake, pipeline).series()
    assert counted(series) == published(lake, pipeline)
    assert series["tidegate.window.lost", ()] > 0
