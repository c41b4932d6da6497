"""The queries that come with table results give in Spark what the functions give in memory."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pipelines.tables import results
from tests.lake import at, session_pipeline
from tests.pipelines.by_hand import ByHand
from windowing import Accumulation, Count, EventTimeSessionWindows, Sum, Windows
from windowing.time import MAX_TIMESTAMP, to_millis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(params=list(Accumulation), ids=lambda accumulation: accumulation.name.lower())
def by_hand(tmp_path: Path, request: pytest.FixtureRequest) -> ByHand:
    """Sessions that fired, grew, merged and were withdrawn; some final, some not, a key that is null."""
    windows = Windows(
        EventTimeSessionWindows.with_gap(timedelta(minutes=30)),
        allowed_lateness=timedelta(hours=2),
        accumulation=request.param,
        aggregate={"events": Count(), "total": Sum("value")},
    )
    made = ByHand(tmp_path, session_pipeline(compute=windows, null_keys="keep"))
    made.epoch(("ann", at("10:00"), 1), ("ann", at("10:50"), 2), ("bob", at("10:00"), 3), watermark=at("11:30"))
    made.epoch(("ann", at("10:25"), 4), (None, at("11:00"), 5), watermark=at("11:31"))  # type: ignore[arg-type]
    made.epoch(("bob", at("10:10"), 6), ("cem", at("12:00"), 7), watermark=at("12:45"))
    made.epoch((None, at("11:05"), 8), watermark=at("13:00"))  # type: ignore[arg-type]
    return made


def same(spark: SparkSession, query: str, rows: pa.Table) -> None:
    found = [row.asDict() for row in spark.sql(query).select("user", "window_id", "pane", "total", "epoch").collect()]
    expected = rows.select(["user", "window_id", "pane", "total", "epoch"]).to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_latest_and_final_are_the_same_in_sql_and_in_memory(spark: SparkSession, by_hand: ByHand) -> None:
    table = f"delta.`{by_hand.tables.path('results')}`"
    latest = results.latest(by_hand.rows("results"), ("user",))
    assert 3 <= len(latest) < len(by_hand.rows("results"))
    same(spark, results.latest_query(table, ("user",)), latest)
    for watermark in (to_millis(at("12:29")), to_millis(at("13:19")), to_millis(at("14:00")), MAX_TIMESTAMP):
        same(spark, results.final_query(table, ("user",), watermark), results.final(latest, watermark))
