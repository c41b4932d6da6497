"""A source that Spark changes by MERGE, DELETE with deletion vectors and overwritten partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.lake import EVENTS, Lake, assert_same_windows, at, conserved, hourly_pipeline, session_pipeline
from tidegate.pipelines import DeltaSource, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]

CORRECTING = DeltaSource("events", timestamp="at", changes="correct")


def created(spark: SparkSession, lake: Lake) -> None:
    """A table by days with deletion vectors, and hours of four users."""
    spark.sql(
        f"CREATE TABLE delta.`{lake.path('events')}` (user STRING, at TIMESTAMP, value BIGINT, day DATE) USING delta "
        "PARTITIONED BY (day) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    written(
        spark,
        lake,
        [(f"user{hour % 4}", at(f"{hour:02d}:{minute}"), hour) for hour in range(20) for minute in (10, 40)],
    )


def written(spark: SparkSession, lake: Lake, rows: list[tuple[str, object, int]], mode: str = "append") -> None:
    table = pa.Table.from_pylist([dict(zip(EVENTS.names, row, strict=True)) for row in rows], schema=EVENTS)
    frame = spark.createDataFrame(table).selectExpr("*", "to_date(at) AS day")
    options = {"partitionOverwriteMode": "dynamic"} if mode == "overwrite" else {}
    frame.coalesce(1).write.format("delta").mode(mode).options(**options).save(lake.path("events"))


def deleted(spark: SparkSession, lake: Lake) -> None:
    spark.sql(f"DELETE FROM delta.`{lake.path('events')}` WHERE value IN (3, 7, 18)")


def merged(spark: SparkSession, lake: Lake) -> None:
    spark.sql(
        f"MERGE INTO delta.`{lake.path('events')}` t USING (SELECT * FROM VALUES "
        "('user1', timestamp'2024-03-01 05:10:00', 500), ('user9', timestamp'2024-03-01 21:00:00', 900) "
        "AS s(user, at, value)) s ON t.user = s.user AND t.at = s.at WHEN MATCHED THEN UPDATE SET t.value = s.value "
        "WHEN NOT MATCHED THEN INSERT (user, at, value, day) VALUES (s.user, s.at, s.value, to_date(s.at))"
    )


def overwritten(spark: SparkSession, lake: Lake) -> None:
    written(
        spark, lake, [("user1", at("05:10"), 5), ("user2", at("06:10"), 60), ("user3", at("22:00"), 1)], "overwrite"
    )


CHANGES: tuple[Callable[[SparkSession, Lake], None], ...] = (deleted, merged, overwritten)


@pytest.mark.parametrize("make", [hourly_pipeline, pytest.param(session_pipeline, marks=pytest.mark.long)])
def test_windows_follow_what_spark_changes(spark: SparkSession, lake: Lake, make: Callable[..., Pipeline]) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    stream = make(name="stream", source=CORRECTING, max_ahead=timedelta(days=99))
    days = replace(stream, name="days")
    created(spark, lake)
    lake.stream(spark, stream)
    lake.backfill(spark, days, at("00:00"), at("20:00"))
    for number, change in enumerate(CHANGES):
        change(spark, lake)
        manifests = lake.stream(spark, stream)
        assert "change" in {manifest.kind for manifest in manifests}
        lake.backfill(spark, days, at("20:00") + number * timedelta(hours=1), at("21:00") + number * timedelta(hours=1))
        fresh = replace(days, name=f"fresh{number}")
        lake.backfill(spark, fresh, at("00:00"), at("21:00") + number * timedelta(hours=1))
        assert_same_windows(lake.final(days), lake.final(fresh))
        watermark = lake.snapshot(stream).manifest.watermark
        upto = [row for row in lake.final(fresh).to_pylist() if row["final_at"].timestamp() * 1000 <= watermark]
        assert sorted((row["user"], row["window_start"], row["total"]) for row in upto) == sorted(
            (row["user"], row["window_start"], row["total"]) for row in lake.final(stream).to_pylist()
        )
    for pipeline in (stream, days):
        assert conserved(lake.rows(pipeline, "epochs").to_pylist())
