"""A source of another kind in Spark: its reader travels to the tasks, and the windows are those of a Delta table."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lake import DAY0, Lake, assert_same_windows, hourly_pipeline, session_pipeline
from tests.listed_files import ListedFiles
from tests.recovery.test_listed_files import listed
from tidegate.pipelines import DeltaSource, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]

SQL = {"columns": {"value": "value * 2"}, "where": "value > 2"}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Four commits, in a table and in a list."""
    lake = Lake(tmp_path)
    for number in range(4):
        lake.append(*[(f"user{at % 3}", DAY0 + timedelta(minutes=300 * number + 7 * at), at) for at in range(20)])
    return listed(lake)


def both(pipeline: Pipeline) -> tuple[Pipeline, Pipeline]:
    """The pipeline over the list, and over the table."""
    list_, table = ListedFiles("events.list", timestamp="at"), DeltaSource("events", timestamp="at")
    return replace(pipeline, name="over_list", source=list_), replace(pipeline, name="over_table", source=table)


@pytest.mark.parametrize("make", [session_pipeline, pytest.param(hourly_pipeline, marks=pytest.mark.long)])
def test_streams_and_backfills_over_a_list_have_the_windows_of_the_table(
    spark: SparkSession, lake: Lake, make: type[Pipeline]
) -> None:
    """The tasks evaluate `columns` and `where` over the rows of either source."""
    streamed, filled = both(make(**SQL)), [replace(each, name=f"{each.name}_filled") for each in both(make(**SQL))]
    for pipeline in streamed:
        lake.stream(spark, pipeline, commits=2)
    for pipeline in filled:
        lake.backfill(spark, pipeline, DAY0, DAY0 + timedelta(hours=6))
        lake.stream(spark, pipeline)
    assert len(lake.latest(streamed[0])) > 0
    for pipeline in (streamed[1], *filled):
        assert_same_windows(lake.latest(pipeline), lake.latest(streamed[0]))
