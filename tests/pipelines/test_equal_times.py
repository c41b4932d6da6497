"""Elements of a window with equal times: their result depends neither on the order, nor on the operator or engine.

First             the earliest time, and of its values the smallest; a null is smaller than any value
Last              the latest time, and of its values the largest
CollectList       by time, then by value, without nulls
MinBy, MaxBy      of elements that tie, the smallest and the largest value
"""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tidegate.pipelines import Pipeline
from tidegate.pipelines.engine.base import Engine
from tidegate.windowing import (
    CollectList,
    CollectSet,
    CountEvictor,
    EventTimeSessionWindows,
    First,
    Last,
    MaxBy,
    MinBy,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.columnar import choose_operator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: list[tuple[str, str, int | None]] = [
    *[("ann", "10:00", value) for value in (3, None, 1, 2, 1)],
    *[("ann", "10:30", value) for value in (5, 4)],
    *[("ann", "10:45", value) for value in (7, None, 9, 8)],
]
EXPECTED = {
    "first": None,
    "first_value": 1,
    "last": 9,
    "smallest": 1,
    "largest": 9,
    "all": [1, 1, 2, 3, 4, 5, 7, 8, 9],
    "distinct": [1, 2, 3, 4, 5, 7, 8, 9],
}
AGGREGATES: dict[str, Any] = {
    "first": First("value"),
    "first_value": First("value", ignore_nulls=True),
    "last": Last("value"),
    "smallest": MinBy("value", "user", ignore_nulls=True),
    "largest": MaxBy("value", "user"),
    "all": CollectList("value"),
    "distinct": CollectSet("value"),
}
ASSIGNERS = {
    "hours": TumblingEventTimeWindows.of(timedelta(hours=1)),
    "sessions": EventTimeSessionWindows.with_gap(timedelta(hours=1)),
}


def pipeline_of(assigner: str, operator: str) -> Pipeline:
    """Return a pipeline that the columnar or the row operator computes: only the latter has evictors."""
    evictor = CountEvictor.of(1_000) if operator == "row" else None
    compute = Windows(ASSIGNERS[assigner], aggregate=AGGREGATES, evictor=evictor)
    assert choose_operator(compute).columnar is (operator == "columnar")
    return hourly_pipeline(
        name=f"{assigner}_{operator}",
        compute=compute,
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=2)),
    )


def check(engine: Engine | SparkSession, lake: Lake, assigner: str, operator: str, seed: int) -> None:
    """Append the rows in a drawn order, commits and files, stream and backfill them, and compare with the rule."""
    draw = random.Random(seed)
    rows: list[Any] = [(user, at(time), value) for user, time, value in ROWS]
    draw.shuffle(rows)
    pipeline, limits = pipeline_of(assigner, operator), {"commits": 1} if seed % 2 else {}
    while rows:
        some, rows = rows[: (count := draw.randint(1, len(rows)))], rows[count:]
        lake.append_in_files(*(part for part in (some[::2], some[1::2]) if part))
    lake.append(("end", at("20:00"), 0))
    lake.stream(engine, pipeline, **limits)
    again = hourly_pipeline(name=f"{pipeline.name}_again", compute=pipeline.compute)
    lake.backfill(engine, again, at("10:00"), at("12:00"))
    for made in (pipeline, again):
        (found,) = [row for row in lake.latest(made).to_pylist() if row["user"] == "ann"]
        assert {name: found[name] for name in EXPECTED} == EXPECTED, made.name


@pytest.mark.first(2 * len(ASSIGNERS))
@pytest.mark.parametrize("operator", ["columnar", "row"])
@pytest.mark.parametrize("assigner", ASSIGNERS)
@pytest.mark.parametrize("seed", range(3))
def test_equal_times_give_the_same_result_in_any_order(assigner: str, operator: str, seed: int, tmp_path: Path) -> None:
    check(LOCAL, Lake(tmp_path), assigner, operator, seed)


@pytest.mark.first(1)
@pytest.mark.parametrize("operator", ["columnar", "row"])
def test_equal_times_give_the_same_result_with_spark(operator: str, spark: SparkSession, tmp_path: Path) -> None:
    check(spark, Lake(tmp_path), "hours", operator, seed=1)
