"""Columns of a source with names like those that rows get on their way through Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pytest

from tests.lake import DAY0, Lake, at, hourly_pipeline
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.errors import Refused
from tidegate.windowing import Max, Sum, TumblingEventTimeWindows, Windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]

NAMES = ["__time", "__status", "__commit", "__row", "__file", "__path", "__place", "__side", "__partition", "__kept"]
NAMES += ["__shard", "__marker", "__pack"]
NAMES += ["__source_0", "__beside", "_metadata", "tidegate_time", "path", "row"]

DAY = timedelta(days=1)


@pytest.mark.parametrize("reader", ["auto", "spark"])
def test_they_are_columns_like_others(spark: SparkSession, lake: Lake, reader: Literal["auto", "spark"]) -> None:
    times = pa.array([at("10:00"), at("10:30"), at("11:00"), None], pa.timestamp("us", tz="UTC"))
    columns = {name: pa.array([number, number + 1, number + 2, number + 3]) for number, name in enumerate(NAMES)}
    lake.write(pa.table({"at": times, "__key": ["a", "a", "b", "a"], **columns}))
    pipeline = hourly_pipeline(
        source=DeltaSource("events", timestamp="at", reader=reader),
        key=("__key", "__shard"),
        columns={"__shard": "hash(`__beside`) div hash(`__beside`)", "__row": "`__row` * 10"},
        where="`__kept` >= 0 and hash(`__source_0`, `__path`, `__time`) is not null and `__row` <> 50",
        compute=Windows(
            TumblingEventTimeWindows.of(timedelta(hours=1)),
            aggregate={name: Sum(name) for name in NAMES if name != "__shard"} | {"most": Max("__row")},
        ),
    )
    lake.backfill(spark, pipeline, DAY0, DAY0 + DAY)
    (row,) = lake.final(pipeline).to_pylist()
    expected = {name: 2 * number + 1 for number, name in enumerate(NAMES)} | {"__row": 70, "__shard": 1, "most": 40}
    assert {name: row[name] for name in expected} == expected
    (rejected,) = lake.rows(pipeline, "rejects").to_pylist()
    assert {name: rejected[name] for name in NAMES} == {name: number + 3 for number, name in enumerate(NAMES)}


def test_a_name_that_is_kept_for_ours_is_refused_until_the_column_is_renamed(spark: SparkSession, lake: Lake) -> None:
    table, pipeline = f"delta.`{lake.path('events')}`", hourly_pipeline()
    spark.sql(
        f"create table {table} (user string, at timestamp, value bigint, `tidegate:time` bigint) using delta "
        "tblproperties('delta.columnMapping.mode' = 'name')"
    )
    spark.sql(f"insert into {table} values ('ann', timestamp'2024-03-01 10:00:00', 1, 2)")
    with pytest.raises(Refused, match=r"column 'tidegate:time', .* rename the column in the table"):
        lake.backfill(spark, pipeline, DAY0, DAY0 + DAY)
    spark.sql(f"alter table {table} rename column `tidegate:time` to time")
    lake.backfill(spark, pipeline, DAY0, DAY0 + DAY)
    assert len(lake.final(pipeline)) == 1
