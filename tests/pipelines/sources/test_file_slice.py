"""A slice of files without Spark: which rows are events, which are unusable and why, and how late rows are found
again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.sources.slices import ACCEPTED, slice_in
from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.event_columns import COMMIT, FILE, OK, PACK, PLACE, TIME
from tidegate.pipelines.epoch.exchange import Placing, unpacked
from tidegate.pipelines.epoch.file_measure import measure_files
from tidegate.pipelines.epoch.plan import cut_shards
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.commits import FilePart, in_order
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_columns import ColumnsToRead
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.time import LAST_TIME, to_millis

SCHEMA = pa.schema(
    [("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("value", pa.int64()), ("part", pa.string())]
)

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)

COMMITTED = to_millis(NOON) + 3_600_000


def minutes(count: int) -> datetime:
    return NOON + timedelta(minutes=count)


def write(folder: Path, name: str, *rows: tuple[Any, ...], **options: Any) -> str:
    columns = list(zip(*rows, strict=True)) if rows else [[]] * len(SCHEMA)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    pq.write_table(pa.table(arrays, schema=SCHEMA), folder / name, **options)
    return name


def files_of(folder: Path, *names: str, **columns: Any) -> FileSlice:
    known = ColumnsToRead(
        **{
            "schema": SCHEMA,
            "timestamp": "at",
            "unit": None,
            "key": ("user",),
            "used": ("value",),
            "accepted": ACCEPTED,
            "reject_null_keys": True,
            "max_ahead": 86_400_000,
            **columns,
        }
    )
    return slice_in(folder, known, *(FilePart(name, None, number, COMMITTED) for number, name in enumerate(names)))


def events(files: FileSlice) -> pa.Table:
    return pa.concat_tables(list(files.events()))


BAD: dict[str, tuple[Any, ...]] = {
    rejects.NULL_KEY: (None, minutes(0), 1, "a"),
    rejects.NULL_TIMESTAMP: ("u", None, 1, "a"),
    rejects.BEFORE: ("u", datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 1, "a"),
    rejects.AHEAD: ("u", NOON + timedelta(days=2), 1, "a"),
}


@pytest.mark.parametrize("reason", sorted(BAD))
def test_a_row_of_no_use_is_counted_with_its_reason_and_is_no_event(tmp_path: Path, reason: str) -> None:
    files = files_of(tmp_path, write(tmp_path, "a.parquet", ("u", minutes(1), 1, "a"), BAD[reason], BAD[reason]))
    found = measure_files(files)
    assert (found.counts, found.usable) == ({OK: 1, reason: 2}, 1)
    assert events(files)[TIME].to_pylist() == [to_millis(minutes(1))]


def test_a_null_key_comes_before_any_other_reason(tmp_path: Path) -> None:
    files = files_of(tmp_path, write(tmp_path, "a.parquet", (None, None, 1, "a")))
    assert measure_files(files).counts == {rejects.NULL_KEY: 1}


def test_keys_of_null_are_kept_where_the_pipeline_keeps_them(tmp_path: Path) -> None:
    files = files_of(tmp_path, write(tmp_path, "a.parquet", (None, minutes(1), 1, "a")), reject_null_keys=False)
    assert measure_files(files).counts == {OK: 1}
    assert events(files)["key_user"].to_pylist() == [None]


def test_microseconds_are_floored(tmp_path: Path) -> None:
    moment = NOON + timedelta(microseconds=1_999)
    assert events(files_of(tmp_path, write(tmp_path, "a.parquet", ("u", moment, 1, "a"))))[TIME].to_pylist() == [
        to_millis(NOON) + 1
    ]


def test_only_rows_of_the_interval_are_events_and_counted(tmp_path: Path) -> None:
    name = write(
        tmp_path, "a.parquet", *[("u", minutes(number), number, "a") for number in range(100)], row_group_size=7
    )
    files = files_of(tmp_path, name)
    part = replace(files.parts[0], since=to_millis(minutes(10)), until=to_millis(minutes(20)))
    files = replace(files, parts=(part,))
    assert events(files)["value_value"].to_pylist() == list(range(10, 20))
    found = measure_files(files, with_rejects=False)
    assert (found.usable, found.smallest, found.largest) == (
        10,
        {0: to_millis(minutes(10))},
        {0: {"": to_millis(minutes(19))}},
    )


@pytest.mark.parametrize("statistics", [True, False])
def test_what_statistics_tell_is_what_the_rows_hold(tmp_path: Path, statistics: bool) -> None:
    rows = [("u", minutes(number % 17), number, "ab"[number % 2]) for number in range(50)]
    files = files_of(tmp_path, write(tmp_path, "a.parquet", *rows, row_group_size=9, write_statistics=statistics))
    found = measure_files(files)
    assert (found.usable, found.smallest, found.largest) == (
        50,
        {0: to_millis(NOON)},
        {0: {"": to_millis(minutes(16))}},
    )


def test_the_size_of_a_slice_is_that_of_the_columns_in_use(tmp_path: Path) -> None:
    rows = [("u", minutes(number), number, f"{number}" * 400) for number in range(100)]
    name = write(tmp_path, "a.parquet", *rows, row_group_size=20, compression="zstd", use_dictionary=False)
    narrow, wide = (files_of(tmp_path, name, used=used) for used in (("value",), ("value", "part")))
    assert 100 * 16 < measure_files(narrow).size < 100 * 50
    assert measure_files(wide).size > 100 * 600
    half = replace(wide.parts[0], since=to_millis(minutes(0)), until=to_millis(minutes(50)))
    within = measure_files(replace(wide, parts=(half,)), with_rejects=False)
    assert within.usable == 50
    assert measure_files(wide).size * 0.3 < within.size < measure_files(wide).size * 0.6


def test_source_partitions_have_times_of_their_own(tmp_path: Path) -> None:
    rows = [("u", minutes(1), 1, "a"), ("u", minutes(5), 1, "a"), ("u", minutes(3), 1, "b"), ("u", minutes(9), 1, None)]
    found = measure_files(files_of(tmp_path, write(tmp_path, "a.parquet", *rows), partition_by="part"))
    assert found.largest == {0: {"a": to_millis(minutes(5)), "b": to_millis(minutes(3)), "null": to_millis(minutes(9))}}


def test_each_file_counts_to_its_commit(tmp_path: Path) -> None:
    first, second = (write(tmp_path, f"{name}.parquet", ("u", minutes(1), 1, "a")) for name in "ab")
    assert events(files_of(tmp_path, first, second))[COMMIT].to_pylist() == [0, 1]


def test_the_source_row_of_an_event_is_found_again(tmp_path: Path) -> None:
    names = [
        write(
            tmp_path,
            f"{file}.parquet",
            *[("u", minutes(row), row, f"{file}{row}") for row in range(20)],
            row_group_size=6,
        )
        for file in "xyz"
    ]
    files = files_of(tmp_path, *names)
    read = events(files)
    asked = [41, 3, 59, 3, 20]
    origins = read.select([FILE, PLACE]).take(asked)
    found = files.source_rows(origins[FILE].to_numpy().astype("int64"), origins[PLACE].to_numpy())
    assert found["part"].to_pylist() == ["z1", "x3", "z19", "x3", "y0"]
    assert found.schema == SCHEMA


def test_a_column_that_an_older_file_lacks_is_null_and_case_does_not_matter(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"User": ["u"], "AT": pa.array([NOON], pa.timestamp("us", tz="UTC"))}), tmp_path / "a.parquet"
    )
    read = events(files_of(tmp_path, "a.parquet"))
    assert (read["key_user"].to_pylist(), read["value_value"].to_pylist()) == (["u"], [None])


@pytest.mark.parametrize("null_keys", ["reject", "keep"])
@pytest.mark.parametrize("key", [("part",), ("user", "part")], ids=["one key column", "two"])
def test_files_from_before_a_key_column_was_added_reach_the_shards_with_those_from_after(
    tmp_path: Path, key: tuple[str, ...], null_keys: str
) -> None:
    pq.write_table(
        pa.table({"user": ["old"], "at": pa.array([minutes(1)], pa.timestamp("us", tz="UTC"))}),
        tmp_path / "old.parquet",
    )
    write(tmp_path, "new.parquet", ("new", minutes(2), 1, "a"), ("new", minutes(3), 1, None))
    files = files_of(tmp_path, "old.parquet", "new.parquet", key=key, reject_null_keys=null_keys == "reject")
    placing = Placing(KeySchema(key, (pa.string(),) * len(key)), cut_shards(2, 16), 16)
    expected = (
        [(minutes(2), "a")] if null_keys == "reject" else [(minutes(1), None), (minutes(2), "a"), (minutes(3), None)]
    )

    own = list(placing.select(files.events(), range(2)).values())
    packs = [pack for batch in placing.packs(files.events()) for pack in batch[PACK].to_pylist()]
    for tables in (own, unpacked([partial(pa.py_buffer, pack) for pack in packs])):
        rows = [row for table in tables for row in table.to_pylist()]
        assert sorted((row[TIME], row["key_part"]) for row in rows) == [
            (to_millis(moment), part) for moment, part in expected
        ]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_a_column_has_the_type_of_the_table_whatever_type_its_file_was_written_with(
    tmp_path: Path, kind: pa.DataType
) -> None:
    texts = pa.array(["x", None]).cast(kind)
    times = pa.array([minutes(1), minutes(2)], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"user": texts, "at": times, "part": texts}), tmp_path / "a.parquet")
    read = events(files_of(tmp_path, "a.parquet", used=("part",), reject_null_keys=False))
    assert read.schema.field("key_user").type == pa.dictionary(pa.int32(), pa.string())
    assert read.schema.field("value_part").type == pa.string()


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [("ms", 1_709_294_400_123, 1_709_294_400_123), ("s", 1_709_294_400, 1_709_294_400_000)],
)
def test_integers_are_times_in_their_unit(tmp_path: Path, unit: str, value: int, expected: int) -> None:
    files = files_of(tmp_path, write(tmp_path, "a.parquet", ("u", None, value, "a")), timestamp="value", unit=unit)
    assert events(files)[TIME].to_pylist() == [expected]


def test_integers_beyond_all_time_are_out_of_range_and_do_not_wrap(tmp_path: Path) -> None:
    rows = [("u", None, value, "a") for value in (2**62, -(2**62), LAST_TIME // 1000)]
    files = files_of(tmp_path, write(tmp_path, "a.parquet", *rows), timestamp="value", unit="s")
    assert measure_files(files).counts == {rejects.OUT_OF_RANGE: 3}


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"file gone\.parquet is missing: it was compacted"):
        measure_files(files_of(tmp_path, "gone.parquet"))


def test_a_damaged_file_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no such thing PAR1")
    with pytest.raises(Refused, match=r"file a\.parquet can't be read.*reader='spark'"):
        events(files_of(tmp_path, "a.parquet"))


@dataclass(frozen=True)
class Commit:
    version: int
    time: int


def log(*times: int) -> list[Commit]:
    return [Commit(version, time) for version, time in enumerate(times)]


def order(*logs: list[Commit]) -> list[tuple[int, int]]:
    return [(number, commit.version) for number, commit in in_order(logs)]


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        (((10, 30, 40), (20, 30)), [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]),
        (((10, 30, 20), (25, 30)), [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1)]),
        (((30, 10, 20),), [(0, 0), (0, 1), (0, 2)]),
    ],
    ids=["the first input goes first", "a time that goes back", "one log"],
)
def test_commits_are_taken_by_their_times(logs: tuple[tuple[int, ...], ...], expected: list[tuple[int, int]]) -> None:
    assert order(*(log(*times) for times in logs)) == expected


@given(st.lists(st.integers(0, 50)), st.lists(st.integers(0, 50)))
def test_every_commit_is_taken_once_and_each_source_in_its_own_order(left: list[int], right: list[int]) -> None:
    taken = order(log(*left), log(*right))
    assert len(taken) == len(left) + len(right)
    for number, times in ((0, left), (1, right)):
        assert [version for side, version in taken if side == number] == list(range(len(times)))
