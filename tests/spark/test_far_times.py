"""Rows with a time that Python can't hold, at any depth of a value, are rejected whether Arrow or Spark reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.expectations.broken import broken_in
from tests.lake import Lake, at
from tests.pipelines.test_far_times import COMPUTES, details, pipeline_of, table
from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.far_times import MICROS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.long, pytest.mark.spark]


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("rows", "auto"),
        pytest.param("rows", "spark", marks=pytest.mark.long),
        pytest.param("a process function", "auto", marks=pytest.mark.long),
        ("a process function", "spark"),
    ],
)
def test_they_are_rejected_and_counted(spark: SparkSession, lake: Lake, name: str, reader: str) -> None:
    far = MICROS[1]
    lake.write(
        table(
            ("ann", "01:00", details(), details(until=far)),
            ("ann", "01:10", details(until=far), None),
            ("ann", "01:20", details(day=far // 86_400_000_000), None),
            ("ann", "01:30", details(of=MICROS[0] - 1), None),
            ("ann", "05:30", details(), None),
        )
    )
    pipeline = pipeline_of(COMPUTES[name])
    pipeline = replace(pipeline, source=replace(pipeline.source, reader=reader))
    lake.backfill(spark, pipeline, at("00:00"), at("05:45"))
    assert lake.rows(pipeline, "rejects")["reason"].to_pylist() == [rejects.VALUE_OUT_OF_RANGE] * 3
    assert lake.snapshot(pipeline).manifest.counters["on_time"] == 2
    assert broken_in(lake.tables(pipeline), pipeline) == set()
