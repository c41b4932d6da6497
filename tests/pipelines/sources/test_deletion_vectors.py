"""Rows that a deletion vector removes are not events, and a vector that does not match its file is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hand_made import HandMade, Storage, column, z85
from tests.lake import EVENTS, at, hourly_pipeline
from tests.pipelines.sources.slices import events_of, slice_at, whole_rows
from tidegate.pipelines.definition.event_columns import DROPPED, OK, PLACE
from tidegate.pipelines.epoch.file_measure import measure_files
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.delta.deletion_vectors import DeletionVector
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing import Max, Sum
from tidegate.windowing.time import to_millis

COLUMNS = [column("user", "string"), column("at", "timestamp"), column("value", "long")]
STORAGES: tuple[Storage, ...] = ("i", "u", "p")


def rows_of(count: int) -> pa.Table:
    rows = [
        {"user": f"u{place % 3}", "at": at("01:00") + timedelta(seconds=place), "value": place}
        for place in range(count)
    ]
    return pa.Table.from_pylist(rows, EVENTS)


def table_of(folder: Path) -> HandMade:
    return HandMade(folder / "events", COLUMNS, features=["deletionVectors"])


@pytest.mark.parametrize("storage", STORAGES)
def test_a_deleted_row_is_no_event_wherever_its_vector_lies(tmp_path: Path, storage: Storage) -> None:
    table = table_of(tmp_path)
    deleted = [0, 4, 5, 6, 7, 19, 21]
    # Row groups of five: the second loses its first four rows, the third none.
    table.commit(table.file(rows_of(22), deleted=deleted, storage=storage, row_group_size=5))
    files, kept = slice_at(table), [place for place in range(22) if place not in deleted]
    events = events_of(files)
    assert events["value_value"].to_pylist() == events[PLACE].to_pylist() == kept
    assert [row["value"] for row in whole_rows(files, events)] == kept
    measured = measure_files(files)
    assert measured.counts == measure_files(files, with_times=False).counts == {OK: len(kept)}
    assert (measured.smallest, measured.largest) == (
        {0: to_millis(at("01:00")) + 1_000},
        {0: {"": to_millis(at("01:00")) + 20_000}},
    )


def test_a_large_row_group_is_read_in_tables_of_bounded_size(tmp_path: Path) -> None:
    """Columns of texts other than keys are read in smaller tables: each of them may be a long text."""
    count, deleted = 150_000, [0, 65_535, 65_536, 149_999]
    places = np.arange(count)
    table = HandMade(tmp_path / "events", [*COLUMNS, column("note", "string")], features=["deletionVectors"])
    rows = pa.table(
        {
            "user": pa.array(["u0", "u1", "u2"]).take(pa.array(places % 3)),
            "at": pa.array(np.full(count, to_millis(at("01:00")) * 1000), pa.timestamp("us", tz="UTC")),
            "value": places,
            "note": pa.array(places).cast(pa.string()),
        }
    )
    table.commit(table.file(rows, deleted=deleted, row_group_size=count))
    pipeline = hourly_pipeline(where="value % 2 = 1", aggregate={"note": Max("note"), "total": Sum("value")})
    files = slice_at(table, pipeline)
    kept = np.setdiff1d(places[places % 2 == 1], deleted)
    tables = list(files.events())
    assert [len(each) for each in tables] == [32_767, 32_768, 9_463]
    events = pa.concat_tables(tables)
    for name in (PLACE, "value_value"):
        assert np.array_equal(events[name].to_numpy(), kept)
    assert events["value_note"].to_pylist() == list(map(str, kept.tolist()))
    assert events["key_user"].cast(pa.string()).to_pylist() == [f"u{place % 3}" for place in kept.tolist()]
    late = events.take(pa.array([len(events) - 1, 0, 40_000]))
    assert [row["value"] for row in whole_rows(files, late)] == late[PLACE].to_pylist()
    dropped = count - len(deleted) - len(kept)
    for with_times in (True, False):
        assert measure_files(files, with_times=with_times).counts == {OK: len(kept), DROPPED: dropped}


@given(st.data())
def test_every_drawn_vector_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    count = data.draw(st.integers(1, 300_000))
    dense = data.draw(st.booleans())
    places = (
        range(0, count, 2) if dense else sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=9)))
    )
    table = table_of(tmp_path_factory.mktemp("drawn"))
    described = table.vector(list(places), data.draw(st.sampled_from(STORAGES)), data.draw(st.sampled_from(["", "ab"])))
    vector = DeletionVector.of(described)
    warehouse = Warehouse(str(table.folder.parent))
    assert vector.rows(warehouse, str(table.folder), count).tolist() == list(places)


def test_the_newest_vector_of_a_file_counts_before_and_after_a_checkpoint(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    add = table.file(rows_of(6), deleted=[1])
    table.commit(add)
    for deleted in ([1, 2], [1, 2, 5]):
        remove = {"path": add["add"]["path"], "dataChange": True, "deletionTimestamp": 0}
        remove["deletionVector"] = add["add"]["deletionVector"]
        add = {"add": {**add["add"], "deletionVector": table.vector(deleted)}}
        table.commit({"remove": remove}, add)
        assert events_of(slice_at(table))["value_value"].to_pylist() == [n for n in range(6) if n not in deleted]
    Warehouse(str(tmp_path)).open(str(table.folder)).create_checkpoint()
    assert events_of(slice_at(table))["value_value"].to_pylist() == [0, 3, 4]
    table.commit(table.file(rows_of(2), deleted=[0]))
    assert sorted(events_of(slice_at(table))["value_value"].to_pylist()) == [0, 1, 3, 4]


def test_the_number_of_rows_in_the_log_counts_the_deleted_rows_of_a_file(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.commit(table.file(rows_of(6), deleted=[1]))
    log = SourceLog(Warehouse(str(tmp_path)), str(table.folder))
    (file,) = next(log.unread(-1)).files
    assert (file.rows, file.stored) == (5, 6)
    (file,) = log.active("at", to_read=True)
    assert (file.rows, file.stored) == (None, 6)


def vector_file(table: HandMade) -> Path:
    (file,) = table.folder.rglob("deletion_vector_*.bin")
    return file


def cut(table: HandMade, add: dict[str, Any]) -> None:
    vector_file(table).write_bytes(vector_file(table).read_bytes()[:-9])


def flipped(table: HandMade, add: dict[str, Any]) -> None:
    content = bytearray(vector_file(table).read_bytes())
    content[-6] ^= 1
    vector_file(table).write_bytes(bytes(content))


def of_another_version(table: HandMade, add: dict[str, Any]) -> None:
    vector_file(table).write_bytes(b"\x02" + vector_file(table).read_bytes()[1:])


def with_another_count(table: HandMade, add: dict[str, Any]) -> None:
    add["add"]["deletionVector"]["cardinality"] = 3


def with_another_size(table: HandMade, add: dict[str, Any]) -> None:
    add["add"]["deletionVector"]["sizeInBytes"] += 1


def of_another_file(table: HandMade, add: dict[str, Any]) -> None:
    add["add"]["deletionVector"] = table.vector([2, 6], folder="other")


def in_another_format(table: HandMade, add: dict[str, Any]) -> None:
    described = {"storageType": "i", "pathOrInlineDv": z85(bytes(12)), "sizeInBytes": 12, "cardinality": 2}
    add["add"]["deletionVector"] = described


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda table, add: vector_file(table).unlink(), "is missing.*Start a new pipeline with a backfill"),
        (cut, "the size in its file at byte.*is not.*APPLY"),
        (flipped, "checksum is wrong"),
        (of_another_version, "version 1 can be read"),
        (with_another_count, "it has 2 rows, but the log says 3"),
        (with_another_size, "the size in its file at byte.*is not"),
        (of_another_file, "it deletes row 6 of a file with 6 rows"),
        (in_another_format, "begins with the number 0"),
    ],
    ids=["gone", "cut", "flipped", "version", "count", "size", "of another file", "format"],
)
def test_a_vector_that_is_not_that_of_its_file_is_refused_by_name(
    tmp_path: Path, spoil: Callable[[HandMade, dict[str, Any]], None], reason: str
) -> None:
    table = table_of(tmp_path)
    add = table.file(rows_of(6), deleted=[1, 2], name="x.parquet")
    spoil(table, add)
    table.commit(add)
    with pytest.raises(Refused, match=rf"events: the deletion vector of file x\.parquet.*{reason}"):
        measure_files(slice_at(table))


@pytest.mark.parametrize(
    "described",
    [
        {"storageType": "u", "pathOrInlineDv": "ab"},
        {"storageType": "x", "pathOrInlineDv": "ab", "sizeInBytes": 1, "cardinality": 1},
        {"storageType": "u", "pathOrInlineDv": "ab", "sizeInBytes": "much", "cardinality": 1},
    ],
)
def test_a_description_of_another_kind_is_an_error(described: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is incomplete|unknown storage type"):
        DeletionVector.of(described)


@given(st.binary(max_size=64))
def test_any_bytes_for_a_vector_in_the_log_are_an_error_and_never_a_crash(content: bytes) -> None:
    magic = (1_681_511_377).to_bytes(4, "little")
    vector = DeletionVector("i", z85(magic + content), 0, 4 + len(content), 10**9)
    with pytest.raises(ValueError, match=r"rows, but the log says|bitmap|deserialize"):
        vector.rows(Warehouse("/nowhere"), "/nowhere", 10)


def test_the_examples_of_the_protocol_are_read() -> None:
    # The examples of Delta's protocol. The vector in the log is that of delta-kernel, which has the portable format.
    relative = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40}
    vector = DeletionVector.of({**relative, "cardinality": 6})
    assert vector.file == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    inline = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    described = {"storageType": "i", "pathOrInlineDv": inline, "sizeInBytes": 44, "cardinality": 6}
    vector = DeletionVector.of(described)
    assert vector.rows(Warehouse("/nowhere"), "/nowhere", 30).tolist() == [3, 4, 7, 11, 18, 29]
    assert re.fullmatch(r"/a b/.*\.bin", DeletionVector("p", "file:/a%20b/c.bin", 1, 1, 1).file or "")


def test_a_log_that_counts_the_visible_rows_is_told_apart_from_a_replaced_file(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    add = table.file(rows_of(5), deleted=[1, 2])
    add["add"]["stats"] = '{"numRecords": 3}'
    table.commit(add)
    both = r"has 5 rows, but the log says 3: it was replaced, or its writer counted .*REORG TABLE .* APPLY \(PURGE\)"
    with pytest.raises(Refused, match=both):
        measure_files(slice_at(table))
    plain = table_of(tmp_path / "plain")
    add = plain.file(rows_of(5))
    add["add"]["stats"] = '{"numRecords": 3}'
    plain.commit(add)
    with pytest.raises(Refused, match=r"the log says 3: it was replaced\. Restore the committed file$"):
        measure_files(slice_at(plain))
