"""Partition values are parsed from the log's text as Spark parses them, and text with another meaning is refused."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from hypothesis import given
from hypothesis import strategies as st

from tests.hand_made import HandMade, column
from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.sources.slices import events_of, slice_at, whole_rows
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.event_columns import OK, TIME
from tidegate.pipelines.epoch.file_measure import measure_files
from tidegate.pipelines.epoch.file_slices import files_within
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.sources.delta.partition_values import scalar_of
from tidegate.pipelines.sources.parquet_reader import constant
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.time import to_millis

INSTANT, WALL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
MORNING = datetime(2024, 1, 5, 1, 2, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (" a ", pa.string(), " a "),
        ("", pa.string(), None),
        ("", pa.binary(), None),
        ("", pa.int32(), None),
        ("ü", pa.binary(), b"\xc3\xbc"),
        ("+05", pa.int32(), 5),
        ("-9223372036854775808", pa.int64(), -(2**63)),
        ("TRUE", pa.bool_(), True),
        ("f", pa.bool_(), False),
        ("1.5", pa.decimal128(10, 2), Decimal("1.50")),
        ("1E-7", pa.decimal128(38, 10), Decimal("0.0000001000")),
        ("1.0E22", pa.float64(), 1e22),
        ("-Infinity", pa.float32(), -math.inf),
        ("1.1", pa.float32(), float(np.float32(1.1))),
        ("2024-1-5", pa.date32(), date(2024, 1, 5)),
        ("0001-01-01", pa.date32(), date(1, 1, 1)),
        ("2024-01-05 01:02:03", INSTANT, MORNING),
        ("2024-01-05T01:02:03.000000Z", INSTANT, MORNING),
        ("2024-01-05 03:02:03+02:00", INSTANT, MORNING),
        ("2024-01-05 02:02:03 Europe/Berlin", INSTANT, MORNING),
        ("2024-01-05T01:02:03.123456789Z", INSTANT, MORNING.replace(microsecond=123_456)),
        ("2024-01-05 01:02:03.5", WALL, MORNING.replace(tzinfo=None, microsecond=500_000)),
        ("2024-01-05", WALL, datetime(2024, 1, 5)),
    ],
)
def test_texts_that_writers_use(text: str, kind: pa.DataType, value: object) -> None:
    assert scalar_of(text, kind).as_py() == value
    assert scalar_of(text, kind).type == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x", pa.int32()),
        ("1.0", pa.int64()),
        ("2147483648", pa.int32()),
        ("maybe", pa.bool_()),
        ("2024-13-01", pa.date32()),
        ("2023-02-29", pa.date32()),
        ("20240105", pa.date32()),
        ("2024-01-05 25:00:00", INSTANT),
        ("2024-01-05T01:02:03Z", WALL),
        ("1.105", pa.decimal128(5, 2)),
        ("99999", pa.decimal128(5, 2)),
        ("NaN", pa.decimal128(5, 2)),
        ("1.5d", pa.float64()),
        ("a", pa.list_(pa.int32())),
    ],
)
def test_other_texts_are_an_error_that_names_text_and_type(text: str, kind: pa.DataType) -> None:
    with pytest.raises(ValueError, match=r"is no|can't be of type"):
        scalar_of(text, kind)


TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "date": pa.date32(),
    "timestamp": INSTANT,
}
"""The types of partition columns, as Delta and as Arrow name them."""

SPELLED = st.one_of(
    st.text("aüß 0%/", max_size=3),
    st.sampled_from(["true", "FALSE", "t", "1", "nan", "-Infinity", "inf", "__HIVE_DEFAULT_PARTITION__", "null"]),
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.integers(-130, 130).map(lambda number: f"{number:+04}"),
    st.decimals(-999, 999, allow_nan=False, places=3).map(str),
    st.decimals(-9999, 9999, allow_nan=False, places=2).map(str),
    st.sampled_from(["1.5", "1", "1E1", "1e-2", ".5", "5.", " 1", "01.50", "+1.50", "1.500"]),
    st.dates().map(str),
    st.sampled_from(["2024-1-5", "2024-01-05T00:00", "0001-01-01"]),
    st.datetimes().map(str),
    st.datetimes().map(lambda moment: f"{moment.isoformat()}Z"),
)
"""Texts of partition values as writers write them, each for any type."""


@given(st.sampled_from(sorted(TYPES)), SPELLED)
def test_a_text_has_the_meaning_that_the_delta_library_gives_it(kind: str, text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = HandMade(Path(folder) / "events", [column("at", "timestamp"), column("part", kind)], ["part"])
        table.commit(table.file(pa.table([[at("01:00")]], schema=pa.schema([("at", INSTANT)])), {"part": text}))
        try:
            listed = pa.table(DeltaTable(str(table.folder)).get_add_actions(flatten=True))
        except DeltaError:
            # Spark or Tidegate may read the text, and nothing is damaged.
            with pytest.raises(Refused, match=r"the Delta library \(deltalake .*CREATE TABLE"):
                SourceLog(Warehouse(folder), str(table.folder))
            return
        assert repr(scalar_of(text, TYPES[kind])) == repr(listed["partition.part"][0].cast(TYPES[kind]))


def test_an_empty_value_of_a_column_that_is_not_null_is_not_called_damage(tmp_path: Path) -> None:
    columns = [column("at", "timestamp"), {**column("part", "string"), "nullable": False}]
    table = HandMade(tmp_path / "events", columns, ["part"])
    table.commit(table.file(pa.table([[at("01:00")]], schema=pa.schema([("at", INSTANT)])), {"part": ""}))
    with pytest.raises(Refused, match=r"deltalake .*can't read it, although its log is not damaged: .*non-nullable"):
        SourceLog(Warehouse(str(tmp_path)), str(table.folder))


def test_rows_of_an_empty_value_keep_their_key_when_optimize_rewrites_them_as_null(tmp_path: Path) -> None:
    source = DeltaSource("events", timestamp="at", changes="correct")
    pipeline = hourly_pipeline(source=source, null_keys="keep", allowed_lateness=timedelta(hours=9))
    lake = Lake(tmp_path)
    table = HandMade(Path(lake.path("events")), COLUMNS, ["user"])
    for text, moment in (("", "01:10"), (None, "01:10"), ("", "01:10"), ("later", "05:00")):
        rows = pa.table({"at": pa.array([at(moment)], INSTANT), "value": [1]})
        table.commit(table.file(rows, {"user": text}))
    lake.stream(LOCAL, pipeline)
    DeltaTable(str(table.folder)).optimize.compact()
    lake.stream(LOCAL, pipeline)
    assert lake.latest(pipeline).select(["user", "total"]).to_pylist() == [{"user": None, "total": 3}]
    DeltaTable(str(table.folder)).delete("value = 1")
    lake.stream(LOCAL, pipeline)
    assert len(lake.latest(pipeline)) == 0


@given(st.dates())
def test_every_date_of_python_is_read_from_its_text(day: date) -> None:
    assert scalar_of(day.isoformat(), pa.date32()).as_py() == day


@given(st.datetimes())
def test_every_time_of_python_is_read_from_its_text(moment: datetime) -> None:
    assert scalar_of(str(moment), WALL).as_py() == moment
    assert scalar_of(f"{moment.isoformat()}Z", INSTANT).value == scalar_of(str(moment), WALL).value


def test_years_after_9999_are_read_too() -> None:
    # The calendar repeats after 400 years.
    days = (date(2000, 2, 28) - date(1970, 1, 1)).days + 25 * 146_097
    assert scalar_of("+12000-02-28", pa.date32()).value == days
    assert scalar_of("+12000-02-28 00:00:00", INSTANT).value == days * 86_400_000_000


@pytest.mark.parametrize("value", [pa.scalar("a"), pa.scalar(None, pa.string()), pa.scalar(b"a"), pa.scalar(5)])
def test_a_constant_is_the_value_in_each_row(value: pa.Scalar) -> None:
    for as_key in (False, True):
        assert constant(value, 3, as_key).to_pylist() == [value.as_py()] * 3


KINDS = {
    "user": "string",
    "at": "timestamp",
    "value": "long",
    "day": "date",
    "flag": "boolean",
    "price": "decimal(10,2)",
    "half": "double",
    "raw": "binary",
}
COLUMNS = [column(name, kind) for name, kind in KINDS.items()]


def table_of(folder: Path, partition_by: list[str], *actions: Any) -> HandMade:
    table = HandMade(folder / "events", COLUMNS, partition_by)
    rows = {"user": ["u", "v"], "at": [at("01:00"), at("02:00")], "value": [1, 2]}
    stored = pa.table({name: rows[name] for name in rows if name not in partition_by})
    if "at" not in partition_by:
        stored = stored.set_column(stored.column_names.index("at"), "at", stored["at"].cast(INSTANT))
    table.commit(*(table.file(stored, partition, name) for partition, name in actions))
    return table


def test_a_partition_column_is_a_key_a_used_value_and_part_of_a_late_row(tmp_path: Path) -> None:
    texts = {"user": "a b/c%=ü:?#+&~|", "day": "2024-03-01", "flag": "true", "price": "1.50", "half": "NaN", "raw": "x"}
    table = table_of(
        tmp_path,
        list(texts),
        (texts, "user=a b%2Fc%25=ü/x.parquet"),
        ({**dict.fromkeys(texts), "user": None}, "y.parquet"),
    )
    files = slice_at(table, hourly_pipeline(null_keys="keep"))
    events = events_of(files)
    assert events["key_user"].to_pylist() == ["a b/c%=ü:?#+&~|"] * 2 + [None] * 2
    late = whole_rows(files, events)
    assert late[1] | {"half": 0.0} == {
        "user": "a b/c%=ü:?#+&~|",
        "at": at("02:00"),
        "value": 2,
        "day": date(2024, 3, 1),
        "flag": True,
        "price": Decimal("1.50"),
        "half": 0.0,
        "raw": b"x",
    }
    assert late[3] == {**dict.fromkeys(KINDS), "at": at("02:00"), "value": 2}
    assert measure_files(slice_at(table)).counts == {OK: 2, rejects.NULL_KEY: 2}


def test_a_partition_column_is_the_event_time_and_bounds_it(tmp_path: Path) -> None:
    moments = ["2024-03-01 01:00:00", "2024-03-01T02:00:00.000000Z", "2024-03-01 03:00:00"]
    table = table_of(
        tmp_path, ["at"], *(({"at": text}, f"at={number}/x.parquet") for number, text in enumerate(moments))
    )
    files = slice_at(table)
    events = events_of(files)
    assert events[TIME].to_pylist() == [to_millis(at(text)) for text in ("01:00", "02:00", "03:00") for _ in range(2)]
    measured = measure_files(files)
    assert (measured.usable, measured.smallest, measured.largest) == (
        6,
        {0: to_millis(at("01:00"))},
        {0: {"": to_millis(at("03:00"))}},
    )


def test_files_outside_an_interval_are_told_by_their_partition_value(tmp_path: Path) -> None:
    moments = ["2024-03-01 01:00:00", "2024-03-01 02:00:00", None]
    table = table_of(tmp_path, ["at"], *(({"at": text}, f"{place}.parquet") for place, text in enumerate(moments)))
    log = SourceLog(Warehouse(str(tmp_path)), str(table.folder))
    active = sorted(log.active("at", to_read=True), key=lambda file: file.path)
    kept = files_within(active, to_millis(at("01:30")), to_millis(at("02:30")))
    assert [file.path for file in kept] == ["1.parquet", "2.parquet"]


def test_a_partition_column_parts_the_watermark(tmp_path: Path) -> None:
    table = table_of(tmp_path, ["user"], ({"user": "a"}, "a.parquet"), ({"user": None}, "b.parquet"))
    measured = measure_files(slice_at(table, hourly_pipeline(null_keys="keep", watermark_by="user")))
    assert measured.largest == {0: {"a": to_millis(at("02:00")), "null": to_millis(at("02:00"))}}


def test_a_text_that_is_no_value_names_table_file_column_and_the_way_out(tmp_path: Path) -> None:
    table = table_of(tmp_path, ["price"], ({"price": "1.50"}, "x.parquet"))
    files = slice_at(table)
    # deltalake refuses to open such a table; a running stream reads only new entries.
    cheap = replace(files, parts=(replace(files.parts[0], details={"partitionValues": {"price": "cheap"}}),))
    with pytest.raises(
        Refused, match=r"events: file x\.parquet .*'price'.*'cheap' is not a valid decimal.*reader='spark'"
    ):
        measure_files(cheap)
