"""What a source goes through in a pipeline's life: quiet times, wider columns, odd names, other places."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable

from pipelines import DeltaSource, Input, Pipeline
from pipelines.binding import BoundPipeline, bind
from pipelines.epoch.plan_clock import plan_clock
from pipelines.errors import Refused
from pipelines.fingerprint import describe
from pipelines.places import check_places
from pipelines.retyped import with_renamed
from pipelines.snapshots.compatibility import compare, ready
from pipelines.sources.log import SourceLog
from pipelines.sources.source import Source, check_collations
from pipelines.storage import Warehouse
from pipelines.tables import late
from pipelines.tables.columns import input_rows
from pipelines.testing import PipelineHarness
from tests.lake import EVENTS, Lake, at, hourly_pipeline, session_pipeline
from tests.recovery.without_spark import NoSpark, standing_in
from windowing import (
    Count,
    First,
    IntervalJoin,
    Last,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from windowing.errors import IllegalArgument
from windowing.time import to_millis

HOURS = TumblingEventTimeWindows.of(timedelta(hours=1))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A lake whose streams run without a JVM."""
    with standing_in(NoSpark()):
        yield Lake(tmp_path)


def counting(**options: Any) -> Pipeline:
    return Pipeline(
        **{
            "name": "hours",
            "source": DeltaSource("events", timestamp="at"),
            "key": ("user",),
            "watermark": WatermarkStrategy.for_monotonous_timestamps(),
            "compute": Windows(HOURS, aggregate={"n": Count()}),
            **options,
        }
    )


# --- quiet sources ------------------------------------------------------------------------------


def maintain(lake: Lake) -> None:
    """A commit without data, as a nightly VACUUM writes it."""
    handle = DeltaTable(lake.path("events"))
    properties = CommitProperties(custom_metadata={"what": "VACUUM END"})
    handle.create_write_transaction([], "append", handle.schema(), commit_properties=properties)


def test_rows_of_a_version_can_be_read_again_after_optimize_and_vacuum(lake: Lake) -> None:
    lake.append(("ann", at("01:00"), 1))
    lake.append(("ann", at("02:00"), 1))
    lake.stream(NoSpark(), hourly_pipeline())
    read = lake.snapshot(hourly_pipeline()).manifest.positions["events"]
    handle = DeltaTable(lake.path("events"))
    handle.optimize.compact()
    handle.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    log = SourceLog(Warehouse(str(lake.folder)), lake.path("events"))
    with pytest.raises(Refused, match=r"compacted and vacuumed since it was read\. Read on first"):
        log.active("at", read.version)
    assert log.settled(read.version) == log.head
    assert sum(file.rows or 0 for file in log.active("at", log.settled(read.version))) == 2
    # The way out that the message names.
    lake.clock.now += 120_000
    lake.stream(NoSpark(), hourly_pipeline())
    assert lake.snapshot(hourly_pipeline()).manifest.positions["events"].version == log.head


def test_a_position_does_not_go_on_over_data_nor_over_what_removed_some(lake: Lake) -> None:
    lake.append(("ann", at("01:00"), 1))
    maintain(lake)
    lake.append(("ann", at("02:00"), 1))
    assert SourceLog(Warehouse(str(lake.folder)), lake.path("events")).settled(0) == 1
    DeltaTable(lake.path("events")).delete("user = 'ann'")
    assert SourceLog(Warehouse(str(lake.folder)), lake.path("events")).settled(2) == 2
    assert SourceLog(Warehouse(str(lake.folder)), lake.path("events")).next_commit(0).version == 2  # type: ignore[union-attr]


def test_a_clock_that_need_not_be_recorded_is_where_a_day_of_maintenance_is_to_be_passed(lake: Lake) -> None:
    pipeline = hourly_pipeline(checkpoint_interval=timedelta(days=400))
    lake.append(("ann", at("01:00"), 1))
    (made,) = lake.stream(NoSpark(), pipeline)
    maintain(lake)
    assert lake.stream(NoSpark(), pipeline) == []
    lake.clock.now += 90_000_000
    (passed,) = lake.stream(NoSpark(), pipeline)
    assert (passed.kind, passed.positions["events"].version) == ("clock", made.positions["events"].version + 1)
    lake.clock.now += 900_000_000
    assert lake.stream(NoSpark(), pipeline) == [], "nothing is left to pass, so no epoch is made in vain"


def test_each_of_two_inputs_passes_its_own_maintenance(lake: Lake) -> None:
    """Every input is asked by itself, so the quiet side of a join goes on while the other has data."""
    lake.append(("ann", at("01:00"), 1))
    lake.stream(NoSpark(), hourly_pipeline())
    maintain(lake)
    source = Source.open(cast("Any", None), lake.tables(hourly_pipeline()), hourly_pipeline())
    head = lake.snapshot(hourly_pipeline())
    plan = plan_clock(source, lake.tables(hourly_pipeline()), head, lake.clock.now + 120_000, 1)
    assert plan is not None
    assert plan.positions["events"].version == source.log.head


# --- columns whose type changes -----------------------------------------------------------------


def typed(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("amount", kind)])


def widen_source(lake: Lake, kind: str) -> None:
    """Delta's type widening of column `amount`, as the log has it."""
    log = Path(lake.path("events"), "_delta_log")
    newest = DeltaTable(lake.path("events")).version()
    actions = [json.loads(line) for line in (log / f"{0:020d}.json").read_text().splitlines()]
    (metadata,) = [action["metaData"] for action in actions if "metaData" in action]
    schema = json.loads(metadata["schemaString"])
    next(field for field in schema["fields"] if field["name"] == "amount")["type"] = kind
    metadata["schemaString"] = json.dumps(schema)
    (log / f"{newest + 1:020d}.json").write_text(json.dumps({"metaData": metadata}))


def test_an_unused_column_may_be_widened_and_late_rows_keep_both(lake: Lake) -> None:
    pipeline = counting(compute=Windows(HOURS, aggregate={"n": Count()}))

    def write(kind: pa.DataType, *rows: tuple[str, int]) -> None:
        values = [{"user": "u", "at": at(hour), "amount": amount} for hour, amount in rows]
        lake.write(pa.Table.from_pylist(values, schema=typed(kind)))

    write(pa.int32(), ("01:00", 1), ("05:00", 2))
    lake.stream(NoSpark(), pipeline)
    write(pa.int32(), ("01:30", 3))
    lake.stream(NoSpark(), pipeline)
    widen_source(lake, "long")
    write(pa.int64(), ("01:40", 2**40))
    lake.stream(NoSpark(), pipeline)
    widen_source(lake, "long")
    write(pa.int64(), ("01:50", 2**41))
    lake.stream(NoSpark(), pipeline)
    rows = lake.rows(pipeline, late.NAME).sort_by("at")
    assert rows["amount"].to_pylist() == [3, None, None]
    assert rows["amount_long"].to_pylist() == [None, 2**40, 2**41]
    bound = with_renamed(bind(pipeline, typed(pa.int64()), typed(pa.int64())), lake.tables(pipeline))
    assert bound.renamed[late.NAME] == {"amount": "amount_long"}
    as_read = input_rows(rows, late.TRAILING, bound.source, bound.renamed[late.NAME])
    assert as_read["amount"].to_pylist() == [3, 2**40, 2**41]
    assert as_read.schema.names == ["user", "at", "amount"]


def test_a_second_change_and_a_taken_name_get_a_column_each(lake: Lake) -> None:
    schema = typed(pa.int32()).append(pa.field("Amount_Long", pa.string()))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00")}], schema=schema))
    lake.stream(NoSpark(), counting())

    def bound(kind: pa.DataType) -> BoundPipeline:
        wide = typed(kind).append(pa.field("Amount_Long", pa.string()))
        made = with_renamed(bind(counting(), wide, wide), lake.tables(counting()))
        ready(lake.tables(counting()), made, lake.snapshot(counting()))
        return made

    assert bound(pa.int64()).renamed[late.NAME] == {"amount": "amount_long_2"}
    assert bound(pa.decimal128(20, 2)).renamed[late.NAME] == {"amount": "amount_decimal_20_2"}
    assert bound(pa.int64()).renamed[late.NAME] == {"amount": "amount_long_2"}
    assert bound(pa.int32()).renamed == {}


def test_a_used_column_that_changes_the_state_is_refused_and_the_way_out_works(lake: Lake) -> None:
    pipeline = counting(compute=Windows(HOURS, aggregate={"first": First("amount"), "total": Sum("amount")}))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "amount": 1}], schema=typed(pa.int32())))
    lake.stream(NoSpark(), pipeline)
    head, wide = lake.snapshot(pipeline), typed(pa.int64())
    (found,) = compare(bind(pipeline, wide, wide), head.manifest).incompatibilities
    assert "columns={'amount': 'try_cast(`amount` as TYPE)'}" in found.way_out
    cast_back = replace(pipeline, columns={"amount": "try_cast(`amount` as int)"})
    bound = with_renamed(bind(cast_back, wide, typed(pa.int32())), lake.tables(pipeline))
    assert ready(lake.tables(pipeline), bound, head) is not None


def test_a_sum_of_a_widened_column_goes_on(lake: Lake) -> None:
    pipeline = counting(compute=Windows(HOURS, aggregate={"total": Sum("amount")}))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "amount": 1}], schema=typed(pa.int32())))
    lake.stream(NoSpark(), pipeline)
    wide = typed(pa.int64())
    assert compare(bind(pipeline, wide, wide), lake.snapshot(pipeline).manifest).incompatibilities == ()


def test_a_way_out_is_told_once(lake: Lake) -> None:
    pipeline = counting(compute=Windows(HOURS, aggregate={"last": Last("amount")}))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "amount": 1}], schema=typed(pa.int32())))
    lake.stream(NoSpark(), pipeline)
    double = typed(pa.float64())
    for changed in (pipeline, counting(compute=Windows(HOURS, aggregate={"n": Count()}))):
        told = compare(bind(changed, double, double), lake.snapshot(pipeline).manifest).incompatibilities
        assert told
        for difference in told:
            assert difference.way_out.count("change back") <= 1
            assert "without a snapshot" not in difference.way_out
            assert "another name and backfill it" in difference.way_out


def test_a_key_column_that_changes_is_refused(lake: Lake) -> None:
    pipeline = counting(key=("amount",))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "amount": 1}], schema=typed(pa.int32())))
    lake.stream(NoSpark(), pipeline)
    wide = typed(pa.int64())
    told = compare(bind(pipeline, wide, wide), lake.snapshot(pipeline).manifest).incompatibilities
    assert [difference.field for difference in told] == ["key column 'amount'"]
    with pytest.raises(Refused, match=r"key column 'amount' .* would not be found"):
        with_renamed(bind(pipeline, wide, wide), lake.tables(pipeline))


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["user", "Reason"], ["user", "input_Reason"]),
        (["reason", "input_reason"], ["input_reason", "input_input_reason"]),
        (["input_reason", "reason"], ["input_reason", "input_input_reason"]),
        (["EPOCH", "Watermark", "stale"], ["input_EPOCH", "input_Watermark", "input_stale"]),
        (["a.b", "x`y", "[z]"], ["a.b", "x`y", "[z]"]),
    ],
)
def test_a_column_named_like_ours_gets_a_prefix_until_it_is_free(columns: list[str], expected: list[str]) -> None:
    source = pa.schema([(name, pa.string()) for name in columns])
    names = late.schema(source).names
    assert names[: len(columns)] == expected
    assert len({name.casefold() for name in names}) == len(names)


@pytest.mark.parametrize(
    ("key", "aggregates", "field"),
    [
        ("acc_n", ("n",), "key"),
        ("user", ("User",), "compute.aggregate"),
        ("user", ("n", "N"), "compute.aggregate"),
        ("user", ("Epoch",), "compute.aggregate"),
        ("Key_Group", ("n",), "key"),
        ("STALE", ("n",), "key"),
    ],
)
def test_names_that_delta_takes_for_one_are_refused_before_anything_is_written(
    key: str, aggregates: tuple[str, ...], field: str
) -> None:
    source = pa.schema([(key, pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    compute = Windows(HOURS, aggregate={name: Count() for name in aggregates})
    with pytest.raises(IllegalArgument, match=f"^{field} = "):
        bind(counting(key=(key,), compute=compute), source, source)


def test_a_key_is_refused_that_late_rows_could_not_be_found_by() -> None:
    columns = [("input_reason", pa.string()), ("reason", pa.string()), ("at", pa.timestamp("us", tz="UTC"))]
    with pytest.raises(IllegalArgument, match=r"key = 'reason'.*as another column"):
        bind(counting(key=("reason",)), pa.schema(columns), pa.schema(columns))
    later = pa.schema([columns[1], columns[0], columns[2]])
    assert bind(counting(key=("reason",)), later, later).key.names == ("reason",)


def test_a_column_named_like_those_of_rows_on_their_way_is_refused() -> None:
    source = EVENTS.append(pa.field("__Commit", pa.int64()))
    with pytest.raises(Refused, match="__Commit"):
        bind(counting(), source, source)


# --- places -------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["hours", "hours/raw", "./hours", "x/../hours", ".", "hours/"])
def test_a_pipeline_does_not_share_a_folder_with_its_source(table: str) -> None:
    with pytest.raises(IllegalArgument, match=r"name = 'hours'.*another name"):
        counting(source=DeltaSource(table, timestamp="at"))


@pytest.mark.parametrize(
    ("warehouse", "table", "how"),
    [
        ("/lake", "/lake/hours", "is"),
        ("/lake", "/lake//x/../hours/", "is"),
        ("/lake", "/lake/hours/raw", "contains"),
        ("/lake/events", "/lake/events", "lies in"),
        ("/lake/events/derived", "file:///lake/events", "lies in"),
        ("s3://bucket/lake", "s3a://bucket/lake/hours", "is"),
    ],
)
def test_paths_are_compared_where_the_warehouse_is_known(warehouse: str, table: str, how: str) -> None:
    with pytest.raises(Refused, match=f" {how} source.table"):
        check_places(Warehouse(warehouse), counting(source=DeltaSource(table, timestamp="at")))


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "lake" / "hours").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "lake")
    source = DeltaSource(f"{tmp_path}/linked/hours", timestamp="at")
    with pytest.raises(Refused, match=r"is source\.table"):
        check_places(Warehouse(f"{tmp_path}/lake"), counting(source=source))


def test_places_beside_each_other_are_fine() -> None:
    for warehouse, table in (("/lake", "events"), ("/lake", "/lake/hours2"), ("s3://a/lake", "s3://b/lake/hours")):
        check_places(Warehouse(warehouse), counting(source=DeltaSource(table, timestamp="at")))


def joined(right: str) -> Pipeline:
    kind = pa.struct([("x", pa.int64())])
    join = IntervalJoin(timedelta(0), timedelta(hours=1), join=lambda left, right: {"x": 1}, result_type=kind)
    return counting(compute=join, right=Input(source=DeltaSource(right, timestamp="at")))


def test_two_inputs_that_are_one_table_are_refused_however_they_are_spelled() -> None:
    for right in ("events", "./events", "events/", "x/../events"):
        with pytest.raises(IllegalArgument, match="both inputs are the same table"):
            joined(right)
    with pytest.raises(Refused, match="is the first input's table"):
        check_places(Warehouse("/lake"), joined("/lake/events"))


def test_a_stream_checks_places_before_it_reads(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    pipeline = counting(source=DeltaSource(f"{tmp_path}/warehouse/hours", timestamp="at"))
    with pytest.raises(Refused, match=r"is source\.table"):
        Source.open(cast("Any", None), lake.tables(pipeline), pipeline)


def test_a_shallow_clone_is_refused_with_the_way_out(lake: Lake) -> None:
    lake.append(("ann", at("01:00"), 1))
    entry = Path(lake.path("events"), "_delta_log", f"{0:020d}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["path"] = f"file://{lake.path('original')}/{action['add']['path']}"
    entry.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(Refused, match=r"shallow clone.*CREATE TABLE"):
        SourceLog(Warehouse(str(lake.folder)), lake.path("events")).commits(-1)


def test_a_collated_key_is_refused_with_the_way_out(lake: Lake) -> None:
    lake.append(("ann", at("01:00"), 1))
    entry = Path(lake.path("events"), "_delta_log", f"{0:020d}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    (metadata,) = [action["metaData"] for action in actions if "metaData" in action]
    schema = json.loads(metadata["schemaString"])
    schema["fields"][0]["metadata"] = {"__COLLATIONS": {"user": "spark.UTF8_LCASE"}}
    metadata["schemaString"] = json.dumps(schema)
    entry.write_text("\n".join(map(json.dumps, actions)))
    log = SourceLog(Warehouse(str(lake.folder)), lake.path("events"))
    pipeline = counting()
    with pytest.raises(Refused, match=r"'user'.*UTF8_LCASE.*lower"):
        check_collations(pipeline.inputs[0], log)
    check_collations(replace(pipeline, columns={"user": "lower(`user`) collate UTF8_BINARY"}).inputs[0], log)
    check_collations(replace(pipeline, key=()).inputs[0], log)


# --- times ahead --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "columns", "expected"),
    [(None, {}, True), ("America/Los_Angeles", {}, False), (None, {"at": "at + interval 5 days"}, False)],
)
def test_only_the_tables_own_instants_are_bounded_by_statistics(
    tmp_path: Path, zone: str | None, columns: dict[str, str], expected: bool
) -> None:
    lake, now = Lake(tmp_path), datetime.now(UTC)
    kind = pa.timestamp("us", tz="UTC" if zone is None else None)
    ahead = now + timedelta(hours=5)
    value = ahead if zone is None else ahead.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    lake.write(pa.table({"user": ["u"], "at": pa.array([value], kind)}))
    pipeline = counting(source=DeltaSource("events", timestamp="at", zone=zone), columns=columns)
    schema = pa.schema([("user", pa.string()), ("at", kind)])
    log = SourceLog(Warehouse(str(tmp_path)), lake.path("events"))
    assert Source(log, cast("Any", None), bind(pipeline, schema, schema)).has_instants is expected
    if zone is not None:
        (file,) = log.active("at")
        assert file.newest is not None
        assert file.newest < file.written < to_millis(ahead), "statistics of a wall clock say nothing of an instant"


@pytest.mark.parametrize(("watermark_from", "watermark"), [("kept", "01:00"), ("all", "03:00")])
def test_what_where_drops_moves_the_watermark_where_the_pipeline_says_so(watermark_from: str, watermark: str) -> None:
    pipeline = counting(where="value > 0", watermark_from=watermark_from)
    harness = PipelineHarness(pipeline, EVENTS, derive=lambda row: row if row["value"] > 0 else None)
    rows = [("ann", at("01:00"), 1), ("bob", at("03:00"), -1), ("bob", at("01:00", 300), -1), ("bob", None, -1)]
    harness.commit([dict(zip(EVENTS.names, row, strict=True)) for row in rows], at("03:00"))
    harness.run()
    assert harness.watermark == to_millis(at(watermark)) - 1


def test_a_pipeline_says_whose_times_move_the_watermark() -> None:
    with pytest.raises(IllegalArgument, match="watermark_from = 'none'"):
        counting(watermark_from="none")
    with pytest.raises(IllegalArgument, match=r"right\.watermark_from"):
        Input(source=DeltaSource("events", timestamp="at"), watermark_from=cast("Any", "x"))


def test_a_younger_field_of_an_input_leaves_fingerprints_as_they_were() -> None:
    schemas = (EVENTS, EVENTS)
    one = joined("payments")
    right = one.right
    assert right is not None
    asked = replace(one, right=replace(right, watermark_from="all"))
    assert "watermark_from" not in str(describe(right))
    assert bind(one, EVENTS, EVENTS, schemas).fingerprint != bind(asked, EVENTS, EVENTS, schemas).fingerprint


def test_an_interval_past_the_last_event_closes_what_crosses_the_end_of_the_data(lake: Lake) -> None:
    """The promise of README 5: event time goes to the end of an interval, with data or without."""
    pipeline = session_pipeline()
    lake.append(("ann", at("23:50"), 1))
    lake.backfill(cast("Any", NoSpark()), pipeline, at("00:00"), at("00:00", 1))
    assert lake.snapshot(pipeline).manifest.counters["open_windows"] == 1
    lake.backfill(cast("Any", NoSpark()), pipeline, at("00:00", 1), at("01:00", 1))
    assert lake.snapshot(pipeline).manifest.counters["open_windows"] == 0
    assert [(row["window_start"], row["events"]) for row in lake.final(pipeline).to_pylist()] == [(at("23:50"), 1)]


def test_a_time_an_hour_ahead_of_its_commit_is_the_last_that_is_taken_by_default() -> None:
    harness = PipelineHarness(counting(), EVENTS)
    rows = [("ann", at("03:00"), 1), ("bob", at("03:00") + timedelta(milliseconds=1), 1)]
    harness.commit([dict(zip(EVENTS.names, row, strict=True)) for row in rows], at("02:00"))
    harness.run()
    assert [row["user"] for row in harness.rejected] == ["bob"]
    assert harness.watermark == to_millis(at("03:00")) - 1
