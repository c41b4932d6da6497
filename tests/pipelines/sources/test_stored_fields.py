"""Columns that are renamed, of narrower types, in another order or missing in a file: rows are read as the table has
them.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hand_made import HandMade, column, mapped, struct
from tests.lake import at, hourly_pipeline
from tests.pipelines.sources.slices import events_of, slice_at, whole_rows
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.definition.event_columns import TIME
from tidegate.pipelines.epoch.file_measure import measure_files
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.sources.delta.table_facts import stored_fields
from tidegate.pipelines.sources.source_columns import instants
from tidegate.pipelines.sources.stored_fields import StoredField, place_of
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.time import to_millis

INSTANT = pa.timestamp("us", tz="UTC")


def nested(number: int) -> dict[str, Any]:
    """Return the type of a struct whose fields have ids after that of their column."""
    return struct(mapped("x", "integer", 10 * number + 1), mapped("new", "string", 10 * number + 2))


COLUMNS = [
    mapped("user", "string", 1),
    # The physical name of another current column: the file's column `at` is no longer ours.
    mapped("at", "timestamp", 2, "user"),
    mapped("value", "long", 3, "at"),
    mapped("st", nested(4), 4),
    mapped("li", {"type": "array", "elementType": nested(5), "containsNull": True}, 5),
    mapped("m", {"type": "map", "keyType": "string", "valueType": nested(6), "valueContainsNull": True}, 6),
    mapped("later", "double", 7),
]


def numbered(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({"PARQUET:field_id": str(number)})


def stored_rows(by_id: bool) -> pa.Table:
    """Return rows as a file has them: other names and order, dropped fields, and ids if the table is mapped by id."""

    def name(stored: str, number: int) -> str:
        return f"any-{number}" if by_id else stored

    def part(number: int) -> pa.DataType:
        dropped, kept = 10 * number + 9, 10 * number + 1
        return pa.struct(
            [
                numbered(pa.field(name("dropped", dropped), pa.string()), dropped),
                numbered(pa.field(name(f"col-{kept}", kept), pa.int32()), kept),
            ]
        )

    def value(number: int) -> dict[str, Any]:
        dropped, kept = part(number)
        return {dropped.name: "d", kept.name: 1}

    fields: list[tuple[str, int, pa.DataType, list[Any]]] = [
        ("value", 91, pa.string(), ["dropped", "dropped", "dropped"]),
        ("col-6", 6, pa.map_(pa.string(), part(6)), [[("k", value(6))], None, []]),
        ("col-5", 5, pa.list_(part(5)), [[value(5), None], None, []]),
        ("col-4", 4, part(4), [value(4), None, value(4)]),
        ("at", 3, pa.int64(), [1, 2, 3]),
        ("user", 2, INSTANT, [at("01:00"), at("02:00"), at("03:00")]),
        ("col-1", 1, pa.string(), ["u", "v", "w"]),
    ]
    schema = pa.schema([numbered(pa.field(name(stored, number), kind), number) for stored, number, kind, _ in fields])
    return pa.table([values for *_, values in fields], schema=schema)


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns_are_read_by_their_name_or_id_at_any_depth(tmp_path: Path, mode: str) -> None:
    properties = {"delta.columnMapping.mode": mode}
    table = HandMade(tmp_path / "events", COLUMNS, features=["columnMapping"], properties=properties)
    table.commit(table.file(stored_rows(mode == "id"), row_group_size=2))
    files = slice_at(table)
    events = events_of(files)
    assert events["key_user"].to_pylist() == ["u", "v", "w"]
    assert events["value_value"].to_pylist() == [1, 2, 3]
    assert events[TIME].to_pylist() == [to_millis(at(text)) for text in ("01:00", "02:00", "03:00")]
    first = {"x": 1, "new": None}
    assert whole_rows(files, events) == [
        {
            "user": "u",
            "at": at("01:00"),
            "value": 1,
            "st": first,
            "li": [first, None],
            "m": [("k", first)],
            "later": None,
        },
        {"user": "v", "at": at("02:00"), "value": 2, "st": None, "li": None, "m": None, "later": None},
        {"user": "w", "at": at("03:00"), "value": 3, "st": first, "li": [], "m": [], "later": None},
    ]
    measured = measure_files(files)
    assert (measured.usable, measured.smallest) == (3, {0: to_millis(at("01:00"))})


def test_bounds_in_the_log_are_those_of_the_column_and_not_of_its_namesake(tmp_path: Path) -> None:
    properties = {"delta.columnMapping.mode": "name"}
    table = HandMade(tmp_path / "events", COLUMNS, features=["columnMapping"], properties=properties)
    add = table.file(stored_rows(False))
    bounds = {"user": "2024-03-01T01:00:00.000Z", "at": 1}
    add["add"]["stats"] = f'{{"numRecords": 3, "minValues": {bounds}, "maxValues": {bounds}}}'.replace("'", '"')
    table.commit(add)
    log = SourceLog(Warehouse(str(tmp_path)), str(table.folder))
    assert [file.oldest for file in log.active("at")] == [to_millis(at("01:00"))]
    assert [file.oldest for file in log.active("value")] == [None]


def test_a_file_without_ids_in_a_table_that_is_mapped_by_id_is_refused(tmp_path: Path) -> None:
    properties = {"delta.columnMapping.mode": "id"}
    table = HandMade(tmp_path / "events", COLUMNS, features=["columnMapping"], properties=properties)
    bare = stored_rows(True)
    bare = bare.cast(pa.schema([field.with_metadata({}) for field in bare.schema]))
    table.commit(table.file(bare, name="x.parquet"))
    with pytest.raises(Refused, match=r"events: file x\.parquet can't be read.*no ids.*reader='spark'"):
        measure_files(slice_at(table))


def test_a_mapped_column_without_a_physical_name_is_an_error() -> None:
    columns = '{"type": "struct", "fields": [{"name": "user", "type": "string", "nullable": true, "metadata": {}}]}'
    with pytest.raises(ValueError, match="'user' has no physical name"):
        stored_fields(columns, "name")


WIDENED: dict[str, tuple[Any, pa.DataType, Any, Any]] = {
    "value": ("long", pa.int8(), 7, 7),
    "ratio": ("double", pa.float32(), 0.5, 0.5),
    "count": ("double", pa.int32(), 3, 3.0),
    "price": ("decimal(12,4)", pa.decimal128(5, 2), Decimal("1.25"), Decimal("1.2500")),
    "total": ("decimal(14,2)", pa.int32(), 3, Decimal("3.00")),
    "day": ("timestamp_ntz", pa.date32(), date(2024, 3, 1), datetime(2024, 3, 1)),
    "st": (struct(column("x", "integer")), pa.struct([("x", pa.int16())]), {"x": 2}, {"x": 2}),
    "li": ({"type": "array", "elementType": "long", "containsNull": True}, pa.list_(pa.int8()), [1, None], [1, None]),
    "wide": (
        {"type": "array", "elementType": "string", "containsNull": True},
        pa.large_list(pa.large_string()),
        ["a"],
        ["a"],
    ),
}


def test_a_file_with_narrower_types_is_read_in_the_types_of_the_table(tmp_path: Path) -> None:
    columns = [column("user", "string"), column("at", "timestamp")]
    columns += [column(name, kind) for name, (kind, *_) in WIDENED.items()]
    table = HandMade(tmp_path / "events", columns, features=["typeWidening", "timestampNtz"])
    stored = {name: pa.array([value], kind) for name, (_, kind, value, _) in WIDENED.items()}
    moments = pa.array([at("01:00")], INSTANT)
    table.commit(table.file(pa.table({"user": ["u"], "at": moments, **stored})))
    files = slice_at(table)
    expected = {name: value for name, (*_, value) in WIDENED.items()}
    assert whole_rows(files, events_of(files)) == [{"user": "u", "at": at("01:00"), **expected}]


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        ("integer", pa.array([2**40])),
        ("long", pa.array(["a"])),
        (struct(column("x", "integer")), pa.array([1])),
        ({"type": "array", "elementType": "long", "containsNull": True}, pa.array([1])),
        ("timestamp", pa.array([1_709_254_800_000])),
        ("long", pa.array([at("01:00")], INSTANT)),
        ("timestamp_ntz", pa.array([at("01:00")], INSTANT)),
        (struct(column("x", "timestamp")), pa.array([{"x": 1_709_254_800_000}])),
    ],
    ids=[
        "too large",
        "text for a number",
        "no struct",
        "no list",
        "a number without its unit",
        "an instant for a number",
        "an instant for a wall-clock time",
        "a number in a struct",
    ],
)
def test_a_type_that_can_not_become_that_of_the_table_is_refused_by_the_name_of_the_file(
    tmp_path: Path, kind: Any, stored: pa.Array
) -> None:
    columns = [column("user", "string"), column("at", "timestamp"), column("value", "long"), column("other", kind)]
    table = HandMade(tmp_path / "events", columns, features=["timestampNtz"])
    rows = {"user": ["u"], "at": pa.array([at("01:00")], INSTANT), "value": [1], "other": stored}
    table.commit(table.file(pa.table(rows), name="x.parquet"))
    files = slice_at(table)
    with pytest.raises(Refused, match=r"file x\.parquet can't be read.*reader='spark'"):
        whole_rows(files, events_of(files))


def test_a_column_that_a_file_lacks_is_not_read_from_one_whose_name_differs_by_more_than_case() -> None:
    in_file = [pa.field("Straße", pa.int64())]
    assert place_of(StoredField("STRASSE", "STRASSE"), in_file) is None
    assert place_of(StoredField("straße", "straße"), in_file) == 0


def test_texts_of_type_char_are_filled_up_as_spark_reads_them(tmp_path: Path) -> None:
    char = {"__CHAR_VARCHAR_TYPE_STRING": "char(4)"}
    columns = [column("user", "string", **char), column("at", "timestamp"), column("value", "long")]
    columns += [column("part", "string", **char), column("free", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(4)")]
    table = HandMade(tmp_path / "events", columns, ["part"])
    rows = {"user": ["ü", None], "at": pa.array([at("01:00")] * 2, INSTANT), "value": [1, 2], "free": ["a", "b"]}
    table.commit(table.file(pa.table(rows), {"part": "p"}))
    files = slice_at(table, hourly_pipeline(null_keys="keep"))
    events = events_of(files)
    assert events["key_user"].to_pylist() == ["ü   ", None]
    assert [(row["part"], row["free"]) for row in whole_rows(files, events)] == [("p   ", "a"), ("p   ", "b")]


def test_char_within_a_column_goes_through_spark() -> None:
    columns = (
        '{"type": "struct", "fields": [{"name": "st", "type": {"type": "struct", "fields": []}, "nullable": true, '
    )
    columns += '"metadata": {"__CHAR_VARCHAR_TYPE_STRING": "struct<a:char(3)>"}}]}'
    with pytest.raises(ValueError, match="column 'st' holds CHAR"):
        stored_fields(columns, "none")


def test_a_wall_clock_time_with_a_zone_is_an_instant(tmp_path: Path) -> None:
    columns = [column("user", "string"), column("at", "timestamp_ntz"), column("value", "long")]
    table = HandMade(tmp_path / "events", columns, features=["timestampNtz"])
    walls = [datetime(2024, 3, 10, 1, 30), datetime(2024, 3, 10, 2, 30), datetime(2024, 3, 10, 3, 30), None]
    rows = {"user": ["u"] * 4, "at": pa.array(walls, pa.timestamp("us")), "value": [1, 2, 3, 4]}
    table.commit(table.file(pa.table(rows)))
    source = DeltaSource("events", timestamp="at", zone="America/New_York")
    files = slice_at(table, hourly_pipeline(source=source, max_ahead=timedelta(days=30)))
    instants = [datetime(2024, 3, 10, 6, 30, tzinfo=UTC), datetime(2024, 3, 10, 7, 30, tzinfo=UTC)]
    expected = [to_millis(moment) for moment in [*instants, instants[1]]]
    assert events_of(files)[TIME].to_pylist() == expected
    assert measure_files(files).counts == {"ok": 3, "null_timestamp": 1}


BY_SPARK = """
Africa/Casablanca | 2024-03-10 02:45:00.001 | 2024-03-10 01:45:00.001
Africa/Casablanca | 2024-03-31 04:45:00.001 | 2024-03-31 04:45:00.001
Africa/Monrovia | 1972-01-07 00:30:00.000 | 1972-01-07 01:14:30.000
Africa/Monrovia | 1972-01-07 00:45:00.001 | 1972-01-07 00:45:00.001
America/New_York | 2018-11-04 01:45:00.001 | 2018-11-04 05:45:00.001
America/New_York | 2024-03-10 02:45:00.001 | 2024-03-10 07:45:00.001
America/New_York | 2024-03-31 04:45:00.001 | 2024-03-31 08:45:00.001
America/New_York | 2024-11-03 02:00:00.000 | 2024-11-03 07:00:00.000
America/Sao_Paulo | 2018-11-04 00:45:00.001 | 2018-11-04 03:45:00.001
Australia/Lord_Howe | 2024-04-07 01:45:00.001 | 2024-04-06 14:45:00.001
Australia/Lord_Howe | 2024-04-07 02:00:00.000 | 2024-04-06 15:30:00.000
Australia/Lord_Howe | 2024-10-06 00:00:00.000 | 2024-10-05 13:30:00.000
Australia/Lord_Howe | 2024-10-06 02:15:00.001 | 2024-10-05 15:45:00.001
Europe/Berlin | 2024-03-31 02:45:00.001 | 2024-03-31 01:45:00.001
Europe/Berlin | 2024-03-31 04:45:00.001 | 2024-03-31 02:45:00.001
Europe/Berlin | 2050-03-27 02:45:00.001 | 2050-03-27 01:45:00.001
Europe/Berlin | 2050-10-30 03:00:00.000 | 2050-10-30 02:00:00.000
Europe/Berlin | 2100-10-31 02:45:00.001 | 2100-10-31 00:45:00.001
Europe/Berlin | 2100-10-31 03:00:00.000 | 2100-10-31 02:00:00.000
Europe/Dublin | 2050-10-30 01:45:00.001 | 2050-10-30 00:45:00.001
Europe/Dublin | 2100-10-31 01:45:00.001 | 2100-10-31 00:45:00.001
Europe/London | 2050-03-27 02:00:00.000 | 2050-03-27 01:00:00.000
Europe/London | 2050-10-30 02:00:00.000 | 2050-10-30 02:00:00.000
Europe/London | 2100-10-31 02:00:00.000 | 2100-10-31 02:00:00.000
"""

"""Zone, wall-clock time, and the instant that Spark gave, all close to a change of the clocks."""


def millis(wall: datetime) -> int:
    return to_millis(wall.replace(tzinfo=UTC))


@pytest.mark.parametrize("line", BY_SPARK.split("\n")[1:-1])
def test_an_instant_is_that_of_spark(line: str) -> None:
    zone, wall, instant = line.split(" | ")
    given_millis = np.array([millis(datetime.fromisoformat(wall))])
    assert instants(given_millis, zone).tolist() == [millis(datetime.fromisoformat(instant))]


@given(
    st.sampled_from(
        ["America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Monrovia", "Asia/Kolkata", "UTC"]
    ),
    st.lists(st.datetimes(datetime(1970, 1, 2), datetime(9998, 1, 1)), min_size=1, max_size=20),
)
def test_times_together_are_the_instants_that_python_gives_for_each(zone: str, walls: list[datetime]) -> None:
    expected = [to_millis(wall.replace(tzinfo=ZoneInfo(zone), fold=0).astimezone(UTC)) for wall in walls]
    assert instants(np.array([millis(wall) for wall in walls]), zone).tolist() == expected


def test_a_time_before_1970_or_after_9999_stays_outside() -> None:
    outside = [millis(datetime(1969, 12, 31)) - 10**14, millis(datetime(9999, 12, 31, 23)), 2**62]
    read = instants(np.array(outside), "America/New_York").tolist()
    assert read[0] < 0
    assert min(read[1:]) >= 253_402_300_800_000


@given(st.integers(-400, 400))
def test_every_minute_around_a_change_is_the_first_of_its_instants(minutes: int) -> None:
    wall = datetime(2024, 11, 3, 1) + timedelta(minutes=minutes)
    instant = wall.replace(tzinfo=ZoneInfo("America/New_York")).astimezone(UTC)
    assert instants(np.array([millis(wall)]), "America/New_York").tolist() == [to_millis(instant)]
