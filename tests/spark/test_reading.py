"""Whether Arrow in the tasks or Spark reads the source: the windows, late rows, rejects and counts are the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pytest
from deltalake import WriterProperties, write_deltalake

from tests.lake import DAY0, Lake, assert_same_windows
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.engine.spark.engine import SparkEngine
from tidegate.pipelines.epoch import exchange, operate
from tidegate.pipelines.epoch.exchange import SharedReading
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.windowing import (
    CollectList,
    Count,
    EventTimeSessionWindows,
    Max,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]

Reader = Literal["auto", "spark"]

MESSY = pa.schema(
    [
        ("User", pa.string()),
        ("place", pa.int32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("millis", pa.int64()),
        ("seconds", pa.int64()),
        ("value", pa.int64()),
        ("price", pa.decimal128(12, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)
"""Columns of a source with every kind of irregularity; `extra` is added by a later version."""


def messy_rows(seed: int, rows: int = 300) -> pa.Table:
    """Rows of three days with nulls, times before 1970, after 9999 and in the future, and duplicate times."""
    drawn = random.Random(seed)
    found = []
    for _ in range(rows):
        moment: datetime | None = DAY0 + timedelta(minutes=drawn.randrange(3 * 1440), microseconds=drawn.randrange(999))
        if drawn.random() < 0.05:
            moment = drawn.choice(
                [None, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), datetime.now(UTC) + timedelta(days=400)]
            )
        millis = None if moment is None else int(moment.timestamp() * 1000)
        found.append(
            {
                "User": None if drawn.random() < 0.04 else f"user-{drawn.randrange(12)}",
                "place": None if drawn.random() < 0.04 else drawn.randrange(4),
                "at": moment,
                "millis": 2**62 if drawn.random() < 0.02 else millis,
                "seconds": -(2**61) if drawn.random() < 0.02 else None if millis is None else millis // 1000,
                "value": None if drawn.random() < 0.1 else drawn.randrange(100),
                "price": Decimal(drawn.randrange(10_000)) / 100,
                "tags": drawn.choice([None, [], ["a", None]]),
            }
        )
    return pa.Table.from_pylist(found, schema=MESSY)


def pipeline_of(reader: Reader, source: dict[str, Any], compute: Windows, **options: Any) -> Pipeline:
    return Pipeline(
        name=f"{options.pop('name', 'read')}_by_{reader}",
        source=DeltaSource("events", reader=reader, **source),
        key=options.pop("key", ("User",)),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=1)),
        compute=compute,
        **options,
    )


_AGGREGATE: dict[str, Any] = {"events": Count(), "total": Sum("value"), "dearest": Max("price")}
_HOURS = Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate=_AGGREGATE)
_SESSIONS = Windows(EventTimeSessionWindows.with_gap(timedelta(minutes=20)), aggregate=_AGGREGATE)
_LISTS = Windows(
    TumblingEventTimeWindows.of(timedelta(hours=6)),
    allowed_lateness=timedelta(hours=1),
    aggregate={"values": CollectList("value"), "who": CollectList("User")},
)
_AT = {"timestamp": "at"}


COUNTED = ("events_in", "on_time", "late", "rejected", "dropped", "watermark")
"""Columns of table epochs that don't depend on the reader."""


def assert_same_rows(lake: Lake, pair: Sequence[Pipeline]) -> None:
    """Both have the same results, late rows and rejects, whenever they were emitted, and some of each."""
    for table in ("results", "late", "rejects"):
        given, expected = (
            sorted(repr({**row, "emitted_at": None}) for row in lake.rows(pipeline, table).to_pylist())
            for pipeline in pair
        )
        assert given == expected
        assert given


@pytest.mark.parametrize(
    ("source", "compute", "options"),
    [
        pytest.param(_AT, _SESSIONS, {}, marks=pytest.mark.long),
        (_AT, _HOURS, {"key": ("User", "place"), "null_keys": "keep", "watermark_by": "place"}),
        pytest.param({"timestamp": "millis", "unit": "ms"}, _HOURS, {"key": ("place",)}, marks=pytest.mark.long),
        pytest.param({"timestamp": "seconds", "unit": "s"}, _LISTS, {"key": ()}, marks=pytest.mark.long),
        pytest.param(
            _AT,
            _SESSIONS,
            {
                "where": "value > 30 or price > 50",
                "columns": {"who": "upper(User)", "value": "value * 2L", "twice": "value + 1"},
                "key": ("who",),
            },
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"timestamp": "moment"},
            _HOURS,
            {
                "columns": {"moment": "case when abs(millis) < 300000000000000 then timestamp_millis(millis) end"},
                "where": "place <> 2",
                "watermark_by": "place",
                "watermark_from": "all",
            },
            marks=pytest.mark.long,
        ),
        pytest.param(
            _AT,
            _SESSIONS,
            {
                "where": "hash(value) % 3 <> 0",
                "columns": {"who": "soundex(User)", "value": "value * 2L"},
                "key": ("who",),
                "watermark_by": "place",
                "watermark_from": "all",
            },
            marks=pytest.mark.long,
        ),
        pytest.param(_AT, _HOURS, {"watermark_by": "price"}, marks=pytest.mark.long),
    ],
    ids=[
        "sessions",
        "two keys with nulls, watermarks by place",
        "milliseconds",
        "seconds, no key",
        "a condition, a derived key and a replaced column",
        "a derived time, and a watermark of dropped rows, too",
        "SQL for Spark, as key, condition and replaced column",
        "watermarks by a decimal",
    ],
)
def test_both_give_the_same(
    spark: SparkSession, lake: Lake, source: dict[str, Any], compute: Windows, options: dict[str, Any]
) -> None:
    lake.write(messy_rows(1))
    lake.write(messy_rows(2))

    pair = [pipeline_of("auto", source, compute, **options), pipeline_of("spark", source, compute, **options)]
    for pipeline in pair:
        lake.backfill(spark, pipeline, DAY0, DAY0 + timedelta(days=1))
    # Late rows and a new column, then the stream takes over and meets late rows.
    wider = messy_rows(3).append_column("extra", pa.array(range(300)))
    write_deltalake(lake.path("events"), wider, mode="append", schema_mode="merge")
    for pipeline in pair:
        lake.backfill(spark, pipeline, DAY0 + timedelta(days=1), DAY0 + timedelta(days=2))
        lake.stream(spark, pipeline)
    lake.write(messy_rows(4).append_column("extra", pa.array(range(300))))
    lake.write(messy_rows(5, rows=40).append_column("extra", pa.nulls(40, pa.int64())))
    for pipeline in pair:
        lake.stream(spark, pipeline)
    assert_same_rows(lake, pair)
    counted = [
        [
            {name: row[name] for name in row if name in COUNTED}
            for row in sorted(lake.rows(pipeline, "epochs").to_pylist(), key=lambda row: row["epoch"])
        ]
        for pipeline in pair
    ]
    assert counted[0] == counted[1]


def test_files_are_shared_by_the_shards_or_packed_and_moved_with_the_same_result(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_deltalake(lake.path("events"), messy_rows(8).drop_columns(["User"]))
    pieces = messy_rows(9).to_batches(max_chunksize=20)
    for piece in pieces:
        write_deltalake(lake.path("events"), pa.Table.from_batches([piece]), mode="append", schema_mode="merge")
    monkeypatch.setattr(exchange, "_ROWS_OF_A_BUNDLE", range(1, 10))
    sharing: list[bool] = []

    @contextmanager
    def noting(files: FileSlice | None, tasks: int) -> Iterator[SharedReading | None]:
        with exchange.shared_reading(files, tasks) as shared:
            sharing.append(shared is not None)
            yield shared

    monkeypatch.setattr(operate, "shared_reading", noting)
    options: dict[str, Any] = {"null_keys": "keep", "parallelism": 5}
    pair = [pipeline_of("auto", _AT, _LISTS, name=name, **options) for name in ("in_place", "moved")]
    moved = pair[1].name
    packing: list[str] = []

    def run(run_one: Callable[[Pipeline], object]) -> None:
        for pipeline in pair:
            monkeypatch.setattr(operate, "is_exchange_cheaper", lambda *given, name=pipeline.name: name == moved)
            monkeypatch.setattr(
                SparkEngine, "exchanged", lambda *given, name=pipeline.name: packing.append(name) or exchanged(*given)
            )
            run_one(pipeline)

    exchanged = SparkEngine.exchanged
    run(lambda pipeline: lake.backfill(spark, pipeline, DAY0, DAY0 + timedelta(days=2)))
    run(lambda pipeline: lake.stream(spark, pipeline))
    lake.write(messy_rows(10, rows=40))
    run(lambda pipeline: lake.stream(spark, pipeline))
    assert packing == [moved] * 3
    assert sharing[0], "the tasks of the backfill in place share what they read"
    assert_same_rows(lake, pair)


def test_times_of_spark_s_old_96_bits_are_read(spark: SparkSession, lake: Lake) -> None:
    rows = messy_rows(6)
    frame = spark.createDataFrame(rows.to_pandas()[["User", "at", "value", "price"]])
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        frame.write.format("delta").save(lake.path("events"))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    pair = [pipeline_of("auto", _AT, _SESSIONS), pipeline_of("spark", _AT, _SESSIONS)]
    for pipeline in pair:
        lake.backfill(spark, pipeline, DAY0, DAY0 + timedelta(days=3))
    assert_same_windows(lake.rows(pair[0], "results"), lake.rows(pair[1], "results"))


def test_a_value_that_only_spark_can_compute_is_told_with_its_way_out(spark: SparkSession, lake: Lake) -> None:
    berlin = ["2024-03-01 10:00:00 Europe/Berlin", "2024-03-01 11:00:00 Europe/Berlin"]
    lake.write(pa.table({"User": ["a", "b"], "text": berlin, "value": [1, 2]}))
    counts = Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"events": Count()})
    options: dict[str, Any] = {"columns": {"moment": "to_timestamp(text)"}}
    by_tasks = pipeline_of("auto", {"timestamp": "moment"}, counts, **options)
    by_spark = pipeline_of("spark", {"timestamp": "moment"}, counts, **options)
    with pytest.raises(Refused, match=r"columns\['moment'\].*If Spark can evaluate the row, .*reader='spark'"):
        lake.backfill(spark, by_tasks, DAY0, DAY0 + timedelta(days=1))
    lake.backfill(spark, by_spark, DAY0, DAY0 + timedelta(days=1))
    starts = sorted(row["window_start"].hour for row in lake.latest(by_spark).to_pylist())
    assert starts == [9, 10]


def test_columns_are_evaluated_only_for_rows_that_where_keeps_whoever_evaluates_them(
    spark: SparkSession, lake: Lake
) -> None:
    texts = ["2024-03-01 10:00:00", "a click", "2024-03-01 11:30:00"]
    parts = pa.array([2, 0, 4])
    lake.write(pa.table({"User": ["a", "b", "a"], "text": texts, "parts": parts, "value": parts}))
    # `value` is replaced, and `share` is used twice, so that Spark keeps a projection of it.
    columns = {"moment": "to_timestamp(text)", "share": "8 div parts", "value": "share + share * 2L"}
    options: dict[str, Any] = {"where": "parts <> 0 and text like '2%'", "columns": columns}
    sums = Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"total": Sum("value")})
    by_tasks = pipeline_of("auto", {"timestamp": "moment"}, sums, **options)
    by_spark = pipeline_of("spark", {"timestamp": "moment"}, sums, **options)
    between = pipeline_of(
        "auto",
        {"timestamp": "moment"},
        sums,
        name="between",
        **{**options, "columns": {**columns, "sound": "soundex(User)"}},
    )
    for pipeline in (by_tasks, by_spark, between):
        lake.backfill(spark, pipeline, DAY0, DAY0 + timedelta(days=1), "6h")
        assert [row["total"] for row in lake.latest(pipeline).to_pylist()] == [12, 6]
        epochs = lake.rows(pipeline, "epochs").sort_by("epoch")
        assert epochs["dropped"].to_pylist() == [1, 0, 0, 0]


def _partitioned(lake: Lake) -> None:
    write_deltalake(lake.path("events"), messy_rows(7), partition_by=["place"])


def _ordinary(lake: Lake) -> None:
    write_deltalake(lake.path("events"), messy_rows(7), writer_properties=WriterProperties(compression="ZSTD"))


@pytest.mark.parametrize(
    ("make", "options", "evaluated_by_tasks"),
    [
        (_ordinary, {}, True),
        (_ordinary, {"where": "value > 3"}, True),
        (_ordinary, {"columns": {"double": "value * 2"}}, True),
        (_ordinary, {"where": "hash(value) > 3"}, False),
        (_ordinary, {"columns": {"double": "value * 2", "text": "format_number(value, 2)"}}, False),
        (_partitioned, {}, True),
    ],
    ids=["plain", "where", "columns", "where for Spark", "a column for Spark", "partitioned"],
)
def test_sql_that_is_not_proven_goes_through_spark(
    spark: SparkSession, lake: Lake, make: Callable[[Lake], None], options: dict[str, Any], evaluated_by_tasks: bool
) -> None:
    make(lake)
    pipeline = pipeline_of("auto", _AT, _HOURS, **options)
    with lake.driver(spark, pipeline) as driver:
        (table,) = OpenInput.open(driver.engine, driver.tables, pipeline).files.tables
        assert (table.columns.by_spark is None, table.for_spark) == (evaluated_by_tasks, None)
    lake.backfill(spark, pipeline, DAY0, DAY0 + timedelta(days=3))
    assert len(lake.rows(pipeline, "results")) > 100
