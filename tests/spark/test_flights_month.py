"""A month of real flights: both examples equal plain pandas, in one epoch and in thirty-one; its check is quick."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from benchmarks.quality import quality_run
from tests import flights_oracle
from tests.lake import Lake, assert_same_windows, conserved
from tidegate.pipelines import Pipeline
from tidegate.pipelines.config import FILE_NAME
from tidegate.pipelines.examples.flights.duty import aircraft_duty
from tidegate.pipelines.examples.flights.hours import airport_hours
from tidegate.pipelines.examples.flights.source import SCHEMA, load_flights, read_flights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parent.parent.parent
DAYS = 31
START = datetime(2013, 1, 1, tzinfo=UTC)
END = START + timedelta(days=DAYS)


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with a month of flights, loaded in their order of arrival."""
    lake = Lake(tmp_path_factory.mktemp("month"))
    load_flights(lake.path("flights"), DAYS)
    return lake.folder


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    rows = read_flights()
    due = rows["departed_at"].fillna(rows["scheduled_at"])
    return rows.loc[due < pd.Timestamp(END), SCHEMA.names]


def _check(pipeline: Pipeline, lake: Lake, flights: pd.DataFrame) -> None:
    final = lake.final(pipeline).to_pandas()
    if pipeline is aircraft_duty:
        expected = flights_oracle.duty_sessions(flights, pd.Timestamp(END))
        by = ["tailnum", "window_start"]
    else:
        expected = flights_oracle.airport_hours(flights)
        by = ["origin", "window_start"]
    assert len(expected) > 1000
    flights_oracle.assert_equal(final, expected, by)


@dataclass(frozen=True)
class Month:
    """A pipeline's tables after a month by the day."""

    pipeline: Pipeline
    lake: Lake


@pytest.fixture(
    scope="module",
    params=[aircraft_duty, pytest.param(airport_hours, marks=pytest.mark.long)],
    ids=lambda pipeline: pipeline.name,
)
def by_day(
    request: pytest.FixtureRequest, spark: SparkSession, month: Path, tmp_path_factory: pytest.TempPathFactory
) -> Month:
    lake = _beside(month, tmp_path_factory.mktemp("by_day") / "project")
    assert len(lake.backfill(spark, request.param, START, END, "1d")) == DAYS
    return Month(request.param, lake)


def test_a_month_equals_pandas_in_one_epoch_and_day_by_day(
    spark: SparkSession, month: Path, flights: pd.DataFrame, tmp_path: Path, by_day: Month
) -> None:
    pipeline = by_day.pipeline
    at_once = _beside(month, tmp_path / "at_once")
    assert len(at_once.backfill(spark, pipeline, START, END)) == 1
    _check(pipeline, at_once, flights)
    _check(pipeline, by_day.lake, flights)
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


def _beside(month: Path, folder: Path) -> Lake:
    """A lake with tables of its own over the same flights."""
    lake = Lake(folder)
    (folder / "warehouse").mkdir(parents=True)
    (folder / "warehouse" / "flights").symlink_to(month / "warehouse" / "flights")
    return lake
