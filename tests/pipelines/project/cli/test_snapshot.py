from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.lake import EVENTS, at
from tests.pipelines.by_hand import ByHand
from tests.pipelines.project.cli.project import CORRECTING, TOML, Project


def two_epochs(project: Project) -> None:
    def fill(by_hand: ByHand) -> None:
        by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
        by_hand.epoch(("ann", at("10:20"), 2), ("bob", at("10:25"), 3), watermark=at("10:20"))

    project.by_hand.filled("two epochs", fill)


def test_snapshots_are_listed_newest_first_with_their_line(project: Project) -> None:
    two_epochs(project)
    listed = project.data("snapshot", "list", "sessions")
    assert [(entry["epoch"], entry["parent"], entry["timeline"]) for entry in listed] == [(2, 1, 1), (1, None, 1)]
    project.says(0, "2024-03-01 10:20", "snapshot", "list", "sessions")


def test_a_snapshot_shows_its_manifest_windows_timers_and_key_groups(project: Project) -> None:
    two_epochs(project)
    shown = project.data("snapshot", "show", "sessions")
    assert shown["manifest"]["epoch"] == 2
    windows = {window["user"]: window for window in shown["windows"]}
    assert windows["ann"]["acc_total"] == 3
    assert len(windows["bob"]["event_time_timers"]) == 1
    assert sum(group["windows"] for group in shown["key_groups"]) == 2
    assert sum(group["event_time_timers"] for group in shown["key_groups"]) == 2


def test_the_position_of_a_stream_has_no_event_time_that_a_backfill_would_have(project: Project) -> None:
    two_epochs(project)
    code, told = project.tidegate("snapshot", "show", "sessions")
    assert (code, "position in events" in told, "event time before" in told) == (0, True, False), told
    project.by_hand.epoch(
        ("ann", at("11:00"), 1), watermark=at("12:00"), kind="backfill", interval=(at("10:00"), at("12:00"))
    )
    assert "event time before 2024-03-01 12:00:00" in project.tidegate("snapshot", "show", "sessions")[1]


def test_an_older_snapshot_is_shown_as_it_was(project: Project) -> None:
    two_epochs(project)
    shown = project.data("snapshot", "show", "sessions", "1")
    assert [(window["user"], window["acc_total"]) for window in shown["windows"]] == [("ann", 1)]


def test_results_show_final_windows_unless_asked_for_more(project: Project) -> None:
    two_epochs(project)
    project.by_hand.epoch(watermark=at("10:52"))
    assert [row["user"] for row in project.data("results", "sessions")] == ["ann"]
    assert len(project.data("results", "sessions", "--view", "all")) == 1
    project.says(0, "10:00:00 to 10:50:00", "results", "sessions")


def test_results_can_be_sorted_by_any_column_they_have(project: Project) -> None:
    two_epochs(project)
    project.by_hand.epoch(watermark=at("12:00"))
    assert [row["total"] for row in project.data("results", "sessions", "--sort", "total")] == [3, 3]
    project.says(2, "no column 'totl'; the columns are user, window_id", "results", "sessions", "--sort", "totl")


def test_output_leaves_the_json_in_a_file_whole_or_not_at_all(project: Project, tmp_path: Path) -> None:
    two_epochs(project)
    code, _ = project.tidegate("snapshot", "list", "sessions", "--output", str(tmp_path / "told.json"))
    assert code == 0
    assert len(json.loads((tmp_path / "told.json").read_text())) == 2
    assert not (tmp_path / "told.part").exists()


def test_a_dry_run_says_what_would_become_of_each_interval(project: Project) -> None:
    by_hand = project.by_hand
    by_hand.epoch(
        ("ann", at("10:00"), 1), watermark=at("00:00", 1), kind="backfill", interval=(at("00:00"), at("00:00", 1))
    )
    write_deltalake(str(project.folder / "warehouse" / "events"), EVENTS.empty_table())
    told = project.data(
        "backfill", "sessions", "--start", "2024-03-01", "--end", "2024-03-03", "--slice", "1d", "--dry-run"
    )
    assert told["planned"][1]["state"] == "would run"
    told = project.data("backfill", "sessions", "--start", "2024-03-05", "--end", "2024-03-06", "--dry-run")
    assert told["planned"][0]["state"] == "refused: there is a gap before it, which --fill-gaps runs"
    told = project.data(
        "backfill", "sessions", "--start", "2024-03-05", "--end", "2024-03-06", "--fill-gaps", "--dry-run"
    )
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
    day = ("backfill", "sessions", "--start", "2024-03-02", "--end", "2024-03-03", "--dry-run")
    project.by_hand.epoch(
        ("ann", at("10:00"), 1), watermark=at("00:00", 1), kind="backfill", interval=(at("00:00"), at("00:00", 1))
    )
    code, told = project.tidegate(*day)
    assert (code, "rows of the source changed" in told) == (0, False)
    DeltaTable(path).delete("value = 2")
    told = project.says(0, "rows of the source changed in version 2: their windows would be corrected first", *day)
    assert "the changes are read from a comparison of files" in " ".join(told.split())
    assert "would be corrected: 1 deleted, 0 added" in " ".join(told.split())
    (changed,) = project.data(*day)["changed"]
    assert (changed["gone"], changed["came"]) == (1, 0)
    assert changed["interval"] == {"start": 1_709_251_200_000, "end": 1_709_337_600_000}


def test_the_query_for_final_windows_needs_no_catalog(project: Project) -> None:
    two_epochs(project)
    table = f"delta.`{project.by_hand.tables.path('results')}`"
    code, told = project.tidegate("results", "sessions", "--sql")
    assert (code, told.count("\n"), table in told) == (0, 1, True)
    for view, held in (("windows", "windows"), ("latest", "results")):
        project.says(2, f"query table {held}", "results", "sessions", "--view", view, "--sql")
    for option, value in (("--dialect", "duckdb"), ("--schema", "lake.visits")):
        project.says(2, f"{option}: only for a query: also give --sql", "results", "sessions", option, value)
    final = project.data("results", "sessions", "--sql")["sql"]
    assert f"FROM delta.`{project.by_hand.tables.path('epochs')}`" in final, "the watermark is that of when it is run"


@pytest.fixture
def backed(project: Project) -> Project:
    """A project with an epoch and a location for backups."""
    (project.folder / "tidegate.toml").write_text(f'backups = "elsewhere"\n{TOML}')
    project.by_hand.hours(8)
    return project


def test_tables_are_copied_lost_and_brought_back(backed: Project) -> None:
    first = backed.data("backup", "create", "sessions", "--name", "first")
    assert (first["epoch"], first["copied"], first["deleted"]) == (1, first["size"], [])
    backed.by_hand.epoch(("ann", at("09:00"), 2), watermark=at("09:30"))
    before = backed.data("results", "sessions")
    assert backed.tidegate("backup", "create", "sessions")[0] == 0
    listed = backed.data("backup", "list", "sessions")
    assert [(backup["epoch"], backup["name"][:5]) for backup in listed] == [(2, "at-20"), (1, "first")]
    shutil.rmtree(backed.folder / "warehouse" / "sessions")
    backed.says(0, "sessions is at epoch 2 again", "backup", "restore", "sessions", "latest")
    assert backed.data("results", "sessions") == before
    third = backed.data("backup", "create", "sessions", "--name", "third", "--keep", "1")
    assert third["deleted"] == [backup["name"] for backup in listed]
    assert backed.tidegate("backup", "delete", "sessions", "third")[0] == 0
    assert not [*Path(backed.folder, "elsewhere", "sessions", "files").rglob("*.parquet")]


def test_a_removal_that_was_interrupted_is_continued_by_the_same_command(backed: Project) -> None:
    """The backup may be removed because it contains a key."""
    backed.data("backup", "create", "sessions", "--name", "first")
    place = Path(backed.folder, "elsewhere", "sessions")
    (place / "backups" / "first.json").unlink()
    backed.says(0, "files that an interrupted command left", "backup", "delete", "sessions", "first")
    assert not [*(place / "files").rglob("*.parquet"), *(place / "backups").iterdir()]
    backed.says(2, "no backup 'first'", "backup", "delete", "sessions", "first")


def test_a_pipeline_without_tables_leaves_nothing_in_the_place_of_the_backups(project: Project) -> None:
    (project.folder / "tidegate.toml").write_text(f'backups = "elsewhere"\n{TOML}')
    project.says(3, "has no snapshot yet", "backup", "create", "sessions")
    assert not Path(project.folder, "elsewhere").exists()


def test_refusals_name_the_way_out(backed: Project) -> None:
    backed.data("backup", "create", "sessions", "--name", "first")
    backed.says(3, "Move the folder", "backup", "restore", "sessions", "first")
    backed.says(2, "its backups: first", "backup", "restore", "sessions", "second")
    for toml, words in (
        (TOML, "`backups` is not set in"),
        (f'backups = "warehouse/b"\n{TOML}', "is inside the warehouse"),
        (f'backups = "b/../warehouse"\n{TOML}', "is inside the warehouse"),
    ):
        (backed.folder / "tidegate.toml").write_text(toml)
        code, told = backed.tidegate("backup", "list", "sessions")
        assert (code, words in told) == (2, True), told


def test_a_savepoint_with_all_tables_is_a_backup(backed: Project) -> None:
    place = str(backed.folder / "further")
    made = backed.data("savepoint", "create", "sessions", "release", "--with-tables", "--to", place)
    assert (made["name"], made["epoch"]) == ("release", 1)
    assert [
        entry["name"] for entry in backed.data("savepoint", "list", "sessions", "--with-tables", "--from", place)
    ] == ["release"]
    assert backed.data("savepoint", "list", "sessions") == [], "it is no copy of the state alone"
    before = backed.data("results", "sessions")
    shutil.rmtree(backed.folder / "warehouse" / "sessions")
    again = ("restore", "sessions", "savepoint:release", "--with-tables", "--from", place)
    backed.says(0, "sessions is at epoch 1 again", *again)
    assert backed.data("results", "sessions") == before
    backed.says(3, "Move the folder", *again)
    assert backed.tidegate("savepoint", "delete", "sessions", "release", "--with-tables", "--from", place)[0] == 0
    assert not [*Path(place, "sessions", "files").rglob("*.parquet")]


def test_both_names_of_the_command_see_the_same_copies(backed: Project) -> None:
    backed.data("savepoint", "create", "sessions", "first", "--with-tables")
    backed.data("backup", "create", "sessions", "--name", "second")
    for command in (("backup", "list", "sessions"), ("savepoint", "list", "sessions", "--with-tables")):
        assert {entry["name"] for entry in backed.data(*command)} == {"first", "second"}
    kept = backed.data("savepoint", "create", "sessions", "third", "--with-tables", "--keep", "1")
    assert {*kept["deleted"]} == {"first", "second"}
