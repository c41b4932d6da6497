"""A month of real flights: both examples equal plain pandas, in one epoch and day by day; the check is quick. `make
test` runs four days, `make test-long` all thirty-one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from benchmarks.quality import quality_run
from tests import flights_oracle
from tests.lake import COMPARED_AWAY, Lake, assert_same_windows, conserved, windows_of
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.config import FILE_NAME
from tidegate.pipelines.examples.flights.duty import aircraft_duty
from tidegate.pipelines.examples.flights.hours import airport_hours
from tidegate.pipelines.examples.flights.source import SCHEMA, load_flights, read_flights
from tidegate.windowing import WatermarkStrategy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]

ROOT = Path(__file__).parent.parent.parent
DAYS, FEW_DAYS = 31, 4
START = datetime(2013, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def all_flights() -> pd.DataFrame:
    return read_flights()


def _before(end: datetime, rows: pd.DataFrame) -> pd.DataFrame:
    due = rows["departed_at"].fillna(rows["scheduled_at"])
    return rows.loc[due < pd.Timestamp(end), SCHEMA.names]


def _check(pipeline: Pipeline, lake: Lake, flights: pd.DataFrame, end: datetime) -> None:
    final = lake.final(pipeline).to_pandas()
    if pipeline is aircraft_duty:
        expected = flights_oracle.duty_sessions(flights, pd.Timestamp(end))
        by = ["tailnum", "window_start"]
    else:
        expected = flights_oracle.airport_hours(flights)
        by = ["origin", "window_start"]
    assert len(expected) > 1000
    flights_oracle.assert_equal(final, expected, by)


@dataclass(frozen=True)
class Month:
    """Return a pipeline's tables after a month, or its first days, run day by day."""

    pipeline: Pipeline
    days: int
    lake: Lake

    @property
    def end(self) -> datetime:
        """Midnight after the last day."""
        return START + timedelta(days=self.days)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((pipeline, days), marks=marks, id=f"{pipeline.name}, {days} days")
        for pipeline, days, marks in (
            (aircraft_duty, FEW_DAYS, ()),
            (aircraft_duty, DAYS, pytest.mark.long),
            (airport_hours, DAYS, pytest.mark.long),
        )
    ],
)
def by_day(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Month:
    """A pipeline's tables over flights that were loaded in their order of arrival."""
    lake = Lake(tmp_path_factory.mktemp("by_day"))
    pipeline, days = request.param
    month_of = Month(pipeline, days, lake)
    load_flights(lake.path("flights"), month_of.days)
    assert len(lake.backfill(spark, month_of.pipeline, START, month_of.end, "1d")) == month_of.days
    return month_of


def test_a_month_equals_pandas_in_one_epoch_and_day_by_day(
    spark: SparkSession, all_flights: pd.DataFrame, tmp_path: Path, by_day: Month
) -> None:
    pipeline, flights = by_day.pipeline, _before(by_day.end, all_flights)
    at_once = _beside(by_day.lake.folder, tmp_path / "at_once")
    assert len(at_once.backfill(spark, pipeline, START, by_day.end)) == 1
    _check(pipeline, at_once, flights, by_day.end)
    _check(pipeline, by_day.lake, flights, by_day.end)
    assert_same_windows(by_day.lake.latest(pipeline), at_once.latest(pipeline))
    epochs = by_day.lake.rows(pipeline, "epochs").to_pylist()
    assert conserved(epochs)
    assert sum(row["events_in"] for row in epochs) == len(flights)


def test_the_quality_run_of_a_month_takes_less_than_a_minute(by_day: Month) -> None:
    """As `python -m benchmarks.quality` measures it: all suites, Data Docs and the run report."""
    example = (ROOT / FILE_NAME).read_text()
    (by_day.lake.folder / FILE_NAME).write_text(example.replace('".work/warehouse"', '"warehouse"'))
    figure = quality_run(by_day.lake.folder, by_day.pipeline.name)
    assert figure.is_reached, figure
    assert "passed" in figure.detail or "marked" in figure.detail


def _beside(project: Path, folder: Path) -> Lake:
    """A lake with its own tables over the same flights."""
    lake = Lake(folder)
    (folder / "warehouse").mkdir(parents=True)
    (folder / "warehouse" / "flights").symlink_to(project / "warehouse" / "flights")
    return lake


@pytest.mark.parametrize("pipeline", [aircraft_duty, airport_hours], ids=lambda pipeline: pipeline.name)
def test_a_month_streamed_and_reopened_is_the_backfill(spark: SparkSession, lake: Lake, pipeline: Pipeline) -> None:
    """Flights arrive when they have landed, which may be hours before others that departed earlier."""
    load_flights(lake.path("flights"), DAYS)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(minutes=20))
    stream, batch = replace(pipeline, name="stream", watermark=strategy), replace(pipeline, name="batch")
    lake.stream(spark, stream, files=20)
    assert len(lake.rows(stream, "late")) > 100
    made = lake.reopen(spark, stream)
    assert made is not None
    lag = 2 if pipeline is aircraft_duty else 1
    lake.backfill(
        spark,
        batch,
        START - timedelta(days=1),
        datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=made.watermark + lag),
    )
    ignoring = (*COMPARED_AWAY, "window_id")
    assert windows_of(lake.final(stream), ignoring).equals(windows_of(lake.final(batch), ignoring))
