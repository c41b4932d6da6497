"""Programs of `where` and `columns` over files that the tasks read: events, counts of dropped rows, and errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipelines.sources.slices import ACCEPTED, slice_in
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.event_columns import DROPPED, FILE, OK, PLACE, TIME
from tidegate.pipelines.definition.pipeline import Input
from tidegate.pipelines.epoch.file_measure import measure_files
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.delta.table_facts import unusual_columns
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.parquet_reader import SourceParquet
from tidegate.pipelines.sources.source_columns import ColumnsToRead
from tidegate.pipelines.sources.sql.expression import SourceSql, compile_input, differing_setting

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC")), ("value", pa.int64())])
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def millis(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def compiled(columns: dict[str, str] | None = None, where: str | None = None, **options: Any) -> SourceSql:
    """Return the programs of an input, all of which must be proven."""
    input_ = Input(source=DeltaSource("events", timestamp="at"), columns=columns or {}, where=where, **options)
    sql, expressions = compile_input("hours", input_, SCHEMA, {})
    assert [expression.reason for expression in expressions] == [None] * len(expressions)
    return sql


def files_of(folder: Path, rows: list[tuple[Any, ...]], sql: SourceSql, **options: Any) -> FileSlice:
    """Return the slice of a file with these rows; used columns are `value` and those of `options`."""
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)
    pq.write_table(table, folder / "a.parquet", row_group_size=2)
    settings = {"timestamp": "at", "key": ("user",), "used": ("value",), "accepted": ACCEPTED, **options}
    columns = ColumnsToRead(
        schema=SCHEMA,
        unit=settings.pop("unit", None),
        reject_null_keys=True,
        max_ahead=3_600_000,
        sql=sql,
        **settings,
    )
    return slice_in(folder, columns, FilePart("a.parquet", None, 0, millis(NOON)))


def events(files: FileSlice) -> list[dict[str, Any]]:
    return pa.concat_tables([table.unify_dictionaries() for table in files.events()]).to_pylist()


ROWS = [("a", NOON, 1), ("b", NOON - HOUR, None), ("c", NOON + HOUR / 2, 30), (None, NOON, 40), ("d", None, 5)]


def test_only_rows_for_which_where_is_true_are_events_and_they_keep_their_places(tmp_path: Path) -> None:
    files = files_of(tmp_path, [*ROWS, ("e", NOON, 50)], compiled(where="value > 3"))
    assert [(row["key_user"], row[PLACE]) for row in events(files)] == [("c", 2), ("e", 5)]
    measured = measure_files(files)
    assert measured.counts == {OK: 2, DROPPED: 2, rejects.NULL_KEY: 1, rejects.NULL_TIMESTAMP: 1}
    assert measured.largest == {0: {"": millis(NOON + HOUR / 2)}}
    assert measured.smallest == {0: millis(NOON)}


def test_a_row_fetched_by_its_place_is_the_row_of_the_source(tmp_path: Path) -> None:
    files = files_of(tmp_path, ROWS, compiled({"value": "value * 2L", "user": "upper(user)"}, "value > 3"))
    (event,) = events(files)
    assert (event["key_user"], event["value_value"]) == ("C", 60)
    fetched = files.source_rows(*(pa.array([event[name]]).to_numpy() for name in (FILE, PLACE)))
    assert fetched.to_pylist() == [{"user": "c", "at": NOON + HOUR / 2, "value": 30}]


def test_a_column_may_use_earlier_ones_and_where_sees_the_derived_value(tmp_path: Path) -> None:
    sql = compiled({"value": "value + 1", "double": "value * 2", "late": "double > 10"}, "late and value < 40")
    files = files_of(tmp_path, ROWS, sql, used=("double", "late"))
    assert [(row["value_double"], row["value_late"]) for row in events(files)] == [(62, True)]
    assert sql.schema.field("double").type == pa.int64()
    assert sql.schema.names == ["user", "at", "value", "double", "late"]


def test_a_derived_key_and_time_are_judged_by_their_own_values_and_not_by_statistics_of_the_files(
    tmp_path: Path,
) -> None:
    sql = compiled({"user": "nullif(user, 'a')", "at": "timestamp_seconds(value)"})
    files = files_of(tmp_path, [("a", NOON, 1), ("b", NOON, 2), ("c", NOON, None)], sql)
    assert measure_files(files).counts == {OK: 1, rejects.NULL_KEY: 1, rejects.NULL_TIMESTAMP: 1}
    assert [row[TIME] for row in events(files)] == [2000]


def test_dropped_rows_move_the_watermark_only_if_all_rows_do(tmp_path: Path) -> None:
    rows = [("a", NOON, 1), ("b", NOON + HOUR / 2, 2), ("c", NOON - HOUR, 50), ("d", NOON + 5 * HOUR, 3)]
    kept = measure_files(files_of(tmp_path, rows, compiled(where="value > 3")))
    everything = measure_files(files_of(tmp_path, rows, compiled(where="value > 3", watermark_from="all")))
    assert kept.counts == everything.counts == {OK: 1, DROPPED: 3}
    assert kept.largest == {0: {"": millis(NOON - HOUR)}}
    # The last row is ahead of its commit, so its time moves nothing.
    assert everything.largest == {0: {"": millis(NOON + HOUR / 2)}}


def test_dropped_rows_move_the_watermark_of_their_source_partition(tmp_path: Path) -> None:
    rows = [("a", NOON, 1), ("b", NOON + HOUR / 2, 2), ("a", NOON - HOUR, 50)]
    files = files_of(tmp_path, rows, compiled(where="value > 3", watermark_from="all"), partition_by="user")
    assert measure_files(files).largest == {0: {"a": millis(NOON), "b": millis(NOON + HOUR / 2)}}


def test_dropped_rows_of_no_interval_are_counted_with_the_rejected_rows(tmp_path: Path) -> None:
    rows = [("a", None, 1), ("b", NOON, 2), ("c", datetime(1960, 1, 1, tzinfo=UTC), 2), ("d", NOON, 50)]
    files = files_of(tmp_path, rows, compiled(where="value > 3"))
    assert measure_files(files).counts == {OK: 1, DROPPED: 3}
    assert measure_files(files, with_rejects=False).counts == {OK: 1, DROPPED: 1}


@pytest.mark.parametrize("with_rejects", [True, False])
@pytest.mark.parametrize("hours", [(-9, 9), (-1, 0), (0, 1), (2, 3)], ids=str)
def test_counts_are_the_same_without_exact_times(tmp_path: Path, hours: tuple[int, int], with_rejects: bool) -> None:
    times = [NOON + HOUR * step / 4 for step in (-4, -2, -1, 0, 1, 3)]
    rows = [("a", time, value) for time in times for value in (1, 5, None, 7)] + [(None, NOON, 9), ("b", None, 9)]
    for condition in ("value > 3", "user = 'a'", "value > 100"):
        files = files_of(tmp_path, rows, compiled({"double": "value * 2"}, condition), used=("double",))
        since, until = (millis(NOON + HOUR * hour) for hour in hours)
        files = files.of(replace(part, since=since, until=until) for part in files.parts)
        exact, loose = (measure_files(files, with_rejects, with_times=with_times) for with_times in (True, False))
        assert (loose.counts, loose.rows, loose.rejecting) == (exact.counts, exact.rows, exact.rejecting)
        assert abs(loose.size - exact.size) <= len(rows)


def test_without_exact_times_only_the_columns_of_where_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = set()
    original = SourceParquet.read

    def noting(part: SourceParquet, group: int, names: Sequence[str]) -> pa.Table:
        read.update(names)
        return original(part, group, names)

    monkeypatch.setattr(SourceParquet, "read", noting)
    files = files_of(tmp_path, [("a", NOON, 1), ("b", NOON, 5)], compiled(where="value > 3"))
    assert measure_files(files, with_times=False).counts == {OK: 1, DROPPED: 1}
    assert read == {"value"}


def test_an_expression_is_not_evaluated_for_rows_that_where_drops(tmp_path: Path) -> None:
    rows = [("a", NOON, 0), ("b", NOON, 4)]
    files = files_of(tmp_path, rows, compiled({"part": "8 div value"}, "value <> 0"), used=("part",))
    assert [row["value_part"] for row in events(files)] == [2]


def test_a_derived_time_is_not_evaluated_for_rows_that_where_drops_so_they_have_none(tmp_path: Path) -> None:
    sql = compiled({"at": "to_timestamp(user)", "place": "8 div value"}, "value <> 0")
    rows = [("2026-03-01 11:00:00", None, 4), ("a click", None, 0), ("2026-03-01 11:00:00", None, 0)]
    files = files_of(tmp_path, rows, sql, partition_by="place")
    assert [row[TIME] for row in events(files)] == [millis(NOON - HOUR)]
    assert measure_files(files).counts == {OK: 1, DROPPED: 2}
    assert measure_files(files, with_rejects=False).counts == {OK: 1}


@pytest.mark.parametrize(
    ("columns", "where", "field"),
    [
        ({"part": "8 div value"}, None, r"columns\['part'\]"),
        ({}, "8 div value > 1", "where"),
        ({"part": "cast(user as int)"}, None, r"columns\['part'\]"),
    ],
)
def test_an_expression_that_fails_for_a_row_is_named_with_its_field_and_a_way_out(
    tmp_path: Path, columns: dict[str, str], where: str | None, field: str
) -> None:
    files = files_of(tmp_path, [("a", NOON, 0)], compiled(columns, where), used=tuple(columns))
    text = next(iter(columns.values()), where)
    with pytest.raises(Refused, match=rf"{field} of pipeline 'hours': .*fails for a row") as refused:
        events(files)
    assert repr(text) in str(refused.value)
    assert "Nothing was committed" in str(refused.value)
    # The remedy that the message names.
    mended = files_of(
        tmp_path, [("a", NOON, 0)], compiled({"part": "8 div nullif(value, 0)", "n": "try_cast(user as int)"})
    )
    assert len(events(mended)) == 1


def test_an_expression_left_to_spark_takes_those_that_use_it_along() -> None:
    input_ = Input(
        source=DeltaSource("events", timestamp="at"),
        columns={"coin": "hash(user)", "side": "coin % 2", "value": "value + 1"},
        where="side = 1",
    )
    _, expressions = compile_input("hours", input_, SCHEMA, {})
    assert [(expression.field, expression.reason) for expression in expressions] == [
        ("columns['coin']", "the function hash is not proven"),
        ("columns['side']", "it uses 'coin', which Spark evaluates"),
        ("columns['value']", None),
        ("where", "it uses 'side', which Spark evaluates"),
    ]


def test_columns_with_a_collation_or_of_fixed_length_are_left_to_spark() -> None:
    columns = [
        {"name": "user", "metadata": {"__COLLATIONS": {"user": "spark.UTF8_LCASE"}}},
        {"name": "code", "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}},
        {"name": "value", "metadata": {}},
    ]
    unusual = unusual_columns(json.dumps({"fields": columns}))
    assert sorted(unusual) == ["code", "user"]
    input_ = Input(source=DeltaSource("events", timestamp="at"), where="user = 'a'")
    _, (expression,) = compile_input("hours", input_, SCHEMA, unusual)
    assert expression.reason == "column 'user' has a collation"


def test_a_setting_of_spark_that_changes_sql_leaves_all_to_spark() -> None:
    assert differing_setting({}.get) is None
    assert differing_setting({"spark.sql.ansi.enabled": "TRUE"}.get) is None
    assert differing_setting({"spark.sql.ansi.enabled": "false"}.get) == "Spark has spark.sql.ansi.enabled = false"
