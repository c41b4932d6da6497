"""Changes of a source in a pipeline's life: idle times, wider columns, times ahead of its commits."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable

from tests.commit_times import vacuum_with_no_hours
from tests.hand_made import HandMade, mapped, struct
from tests.lake import DAY0, EVENTS, LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.counting import HOURS, counting
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.definition import late
from tidegate.pipelines.definition.binding import BoundPipeline, bind
from tidegate.pipelines.definition.column_names import input_rows
from tidegate.pipelines.definition.fingerprint import describe
from tidegate.pipelines.epoch.open_input import OpenInput, with_renamed
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.compatibility import compare, ready
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.sources.sql.compile import compile_expression
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import Aggregate, Count, First, IntervalJoin, Last, Mean, Min, Sum, Windows
from tidegate.windowing.time import to_millis

# --- idle sources -------------------------------------------------------------------------------


def maintain(lake: Lake) -> None:
    """A commit without data, as a nightly VACUUM writes it."""
    handle = DeltaTable(lake.path("events"))
    properties = CommitProperties(custom_metadata={"what": "VACUUM END"})
    handle.create_write_transaction([], "append", handle.schema(), commit_properties=properties)


def test_rows_of_a_version_can_be_read_again_after_optimize_and_vacuum(lake: Lake) -> None:
    lake.append(("ann", at("01:00"), 1))
    lake.append(("ann", at("02:00"), 1))
    lake.stream(LOCAL, hourly_pipeline())
    read = lake.snapshot(hourly_pipeline()).manifest.positions["events"]
    DeltaTable(lake.path("events")).optimize.compact()
    vacuum_with_no_hours(lake.path("events"))
    log = SourceLog(Warehouse(str(lake.folder)), lake.path("events"))
    with pytest.raises(
        Refused, match=r"compacted and vacuumed since it was read\. Read the source's newer versions first"
    ):
        log.active("at", read.version)
    assert log.settled(read.version) == log.head
    assert sum(file.rows or 0 for file in log.active("at", log.settled(read.version))) == 2
    # The remedy that the message names.
    lake.clock.now += 120_000
    lake.stream(LOCAL, hourly_pipeline())
    assert lake.snapshot(hourly_pipeline()).manifest.positions["events"].version == log.head


def test_a_position_does_not_go_on_over_data_nor_over_what_removed_some(lake: Lake) -> None:
    lake.append(("ann", at("01:00"), 1))
    maintain(lake)
    lake.append(("ann", at("02:00"), 1))
    assert SourceLog(Warehouse(str(lake.folder)), lake.path("events")).settled(0) == 1
    DeltaTable(lake.path("events")).delete("user = 'ann'")
    assert SourceLog(Warehouse(str(lake.folder)), lake.path("events")).settled(2) == 2
    pipeline = hourly_pipeline()
    following = OpenInput.open(LOCAL, lake.tables(pipeline), pipeline).next_commit(0)
    assert following.version == 2


def test_a_clock_that_need_not_be_recorded_is_where_a_day_of_maintenance_is_to_be_passed(lake: Lake) -> None:
    pipeline = hourly_pipeline(checkpoint_interval=timedelta(days=400))
    lake.append(("ann", at("01:00"), 1))
    (made,) = lake.stream(LOCAL, pipeline)
    maintain(lake)
    assert lake.stream(LOCAL, pipeline) == []
    lake.clock.now += 90_000_000
    (passed,) = lake.stream(LOCAL, pipeline)
    assert (passed.kind, passed.positions["events"].version) == ("clock", made.positions["events"].version + 1)
    lake.clock.now += 900_000_000
    assert lake.stream(LOCAL, pipeline) == [], "nothing is left to pass, so no epoch is made in vain"


def test_a_join_whose_quiet_side_is_past_its_retention_goes_on(lake: Lake) -> None:
    """Maintenance commits to both sides, data only to one, and Delta cleans the log of the other."""
    prices = Input(source=DeltaSource("prices", timestamp="at"))
    pipeline = counting(compute=IntervalJoin.between(timedelta(0), timedelta(hours=1)), right=prices)

    def positions() -> dict[str, int]:
        found = lake.snapshot(pipeline).manifest.positions
        return {table: position.version for table, position in found.items()}

    for table in ("events", "prices"):
        lake.append(("ann", at("01:00"), 1), table=table)
    lake.stream(LOCAL, pipeline)
    assert positions() == {"events": 0, "prices": 0}
    for _ in range(3):
        maintain(lake)
    lake.append(("ann", at("02:00"), 1), table="prices")
    lake.clock.now += 90_000_000
    lake.stream(LOCAL, pipeline)
    assert positions() == {"events": 3, "prices": 1}
    maintain(lake)
    DeltaTable(lake.path("events")).create_checkpoint()
    for version in range(4):
        Path(lake.path("events"), "_delta_log", f"{version:020d}.json").unlink()
    lake.append(("ann", at("03:00"), 1), table="prices")
    lake.stream(LOCAL, pipeline)
    assert positions()["prices"] == 2
    with pytest.raises(Refused, match="the log entry of version 1 no longer exists"):
        OpenInput.open(LOCAL, lake.tables(pipeline), pipeline).commits(0)


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
    lake.stream(LOCAL, pipeline)
    write(pa.int32(), ("01:30", 3))
    lake.stream(LOCAL, pipeline)
    widen_source(lake, "long")
    write(pa.int64(), ("01:40", 2**40))
    lake.stream(LOCAL, pipeline)
    widen_source(lake, "long")
    write(pa.int64(), ("01:50", 2**41))
    lake.stream(LOCAL, pipeline)
    rows = lake.rows(pipeline, late.NAME).sort_by("at")
    assert rows["amount"].to_pylist() == [3, None, None]
    assert rows["amount_long"].to_pylist() == [None, 2**40, 2**41]
    bound = with_renamed(bind(pipeline, typed(pa.int64()), typed(pa.int64())), lake.tables(pipeline))
    assert bound.renamed[late.NAME] == {"amount": "amount_long"}
    as_read = input_rows(rows, late.TRAILING, bound.source, bound.renamed[late.NAME])
    assert as_read["amount"].to_pylist() == [3, 2**40, 2**41]
    assert as_read.schema.names == ["user", "at", "amount"]


@pytest.mark.parametrize("taken", [pa.string(), pa.int64()], ids=str)
def test_a_second_change_and_a_taken_name_get_a_column_each(lake: Lake, taken: pa.DataType) -> None:
    schema = typed(pa.int32()).append(pa.field("Amount_Long", taken))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00")}], schema=schema))
    lake.stream(LOCAL, counting())

    def bound(kind: pa.DataType) -> BoundPipeline:
        wide = typed(kind).append(pa.field("Amount_Long", taken))
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
    lake.stream(LOCAL, pipeline)
    head, wide = lake.snapshot(pipeline), typed(pa.int64())
    (found,) = compare(bind(pipeline, wide, wide), head.manifest).incompatibilities
    assert "columns={'amount': 'try_cast(`amount` as int)'}" in found.remedy
    # The tasks evaluate it, so that this also works for a source whose changes are corrected.
    assert compile_expression("try_cast(`amount` as int)", wide).type == pa.int32()
    cast_back = replace(pipeline, columns={"amount": "try_cast(`amount` as int)"})
    bound = with_renamed(bind(cast_back, wide, typed(pa.int32())), lake.tables(pipeline))
    assert ready(lake.tables(pipeline), bound, head) is not None


@pytest.mark.parametrize(
    ("aggregate", "then", "now", "cast"),
    [
        (Min("amount"), pa.int16(), pa.int64(), "try_cast(`amount` as smallint)"),
        (Mean("amount"), pa.decimal128(9, 2), pa.decimal128(12, 3), "try_cast(`amount` as decimal(9,2))"),
        (Sum("amount"), pa.decimal128(9, 2), pa.decimal128(12, 3), "try_cast(`amount` as decimal(9,2))"),
        (Sum("amount"), pa.int32(), pa.float64(), "try_cast(`amount` as bigint)"),
        (Last("amount"), pa.decimal128(9, 2), pa.decimal128(12, 2), "try_cast(`amount` as decimal(9,2))"),
    ],
)
def test_the_remedy_names_the_type_with_which_the_state_continues(
    lake: Lake, aggregate: Aggregate, then: pa.DataType, now: pa.DataType, cast: str
) -> None:
    pipeline = counting(compute=Windows(HOURS, aggregate={"result": aggregate}))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "amount": 1}], schema=typed(then)))
    lake.stream(LOCAL, pipeline)
    manifest, wide = lake.snapshot(pipeline).manifest, typed(now)
    told = compare(bind(pipeline, wide, wide), manifest).incompatibilities
    assert any(f"columns={ {'amount': cast} }" in difference.remedy for difference in told)
    back = typed(pa.int64() if cast.endswith("bigint)") else then)
    assert compare(bind(replace(pipeline, columns={"amount": cast}), wide, back), manifest).incompatibilities == ()


def test_a_sum_of_a_widened_column_goes_on(lake: Lake) -> None:
    pipeline = counting(compute=Windows(HOURS, aggregate={"total": Sum("amount")}))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "amount": 1}], schema=typed(pa.int32())))
    lake.stream(LOCAL, pipeline)
    wide = typed(pa.int64())
    assert compare(bind(pipeline, wide, wide), lake.snapshot(pipeline).manifest).incompatibilities == ()


def test_a_way_out_is_told_once(lake: Lake) -> None:
    pipeline = counting(compute=Windows(HOURS, aggregate={"last": Last("amount")}))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "amount": 1}], schema=typed(pa.int32())))
    lake.stream(LOCAL, pipeline)
    double = typed(pa.float64())
    for changed in (pipeline, counting(compute=Windows(HOURS, aggregate={"n": Count()}))):
        told = compare(bind(changed, double, double), lake.snapshot(pipeline).manifest).incompatibilities
        assert told
        for difference in told:
            assert difference.remedy.count("undo the change") <= 1
            assert "without a snapshot" not in difference.remedy
            assert "another name and backfill it" in difference.remedy


def test_a_key_column_that_changes_is_refused(lake: Lake) -> None:
    pipeline = counting(key=("amount",))
    lake.write(pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "amount": 1}], schema=typed(pa.int32())))
    lake.stream(LOCAL, pipeline)
    wide = typed(pa.int64())
    told = compare(bind(pipeline, wide, wide), lake.snapshot(pipeline).manifest).incompatibilities
    assert [difference.field for difference in told] == ["key column 'amount'"]
    with pytest.raises(Refused, match=r"key column 'amount' .* would not find the rows"):
        with_renamed(bind(pipeline, wide, wide), lake.tables(pipeline))


def test_another_watermark_by_is_told_before_a_run(lake: Lake) -> None:
    lake.append(("ann", at("01:00"), 1))
    lake.stream(LOCAL, counting())
    manifest = lake.snapshot(counting()).manifest
    assert compare(bind(counting(), EVENTS, EVENTS), manifest).notes == ()
    (note,) = compare(bind(counting(watermark_by="user"), EVENTS, EVENTS), manifest).notes
    assert note == "watermark_by of events is 'user' now, so its source partitions start again at the watermark"
    lake.append(("ann", at("05:00"), 1))
    lake.stream(LOCAL, counting(watermark_by="user"))
    manifest = lake.snapshot(counting()).manifest
    assert manifest.watermark_by == {"": "user"}
    assert list(manifest.partitions) == ["ann"]
    assert lake.final(counting()).num_rows == 1
    (note,) = compare(bind(counting(), EVENTS, EVENTS), manifest).notes
    assert "is None now" in note


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
    nothing = cast("Any", None)
    opened = OpenInput(log, bind(pipeline, schema, schema), log.warehouse, nothing, nothing)
    assert opened.has_instants is expected
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


def test_a_younger_field_of_an_input_leaves_fingerprints_as_they_were() -> None:
    source = DeltaSource("payments", timestamp="at")
    assert "watermark_from" not in str(describe(Input(source=source)))
    assert describe(Input(source=source)) != describe(Input(source=source, watermark_from="all"))


def test_an_interval_past_the_last_event_closes_what_crosses_the_end_of_the_data(lake: Lake) -> None:
    """Promise 5 of the README: event time advances to the end of an interval, with or without data."""
    pipeline = session_pipeline()
    lake.append(("ann", at("23:50"), 1))
    lake.backfill(LOCAL, pipeline, at("00:00"), at("00:00", 1))
    assert lake.snapshot(pipeline).manifest.counters["open_windows"] == 1
    lake.backfill(LOCAL, pipeline, at("00:00", 1), at("01:00", 1))
    assert lake.snapshot(pipeline).manifest.counters["open_windows"] == 0
    assert [(row["window_start"], row["events"]) for row in lake.final(pipeline).to_pylist()] == [(at("23:50"), 1)]


def test_a_time_an_hour_ahead_of_its_commit_is_the_last_that_is_taken_by_default() -> None:
    harness = PipelineHarness(counting(), EVENTS)
    rows = [("ann", at("03:00"), 1), ("bob", at("03:00") + timedelta(milliseconds=1), 1)]
    harness.commit([dict(zip(EVENTS.names, row, strict=True)) for row in rows], at("02:00"))
    harness.run()
    assert [row["user"] for row in harness.rejected()] == ["bob"]
    assert harness.watermark == to_millis(at("03:00")) - 1


# --- columns that are renamed, or whose name is taken ------------------------------------------------

DAY = timedelta(days=1)
INSTANT = pa.timestamp("us", tz="UTC")
USED = [mapped("user", "string", 1), mapped("at", "timestamp", 2), mapped("value", "long", 3)]
NOTE = mapped("note", "string", 4)

CHANGES = {
    "renamed, and the name taken": [*USED, mapped("remark", "string", 4, "col-4"), mapped("note", "date", 5)],
    "replaced by structs": [*USED, mapped("note", struct(mapped("x", "long", 6)), 5)],
    "renamed": [*USED, mapped("remark", "string", 4, "col-4")],
    "dropped": USED,
    "replaced by numbers": [*USED, mapped("note", "long", 5)],
    "replaced by texts": [*USED, mapped("note", "string", 5)],
}


class Source:
    """A table mapped by name, whose files have the columns user, at, value and note."""

    def __init__(self, lake: Lake) -> None:
        self.made = HandMade(
            Path(lake.path("events")), [*USED, NOTE], (), ["columnMapping"], {"delta.columnMapping.mode": "name"}
        )

    def commit(self, *rows: tuple[str, Any, int, str], written: Any, replaces: dict[str, Any] | None = None) -> Any:
        """Commit a file with rows; with `replaces`, it replaces another file, as in OPTIMIZE."""
        kinds = [pa.string(), INSTANT, pa.int64(), pa.string()]
        schema = pa.schema([(f"col-{number}", kind) for number, kind in enumerate(kinds, 1)])
        columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
        file = self.made.file(pa.table(columns, schema=schema))
        file["add"] |= {"modificationTime": to_millis(written), "dataChange": replaces is None}
        removed = [] if replaces is None else [{"remove": {"path": replaces["add"]["path"], "dataChange": False}}]
        self.made.commit(*removed, file, time=to_millis(written))
        return file

    def change(self, columns: list[dict[str, Any]], time: Any) -> None:
        first = Path(self.made.folder, "_delta_log", f"{0:020d}.json").read_text().splitlines()
        metadata = next(action for action in map(json.loads, first) if "metaData" in action)
        metadata["metaData"]["schemaString"] = json.dumps({"type": "struct", "fields": columns})
        self.made.commit(metadata, time=to_millis(time))


def backfill(lake: Lake, pipeline: Pipeline, first: int, last: int) -> None:
    lake.backfill(LOCAL, pipeline, DAY0 + first * DAY, DAY0 + last * DAY)


@pytest.mark.first(2)
@pytest.mark.parametrize("change", CHANGES)
def test_a_row_that_was_ahead_of_its_commit_stays_rejected_though_an_unused_column_changed(
    tmp_path: Path, change: str
) -> None:
    lake, pipeline = Lake(tmp_path), hourly_pipeline()
    source, rows = Source(lake), [("ann", at("01:00"), 1, "x"), ("ann", at("02:00", 3), 2, "y")]
    file = source.commit(*rows, written=DAY0 + DAY)
    backfill(lake, pipeline, 0, 1)
    source.change(CHANGES[change], DAY0 + 2 * DAY)
    source.commit(*rows, written=DAY0 + 9 * DAY, replaces=file)
    backfill(lake, pipeline, 1, 5)
    assert lake.latest(pipeline)["total"].to_pylist() == [1]
    assert lake.rows(pipeline, "rejects")["value"].to_pylist() == [2]


@pytest.mark.first(2)
@pytest.mark.parametrize("change", CHANGES)
def test_late_rows_from_before_a_change_of_columns_are_read_with_the_columns_of_today(
    tmp_path: Path, change: str
) -> None:
    lake, pipeline = Lake(tmp_path), hourly_pipeline()
    source = Source(lake)
    source.commit(("ann", at("09:00"), 1, "x"), written=at("09:00"))
    source.commit(("ann", at("01:00"), 2, "y"), written=at("09:10"))
    lake.stream(LOCAL, pipeline)
    source.change(CHANGES[change], at("10:00"))
    source.commit(("ann", at("02:00"), 3, "z"), written=at("10:10"))
    lake.stream(LOCAL, pipeline)
    with lake.driver(LOCAL, pipeline) as driver:
        bound = OpenInput.open(LOCAL, driver.tables, pipeline).bound
        rows = lake.rows(pipeline, "late").sort_by("value")
        as_read = input_rows(rows, late.TRAILING, bound.source, bound.renamed.get(late.NAME, {}))
    assert as_read["value"].to_pylist() == [2, 3]
    assert as_read.schema.names == [column["name"] for column in CHANGES[change]]
