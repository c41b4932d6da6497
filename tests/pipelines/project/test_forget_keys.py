"""Several keys are erased in one epoch; a condition selects the keys whose rows are all of one person."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.project.cli.project import Project
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.errors import UsageError
from tidegate.windowing import Count, TumblingEventTimeWindows, WatermarkStrategy, Windows

HOUR = timedelta(hours=1)
RIDES = pa.schema([("ride", pa.int64()), ("user", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


def rides(**options: object) -> Pipeline:
    return Pipeline(
        name="rides",
        source=DeltaSource("events", timestamp="at"),
        key=("ride",),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(HOUR),
        compute=Windows(TumblingEventTimeWindows.of(HOUR), aggregate={"n": Count()}),
        **options,  # type: ignore[arg-type]
    )


def ridden(lake: Lake, *rows: tuple[int, int | None, str]) -> None:
    named = [{"ride": ride, "user": user, "at": at(moment)} for ride, user, moment in rows]
    lake.write(pa.Table.from_pylist(named, schema=RIDES))


def test_a_person_who_is_no_key_is_erased_in_one_epoch(lake: Lake) -> None:
    pipeline = rides()
    ridden(
        lake, (1, 7, "10:00"), (2, 7, "11:00"), (3, 8, "10:30"), (4, 7, "10:10"), (4, 8, "10:20"), (5, None, "12:00")
    )
    lake.stream(LOCAL, pipeline)
    # Ride 6 is late, and ride 1 has a row without a user.
    ridden(lake, (9, 9, "20:00"))
    lake.stream(LOCAL, pipeline)
    ridden(lake, (6, 7, "10:00"), (1, None, "20:10"))
    lake.stream(LOCAL, pipeline)
    project = lake.project(pipeline)
    before = lake.snapshot(pipeline).manifest.epoch
    shown = project.forget("rides", where="user = 7", dry_run=True)
    assert lake.snapshot(pipeline).manifest.epoch == before
    erased = project.forget("rides", where="user = 7")
    assert (shown.epoch, shown.keys, shown.shared) == (None, erased.keys, erased.shared)
    assert erased.epoch == before + 1
    assert sorted(erased.keys) == [("1",), ("2",), ("6",)]
    assert erased.shared == (("4",),)
    assert erased.searched == ("late", "rejects", "source events")
    assert {row["ride"] for row in lake.rows(pipeline, "results").to_pylist()} == {3, 4, 5}
    assert lake.rows(pipeline, "late").num_rows == 0
    assert "also have rows that don't meet the condition" in str(erased)
    nobody = project.forget("rides", where="user = 7 and ride > 6")
    assert (nobody.epoch, nobody.keys) == (None, ())


def test_several_keys_are_erased_in_one_epoch(lake: Lake) -> None:
    pipeline = hourly_pipeline()
    lake.append(*((user, at("10:00"), 1) for user in ("ann", "bob", "zoe")), ("ann", at("14:00"), 1))
    lake.stream(LOCAL, pipeline)
    project = lake.project(pipeline)
    project.savepoints.create("hours", "before")
    before = lake.snapshot(pipeline).manifest
    erased = project.forget("hours", keys=["ann", "bob"])
    after = lake.snapshot(pipeline).manifest
    assert (erased.epoch, after.epoch) == (before.epoch + 1, before.epoch + 1)
    assert [row["user"] for row in lake.rows(pipeline, "results").to_pylist()] == ["zoe"]
    assert sum(shard.rows for shard in after.shards) == 0 < sum(shard.rows for shard in before.shards)
    assert sum(shard.counters["open_windows"] for shard in after.shards) == 0
    assert erased.rows["savepoint before"] == erased.rows["state"] == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give one of key, keys and where"),
        ({"key": 1, "where": "ride = 1"}, "give one of key, keys and where"),
        ({"where": "shop = 1"}, "nor its source has the columns shop"),
        ({"where": "1 = 1"}, "names no column: every key would be erased"),
        ({"where": "ride ="}, "it can't be parsed"),
        ({"keys": ["x"]}, "'x' is not a value of key column 'ride'"),
    ],
)
def test_a_selection_that_can_not_be_meant_is_refused(lake: Lake, given: dict[str, object], message: str) -> None:
    pipeline = rides()
    ridden(lake, (1, 7, "10:00"))
    lake.stream(LOCAL, pipeline)
    with pytest.raises(UsageError, match=message):
        lake.project(pipeline).forget("rides", **given)  # type: ignore[arg-type]
    assert lake.snapshot(pipeline).manifest.epoch == 1


def test_the_command_takes_a_file_of_keys_or_a_condition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake, project = Lake(tmp_path), Project.make(tmp_path, capsys)
    lake.append(*((user, at("10:00"), 1) for user in ("ann", "bob", "zoe", "eve")), ("max", at("14:00"), 1))
    project.says(0, "", "stream", "sessions", "--available-now")
    file = tmp_path / "keys"
    file.write_text("ann\nbob\n")
    project.says(2, "give a KEY, --keys or --where", "forget", "sessions", "ann", "--keys", str(file), "--yes")
    told = project.data("forget", "sessions", "--keys", str(file), "--yes")
    erased = {row["table"]: row["rows"] for row in told["rows"]}
    assert (told["keys"], erased["results"]) == ([{"key": ["ann"]}, {"key": ["bob"]}], 2)
    told = project.data("forget", "sessions", "--where", "user = 'zoe'", "--yes")
    assert (told["keys"], told["shared"]) == ([{"key": ["zoe"]}], [])
    of_eve = ("--where", "user = 'eve'", "--dry-run")
    project.says(0, "keys that meet the condition in results", "forget", "sessions", *of_eve)
    project.says(2, "give --where", "forget", "sessions", "eve", "--dry-run")
