"""Rows that were deleted and added between two versions of a Delta table, compared with the difference of all rows."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.conditions import is_kept
from tests.hand_made import HandMade, column
from tests.lake import DAY0, EVENTS, LOCAL, Clock, Lake, at, hourly_pipeline
from tests.pipelines.sources.changing import Changing
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.correct.changed_rows import ChangedRows, changed_rows
from tidegate.pipelines.definition.event_columns import KEY_PREFIX, LAST_TIME, STATUS, TIME, VALUE_PREFIX
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.sources.base import ChangingSource
from tidegate.pipelines.sources.parquet_reader import SourceParquet
from tidegate.windowing.time import Millis, to_millis

PIPELINE = hourly_pipeline(source=DeltaSource("events", timestamp="at", changes="correct"), max_ahead=timedelta(days=9))


def opened(lake: Lake, pipeline: Pipeline = PIPELINE) -> OpenInput:
    return OpenInput.open(LOCAL, lake.tables(pipeline), pipeline)


def compared(lake: Lake, after: int, until: int, pipeline: Pipeline = PIPELINE, end: Millis = LAST_TIME) -> ChangedRows:
    source = opened(lake, pipeline)
    assert isinstance(source.log, ChangingSource)
    return changed_rows(source, source.log.changed(after, until), until, until=end)


Usable = Counter[tuple[str, Millis, int]]


def usable(rows: Counter[tuple[object, ...]], where: str | None = None, until: Millis = 2**62) -> Usable:
    return Counter(
        {
            (user, to_millis(time), value): count  # type: ignore[arg-type, misc]
            for (user, time, value), count in rows.items()
            if user is not None and time is not None and is_kept(where, {"value": value}) and to_millis(time) < until  # type: ignore[arg-type]
        }
    )


def seen(rows: pa.Table) -> Usable:
    return Counter((row[f"{KEY_PREFIX}user"], row[TIME], row[f"{VALUE_PREFIX}value"]) for row in rows.to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake", Clock(to_millis(DAY0)))


def check(changing: Changing, after: int, until: int, where: str | None = None) -> None:
    before, now = (changing.rows_of(version) for version in (after, until))
    changed = compared(changing.lake, after, until, replace(PIPELINE, where=where))
    assert seen(changed.deleted) == usable(before, where) - usable(now, where)
    assert seen(changed.added) == usable(now, where) - usable(before, where)
    if where is None:
        assert changed.deleted_count - changed.added_count == before.total() - now.total()
    latest = max((time for _, time, _ in seen(changed.added)), default=None)
    assert changed.largest.get("") == latest


@pytest.mark.first(2)
@pytest.mark.parametrize("where", [None, "value % 2 = 0"])
@pytest.mark.parametrize("seed", range(6))
def test_what_changed_is_the_difference_of_the_rows_whatever_happened(lake: Lake, seed: int, where: str | None) -> None:
    changing = Changing(lake, random.Random(seed))
    changing.append()
    changing.settle()
    for _ in range(8):
        before = changing.version
        changing.happen()
        check(changing, before, changing.version, where)
    for _ in range(4):
        after, until = sorted(changing.draw.sample(range(changing.version + 1), 2))
        check(changing, after, until, where)


def test_rows_that_are_only_written_anew_did_not_change(lake: Lake) -> None:
    changing = Changing(lake, random.Random(1))
    for _ in range(3):
        changing.append()
    for act in (changing.compact, changing.rewrite):
        before = changing.version
        act()
        assert changing.version > before
        assert not compared(lake, before, changing.version).any


def test_a_compaction_that_nothing_else_touched_is_not_even_read(lake: Lake) -> None:
    changing = Changing(lake, random.Random(1))
    for _ in range(3):
        changing.append()
    before = changing.version
    changing.compact()
    changing.append()
    source = opened(lake)
    assert isinstance(source.log, ChangingSource)
    changed = source.log.changed(before, changing.version)
    assert (len(changed.deleted), len(changed.added)) == (0, 1)


def test_another_value_in_a_column_that_the_pipeline_does_not_read_is_no_change(lake: Lake) -> None:
    rows = pa.table([["ann", "bob"], [at("10:00"), at("10:05")], [1, 2], ["a", "b"]], names=[*EVENTS.names, "note"])
    write_deltalake(lake.path("events"), rows.cast(EVENTS.append(pa.field("note", pa.string()))))
    DeltaTable(lake.path("events")).update({"note": "'c'"})
    assert not compared(lake, 0, 1).any
    DeltaTable(lake.path("events")).update({"value": "value + 1"}, predicate="user = 'ann'")
    changed = compared(lake, 0, 2)
    assert (len(changed.deleted), len(changed.added)) == (1, 1)


def test_rows_behind_a_time_are_left_out_and_rows_without_one_are_not(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1), ("ann", at("12:00"), 2), ("ann", None, 3), (None, at("12:00"), 4))
    DeltaTable(lake.path("events")).delete()
    changed = compared(lake, 0, 1, end=to_millis(at("11:00")))
    assert seen(changed.deleted) == {("ann", to_millis(at("10:00")), 1): 1}
    assert (changed.deleted_count, changed.deleted_unusable) == (3, 2)


def test_a_row_that_came_ahead_of_its_file_is_rejected_with_all_its_columns(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    rows = pa.Table.from_pylist([{"user": "ann", "at": at("10:00", day=9000), "value": 7}], schema=EVENTS)
    write_deltalake(lake.path("events"), rows, mode="overwrite")
    changed = compared(lake, 0, 1)
    assert (len(changed.deleted), len(changed.added)) == (1, 0)
    (rejected,) = changed.rejected_rows().to_pylist()
    assert (rejected["user"], rejected["value"], rejected[STATUS]) == ("ann", 7, "timestamp_ahead_of_commit")


@pytest.mark.parametrize("partition", ["user", "day"])
def test_partition_values_of_removed_files_are_read_from_the_log(lake: Lake, partition: str) -> None:
    schema = EVENTS.append(pa.field("day", pa.string()))
    rows = pa.table([["ann", "bob"], [at("10:00"), at("10:05")], [1, 2], ["a", "b"]], names=schema.names).cast(schema)
    write_deltalake(lake.path("events"), rows, partition_by=[partition])
    DeltaTable(lake.path("events")).delete("user = 'ann'")
    changed = compared(lake, 0, 1)
    assert seen(changed.deleted) == {("ann", to_millis(at("10:00")), 1): 1}
    assert not len(changed.added)


@pytest.mark.parametrize(
    ("before", "since"), [([], ["user"]), (["user"], []), (["user"], ["USER"]), (["at"], ["user"])]
)
def test_files_from_before_a_replaced_table_got_other_partition_columns_have_their_rows(
    lake: Lake, before: list[str], since: list[str]
) -> None:
    """CREATE OR REPLACE TABLE may change the partition columns, also by the case of their names."""

    def columns(partition_by: list[str]) -> list[dict[str, Any]]:
        user = "USER" if partition_by == ["USER"] else "user"
        return [column(user, "string"), column("at", "timestamp"), column("value", "long")]

    def file(table: HandMade, user: str, value: int) -> dict[str, Any]:
        rows = pa.table([[user], [at("10:00")], [value]], schema=EVENTS)
        texts = {"user": user, "USER": user, "at": "2024-03-01T10:00:00.000000Z"}
        partition = {name: texts[name] for name in table.partition_by}
        return table.file(rows.drop_columns([name.lower() for name in partition]), partition)

    table = HandMade(Path(lake.path("events")), columns(before), partition_by=before)
    old = file(table, "ann", 1)
    table.commit(old)
    table.partition_by = since
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": columns(since)}),
        "partitionColumns": since,
        "configuration": {},
    }
    removed = {"path": old["add"]["path"], "partitionValues": old["add"]["partitionValues"], "dataChange": True}
    table.commit({"metaData": metadata}, {"remove": removed}, file(table, "bob", 2))
    pipeline = replace(PIPELINE, key=("USER",)) if since == ["USER"] else PIPELINE
    changed = compared(lake, 1, 2, pipeline)
    for side, user, value in ((changed.deleted, "ann", 1), (changed.added, "bob", 2)):
        rows = [tuple(row.values()) for row in side.to_pylist()]
        assert rows == [(to_millis(at("10:00")), user, value)]


# --- deletion vectors ----------------------------------------------------------------------------


def with_vectors(lake: Lake, vectors: Sequence[Sequence[int]]) -> tuple[HandMade, dict[str, Any]]:
    """A file of ten rows in groups of two; each version has another deletion vector for it.

    Return the table, and the last add action of the file.
    """
    columns = [column("user", "string"), column("at", "timestamp"), column("value", "long")]
    table = HandMade(Path(lake.path("events")), columns, features=["deletionVectors"])
    rows = pa.table([["ann"] * 10, [at("10:00")] * 10, range(10)], names=EVENTS.names).cast(EVENTS)
    actions = [table.file(rows, row_group_size=2)]
    table.commit(*actions)
    for places in vectors:
        before = actions[0]["add"]
        add = {key: value for key, value in before.items() if key != "deletionVector"}
        if places:
            add["deletionVector"] = table.vector(places)
        removed = {key: before[key] for key in ("path", "partitionValues", "size", "deletionVector") if key in before}
        actions = [{"add": add}]
        table.commit({"remove": {**removed, "dataChange": True, "extendedFileMetadata": True}}, *actions)
    return table, actions[0]["add"]


@pytest.mark.parametrize(
    ("after", "until", "gone", "came"),
    [
        (1, 2, {1, 2}, set()),
        (2, 3, {7}, set()),
        (3, 4, set(), {1, 2}),
        (4, 5, set(), {7}),
        (5, 6, set(range(10)), set()),
        (1, 4, {7}, set()),
        (1, 5, set(), set()),
        (2, 4, {7}, {1, 2}),
        (2, 6, set(range(10)) - {1, 2}, set()),
    ],
)
def test_of_a_file_with_another_deletion_vector_only_the_rows_of_the_difference_are_read(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, after: int, until: int, gone: set[int], came: set[int]
) -> None:
    with_vectors(lake, ([1, 2], [1, 2, 7], [7], [], list(range(10))))
    groups, read = list[int](), SourceParquet.read

    def noted(self: SourceParquet, group: int, names: Sequence[str]) -> Iterator[pa.Table]:
        groups.append(group)
        return read(self, group, names)

    monkeypatch.setattr(SourceParquet, "read", noted)
    changed = compared(lake, after, until)
    assert {row[f"{VALUE_PREFIX}value"] for row in changed.deleted.to_pylist()} == gone
    assert {row[f"{VALUE_PREFIX}value"] for row in changed.added.to_pylist()} == came
    assert set(groups) == {place // 2 for place in gone | came}


@pytest.mark.parametrize("after", [1, 2])
def test_a_removal_may_describe_the_vector_of_its_file_differently(lake: Lake, after: int) -> None:
    table, add = with_vectors(lake, [[1, 2]])
    described = {**dict(reversed(add["deletionVector"].items())), "maxRowIndex": None}
    table.commit({"remove": {"path": add["path"], "dataChange": True, "deletionVector": described}})
    changed = compared(lake, after, 3)
    assert len(changed.deleted) == (10 if after == 1 else 8)
    assert not len(changed.added)
