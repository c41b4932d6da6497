"""The stream in its thin form: the same epoch, driven from foreachBatch, gives the backfill's windows."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from pipelines.errors import Refused
from tests.lake import DAY0, Lake, assert_same_windows, at, conserved, hourly_pipeline, session_pipeline, windows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

END = DAY0 + timedelta(days=3)


def within_the_bound(seed: int, commits: int) -> list[list[tuple[str, datetime, int]]]:
    """Commits of events that are at most 50 minutes out of order, an hour being allowed."""
    draw = random.Random(seed)
    moments = sorted(draw.randrange(3 * 1440) for _ in range(400))
    arrived = sorted(moments, key=lambda minute: minute + draw.randrange(50))
    rows = [(f"user{draw.randrange(9)}", DAY0 + timedelta(minutes=minute), draw.randrange(50)) for minute in arrived]
    rows.append(("end", END + timedelta(hours=6), 0))
    size = len(rows) // commits + 1
    return [rows[first : first + size] for first in range(0, len(rows), size)]


@pytest.mark.parametrize("make", [session_pipeline, hourly_pipeline], ids=["sessions", "hours"])
def test_the_stream_gives_the_backfills_final_windows(spark: SparkSession, lake: Lake, make) -> None:
    for rows in within_the_bound(seed=3, commits=8):
        lake.append(*rows)
    batch, stream = make(name="batch"), make(name="stream")
    lake.backfill(spark, batch, DAY0, END + timedelta(days=1))
    made = lake.stream(spark, stream, maxFilesPerTrigger="3")
    assert len(made) > 1
    assert conserved(lake.rows(stream, "epochs").to_pylist())
    assert len(lake.rows(stream, "late")) == 0
    in_time = lake.final(stream)
    watermark = lake.snapshot(stream).manifest.watermark
    finished = lake.final(batch).to_pandas()
    finished = finished[finished["final_at"].astype("int64") // 1000 <= watermark]
    assert len(finished) > 50
    ours = windows_of(in_time)
    theirs = windows_of(lake.final(batch))
    theirs = theirs[theirs["window_id"].isin(finished["window_id"])].reset_index(drop=True)
    assert ours.equals(theirs)


@pytest.mark.parametrize(
    ("make", "epochs"), [(session_pipeline, [1, 5, 5]), (hourly_pipeline, [1, 5, 10])], ids=["sessions", "hours"]
)
def test_the_cut_into_epochs_changes_neither_panes_nor_late_rows_nor_state(
    spark: SparkSession, lake: Lake, make, epochs: list[int]
) -> None:
    """One epoch, one a commit, and batches that end inside a commit: nothing a user can read differs.

    Sessions see the order within a commit, so theirs are read whole wherever the batches end.
    """
    draw = random.Random(5)
    for commit in range(5):
        minutes = [commit * 60 + draw.randrange(-240, 60) for _ in range(80)]
        rows = [(f"user{draw.randrange(40)}", DAY0 + timedelta(minutes=minute), minute) for minute in minutes]
        lake.append_in_files(rows[:40], rows[40:])
    cuts = {"whole": {}, "commits": {"maxFilesPerTrigger": "2"}, "halves": {"maxFilesPerTrigger": "1"}}
    made = {}
    for name, options in cuts.items():
        pipeline = make(name=name, allowed_lateness=timedelta(minutes=90))
        made[name] = {"epochs": len(lake.stream(spark, pipeline, **options))}
        for table, without in (("results", ("epoch", "emitted_at")), ("late", ("epoch",)), ("state", ("manifest",))):
            made[name][table] = _sorted(lake, pipeline, table, without)
    assert [made[name].pop("epochs") for name in cuts] == epochs
    assert made["whole"]["late"], "the data must have late rows"
    assert made["commits"] == made["whole"]
    assert made["halves"] == made["whole"]


def _sorted(lake: Lake, pipeline, table: str, without: tuple[str, ...]) -> list[str]:
    rows = lake.rows(pipeline, table)
    kept = rows.drop_columns(list(without)).to_pylist()
    return sorted(str(row) for row in kept if row.get("key_group") != -1)


def test_a_stream_goes_on_where_it_ended(spark: SparkSession, lake: Lake) -> None:
    pipeline = hourly_pipeline()
    lake.append(("a", at("10:00"), 1))
    assert len(lake.stream(spark, pipeline)) == 1
    assert lake.stream(spark, pipeline) == []
    lake.append(("a", at("10:30"), 2), ("a", at("14:00"), 4))
    (made,) = lake.stream(spark, pipeline)
    assert made.counters["on_time"] == 2
    assert [row["total"] for row in lake.final(pipeline).to_pylist()] == [3]


def test_a_source_that_lost_rows_stops_the_stream_with_the_version_named(spark: SparkSession, lake: Lake) -> None:
    pipeline = hourly_pipeline()
    lake.append(("a", at("10:00"), 1), ("b", at("10:00"), 1))
    lake.stream(spark, pipeline)
    spark.sql(f"DELETE FROM delta.`{lake.path('events')}` WHERE user = 'b'")
    with pytest.raises(Refused, match=r"not append-only: version 1 \(DELETE\)"):
        lake.stream(spark, pipeline)


def test_an_optimised_source_is_nothing_to_a_stream(spark: SparkSession, lake: Lake) -> None:
    pipeline = hourly_pipeline()
    lake.append(("a", at("10:00"), 1))
    lake.append(("a", at("10:10"), 2))
    lake.stream(spark, pipeline)
    spark.sql(f"OPTIMIZE delta.`{lake.path('events')}`")
    assert lake.stream(spark, pipeline) == []
    lake.append(("a", at("14:00"), 4))
    (made,) = lake.stream(spark, pipeline)
    assert made.counters["events_in"] == 1
    assert [row["total"] for row in lake.final(pipeline).to_pylist()] == [3]


def test_the_same_windows_come_from_two_pipelines_with_the_same_ids(spark: SparkSession, lake: Lake) -> None:
    lake.append(("a", at("10:00"), 1), ("a", at("10:20"), 2), ("a", at("14:00"), 4))
    batch, stream = session_pipeline(name="batch"), session_pipeline(name="stream")
    lake.backfill(spark, batch, DAY0, DAY0 + timedelta(hours=12))
    lake.stream(spark, stream)
    assert_same_windows(lake.final(stream), lake.final(batch))
