"""Rows without a gap, or with a time that Python can't hold, are rejected with a reason and don't end the run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.lake import hourly_pipeline
from tests.pipelines.sources.slices import ACCEPTED, slice_in
from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.event_columns import OK, TIME
from tidegate.pipelines.definition.far_times import DAYS, MICROS, as_text
from tidegate.pipelines.epoch.file_measure import measure_files
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.parquet_reader import FileColumns, SourceParquet
from tidegate.pipelines.sources.source_columns import ColumnsToRead
from tidegate.pipelines.sources.stored_fields import fields_of
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import Count, EventTimeSessionWindows, GapColumn, WatermarkStrategy, Windows
from tidegate.windowing.time import LONGEST_DURATION, to_millis

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
MOMENT = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("at", MOMENT),
        ("gap", pa.int64()),
        ("until", MOMENT),
        ("wall", pa.timestamp("us")),
        ("day", pa.date32()),
    ]
)
GOOD: dict[str, Any] = {"user": "u", "at": to_millis(NOON) * 1000, "gap": 5, "until": 0, "wall": None, "day": 0}


def files(folder: Path, rows: list[dict[str, Any]], **options: Any) -> FileSlice:
    raw = [field.with_type(pa.int32() if pa.types.is_date(field.type) else pa.int64()) for field in SCHEMA]
    raw[0] = SCHEMA.field("user")
    table = pa.Table.from_pylist([GOOD | row for row in rows], schema=pa.schema(raw)).cast(SCHEMA)
    pq.write_table(table, folder / "a.parquet", **options)
    columns = ColumnsToRead(
        SCHEMA, "at", None, ("user",), ("gap", "until", "wall", "day"), ACCEPTED, True, 86_400_000, gap="gap"
    )
    part = FilePart("a.parquet", None, 0, to_millis(NOON))
    return slice_in(folder, columns, part)


BAD = [
    ({"gap": None}, rejects.NULL_GAP),
    ({"gap": 0}, rejects.GAP_OUT_OF_RANGE),
    ({"gap": -1}, rejects.GAP_OUT_OF_RANGE),
    ({"gap": LONGEST_DURATION + 1}, rejects.GAP_OUT_OF_RANGE),
    ({"until": MICROS[1]}, rejects.VALUE_OUT_OF_RANGE),
    ({"until": MICROS[0] - 1}, rejects.VALUE_OUT_OF_RANGE),
    ({"wall": MICROS[1]}, rejects.VALUE_OUT_OF_RANGE),
    ({"day": DAYS[1]}, rejects.VALUE_OUT_OF_RANGE),
    ({"day": DAYS[0] - 1}, rejects.VALUE_OUT_OF_RANGE),
    ({"gap": None, "until": MICROS[1]}, rejects.NULL_GAP),
]


@pytest.mark.parametrize(("row", "reason"), BAD)
@pytest.mark.parametrize("statistics", [True, False])
def test_such_a_row_is_counted_and_is_no_event(
    tmp_path: Path, row: dict[str, Any], reason: str, statistics: bool
) -> None:
    found = files(tmp_path, [{}, row, {}], write_statistics=statistics)
    measured = measure_files(found)
    assert (measured.counts, measured.usable) == ({OK: 2, reason: 1}, 2)
    assert len(pa.concat_tables(list(found.events()))[TIME]) == 2


def test_the_first_and_the_last_that_python_holds_are_used(tmp_path: Path) -> None:
    rows = [
        {"gap": 1, "until": MICROS[0], "wall": MICROS[0], "day": DAYS[0]},
        {"gap": LONGEST_DURATION, "until": MICROS[1] - 1, "wall": MICROS[1] - 1, "day": DAYS[1] - 1},
        {"until": None, "wall": None, "day": None},
    ]
    found = files(tmp_path, rows)
    assert measure_files(found).counts == {OK: 3}
    values = pa.concat_tables(list(found.events())).to_pylist()
    assert values[0]["value_until"] == datetime(1, 1, 1, tzinfo=UTC)
    assert values[1]["value_until"] == datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


@pytest.mark.parametrize("gap", [None, 0, -5, LONGEST_DURATION + 1])
def test_a_pipeline_of_sessions_goes_on_over_a_gap_that_is_none(gap: int | None) -> None:
    pipeline = hourly_pipeline(
        "p",
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        compute=Windows(EventTimeSessionWindows.with_dynamic_gap(GapColumn("gap")), aggregate={"n": Count()}),
    )
    harness = PipelineHarness(pipeline, pa.schema([SCHEMA.field(name) for name in ("user", "at", "gap")]))
    rows = [("u", 0, 60_000), ("u", 1, gap), ("u", 2, 60_000), ("w", 600, 60_000)]
    harness.commit(
        [{"user": user, "at": NOON + timedelta(seconds=second), "gap": gap} for user, second, gap in rows], at=NOON
    )
    harness.run()
    assert [row["n"] for row in harness.results()] == [2]
    reason = rejects.NULL_GAP if gap is None else rejects.GAP_OUT_OF_RANGE
    assert [row["reason"] for row in harness.rejected()] == [reason]


# --- within structs, lists and maps ----------------------------------------------------------------


FAR, NEAR = MICROS[1], to_millis(NOON) * 1000


def moments(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64()).cast(MOMENT)


def days(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int32()).cast(pa.date32())


NESTED = {
    "field of a struct": pa.StructArray.from_arrays(
        [moments(NEAR, FAR, FAR), moments(NEAR, NEAR, NEAR)], ["a.b", "c"], mask=pa.array([False, False, True])
    ),
    "second field": pa.StructArray.from_arrays([pa.array([1, 2, 3]), days(0, DAYS[1], None)], ["n", "day"]),
    "element of a list": pa.ListArray.from_arrays([0, 1, 3, 3], moments(NEAR, NEAR, FAR)),
    "null list": pa.ListArray.from_arrays(pa.array([0, None, 2, 2], pa.int32()), moments(NEAR, FAR)).take([1, 0, 2]),
    "day of a list": pa.ListArray.from_arrays([0, 1, 3, 3], days(0, None, DAYS[0] - 1)),
    "value of a map": pa.MapArray.from_arrays([0, 1, 2, 2], ["x", "y"], moments(NEAR, FAR)),
    "key of a map": pa.MapArray.from_arrays([0, 1, 2, 2], moments(NEAR, MICROS[0] - 1), ["x", "y"]),
    "list of structs": pa.ListArray.from_arrays([0, 1, 2, 2], pa.StructArray.from_arrays([moments(NEAR, FAR)], ["t"])),
    "map of lists": pa.MapArray.from_arrays(
        [0, 1, 2, 2], ["x", "y"], pa.ListArray.from_arrays([0, 2, 4], moments(NEAR, None, NEAR, FAR))
    ),
}
"""Three values each; the second contains a time that Python can't hold."""


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("name", NESTED)
def test_a_time_within_a_value_is_judged_as_one_of_its_own(tmp_path: Path, name: str, statistics: bool) -> None:
    value = NESTED[name]
    schema = pa.schema([("user", pa.string()), ("at", MOMENT), ("value", value.type), ("value.a.b", pa.int64())])
    table = pa.table([pa.array(["a", "b", "c"]), moments(NEAR, NEAR, NEAR), value, pa.array([1, 2, 3])], schema=schema)
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=statistics)
    columns = ColumnsToRead(schema, "at", None, ("user",), ("value", "value.a.b"), ACCEPTED, True, 86_400_000)
    source = slice_in(tmp_path, columns, FilePart("a.parquet", 3, 0, to_millis(NOON)))
    assert measure_files(source).counts == {OK: 2, rejects.VALUE_OUT_OF_RANGE: 1}
    (events,) = source.events()
    assert events["key_user"].to_pylist() == ["a", "c"]
    assert events["value_value"].to_pylist() == [value[0].as_py(), value[2].as_py()]


def test_statistics_of_times_within_values_spare_their_reading(tmp_path: Path) -> None:
    value = pa.StructArray.from_arrays([moments(NEAR), moments(MICROS[1] - 1)], ["first", "last"])
    schema = pa.schema([("value.last", MOMENT), ("value", value.type)])
    pq.write_table(pa.table([moments(FAR), value], schema=schema), tmp_path / "a.parquet")
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        names = {field.name: field for field in fields_of(schema)}
        source = SourceParquet(file, FileColumns(schema, names, {}, np.zeros(0, np.int64)))
        assert source.bounds_of_times(0, "value") == [(NEAR, NEAR), (MICROS[1] - 1, MICROS[1] - 1)]
        assert source.bounds(0, "value") is None
        assert source.bounds(0, "value.last") == (FAR, FAR), "a column whose name is that of the field's path"


def test_far_times_are_shown_as_text_at_any_depth() -> None:
    table = pa.table(NESTED)
    shown = as_text(table).to_pylist()
    assert shown[1]["field of a struct"] == {"a.b": "10000-01-01 00:00:00.000000Z", "c": "2024-03-01 12:00:00.000000Z"}
    assert shown[1]["value of a map"] == [("y", "10000-01-01 00:00:00.000000Z")]
    assert shown[1]["second field"] == {"n": 2, "day": "10000-01-01"}
    assert as_text(table.slice(0, 1)).equals(table.slice(0, 1)), "what Python holds stays as it is"
