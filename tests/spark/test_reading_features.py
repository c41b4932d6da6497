"""Tables that Spark wrote with Delta features: Arrow reads the same rows as Spark does, with the same status."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.hand_made import HandMade, column
from tests.lake import DAY0, Lake, hourly_pipeline
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME, TIME
from tidegate.pipelines.epoch.file_slices import of_version
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.sources.source_table import EvaluatedRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]

Make = Callable[["SparkSession", str], None]

_AT = "timestamp_millis(1709251200000 + id * 61000)"
"""Return the event time of the row `id`: a row per minute from DAY0 on."""


def table(path: str) -> str:
    return f"delta.`{path}`"


def partitioned(spark: SparkSession, path: str) -> None:
    drawn = random.Random(7)
    values = {
        "d": ("date", ["date'2024-02-29'", "date'0001-01-01'", "cast('+12000-02-28' as date)", "null"]),
        "n": ("timestamp_ntz", ["timestamp_ntz'2024-03-01 00:00:00.12'", "timestamp_ntz'1969-12-31 23:59:59.999999'"]),
        "de": ("decimal(38,10)", ["cast(1e-7 as decimal(38,10))", "-1.5", "null"]),
        "f": ("float", ["1.1F", "float('NaN')", "-0.0F", "1e-40F", "null"]),
        "g": ("double", ["1e22D", "-double('Infinity')", "1.1D", "null"]),
        "b": ("boolean", ["true", "false", "null"]),
        "s": ("smallint", ["-32768", "7", "null"]),
        "x": ("binary", ["X'414243'", "X'c3bc'", "null"]),
    }
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in values.items())
    spark.sql(
        f"create table {table(path)} (id bigint, user string, at timestamp, value bigint, {columns}) using delta "
        f"partitioned by ({', '.join(values)})"
    )
    rows = [
        f"({number}, 'u{number % 3}', timestamp'2024-03-01 0{number}:00:00', {number}, "
        f"{', '.join(drawn.choice(texts) for _, texts in values.values())})"
        for number in range(8)
    ]
    spark.sql(f"insert into {table(path)} values {', '.join(rows)}")


def keyed_by_partition(spark: SparkSession, path: str) -> None:
    names = ["a b/c%=ü:?#+&{}~|", "", "__HIVE_DEFAULT_PARTITION__", " x ", "null", "%20", "日"]
    rows = [(number, name, DAY0 + timedelta(minutes=number % 3), number) for number, name in enumerate([*names, None])]
    frame = spark.createDataFrame(rows, "id long, user string, at timestamp, value long")
    frame.write.format("delta").partitionBy("user", "at").save(path)


def deleted(spark: SparkSession, path: str) -> None:
    spark.range(0, 900, 1, 2).selectExpr(
        "id", "concat('u', id % 5) user", f"{_AT} at", "id value", "id % 3 p"
    ).write.format("delta").partitionBy("p").option("delta.enableDeletionVectors", "true").option(
        "delta.randomizeFilePrefixes", "true"
    ).save(path)
    spark.sql(f"delete from {table(path)} where id % 10 = 3 or id between 100 and 140")
    spark.sql(f"delete from {table(path)} where id % 11 = 5")


def mapped_by(mode: str) -> Make:
    def make(spark: SparkSession, path: str) -> None:
        name = table(path)
        spark.sql(
            f"create table {name} (a int, who string, moment timestamp, value bigint, gone int, p int, "
            "st struct<x:int,y:struct<z:string>>, li array<struct<e:int,f:string>>, m map<string,struct<k:int>>) "
            "using delta partitioned by (p) "
            f"tblproperties('delta.columnMapping.mode' = '{mode}', 'delta.enableDeletionVectors' = 'true')"
        )
        nested = "id, id % 2, struct(1, struct('z')), array(struct(1, 'f'), null), map('k', struct(5))"
        spark.sql(f"insert into {name} select id, concat('u', id), {_AT}, id, {nested} from range(0, 20, 1, 1)")
        for change in (
            "rename column who to user",
            "rename column moment to at",
            "rename column st.y.z to zz",
            "rename column li.element.e to ee",
            "rename column m.value.k to kk",
            "rename column p to part",
            "drop column gone",
            "add columns (gone string, moment timestamp, st.y.more int)",
        ):
            spark.sql(f"alter table {name} {change}")
        more = "struct(2, struct('y', 3)), array(struct(2, 'g')), map(), id % 2, 'new', timestamp'1999-01-01'"
        names = "a, user, at, value, st, li, m, part, gone, moment"
        spark.sql(
            f"insert into {name} ({names}) select id, concat('u', id), {_AT}, id, {more} from range(20, 30, 1, 1)"
        )
        spark.sql(f"delete from {name} where a % 4 = 1")

    return make


def widened(spark: SparkSession, path: str) -> None:
    name, wide = table(path), {"b": "smallint", "value": "bigint", "f": "double", "de": "decimal(12,4)", "i": "double"}
    wide |= {"j": "decimal(14,2)", "st.x": "int", "li.element": "bigint", "m.value": "double", "p": "bigint"}
    spark.sql(
        f"create table {name} (user string, at timestamp, b tinyint, value int, f float, de decimal(5,2), i int, "
        "j int, st struct<x:tinyint>, li array<smallint>, m map<int,float>, p int) using delta partitioned by (p) "
        "tblproperties('delta.enableTypeWidening' = 'true')"
    )
    spark.sql(
        f"insert into {name} select concat('u', id), {_AT}, id, id, id + 0.1F, id + 0.25, id, id, struct(id), "
        "array(id), map(id, 1.1F), id % 2 from range(5)"
    )
    for column_name, kind in wide.items():
        spark.sql(f"alter table {name} alter column {column_name} type {kind}")
    spark.sql(
        f"insert into {name} select 'v', {_AT}, 300, 5000000000, 1.1D, 12345678.1234, 1.5D, 12.25, struct(70000), "
        "array(5000000000), map(7, 1.1D), 5000000000 from range(5)"
    )


def chars(spark: SparkSession, path: str) -> None:
    spark.sql(
        f"create table {table(path)} (user char(5), at timestamp, value bigint, v varchar(9), p char(3)) using delta "
        "partitioned by (p)"
    )
    spark.sql(f"insert into {table(path)} select concat('ü', id), {_AT}, id, 'v', concat('p', id % 2) from range(6)")


def with_other_features(spark: SparkSession, path: str) -> None:
    name = table(path)
    features = {"enableRowTracking": "true", "enableInCommitTimestamps": "true", "checkpointPolicy": "v2"}
    features |= {"checkpointInterval": "2", "enableDeletionVectors": "true", "enableChangeDataFeed": "true"}
    properties = ", ".join(f"'delta.{feature}' = '{value}'" for feature, value in features.items())
    spark.sql(
        f"create table {name} (user string not null, at timestamp, value bigint, day date generated always as "
        f"(cast(at as date))) using delta cluster by (user) tblproperties({properties})"
    )
    for begin in (0, 20, 40):
        rows = f"select concat('u', id), {_AT}, id from range({begin}, {begin + 20}, 1, 1)"
        spark.sql(f"insert into {name} (user, at, value) {rows}")
    spark.sql(f"delete from {name} where value % 7 = 2")


ZONES = ("America/New_York", "Australia/Lord_Howe", "Pacific/Apia")
CHANGES = ("2024-03-10 00:00", "2024-11-03 00:00", "2024-04-06 23:00", "2024-10-06 00:00", "2011-12-29 12:00")
CHANGES += ("1970-01-01 00:00", "1969-12-31 12:00", "2050-03-13 00:00", "9999-12-31 12:00")


def wall_clock(spark: SparkSession, path: str) -> None:
    moments = [
        datetime.fromisoformat(text) + timedelta(minutes=13 * n, microseconds=n) for text in CHANGES for n in range(40)
    ]
    rows = pa.table(
        {"user": ["u"] * len(moments), "at": pa.array(moments, pa.timestamp("us")), "value": range(len(moments))}
    )
    # Spark would mistake Arrow's wall-clock times for instants.
    write_deltalake(path, rows)


def with_empty_texts(spark: SparkSession, path: str) -> None:
    kinds = {"user": "string", "p": "date", "x": "binary", "n": "integer", "b": "boolean", "t": "timestamp"}
    columns = [*kinds.items(), ("at", "timestamp"), ("value", "long"), ("note", "string")]
    made = HandMade(Path(path), [column(*each) for each in columns], [*kinds])
    # An empty text in a file stays one.
    rows = pa.table({"at": pa.array([DAY0], pa.timestamp("us", tz="UTC")), "value": [1], "note": [""]})
    made.commit(
        made.file(rows, dict.fromkeys(kinds, ""), "a.parquet"),
        made.file(rows, {"user": "b", "x": "c"}, "b.parquet"),
    )


def in_the_old_calendar(spark: SparkSession, path: str) -> None:
    name, modes = table(path), ("parquet.datetimeRebaseModeInWrite", "parquet.int96RebaseModeInWrite")
    spark.sql(f"create table {name} (user string, at timestamp, value bigint, born date, seen timestamp) using delta")
    for mode in modes:
        spark.conf.set(f"spark.sql.{mode}", "LEGACY")
    try:
        for kind in ("TIMESTAMP_MICROS", "INT96"):
            spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
            for day in (
                "0001-01-01",
                "1000-02-28",
                "1100-03-01",
                "1582-10-04",
                "1582-10-15",
                "1850-07-01",
                "2024-03-01",
            ):
                spark.sql(
                    f"insert into {name} select '{kind}', {_AT}, id, date'{day}', timestamp'{day} 13:14:15.5' "
                    "from range(2)"
                )
    finally:
        for setting in (*modes, "parquet.outputTimestampType"):
            spark.conf.unset(f"spark.sql.{setting}")


def pipeline_of(columns: dict[str, str] | None = None, **source: Any) -> Pipeline:
    source = {"timestamp": "at", **source}
    return hourly_pipeline(source=DeltaSource("events", **source), null_keys="keep", columns=columns or {})


def rows_and_counts(spark: SparkSession, lake: Lake, pipeline: Pipeline) -> tuple[list[str], dict[str, int]]:
    """Return the usable rows of a table as strings, and the number of rows by status."""
    with lake.driver(spark, pipeline) as driver:
        source = OpenInput.open(driver.engine, driver.tables, pipeline)
        files = of_version(source, source.log.head, None)

        def texts(judged: Iterator[EvaluatedRows]) -> Iterator[pa.RecordBatch]:
            for rows in judged:
                usable = rows.usable(FIRST_TIME, LAST_TIME)
                whole = files.as_rows(rows, usable).append_column(TIME, pa.array(rows.times[usable]))
                yield pa.RecordBatch.from_pydict({"row": pa.array(_texts(whole), pa.string())})

        found = driver.engine.over(files, texts, pa.schema([("row", pa.string())]))
        return sorted(found["row"].to_pylist()), source.measure(files).counts


def _texts(rows: pa.Table) -> list[str]:
    """Return rows as sorted strings; times and dates are numbers, because Python can't represent all of them."""
    columns = {}
    for name, values in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_date(values.type):
            values = values.cast(pa.int32())
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.int64())
        columns[name] = values
    return sorted(repr(row) for row in pa.table(columns).to_pylist())


CASES: dict[str, tuple[Make, Sequence[dict[str, Any]]]] = {
    "partitions of every type": (partitioned, [{}]),
    "a partition as key and as event time": (keyed_by_partition, [{}]),
    "deletion vectors": (deleted, [{}]),
    "mapped by name": (mapped_by("name"), [{}]),
    "mapped by id": (mapped_by("id"), [{}]),
    "widened types": (widened, [{}]),
    "CHAR and VARCHAR": (chars, [{}]),
    "features that change no rows, checkpoints v2": (with_other_features, [{}]),
    "wall-clock times": (wall_clock, [{"zone": ZONES[0]}]),
    "wall-clock times of other zones": (wall_clock, [{"zone": zone} for zone in ZONES[1:]]),
    "empty texts for partition values": (with_empty_texts, [{}]),
    "the calendar of Spark 2": (in_the_old_calendar, [{}]),
}


LONG = {
    "mapped by id",
    "features that change no rows, checkpoints v2",
    "deletion vectors",
    "partitions of every type",
    "wall-clock times of other zones",
    "CHAR and VARCHAR",
    "widened types",
    "a partition as key and as event time",
}
"""Cases for make test-long. The table mapped by name has deletion vectors and a partition too; a table with checkpoints
v2 is read like a plain one. tests/pipelines/sources/test_partition_values.py has the partition values of every type,
and tests/pipelines/sources/test_stored_fields.py the times of all zones, CHAR and VARCHAR.
tests/property/test_delta_features.py draws files of narrower types and partitions by key and by event time.
"""


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.long if case in LONG else ()) for case in CASES])
def test_the_tasks_read_the_rows_that_spark_reads(spark: SparkSession, lake: Lake, case: str) -> None:
    make, options = CASES[case]
    make(spark, lake.path("events"))
    for source in options:
        expected = rows_and_counts(spark, lake, pipeline_of(reader="spark", **source))
        assert expected[0]
        assert rows_and_counts(spark, lake, pipeline_of(**source)) == expected
        # Spark evaluates this over rows that the tasks read.
        assert rows_and_counts(spark, lake, pipeline_of({"sound": "soundex(user)"}, **source)) == expected
