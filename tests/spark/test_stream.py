"""The stream in Spark: the same epoch, over the commits that the loop finds, gives the backfill's windows."""

from __future__ import annotations

import random
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.lake import (
    DAY0,
    EVENTS,
    Lake,
    assert_same_windows,
    at,
    conserved,
    hourly_pipeline,
    session_pipeline,
    windows_of,
)
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import Count, TumblingProcessingTimeWindows, WatermarkStrategy, Windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

END = DAY0 + timedelta(days=3)
GAP = timedelta(minutes=30)

_OWN = {"results": ("epoch", "emitted_at"), "late": ("epoch",), "state": ("manifest",)}
"""Columns that tell of the run, by table; all others must not depend on it."""


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
    made = lake.stream(spark, stream, files=3)
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
    cuts = {"whole": {}, "commits": {"files": 2}, "halves": {"files": 1}}
    made = {}
    for name, options in cuts.items():
        pipeline = make(name=name, allowed_lateness=timedelta(minutes=90))
        made[name] = {"epochs": len(lake.stream(spark, pipeline, **options))}
        for table, without in _OWN.items():
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


def test_a_stream_takes_over_where_a_backfill_ended_without_gap_or_overlap(spark: SparkSession, lake: Lake) -> None:
    """The frontier lies in the middle of what was there; some of it, and all that follows, is the stream's."""
    commits = within_the_bound(seed=9, commits=6)
    for rows in commits[:4]:
        lake.append(*rows)
    taken_over, all_stream = session_pipeline(name="taken_over"), session_pipeline(name="all_stream")
    lake.backfill(spark, taken_over, DAY0, DAY0 + timedelta(days=1), "6h")
    before = len(lake.rows(taken_over, "epochs"))
    for rows in commits[4:]:
        lake.append(*rows)
    made = lake.stream(spark, taken_over)
    assert [manifest.kind for manifest in made] == ["stream", "stream"]
    lake.stream(spark, all_stream)
    assert_same_windows(lake.final(taken_over), lake.final(all_stream))
    epochs = lake.rows(taken_over, "epochs").to_pylist()
    assert len(epochs) == before + 2
    assert conserved(epochs)
    assert sum(row["events_in"] for row in epochs) == sum(map(len, commits))
    with pytest.raises(Refused, match="a stream has taken over"):
        lake.backfill(spark, taken_over, DAY0 + timedelta(days=1), DAY0 + timedelta(days=2))


def test_a_hand_over_at_the_newest_version_of_the_source(spark: SparkSession, lake: Lake) -> None:
    pipeline = hourly_pipeline()
    lake.append(("a", at("10:00"), 1), ("a", at("13:00", 1), 2))
    lake.backfill(spark, pipeline, DAY0, DAY0 + timedelta(days=1))
    (made,) = lake.stream(spark, pipeline)
    assert made.counters["events_in"] == 1
    assert lake.stream(spark, pipeline) == []
    lake.append(("a", at("16:00", 1), 4))
    lake.stream(spark, pipeline)
    assert sorted(row["total"] for row in lake.final(pipeline).to_pylist()) == [1, 2]


def test_a_run_without_new_data_lets_the_clock_go_on_and_fires_what_is_due(spark: SparkSession, lake: Lake) -> None:
    """The partition that went silent is idle by the log's time, in which nothing of it was committed."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(0)).with_idleness(timedelta(minutes=10))
    pipeline = hourly_pipeline(watermark=strategy, watermark_by="user")
    lake.append(("a", at("11:30"), 1), ("b", at("10:30"), 2))
    (made,) = lake.stream(spark, pipeline)
    assert made.counters["fired_on_time"] == 0
    lake.clock.now += 11 * 60_000
    (tick,) = lake.stream(spark, pipeline)
    assert (tick.kind, tick.counters["fired_on_time"], tick.counters["events_in"]) == ("clock", 1, 0)
    assert [row["total"] for row in lake.final(pipeline).to_pylist()] == [2]


def test_the_last_window_of_a_finished_stream_fires_where_time_goes_on_by_itself(
    spark: SparkSession, lake: Lake
) -> None:
    minute = timedelta(minutes=1)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(minute, 5 * minute, minute)
    pipeline = hourly_pipeline(watermark=strategy)
    lake.append(("a", at("10:30"), 1))
    lake.stream(spark, pipeline)
    lake.clock.now += 60 * 60_000
    (tick,) = lake.stream(spark, pipeline)
    assert tick.counters["fired_on_time"] == 1
    assert tick.counters["open_windows"] == 0


def test_windows_in_processing_time_fire_by_the_clock(spark: SparkSession, lake: Lake) -> None:
    windows = Windows(TumblingProcessingTimeWindows.of(timedelta(hours=1)), aggregate={"events": Count()})
    pipeline = hourly_pipeline(compute=windows, watermark=WatermarkStrategy.no_watermarks())
    lake.append(("a", at("10:30"), 1), ("a", at("22:30"), 1))
    lake.stream(spark, pipeline)
    lake.clock.now += 60 * 60_000
    (tick,) = lake.stream(spark, pipeline)
    assert tick.counters["fired_on_time"] == 1
    (row,) = lake.rows(pipeline, "results").to_pylist()
    assert row["events"] == 2


def test_a_continuous_stream_takes_data_as_it_comes_and_beats_while_none_does(spark: SparkSession, lake: Lake) -> None:
    # Commits have their own clock, the machine's: no window may end between the two of this test.
    beginning = timedelta(milliseconds=lake.clock.now) % timedelta(hours=1)
    of_an_hour = TumblingProcessingTimeWindows.of(timedelta(hours=1), offset=beginning - timedelta(minutes=30))
    windows = Windows(of_an_hour, aggregate={"events": Count()})
    pipeline = hourly_pipeline(compute=windows, watermark=WatermarkStrategy.no_watermarks())
    lake.append(("a", at("10:30"), 1))
    made: list[Manifest] = []
    deadline = time.monotonic() + 120

    def on_epoch(manifest: Manifest) -> None:
        made.append(manifest)
        if len(made) == 1:
            lake.append(("a", at("10:40"), 1))
        elif len(made) == 2:
            lake.clock.now += 2 * 60 * 60_000

    def should_stop() -> bool:
        assert time.monotonic() < deadline, made
        return bool(made) and made[-1].kind == "clock"

    with lake.driver(spark, pipeline) as driver:
        Stream(driver, on_epoch).run_continuously(timedelta(milliseconds=200), should_stop)
    assert [manifest.kind for manifest in made] == ["stream", "stream", "clock"]
    assert [row["events"] for row in lake.rows(pipeline, "results").to_pylist()] == [2]
    assert not (lake.config.work_folder / "checkpoints").exists()


def test_a_column_that_is_added_to_the_source_ends_no_stream(spark: SparkSession, lake: Lake) -> None:
    """Rows that are kept whole have the column from then on."""
    pipeline = hourly_pipeline()
    made: list[Manifest] = []
    deadline = time.monotonic() + 120

    def add(column: str, *rows: tuple[str, datetime]) -> None:
        table = pa.table([[user for user, _ in rows], [at for _, at in rows], [1] * len(rows)], schema=EVENTS)
        noted = table.append_column(column, pa.array([user for user, _ in rows]))
        write_deltalake(lake.path("events"), noted, mode="append", schema_mode="merge")

    def on_epoch(manifest: Manifest) -> None:
        made.append(manifest)
        if len(made) == 1:
            add("note", ("late", at("09:00")), ("b", at("14:40")))

    def should_stop() -> bool:
        assert time.monotonic() < deadline, made
        return sum(manifest.counters["events_in"] for manifest in made) == 4

    lake.append(("a", at("10:30"), 1), ("a", at("14:30"), 1))
    with lake.driver(spark, pipeline) as driver:
        Stream(driver, on_epoch).run_continuously(timedelta(milliseconds=200), should_stop)
    assert lake.rows(pipeline, "late")["note"].to_pylist() == ["late"]
    add("note", ("c", at("14:50")))
    add("more", ("c", at("18:00")), ("later", at("09:00")))
    lake.stream(spark, pipeline, files=1)
    assert sorted(str(row["more"]) for row in lake.rows(pipeline, "late").to_pylist()) == ["None", "later"]
    assert len(lake.latest(pipeline)) == 4


def test_a_replay_of_the_commits_equals_the_stream_that_ran_all_along(spark: SparkSession, lake: Lake) -> None:
    """Late rows, panes and windows in processing time are the same, whatever the epochs' sizes."""
    draw = random.Random(21)
    stream, whole, three = (session_pipeline(name=name, allowed_lateness=GAP) for name in ("stream", "whole", "three"))
    for commit in range(6):
        minutes = [commit * 60 + draw.randrange(-300, 60) for _ in range(40)]
        lake.append(*[(f"user{draw.randrange(20)}", DAY0 + timedelta(minutes=minute), minute) for minute in minutes])
        lake.stream(spark, stream)
    assert len(lake.replay(spark, whole)) == 1
    assert len(lake.replay(spark, three, commits_per_epoch=3)) == 2
    expected = {table: _sorted(lake, stream, table, without) for table, without in _OWN.items()}
    assert expected["late"], "the data must have late rows"
    for pipeline in (whole, three):
        assert {table: _sorted(lake, pipeline, table, without) for table, without in _OWN.items()} == expected


def test_a_replay_does_not_go_on_from_a_backfill_in_event_order(spark: SparkSession, lake: Lake) -> None:
    lake.append(("a", at("10:00"), 1))
    lake.backfill(spark, hourly_pipeline(), DAY0, END)
    with pytest.raises(Refused, match="--order arrival can't continue that"):
        lake.replay(spark, hourly_pipeline())


def test_a_run_over_what_is_new_lists_no_file_that_was_read_before(spark: SparkSession, lake: Lake) -> None:
    """A source of years has more files than anybody wants to list every ten minutes."""
    pipeline = hourly_pipeline()
    lake.append(("a", at("10:30"), 1))
    lake.stream(spark, pipeline)
    lake.append(("a", at("11:30"), 1))
    jobs = spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs
    before = jobs()
    lake.stream(spark, pipeline)
    assert jobs() - before <= 2, "the epoch's own"
