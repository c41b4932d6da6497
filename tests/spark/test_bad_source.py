"""A source that does not fit its pipeline: an error that names what is wrong, and nothing half written.

Spark's own hash of decimal keys is the one that this library computes, up to 38 digits, negative, of any scale. The SQL
of the page about consuming registers table `windows` in Spark's own catalog, and Spark follows the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pytest

from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.standing import rows_of
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.errors import REFUSED, USAGE, TidegateError
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import Count, EventTimeSessionWindows, Windows
from tidegate.windowing.errors import IllegalArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": DeltaSource("nowhere", timestamp="at")}, r"source table .*nowhere does not exist: create it"),
        (
            {"source": DeltaSource("events", timestamp="moment")},
            r"source\.timestamp.*'moment'.*it has \['user', 'at', 'value'\]",
        ),
        ({"key": ("customer",)}, r"key.*'customer'.*did you mean 'user'\? It has \['user', 'at', 'value'\]"),
        ({"source": DeltaSource("events", timestamp="user")}, r"source\.timestamp.*string.*to_timestamp"),
        ({"source": DeltaSource("events", timestamp="value")}, r"source\.(unit|timestamp).*'value'.*unit"),
        ({"where": "valu > 0"}, r"where of pipeline 'hours'.*valu"),
        ({"columns": {"double": "value +"}}, r"columns\['double'\]"),
    ],
    ids=[
        "no table",
        "no time column",
        "no key column",
        "a string as time",
        "a number without unit",
        "where",
        "columns",
    ],
)
def test_it_is_refused_before_anything_is_written(
    spark: SparkSession, lake: Lake, options: dict[str, Any], message: str
) -> None:
    lake.append(("a", at("10:00"), 1))
    pipeline = hourly_pipeline(**options)
    with pytest.raises((TidegateError, IllegalArgument), match=message) as refused:
        lake.backfill(spark, pipeline, DAY0, DAY0 + DAY)
    assert getattr(refused.value, "exit_code", USAGE) in (USAGE, REFUSED)
    assert not lake.tables(pipeline).exist
    lake.backfill(spark, hourly_pipeline(), DAY0, DAY0 + DAY)


def test_integers_count_seconds_or_milliseconds_where_that_is_declared(spark: SparkSession, lake: Lake) -> None:
    moment = int(at("10:00").timestamp())
    lake.write(pa.table({"user": ["a"], "at": pa.array([moment], pa.int64()), "value": [1]}), "seconds")
    pipeline = hourly_pipeline(source=DeltaSource("seconds", timestamp="at", unit="s"))
    lake.backfill(spark, pipeline, DAY0, DAY0 + DAY)
    assert [row["window_start"] for row in lake.final(pipeline).to_pylist()] == [at("10:00")]


def test_a_number_far_beyond_any_time_is_rejected_like_other_times_out_of_range(
    spark: SparkSession, lake: Lake
) -> None:
    numbers = pa.array([int(at("10:00").timestamp()), 2**62, -(2**62), None], pa.int64())
    lake.write(pa.table({"user": list("abcd"), "at": numbers, "value": [1, 2, 3, 4]}), "seconds")
    pipeline = hourly_pipeline(source=DeltaSource("seconds", timestamp="at", unit="s"))
    lake.backfill(spark, pipeline, DAY0, DAY0 + DAY)
    assert len(lake.final(pipeline)) == 1
    reasons = {row["user"]: row["reason"] for row in lake.rows(pipeline, "rejects").to_pylist()}
    assert reasons == {"b": "timestamp_out_of_range", "c": "timestamp_out_of_range", "d": "null_timestamp"}


CHANGING = (
    "rand()",
    "uuid()",
    "current_timestamp",
    "now()",
    "monotonically_increasing_id()",
    "input_file_name()",
    "spark_partition_id()",
    "shuffle(array(value, 1))",
    "transform(array(value), x -> x + rand())",
)


@pytest.mark.long
@pytest.mark.parametrize("reader", ["auto", "spark"])
def test_an_expression_that_gives_another_value_each_time_is_refused(
    spark: SparkSession, lake: Lake, reader: Literal["auto", "spark"]
) -> None:
    lake.append(("a", at("10:00"), 1))
    source = DeltaSource("events", timestamp="at", reader=reader)
    for changing in CHANGING:
        for options in ({"where": f"{changing} is not null"}, {"columns": {"id": changing}}):
            pipeline = hourly_pipeline(source=source, **options)
            with pytest.raises(TidegateError, match=r"a different value each time.*rand\(\)"):
                lake.backfill(spark, pipeline, DAY0, DAY0 + DAY)
            assert not lake.tables(pipeline).exist


@pytest.mark.parametrize("over_rows", ["explode(array(value))", "sum(value)", "row_number() over (order by value)"])
def test_an_expression_over_several_rows_is_refused(spark: SparkSession, lake: Lake, over_rows: str) -> None:
    lake.append(("a", at("10:00"), 1))
    with pytest.raises(TidegateError, match=r"columns\['id'\] of pipeline 'hours'"):
        lake.backfill(spark, hourly_pipeline(columns={"id": over_rows}), DAY0, DAY0 + DAY)


def _optimise(lake: Lake, spark: SparkSession, path: str) -> None:
    spark.sql(f"OPTIMIZE delta.`{path}`")


def _map_columns(lake: Lake, spark: SparkSession, path: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")


def _delete_by_vector(lake: Lake, spark: SparkSession, path: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")


@pytest.mark.parametrize("table", ["state", pytest.param("results", marks=pytest.mark.long)])
@pytest.mark.parametrize("spoil", [_map_columns, _delete_by_vector], ids=["column mapping", "deletion vectors"])
def test_features_that_would_corrupt_our_tables_are_refused(
    spark: SparkSession, lake: Lake, table: str, spoil: Callable[[Lake, SparkSession, str], None]
) -> None:
    lake.append(("a", at("10:00"), 1))
    pipeline = hourly_pipeline()
    lake.backfill(spark, pipeline, DAY0, DAY0 + DAY)
    path = lake.tables(pipeline).path(table)
    spoil(lake, spark, path)
    with pytest.raises(TidegateError, match=rf"table {path} has .*Only tidegate may change its tables"):
        lake.backfill(spark, pipeline, DAY0 + DAY, DAY0 + 2 * DAY)


@pytest.mark.long
def test_an_optimize_of_state_by_spark_changes_no_result(spark: SparkSession, lake: Lake) -> None:
    lake.append(*[(f"user{number}", at("23:50"), number) for number in range(20)])
    pipeline = hourly_pipeline(allowed_lateness=DAY)
    lake.backfill(spark, pipeline, DAY0, DAY0 + DAY)
    before = len(list(Path(lake.tables(pipeline).path("state")).glob("*.parquet")))
    _optimise(lake, spark, lake.tables(pipeline).path("state"))
    assert len(list(Path(lake.tables(pipeline).path("state")).glob("*.parquet"))) > before
    lake.append(*[(f"user{number}", at("23:55"), 100) for number in range(20)])
    lake.backfill(spark, pipeline, DAY0 + DAY, DAY0 + 2 * DAY)
    assert sorted(row["total"] for row in lake.latest(pipeline).to_pylist()) == [100 + number for number in range(20)]


CASES = Path(__file__).parents[1] / "conformance" / "spark_key_groups.json"


def test_the_hashes_of_decimals_in_the_conformance_cases_are_those_of_spark(spark: SparkSession) -> None:
    checks = json.loads(CASES.read_text(encoding="utf-8"))["cases"][0]["checks"]
    decimals = [check for check in checks if check["types"][0].startswith("decimal(")]
    assert max(len(check["key"][0].replace(".", "").lstrip("-0")) for check in decimals) == 38
    hashes = ", ".join(f"xxhash64(cast('{check['key'][0]}' as {check['types'][0]}))" for check in decimals)
    assert list(spark.sql(f"select {hashes}").first() or ()) == [check["xxhash64"] for check in decimals]


PAGE = Path(__file__).parents[2] / "docs" / "guide" / "consuming.md"
PLACE = "/data/warehouse/visits/windows"


@pytest.mark.long
def test_one_statement_registers_the_table_for_good(spark: SparkSession, tmp_path: Path) -> None:
    (block,) = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert PLACE in block
    windows = Windows(EventTimeSessionWindows.with_gap(timedelta(minutes=30)), aggregate={"clicks": Count()})
    lake, pipeline = Lake(tmp_path), session_pipeline(name="visits", compute=windows)
    with lake.driver(LOCAL, pipeline) as driver:
        driver.windows = WindowsTable(partition_by="day")
        stream = Stream(driver, lambda manifest: None)
        lake.append(("ann", at("10:00"), 1), ("ann", at("10:10"), 1), ("bob", at("13:00"), 1))
        stream.run_available()
        *statements, query = filter(None, map(str.strip, block.replace(PLACE, lake.path("visits/windows")).split(";")))
        try:
            for statement in statements:
                spark.sql(statement)
            assert [tuple(row) for row in spark.sql(query).collect()] == [("ann", 2)]
            lake.append(("cem", at("18:00"), 1))
            stream.run_available()
            assert [tuple(row) for row in spark.sql(query).collect()] == [("ann", 2), ("bob", 1)]
            assert len(rows_of(lake.tables(pipeline))) == 2
        finally:
            spark.sql("DROP TABLE IF EXISTS lake.visits_windows")
            spark.sql("DROP SCHEMA IF EXISTS lake")
