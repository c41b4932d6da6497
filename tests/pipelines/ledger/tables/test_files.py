"""Parquet dictionaries of our files: only for columns whose values repeat."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Schema

from tidegate.pipelines.definition.columns import TIMESTAMP, to_delta
from tidegate.pipelines.definition.far_times import MICROS
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import DataFile
from tidegate.pipelines.ledger.tables.checksum import add_up, checksum_of, hashes_of_rows
from tidegate.pipelines.ledger.tables.files import add_action, check_written, statistics, write_rows
from tidegate.pipelines.storage.warehouse import Warehouse, read_table

START = datetime(2013, 1, 1, tzinfo=UTC)


def rows(*starts: datetime | None, kind: pa.DataType = TIMESTAMP) -> pa.Table:
    return pa.table(
        {
            "key_group": pa.array(range(len(starts)), pa.int32()),
            "window_start": pa.array(list(starts), kind),
            "delay": pa.array([float("nan")] * len(starts)),
            "name": ["ä" * 40] * len(starts),
        }
    )


def test_there_are_statistics_of_few_columns_only() -> None:
    described = statistics(rows(START))
    assert set(described["minValues"]) == set(described["maxValues"]) == {"key_group", "window_start"}
    assert described["numRecords"] == 1


@pytest.mark.parametrize(
    "values",
    [
        pa.array([Decimal("1.50")]),
        pa.array([date(2013, 1, 1)]),
        pa.array([[1]]),
        pa.array(["a"]),
        pa.array([float("nan")]),
        pa.array([datetime(2013, 1, 1)], pa.timestamp("us")),
    ],
    ids=lambda values: str(values.type),
)
def test_a_users_column_of_such_a_name_and_another_type_has_no_bounds(values: pa.Array) -> None:
    described = statistics(pa.table({"window_start": values, "reopened": values}))
    assert json.dumps(described) == '{"numRecords": 1, "minValues": {}, "maxValues": {}, "nullCount": {}}'


def test_times_are_iso_text_and_the_upper_one_is_rounded_up() -> None:
    described = statistics(rows(START + timedelta(microseconds=1999), START + timedelta(microseconds=1001)))
    assert described["minValues"]["window_start"] == "2013-01-01T00:00:00.001Z"
    assert described["maxValues"]["window_start"] == "2013-01-01T00:00:00.002Z"


def test_nulls_are_counted_and_a_column_of_nulls_has_no_bounds() -> None:
    described = statistics(rows(None, START))
    assert described["nullCount"] == {"key_group": 0, "window_start": 1}
    described = statistics(rows(None, None))
    assert described["nullCount"]["window_start"] == 2
    assert "window_start" not in described["minValues"]


@pytest.mark.parametrize("year", [1, 1969, 9999])
def test_times_far_from_1970_have_bounds_of_four_digit_years(year: int) -> None:
    described = statistics(rows(datetime(year, 1, 1, tzinfo=UTC)))
    assert described["minValues"]["window_start"] == f"{year:04d}-01-01T00:00:00.000Z"


def test_a_window_that_ends_after_the_year_9999_has_no_bounds() -> None:
    """Engines write that year in different ways, and a bound that is too low would hide the row."""
    end = pa.table({"window_end": pa.array([253_402_300_800_000_000, 0], TIMESTAMP)})
    described = statistics(end)
    assert described == {"numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"window_end": 0}}


def test_readers_that_prune_by_the_statistics_lose_no_row(tmp_path: Path) -> None:
    warehouse, path = Warehouse(str(tmp_path)), str(tmp_path / "t")
    starts = [START + timedelta(hours=hour, microseconds=1500) for hour in range(5)]
    table = rows(*starts, None)
    DeltaTable.create(path, Schema.from_arrow(table.schema))
    for at in range(len(table)):
        (file,) = write_rows(warehouse, path, "t", table.slice(at, 1))
        handle = DeltaTable(path)
        handle.create_write_transaction(
            [add_action(file)], "append", handle.schema(), commit_properties=CommitProperties(max_commit_retries=0)
        )
    found = DeltaTable(path)
    assert len(read_table(warehouse, found)) == 6
    for at, start in enumerate(starts):
        matching = found.to_pyarrow_dataset().to_table(
            filter=pa.compute.field("window_start") == pa.scalar(start, TIMESTAMP)
        )
        assert matching["key_group"].to_pylist() == [at]


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    assert write_rows(Warehouse(str(tmp_path)), str(tmp_path / "t"), "t", rows()) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_written_file_says_its_size_rows_and_statistics(tmp_path: Path) -> None:
    warehouse, path = Warehouse(str(tmp_path)), str(tmp_path / "t")
    (file,) = write_rows(warehouse, path, "results-000001", rows(START, START))
    assert file.path.startswith("results-000001-")
    assert file.rows == 2
    assert json.loads(file.stats)["numRecords"] == 2
    check_written(warehouse, path, [file])


@pytest.mark.parametrize(
    ("others", "without"),
    [
        ({"op": pa.array(["+", "+"])}, {"window_id"}),
        ({"op": pa.array(["+", "+"]), "legs": pa.array([[1], [1]])}, set()),
    ],
    ids=["plain columns", "one that is nested"],
)
def test_hashes_are_written_without_a_dictionary(
    tmp_path: Path, others: dict[str, pa.Array], without: set[str]
) -> None:
    table = pa.table({"window_id": pa.array([1, 2]), **others})
    (file,) = write_rows(Warehouse(str(tmp_path)), str(tmp_path / "t"), "t", table)
    written = pq.ParquetFile(tmp_path / "t" / file.path)
    group = written.metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    assert {column.path_in_schema for column in columns if not column.has_dictionary_page} == without
    assert written.read() == table


def test_a_listed_file_that_is_missing_or_of_another_size_is_refused_by_name(tmp_path: Path) -> None:
    warehouse, path = Warehouse(str(tmp_path)), str(tmp_path / "t")
    (file,) = write_rows(warehouse, path, "t", rows(START))
    with pytest.raises(Refused, match=rf"{file.path} .* has {file.size} bytes, not {file.size + 1}"):
        check_written(warehouse, path, [file.model_copy(update={"size": file.size + 1})])
    with pytest.raises(Refused, match=r"gone\.parquet .* is missing"):
        check_written(warehouse, path, [file, DataFile(path="gone.parquet", size=1, rows=1, stats="{}")])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.timestamp("ns", tz="UTC"), TIMESTAMP),
        (pa.timestamp("ms", tz="Europe/Berlin"), TIMESTAMP),
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.struct([("t", pa.timestamp("s", tz="UTC"))]), pa.struct([("t", TIMESTAMP)])),
        (pa.map_(pa.large_string(), pa.large_binary()), pa.map_(pa.string(), pa.binary())),
        (pa.decimal128(10, 2), pa.decimal128(10, 2)),
    ],
)
def test_a_type_that_spark_could_not_open_becomes_the_one_it_can(given: pa.DataType, kept: pa.DataType) -> None:
    assert to_delta(given) == kept


LARGE = 200_000


@pytest.mark.parametrize(("rows", "dictionaries"), [(LARGE, {"key"}), (1_000, {"key", "window_start", "total"})])
def test_a_large_file_has_no_dictionary_of_values_that_hardly_repeat(
    tmp_path: Path, rows: int, dictionaries: set[str]
) -> None:
    numbers = np.arange(rows)
    table = pa.table(
        {
            "key": pa.array(numbers // 10).cast(pa.string()),
            "window_id": numbers,
            "window_start": pa.array(numbers * 1_000).cast(pa.timestamp("us", "UTC")),
            "total": numbers / 2,
        }
    )
    (file,) = write_rows(Warehouse(str(tmp_path)), str(tmp_path / "results"), "results-000001", table)
    columns = pq.read_metadata(tmp_path / "results" / file.path).row_group(0)
    described = [columns.column(number) for number in range(columns.num_columns)]
    assert {column.path_in_schema for column in described if column.has_dictionary_page} == dictionaries
    assert pq.read_table(tmp_path / "results" / file.path).equals(table)


# --- checksums ---------------------------------------------------------------------------------------

MANY = 40_000


@pytest.fixture(scope="module")
def many_rows() -> pa.Table:
    numbers = np.arange(MANY)
    missing = numbers % 7 == 0
    return pa.table(
        {
            "key": pa.array([None if n % 11 == 0 else f"user-{n % 50}" for n in range(MANY)]),
            "constant": pa.repeat("on_time", MANY),
            "one": pa.repeat(1, MANY),
            "count": pa.array(numbers * 7919 % 1000, mask=missing),
            "small": pa.array((numbers % 100).astype(np.int8)),
            "double": pa.array(np.where(numbers % 3 == 0, -0.0, 0.0)),
            "flag": pa.array(numbers % 2 == 0),
            "at": pa.array(numbers * 1_000_003, pa.timestamp("us", tz="UTC"), mask=missing),
            "day": pa.array(numbers.astype(np.int32) % 400, pa.date32()),
            "price": pa.array([Decimal(n % 9) / 4 for n in range(MANY)], pa.decimal128(9, 2)),
            "nothing": pa.nulls(MANY, pa.int64()),
        }
    )


def test_it_is_what_earlier_versions_recorded(many_rows: pa.Table) -> None:
    assert f"{checksum_of(many_rows):016x}" == "96e08672ef13fcf9"


def test_parts_add_up_in_any_order(many_rows: pa.Table) -> None:
    parts = [many_rows.slice(begin, 16_000) for begin in (32_000, 0, 16_000)]
    assert add_up([checksum_of(part) for part in parts]) == checksum_of(many_rows)
    assert checksum_of(pa.concat_tables(parts)) == checksum_of(many_rows)


@pytest.mark.parametrize("name", ["key", "constant"])
def test_a_dictionary_has_the_checksum_of_its_values(many_rows: pa.Table, name: str) -> None:
    place = many_rows.column_names.index(name)
    assert checksum_of(many_rows.set_column(place, name, many_rows[name].dictionary_encode())) == checksum_of(many_rows)


def test_each_row_has_a_hash_of_its_own_values(many_rows: pa.Table) -> None:
    (batch,) = many_rows.combine_chunks().to_batches()
    hashes = hashes_of_rows(batch)
    for place in (0, 16_383, 16_384, MANY - 1):
        assert hashes[place] == hashes_of_rows(batch.slice(place, 1))[0]


@pytest.mark.parametrize("name", ["key", "constant", "one", "count", "double", "flag", "at", "price"])
def test_every_value_counts(many_rows: pa.Table, name: str) -> None:
    place = many_rows.column_names.index(name)
    values = many_rows[name].combine_chunks()
    other = values.take(pa.array([*range(MANY - 1), None], pa.int64()))
    assert checksum_of(many_rows.set_column(place, name, other)) != checksum_of(many_rows)


NESTED = {
    "struct": pa.array(
        [{"a": 1, "b": "x"}, {"a": None, "b": None}, None, {"a": 2, "b": "x"}],
        pa.struct({"a": pa.int64(), "b": pa.string()}),
    ),
    "list": pa.array([[1, 2], [2, 1], [], None, [None], [1], [2, None], [None, 2]], pa.list_(pa.int32())),
    "lists": pa.array([[[1], [2]], [[1, 2]], [[], [1, 2]], [None]], pa.list_(pa.list_(pa.int64()))),
    "map": pa.array([[("a", 1)], [("a", 2)], [("b", 1), ("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    "fixed": pa.array([[1, 2], [2, 1], None], pa.list_(pa.int64(), 2)),
    "times": pa.array(
        [[{"at": at}] for at in (0, MICROS[1], MICROS[1] + 1, None)],
        pa.list_(pa.struct({"at": pa.timestamp("us", tz="UTC")})),
    ),
    "prices": pa.array([[Decimal("1.50")], [Decimal("2.50")]], pa.list_(pa.decimal128(9, 2))),
}


@pytest.mark.parametrize("kind", NESTED)
def test_each_nested_value_counts_row_by_row(kind: str) -> None:
    values = NESTED[kind]
    many_rows = pa.table({"value": values})
    one_by_one = [checksum_of(many_rows.slice(place, 1)) for place in range(len(values))]
    assert len(set(one_by_one)) == len(values)
    assert add_up(one_by_one) == checksum_of(many_rows)


def test_a_list_of_a_fixed_size_has_the_checksum_of_a_list() -> None:
    fixed = NESTED["fixed"]
    lists = pa.array(fixed.to_pylist(), pa.list_(pa.int64()))
    assert checksum_of(pa.table({"value": fixed})) == checksum_of(pa.table({"value": lists}))


def test_nested_columns_have_a_checksum_that_stays() -> None:
    """Files contain it: with another number, each of them would be reported as damaged."""
    sums = {kind: f"{checksum_of(pa.table({'value': values})):016x}" for kind, values in NESTED.items()}
    assert sums == {
        "struct": "114f2a71e324ab31",
        "list": "a89754a4e9fecc75",
        "lists": "20fbdb875f6b143d",
        "map": "e48e15154bac40f1",
        "fixed": "548a0d67e3d25f07",
        "times": "ae33844f7dd86186",
        "prices": "c6c51490a20b17d6",
    }
