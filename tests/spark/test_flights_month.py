"""A month of real flights: both examples equal plain pandas, in one epoch and in thirty-one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from pipelines import Pipeline
from pipelines.flights.duty import aircraft_duty
from pipelines.flights.hours import airport_hours
from pipelines.flights.source import SCHEMA, load_flights, read_flights
from tests import flights_oracle
from tests.lake import Lake, assert_same_windows, conserved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

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


@pytest.mark.parametrize("pipeline", [aircraft_duty, airport_hours], ids=lambda pipeline: pipeline.name)
def test_a_month_equals_pandas_in_one_epoch_and_day_by_day(
    spark: SparkSession, month: Path, flights: pd.DataFrame, tmp_path: Path, pipeline: Pipeline
) -> None:
    at_once = _beside(month, tmp_path / "at_once")
    by_day = _beside(month, tmp_path / "by_day")
    assert len(at_once.backfill(spark, pipeline, START, END)) == 1
    assert len(by_day.backfill(spark, pipeline, START, END, "1d")) == DAYS
    _check(pipeline, at_once, flights)
    _check(pipeline, by_day, flights)
    assert_same_windows(by_day.latest(pipeline), at_once.latest(pipeline))
    epochs = by_day.rows(pipeline, "epochs").to_pylist()
    assert conserved(epochs)
    assert sum(row["events_in"] for row in epochs) == len(flights)


def _beside(month: Path, folder: Path) -> Lake:
    """A lake with tables of its own over the same flights."""
    lake = Lake(folder)
    (folder / "warehouse").mkdir(parents=True)
    (folder / "warehouse" / "flights").symlink_to(month / "warehouse" / "flights")
    return lake
