"""Spark reads tables whose logs have gaps between older snapshots, and its VACUUM removes nothing that they need."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lake import Clock, at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.head import list_snapshots
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL
from tidegate.windowing.time import to_millis

pytestmark = pytest.mark.long

NIGHT = datetime(2026, 3, 1, tzinfo=UTC)


def files(by_hand: ByHand) -> dict[str, set[str]]:
    return {table: {path.name for path in Path(by_hand.tables.path(table)).glob("*.parquet")} for table in ALL}


@pytest.mark.parametrize(
    "vacuumed",
    # tests/pipelines/ledger/snapshots/test_old_snapshots.py always tests deltalake's vacuum.
    [(), pytest.param(ALL, marks=pytest.mark.long)],
    ids=["no table", "all tables"],
)
def test_spark_reads_the_head_and_vacuums_nothing(
    spark: SparkSession, tmp_path: Path, vacuumed: tuple[str, ...]
) -> None:
    by_hand = ByHand(tmp_path)
    for number in range(1, 13):
        start = at("00:00") + timedelta(hours=number)
        by_hand.epoch(("ann", start, number), watermark=start)
        by_hand.dated(NIGHT + timedelta(minutes=20 * number))
    with Lease(by_hand.tables, "vacuum", Clock()):
        vacuum(by_hand.tables, Retention(2, timedelta(days=7)), to_millis(NIGHT + timedelta(days=1)))
    path = by_hand.tables.path("state")
    assert [entry.epoch for entry in list_snapshots(by_hand.tables)] == [12, 11, 8, 5, 2]
    assert spark.read.format("delta").load(path).count() == 2
    before = files(by_hand)
    # By default it lists folders in ten thousand tasks.
    tasks = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
    spark.conf.set(tasks, "2")
    try:
        for table in vacuumed:
            spark.sql(f"VACUUM delta.`{by_hand.tables.path(table)}`")
    finally:
        spark.conf.unset(tasks)
    assert files(by_hand) == before
    by_hand.epoch(("ann", at("23:00"), 13), watermark=at("23:00"))
    assert spark.read.format("delta").load(path).count() == 2
