"""Versions of a source that removed rows and are skipped: they are counted, and what was read stays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.commit_times import date_commit, vacuum_with_no_hours
from tests.lake import EVENTS, LOCAL, Lake, assert_same_windows, at, hourly_pipeline
from tests.remedies import remedy_of
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.remedy import Act
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import to_millis


def append(folder: Path, *values: int) -> None:
    """A commit with a row for each value, at that many minutes after ten."""
    moments = [at("10:00") + timedelta(minutes=value) for value in values]
    rows = pa.table([["ann"] * len(values), moments, list(values)], schema=EVENTS)
    write_deltalake(str(folder / "events"), rows, mode="append")


def log(folder: Path, table: str = "events") -> SourceLog:
    return SourceLog(Warehouse(str(folder)), str(folder / table))


def entry(folder: Path, version: int) -> Path:
    return folder / "events" / "_delta_log" / f"{version:020d}.json"


def test_every_version_that_added_data_is_a_commit_in_order(tmp_path: Path) -> None:
    append(tmp_path, 1)
    append(tmp_path, 2)
    append(tmp_path, 3)
    source = log(tmp_path)
    assert source.head == 2
    assert [commit.version for commit in source.unread(-1)] == [0, 1, 2]
    assert [commit.version for commit in source.unread(0)] == [1, 2]
    assert [commit.version for commit in source.unread(0, until=1)] == [1]
    assert [*source.unread(2)] == []


def test_an_empty_entry_is_damaged_and_no_commit_without_rows(tmp_path: Path) -> None:
    append(tmp_path, 1)
    append(tmp_path, 2)
    entry(tmp_path, 1).write_bytes(b"")
    source = log(tmp_path)
    with pytest.raises(Refused, match=r"the log entry of version 1 is damaged \(it is empty\)"):
        [*source.unread(0)]


@pytest.mark.parametrize("stats", ["not json", "[1]", ""])
def test_statistics_that_can_not_be_read_count_as_none(tmp_path: Path, stats: str) -> None:
    append(tmp_path, 1)
    actions = [json.loads(line) for line in entry(tmp_path, 0).read_text().splitlines()]
    for action in actions:
        action.get("add", {})["stats"] = stats
    entry(tmp_path, 0).write_text("\n".join(map(json.dumps, actions)))
    assert [[file.rows for file in commit.files] for commit in log(tmp_path).unread(-1)] == [[None]]


def test_the_time_of_a_commit_is_what_the_log_says_and_not_that_of_a_file(tmp_path: Path) -> None:
    append(tmp_path, 1)
    date_commit(entry(tmp_path, 0), 1_234)
    assert next(log(tmp_path).unread(-1)).time == 1_234
    date_commit(entry(tmp_path, 0), 5_678, "inCommitTimestamp")
    assert next(log(tmp_path).unread(-1)).time == 5_678


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        (lambda table: table.delete("value = 1"), "DELETE"),
        (lambda table: table.update({"value": "9"}, predicate="value = 1"), "UPDATE"),
        (lambda table: write_deltalake(table, EVENTS.empty_table(), mode="overwrite"), "WRITE"),
    ],
    ids=["delete", "update", "overwrite"],
)
def test_what_is_not_append_only_is_refused_with_version_and_operation(
    tmp_path: Path, change: object, operation: str
) -> None:
    append(tmp_path, 1, 2)
    change(DeltaTable(str(tmp_path / "events")))  # type: ignore[operator]
    append(tmp_path, 3)
    with pytest.raises(Refused, match=rf"is not append-only: version 1 \({operation}\) removed or changed rows"):
        list(log(tmp_path).unread(0))
    assert [commit.version for commit in log(tmp_path).unread(1)] == [2], "what was read before does not matter"


def test_files_that_were_vacuumed_before_they_were_read_are_named_with_their_version(tmp_path: Path) -> None:
    append(tmp_path, 1)
    append(tmp_path, 2)
    DeltaTable(str(tmp_path / "events")).optimize.compact()
    vacuum_with_no_hours(str(tmp_path / "events"))
    with pytest.raises(Refused, match=r"version 1 lacks 1 file .*compacted and vacuumed"):
        list(log(tmp_path).unread(0))


def test_a_source_that_is_not_there_or_no_table_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"source table {tmp_path}/events does not exist"):
        log(tmp_path)
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "rows.parquet").write_bytes(b"rows")
    with pytest.raises(Refused, match=f"source table {tmp_path}/events is not a Delta table: create it first"):
        log(tmp_path)
    with pytest.raises(Refused, match=r"rows\.parquet is a file: write its rows to a Delta table"):
        log(tmp_path, "events/rows.parquet")
    (tmp_path / "events" / "_delta_log").mkdir(parents=True)
    entry(tmp_path, 0).write_text("{not json")
    with pytest.raises(Refused, match=f"source table {tmp_path}/events can't be opened"):
        log(tmp_path)


def test_files_of_a_partitioned_table_are_told_as_the_file_system_knows_them(tmp_path: Path) -> None:
    rows = pa.table({"user": ["ann lee", "b=b/c"], "value": [1, 2]})
    write_deltalake(str(tmp_path / "events"), rows, partition_by=["user"])
    (commit,) = log(tmp_path).unread(-1)
    assert len(commit.files) == 2
    assert all((tmp_path / "events" / file.path).is_file() for file in commit.files)


def test_active_files_know_their_largest_time_where_the_log_does(tmp_path: Path) -> None:
    append(tmp_path, 1, 5)
    (file,) = log(tmp_path).active("at")
    assert file.newest == to_millis(at("10:05"))
    assert log(tmp_path).active("user")[0].newest is None


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the tables that are opened with all their files from now on."""
    paths: list[str] = []
    known = Warehouse.open

    def opening(warehouse: Warehouse, path: str, version: int | None = None) -> DeltaTable:
        paths.append(path)
        return known(warehouse, path, version)

    monkeypatch.setattr(Warehouse, "open", opening)
    return paths


def test_a_stream_opens_the_source_once_however_often_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path, 1)
    source = log(tmp_path)
    paths = opened(monkeypatch)
    for minute in range(2, 6):
        append(tmp_path, minute)
        source = source.now()
        assert source.head == minute - 1
        assert [commit.version for commit in source.unread(source.head - 1)] == [source.head]
        assert source.now().head == source.head
    assert paths == []
    assert [file.rows for file in source.active("at")] == [1] * 5
    assert len(paths) == 1, "a backfill needs the files"


def test_a_source_that_got_a_column_is_opened_again(tmp_path: Path) -> None:
    append(tmp_path, 1)
    source = log(tmp_path)
    rows = pa.table([["ann"], [at("10:05")], [5], ["web"]], schema=EVENTS.append(pa.field("channel", pa.string())))
    write_deltalake(str(tmp_path / "events"), rows, mode="append", schema_mode="merge")
    after = source.now()
    assert after.head == 1
    assert "channel" in after.columns
    assert "channel" not in source.columns


def test_a_source_that_was_replaced_is_opened_again(tmp_path: Path) -> None:
    append(tmp_path, 1)
    source = log(tmp_path)
    shutil.rmtree(tmp_path / "events")
    append(tmp_path, 2)
    after = source.now()
    assert after.identity != source.identity
    with pytest.raises(Refused, match="was replaced"):
        after.check(Position(version=0, own={"table_id": source.identity}))


def test_a_source_that_is_gone_is_missed(tmp_path: Path) -> None:
    append(tmp_path, 1)
    source = log(tmp_path)
    shutil.rmtree(tmp_path / "events")
    with pytest.raises(Refused, match="does not exist"):
        source.now()


def opened_versions(source: SourceLog, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the entries that are opened from here on."""
    opened: list[int] = []
    real = SourceLog._actions

    def actions(self: SourceLog, version: int) -> Iterator[dict[str, Any]]:
        opened.append(version)
        return real(self, version)

    monkeypatch.setattr(SourceLog, "_actions", actions)
    return opened


def test_of_a_long_log_only_the_entries_are_opened_that_tell_the_versions_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in range(12):
        append(tmp_path, value)
    source = log(tmp_path)
    files = sorted(source.active("at"), key=lambda file: file.newest or 0)
    opened = opened_versions(source, monkeypatch)
    assert list(source.versions_of(files[-2:], 11).values()).count(None) == 0
    assert {10, 11} <= {*opened} <= {8, 9, 10, 11}, "the newest first, until all are found, and some read ahead"
    opened.clear()
    found = source.versions_of(files, 11, after=8)
    assert sorted(opened) == [9, 10, 11]
    assert sorted(version for version in found.values() if version is not None) == [*[8] * 9, 9, 10, 11]
    opened.clear()
    for version in (*range(5), 9):
        entry(tmp_path, version).unlink()
    versions = source.versions_of(files, 11)
    assert sorted(opened) == [5, 6, 7, 8, 10, 11], "what was cleaned up is not asked for"
    assert [versions[file.path] for file in files] == [*[None] * 5, 5, 6, 7, 8, None, 10, 11]
    assert set(source.versions_of(files, 11, after=8).values()) == {None, 10, 11}, "an entry is gone: it may tell"


def test_what_a_compaction_wrote_is_of_no_version_and_ends_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in range(6):
        append(tmp_path, value)
    DeltaTable(str(tmp_path / "events")).optimize.compact()
    append(tmp_path, 7)
    source = log(tmp_path)
    opened = opened_versions(source, monkeypatch)
    found = source.versions_of(source.active("at"), 7)
    assert sorted(found.values(), key=str) == [7, None]
    assert {6, 7} <= {*opened} <= {4, 5, 6, 7}, "some are read ahead"


def test_a_version_that_can_not_be_opened_any_more_is_told_with_the_way_on(tmp_path: Path) -> None:
    for value in range(4):
        append(tmp_path, value)
    DeltaTable(str(tmp_path / "events")).create_checkpoint()
    entry(tmp_path, 0).unlink()
    entry(tmp_path, 1).unlink()
    with pytest.raises(Refused, match=r"at version 1 .*newer versions still exist") as refused:
        log(tmp_path).active("at", 1)
    assert remedy_of(refused, Act.READ_ON)
    assert [commit.version for commit in log(tmp_path).unread(1)] == [2, 3], "which works"
    entry(tmp_path, 2).unlink()
    with pytest.raises(Refused, match=r"no longer be read at version 1 .*Backfill a pipeline with another name"):
        log(tmp_path).active("at", 1)


IGNORING = DeltaSource("events", timestamp="at", changes="ignore")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.append(("ann", at("10:00"), 1), ("bob", at("10:30"), 2))
    return lake


def deleted(lake: Lake) -> None:
    DeltaTable(lake.path("events")).delete("value = 1")


def updated(lake: Lake) -> None:
    DeltaTable(lake.path("events")).update({"value": "9"}, predicate="value = 1")


def overwritten(lake: Lake) -> None:
    rows = pa.Table.from_pylist([{"user": "cem", "at": at("11:00"), "value": 5}], schema=EVENTS)
    write_deltalake(lake.path("events"), rows, mode="overwrite")


def merged(lake: Lake) -> None:
    rows = pa.Table.from_pylist(
        [{"user": "ann", "at": at("10:00"), "value": 7}, {"user": "new", "at": at("10:10"), "value": 8}], schema=EVENTS
    )
    merge = DeltaTable(lake.path("events")).merge(rows, "t.user = s.user", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def put_back(lake: Lake) -> None:
    lake.append(("cem", at("10:40"), 4))
    lake.stream(LOCAL, hourly_pipeline(source=IGNORING))
    DeltaTable(lake.path("events")).restore(0)


@pytest.mark.first(2)
@pytest.mark.parametrize("change", [merged, put_back, deleted, updated, overwritten])
def test_a_stream_passes_over_a_whole_version_and_counts_it(lake: Lake, change: Callable[[Lake], Any]) -> None:
    pipeline = hourly_pipeline(source=IGNORING)
    lake.stream(LOCAL, pipeline)
    change(lake)
    lake.append(("ann", at("14:00"), 3))
    manifests = lake.stream(LOCAL, pipeline)
    assert sum(manifest.counters["versions_skipped"] for manifest in manifests) == 1
    assert sum(row["versions_skipped"] for row in lake.rows(pipeline, "epochs").to_pylist()) == 1
    totals = {
        row["user"]: row["total"] for row in lake.final(pipeline).to_pylist() if row["window_start"] < at("13:00")
    }
    assert (totals["ann"], totals["bob"]) == (1, 2), "the rows that were read"
    assert "new" not in totals, "nothing that the version added"


def test_a_stream_that_meets_nothing_but_such_versions_goes_on_after_them(lake: Lake) -> None:
    pipeline = hourly_pipeline(source=IGNORING)
    lake.stream(LOCAL, pipeline)
    deleted(lake)
    (clock,) = lake.stream(LOCAL, pipeline)
    assert (clock.kind, clock.counters["versions_skipped"]) == ("clock", 1)
    assert clock.position_in("events").version == 1
    assert lake.stream(LOCAL, pipeline) == []


def test_a_stream_from_the_beginning_passes_over_them_too(lake: Lake) -> None:
    deleted(lake)
    lake.append(("cem", at("11:00"), 3))
    (manifest, *_) = lake.stream(LOCAL, hourly_pipeline(source=IGNORING))
    assert (manifest.counters["events_in"], manifest.counters["versions_skipped"]) == (3, 1)


def test_a_backfill_reads_the_table_as_it_is_and_leaves_what_it_has_read(lake: Lake) -> None:
    pipeline = hourly_pipeline(source=IGNORING)
    lake.append(("ann", at("12:10"), 4), ("bob", at("12:20"), 5))
    lake.backfill(LOCAL, pipeline, at("10:00"), at("12:00"))
    DeltaTable(lake.path("events")).delete("user = 'ann'")
    (run,) = lake.backfill(LOCAL, pipeline, at("12:00"), at("14:00"))
    assert run.manifest.counters["versions_skipped"] == 1
    totals = [(row["user"], row["total"]) for row in lake.final(pipeline).sort_by("window_start").to_pylist()]
    assert sorted(totals) == [("ann", 1), ("bob", 2), ("bob", 5)]
    (again,) = lake.backfill(LOCAL, pipeline, at("10:00"), at("12:00"))
    assert again.state == "unchanged"


def test_a_stream_takes_over_from_a_backfill_behind_such_a_version(lake: Lake) -> None:
    pipeline = hourly_pipeline(source=IGNORING)
    lake.backfill(LOCAL, pipeline, at("10:00"), at("11:00"))
    lake.append(("cem", at("12:00"), 3))
    deleted(lake)
    lake.stream(LOCAL, pipeline)
    lake.append(("cem", at("15:00"), 3))
    lake.stream(LOCAL, pipeline)
    assert sorted(row["total"] for row in lake.final(pipeline).to_pylist()) == [1, 2, 3]


def test_the_choice_may_change_between_two_runs(lake: Lake) -> None:
    lake.stream(LOCAL, hourly_pipeline())
    deleted(lake)
    lake.append(("ann", at("14:00"), 3))
    with pytest.raises(Refused, match=r"version 1 \(DELETE\) .*changes='ignore', which skips such versions"):
        lake.stream(LOCAL, hourly_pipeline())
    (manifest, *_) = lake.stream(LOCAL, hourly_pipeline(source=IGNORING))
    assert manifest.counters["versions_skipped"] == 1
    before = lake.final(hourly_pipeline())
    lake.stream(LOCAL, hourly_pipeline())
    assert_same_windows(lake.final(hourly_pipeline()), before)


def test_the_choice_is_no_part_of_the_fingerprint(lake: Lake) -> None:
    lake.stream(LOCAL, hourly_pipeline())
    before = lake.snapshot(hourly_pipeline()).manifest.fingerprint
    lake.append(("ann", at("14:00"), 3))
    lake.stream(LOCAL, hourly_pipeline(source=IGNORING))
    assert lake.snapshot(hourly_pipeline()).manifest.fingerprint == before


def test_an_unknown_choice_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(IllegalArgument, match=r"source\.changes = 'skip': give 'refuse', 'ignore' or 'correct'"):
        DeltaSource("events", timestamp="at", changes="skip")  # type: ignore[arg-type]
