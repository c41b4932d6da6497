"""Files and columns of a source may have any names: each row is read once, as part of its own commit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.lake import DAY0, EVENTS, Lake, at, hourly_pipeline
from tests.named_files import add_file
from tests.recovery.test_equality import commits_come_hourly
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.engine.spark.delta_files import DeltaFiles
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.commits import FilePart
from tidegate.windowing import Count, Max, Sum, TumblingEventTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.time import to_millis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


pytestmark = [pytest.mark.long, pytest.mark.spark]

WORDS = ("part", "sales 2024-01", "50%", "100%25", "ü", "日本", "a+b", "x=1", "it's", "(1)", "a;b", "a&b", "~", "a,b")


def names_of(drawn: random.Random, count: int) -> list[str]:
    """Names of files, some of them in folders, and some with the same base name."""
    found: dict[str, None] = {}
    while len(found) < count:
        folder = drawn.choice(["", "", f"{drawn.choice(WORDS)}/", "d 1/", "d 2/"])
        found[f"{folder}{' '.join(drawn.sample(WORDS, drawn.randrange(3)))}000000_0.parquet"] = None
    return list(found)


def counting(name: str, **options: Any) -> Pipeline:
    return Pipeline(
        **{
            "name": name,
            "source": DeltaSource("events", timestamp="at"),
            "key": ("user",),
            "watermark": WatermarkStrategy.for_monotonous_timestamps(),
            "compute": Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"n": Count()}),
            **options,
        }
    )


def left_by(lake: Lake, pipeline: Pipeline) -> tuple[list[tuple[object, ...]], int, int]:
    """Return the valid windows, late rows, and rows that were read."""
    windows = [(row["window_start"], row["user"], row["n"]) for row in lake.latest(pipeline).to_pylist()]
    counts = lake.rows(pipeline, "epochs")["events_in"].to_pylist()
    return sorted(windows), lake.rows(pipeline, "late").num_rows, sum(counts)


@pytest.mark.long
def test_whatever_files_are_called_each_row_counts_once_and_with_its_own_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, drawn = Lake(tmp_path), random.Random(7)
    for number, name in enumerate(names_of(drawn, 7)):
        rows = [("ann", at("01:00") + timedelta(minutes=25 * number), 1), ("bob", at("01:30"), 1)]
        columns = list(zip(*rows, strict=True))
        table = pa.table(
            [pa.array(list(column), kind.type) for column, kind in zip(columns, EVENTS, strict=True)], EVENTS
        )
        add_file(lake.path("events"), table, name, to_millis(at("12:00")))
    source = DeltaSource("events", timestamp="at", reader="spark")
    found = {}
    for way, pipeline, cut in (
        ("arrow", counting("arrow"), None),
        ("a commit an epoch", counting("each", source=source), 1),
        ("one epoch", counting("whole", source=source), None),
    ):
        lake.replay(spark, pipeline, cut)
        found[way] = left_by(lake, pipeline)
    assert found["a commit an epoch"] == found["arrow"] == found["one epoch"]
    assert found["arrow"][1] > 0
    assert found["arrow"][2] == 14
    filled = counting("filled", source=source)
    lake.backfill(spark, filled, at("00:00"), at("05:00"))
    assert sum(n for _, _, n in left_by(lake, filled)[0]) == 14

    # A path that is reported differently from the log ends the run, and loses no row.
    monkeypatch.setattr(DeltaFiles, "_root", property(lambda reader: "/elsewhere"))
    with pytest.raises(Exception, match="which none of the commits being read added"):
        lake.replay(spark, counting("undecoded", source=source))


def test_hive_partitions_with_files_of_one_name_keep_their_commits(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for day, *hours in (("1", "01:00", "06:00"), ("2 ü", "01:10", "07:00"), ("3%", "09:00")):
        rows = pa.Table.from_pylist([{"user": "ann", "at": at(hour), "value": 1} for hour in hours], schema=EVENTS)
        add_file(lake.path("events"), rows, f"d={day}/000000_0", to_millis(at("12:00")), {"d": day})
    each, whole = counting("each"), counting("whole")
    lake.replay(spark, each, 1)
    lake.replay(spark, whole)
    assert left_by(lake, each) == left_by(lake, whole)
    assert left_by(lake, whole)[1] == 1


def test_rows_that_spark_does_not_give_are_missed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", at("01:00"), 1), ("bob", at("02:00"), 1))
    source = DeltaSource("events", timestamp="at", reader="spark")
    whole = DeltaFiles.rows

    def one_row(reader: DeltaFiles, parts: Sequence[FilePart], *placed: bool) -> DataFrame:
        return whole(reader, parts, *placed).where("user = 'ann'")

    monkeypatch.setattr(DeltaFiles, "rows", one_row)
    with pytest.raises(Refused, match=r"1 rows were read from 1 file with 2 according to the log"):
        lake.replay(spark, counting("short", source=source))


ODD = ("a.b", "x`y", "[Z]", "Reason", "Epoch", "acc_n", "input_reason", "Mixed Case", "ü.`[")


def test_columns_may_be_called_anything_as_key_as_value_and_unused(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            *((name, pa.string() if number % 2 else pa.int64()) for number, name in enumerate(ODD)),
        ]
    )
    for hour in (1, 1, 5):
        row = {name: "k" if number % 2 else number for number, name in enumerate(ODD)}
        lake.write(pa.Table.from_pylist([{"at": at(f"0{hour}:00"), **row}], schema=schema))
    # One late row and one rejected row: both are kept with all columns.
    lake.write(pa.Table.from_pylist([{"at": at("01:00"), **row}, {"at": None, **row}], schema=schema))
    source = DeltaSource("events", timestamp="at", reader="spark")
    for number, (key, value) in enumerate([("a.b", "[Z]"), ("x`y", "ü.`[")]):
        hours = TumblingEventTimeWindows.of(timedelta(hours=1))
        compute = Windows(hours, aggregate={"n": Count(), "s": Sum(value)})
        pipeline = counting(f"odd{number}", source=source, key=(key,), compute=compute)
        lake.replay(spark, pipeline)
        assert [(row["n"], row["s"]) for row in lake.final(pipeline).to_pylist()] == [(2, 2 * ODD.index(value))], key
        assert lake.rows(pipeline, "late").num_rows == lake.rows(pipeline, "rejects").num_rows == 1
    filled = counting("filled", key=("a.b", "x`y"), where="`[Z]` > 0")
    lake.backfill(spark, filled, at("00:00"), at("10:00"))
    assert sorted(lake.latest(filled)["n"].to_pylist()) == [1, 3]


def test_a_row_that_was_rejected_for_lying_ahead_is_not_taken_after_optimize(
    spark: SparkSession, tmp_path: Path
) -> None:
    """OPTIMIZE rewrites files, and in event order rows are compared with the time of their file."""
    lake, pipeline = Lake(tmp_path), counting("ahead", max_ahead=timedelta(days=1))
    lake.clock.now = to_millis(at("12:00"))
    ahead = ("ann", at("02:00", 3), 7)
    # Of two equal rows one is ahead of its file; the other arrives on its day, and is accepted.
    lake.append_in_files([("ann", at("01:00"), 1), ahead])
    lake.append_in_files([("bob", at("01:00"), 1)])
    lake.backfill(spark, pipeline, at("00:00"), at("00:00", 1))
    assert lake.rows(pipeline, "rejects").num_rows == 1
    lake.clock.now = to_millis(at("03:00", 3))
    lake.append_in_files([ahead, ("bob", at("02:30", 3), 1)])
    DeltaTable(lake.path("events")).optimize.compact()
    lake.backfill(spark, pipeline, at("00:00", 1), at("00:00", 4))
    assert lake.rows(pipeline, "rejects").num_rows == 1
    later = [row for row in lake.latest(pipeline).to_pylist() if row["window_start"] >= at("00:00", 1)]
    assert sorted((row["user"], row["n"]) for row in later) == [("ann", 1), ("bob", 1)]
    assert sum(lake.rows(pipeline, "epochs")["events_in"].to_pylist()) == 5


def test_a_stream_that_takes_over_leaves_a_row_that_was_rejected_for_lying_ahead(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, pipeline = Lake(tmp_path), counting("ahead", max_ahead=timedelta(days=1))
    lake.clock.now = to_millis(at("12:00"))
    lake.append_in_files([("ann", at("01:00"), 1), ("ann", at("02:00", 3), 7)])
    lake.append_in_files([("bob", at("01:00", 1), 1)])
    lake.backfill(spark, pipeline, at("00:00"), at("00:00", 1))
    DeltaTable(lake.path("events")).optimize.compact()
    lake.append(("bob", at("05:00", 3), 1))
    lake.stream(spark, pipeline)
    assert lake.rows(pipeline, "rejects").num_rows == 1
    assert sum(lake.rows(pipeline, "epochs")["events_in"].to_pylist()) == 4
    panes = {(row["user"], row["window_start"]): row["n"] for row in lake.latest(pipeline).to_pylist()}
    assert panes == {("ann", at("01:00")): 1, ("bob", at("01:00", 1)): 1}


def test_a_window_that_is_reopened_leaves_a_row_that_was_rejected_for_lying_ahead(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It is compared with its commit when it is read, and with its file's time when it is read again."""
    lake, pipeline = Lake(tmp_path), counting("ahead")
    lake.append(("ann", at("00:30"), 1), ("ann", at("06:10"), 7))
    for time in ("05:30", "09:45"):
        lake.append(("ann", at(time), 1))
    lake.append(("ann", at("06:30"), 1), ("ann", at("14:00"), 1))
    commits_come_hourly(lake, "events", timedelta(hours=5))
    lake.stream(spark, pipeline, files=1)
    assert lake.rows(pipeline, "rejects")["reason"].to_pylist() == ["timestamp_ahead_of_commit"]
    assert lake.rows(pipeline, "late").num_rows == 1
    DeltaTable(lake.path("events")).optimize.compact()
    assert lake.reopen(spark, pipeline) is not None
    panes = {row["window_start"]: row["n"] for row in lake.latest(pipeline).to_pylist()}
    assert panes[at("06:00")] == 1


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
