from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.lake import EVENTS, at
from tests.pipelines.by_hand import ByHand
from tests.pipelines.project.cli.project import CORRECTING, Project


def two_epochs(project: Project) -> None:
    def fill(by_hand: ByHand) -> None:
        by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
        by_hand.epoch(("ann", at("10:20"), 2), ("bob", at("10:25"), 3), watermark=at("10:20"))

    project.by_hand.filled("two epochs", fill)


def test_snapshots_are_listed_newest_first_with_their_line(project: Project) -> None:
    two_epochs(project)
    listed = project.data("snapshots", "list", "sessions")
    assert [(entry["epoch"], entry["parent"], entry["timeline"]) for entry in listed] == [(2, 1, 1), (1, None, 1)]
    project.says(0, "2024-03-01T10:20", "snapshots", "list", "sessions")


def test_a_snapshot_shows_its_manifest_windows_timers_and_key_groups(project: Project) -> None:
    two_epochs(project)
    shown = project.data("snapshots", "show", "sessions")
    assert shown["manifest"]["epoch"] == 2
    windows = {window["user"]: window for window in shown["windows"]}
    assert windows["ann"]["acc_total"] == 3
    assert len(windows["bob"]["event_time_timers"]) == 1
    assert sum(group["windows"] for group in shown["key_groups"]) == 2
    assert sum(group["event_time_timers"] for group in shown["key_groups"]) == 2


def test_the_position_of_a_stream_has_no_event_time_that_a_backfill_would_have(project: Project) -> None:
    two_epochs(project)
    code, told = project.tidegate("snapshots", "show", "sessions")
    assert (code, "in events: version" in told, "event time before" in told) == (0, True, False), told
    project.by_hand.epoch(
        ("ann", at("11:00"), 1), watermark=at("12:00"), kind="backfill", interval=(at("10:00"), at("12:00"))
    )
    assert "event time before 2024-03-01T12:00:00Z" in project.tidegate("snapshots", "show", "sessions")[1]


def test_an_older_snapshot_is_shown_as_it_was(project: Project) -> None:
    two_epochs(project)
    shown = project.data("snapshots", "show", "sessions", "1")
    assert [(window["user"], window["acc_total"]) for window in shown["windows"]] == [("ann", 1)]


def test_results_show_final_windows_unless_asked_for_more(project: Project) -> None:
    two_epochs(project)
    project.by_hand.epoch(watermark=at("10:52"))
    assert [row["user"] for row in project.data("results", "sessions")] == ["ann"]
    assert len(project.data("results", "sessions", "--view", "all")) == 1
    project.says(0, "10:00:00Z to 2024-03-01T10:50:00Z", "results", "sessions")


def test_results_can_be_sorted_by_any_column_they_have(project: Project) -> None:
    two_epochs(project)
    project.by_hand.epoch(watermark=at("12:00"))
    assert [row["total"] for row in project.data("results", "sessions", "--sort", "total")] == [3, 3]
    project.says(2, "no column 'totl'; the columns are user, window_id", "results", "sessions", "--sort", "totl")


def test_output_leaves_the_json_in_a_file_whole_or_not_at_all(project: Project, tmp_path: Path) -> None:
    two_epochs(project)
    code, _ = project.tidegate("snapshots", "list", "sessions", "--output", str(tmp_path / "told.json"))
    assert code == 0
    assert len(json.loads((tmp_path / "told.json").read_text())) == 2
    assert not (tmp_path / "told.part").exists()


def test_a_dry_run_says_what_would_become_of_each_interval(project: Project) -> None:
    by_hand = project.by_hand
    by_hand.epoch(
        ("ann", at("10:00"), 1), watermark=at("00:00", 1), kind="backfill", interval=(at("00:00"), at("00:00", 1))
    )
    write_deltalake(str(project.folder / "warehouse" / "events"), EVENTS.empty_table())
    told = project.data("plan", "sessions", "--start", "2024-03-01", "--end", "2024-03-03", "--slice", "1d")
    assert told["planned"][1]["state"] == "would run"
    told = project.data("plan", "sessions", "--start", "2024-03-05", "--end", "2024-03-06")
    assert told["planned"][0]["state"] == "refused: there is a gap before it, which --fill-gaps runs"
    told = project.data("plan", "sessions", "--start", "2024-03-05", "--end", "2024-03-06", "--fill-gaps")
    starts = [at("00:00", number).timestamp() * 1000 for number in range(1, 5)]
    assert [(plan["interval"]["start"], plan["state"]) for plan in told["planned"]] == [
        (start, "would run") for start in starts
    ]


def test_a_dry_run_names_the_versions_that_changed_rows(project: Project) -> None:
    project.rewrite(CORRECTING)
    path = str(project.folder / "warehouse" / "events")
    for value in (1, 2):
        rows = pa.Table.from_pylist([{"user": "ann", "at": at("10:00"), "value": value}], schema=EVENTS)
        write_deltalake(path, rows, mode="append")
    day = ("plan", "sessions", "--start", "2024-03-02", "--end", "2024-03-03")
    project.by_hand.epoch(
        ("ann", at("10:00"), 1), watermark=at("00:00", 1), kind="backfill", interval=(at("00:00"), at("00:00", 1))
    )
    code, told = project.tidegate(*day)
    assert (code, "rows of the source changed" in told) == (0, False)
    DeltaTable(path).delete("value = 2")
    told = project.says(0, "rows of the source changed in version 2: their windows would be corrected first", *day)
    assert "the changes are read from a comparison of files" in " ".join(told.split())
    assert "interval deleted added 2024-03-01 1 0" in " ".join(told.split())
    (changed,) = project.data(*day)["changed"]
    assert (changed["deleted"], changed["added"]) == (1, 0)
    assert changed["interval"] == {"start": 1_709_251_200_000, "end": 1_709_337_600_000}


def test_the_query_for_final_windows_needs_no_catalog(project: Project) -> None:
    two_epochs(project)
    table = f"delta.`{project.by_hand.tables.path('results')}`"
    code, told = project.tidegate("tables", "query", "sessions")
    assert (code, told.count("\n"), table in told) == (0, 1, True)
    final = project.data("tables", "query", "sessions")["sql"]
    assert f"FROM delta.`{project.by_hand.tables.path('epochs')}`" in final, "the watermark is that of when it is run"


@pytest.fixture
def saved(project: Project) -> Project:
    """A project with an epoch."""
    project.by_hand.hours(8)
    return project


def test_tables_are_copied_lost_and_brought_back(saved: Project) -> None:
    place = ("--at", str(saved.folder / "elsewhere"))
    create = ("savepoints", "create", "sessions", "nightly", "--tables", "--to", place[1])
    first = saved.data(*create[:3], "first", *create[4:])
    assert (first["epoch"], first["with_tables"], first["deleted"]) == (1, True, [])
    saved.by_hand.epoch(("ann", at("09:00"), 2), watermark=at("09:30"))
    before = saved.data("results", "sessions")
    second = saved.data(*create, "--keep", "1")
    assert second["name"].startswith("nightly-20")
    listed = saved.data("savepoints", "list", "sessions", *place)
    assert [(entry["epoch"], entry["name"]) for entry in listed] == [(2, second["name"]), (1, "first")]
    assert saved.data("savepoints", "list", "sessions") == []
    shutil.rmtree(saved.folder / "warehouse" / "sessions")
    saved.says(
        0, "back at the snapshot of epoch 2", "restore", "sessions", f"savepoint:{second['name']}", "--tables", *place
    )
    assert saved.data("results", "sessions") == before
    third = saved.data(*create[:3], "nightly-x", *create[4:], "--keep", "1")
    assert third["deleted"] == [second["name"]]
    for name in ("nightly-x", "first"):
        assert saved.tidegate("savepoints", "delete", "sessions", name, *place)[0] == 0
    assert not [*Path(place[1]).rglob("*.parquet")]


def test_a_deletion_that_was_interrupted_is_continued_by_the_same_command(saved: Project) -> None:
    """The savepoint may be deleted because it contains a key."""
    place = saved.folder / "elsewhere"
    saved.data("savepoints", "create", "sessions", "first", "--tables", "--to", str(place))
    shutil.rmtree(place / "sessions" / "savepoints" / "first" / "_delta_log")
    for entry in (place / "sessions" / "savepoints" / "first").glob("*.parquet"):
        entry.unlink()
    assert saved.tidegate("savepoints", "delete", "sessions", "first", "--at", str(place))[0] == 0
    assert not [*place.rglob("*.parquet")]
    saved.says(2, "no savepoint 'first'", "savepoints", "delete", "sessions", "first", "--at", str(place))


def test_a_pipeline_without_tables_leaves_nothing_in_another_place(project: Project) -> None:
    place = project.folder / "elsewhere"
    project.says(3, "has no snapshot yet", "savepoints", "create", "sessions", "x", "--tables", "--to", str(place))
    assert not place.exists()


def test_places_and_savepoints_that_do_not_fit_are_refused(saved: Project) -> None:
    saved.data("savepoints", "create", "sessions", "state")
    saved.says(3, "holds only the state", "restore", "sessions", "savepoint:state", "--tables")
    saved.says(2, "give savepoint:NAME", "restore", "sessions", "1", "--tables")
    saved.says(2, "its savepoints: state", "restore", "sessions", "savepoint:other")
    for place in ("warehouse/b", "b/../warehouse"):
        saved.says(2, "is inside the warehouse", "savepoints", "list", "sessions", "--at", place)
    saved.says(2, "is not an object store", "savepoints", "create", "sessions", "x", "--to", "ftp://host/folder")
