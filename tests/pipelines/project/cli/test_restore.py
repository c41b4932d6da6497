from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lake import at
from tests.pipelines.project.cli.project import Project
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.project.stream import has_left


def test_a_savepoint_that_is_asked_for_again_counts_as_made_if_it_is_of_the_same_snapshot(project: Project) -> None:
    project.by_hand.hours(8)
    command = ("savepoints", "create", "sessions", "release-1", "--if-missing")
    made = project.data(*command)
    assert project.data(*command) == made
    project.by_hand.hours(9)
    project.says(2, "'release-1' of sessions exists", *command)


def test_an_older_snapshot_is_saved_by_its_epoch(project: Project) -> None:
    project.by_hand.hours(8, 9)
    assert project.data("savepoints", "create", "sessions", "first", "--of", "1")["epoch"] == 1
    project.says(2, "one of the epochs 1, 2", "savepoints", "create", "sessions", "second", "--of", "7")


def cut_at_a_line(project: Project, table: str) -> None:
    entry = max(Path(project.by_hand.tables.path(table), "_delta_log").glob("*.json"))
    entry.write_bytes(b"".join(entry.read_bytes().splitlines(keepends=True)[:-1]))


def back_by_hand(project: Project, table: str) -> None:
    handle = project.by_hand.tables.open(table)
    handle.restore(handle.version() - 2)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("table", "damage"), [("results", back_by_hand), ("state", back_by_hand), ("state", cut_at_a_line)]
)
def test_no_savepoint_is_made_of_tables_that_lack_something(
    project: Project, table: str, damage: Callable[[Project, str], None]
) -> None:
    """It would count as the newest, and `--keep` would remove good ones."""
    project.by_hand.hours(8, 9, 10, 11)
    good = project.by_hand.tables.open(table).version()
    damage(project, table)
    copies = (("savepoints", "create", "sessions", "kept"), ("savepoints", "create", "sessions", "whole", "--tables"))
    for command in copies:
        project.says(3, "`tidegate restore sessions --restart`", *command)
    if damage is back_by_hand:
        project.by_hand.tables.open(table).restore(good)
        for command in copies:
            assert project.tidegate(*command)[0] == 0


def test_bad_names_of_savepoints_are_usage_errors(project: Project) -> None:
    project.by_hand.hours(8)
    for command in ("create", "delete"):
        project.says(2, "use a letter", "savepoints", command, "sessions", "../up")
    project.says(2, "no savepoint 'none'", "savepoints", "delete", "sessions", "none")


def test_a_restore_says_where_the_pipeline_stands_now(project: Project) -> None:
    project.by_hand.hours(8, 9, 10)
    project.says(0, "nothing to do", "restore", "sessions", "latest")
    rows = len(project.data("results", "sessions", "--view", "all"))
    told = project.says(
        0,
        "is back at the snapshot of epoch 1, now epoch 4 on timeline 2; watermark before 2024-03-01T08:00",
        "restore",
        "sessions",
        "1",
    )
    removed = rows - len(project.data("results", "sessions", "--view", "all"))
    assert removed > 0
    assert f"{removed} rows of table results, published after that snapshot, removed" in told
    assert [run["epoch"] for run in project.data("runs", "sessions")] == [4, 1]


def test_a_stream_that_is_tried_again_goes_on_from_what_its_first_try_restored(project: Project) -> None:
    tables = project.by_hand.tables
    assert not has_left(read_snapshot(tables), 0), "a savepoint may be the first that a pipeline has"
    project.by_hand.hours(8, 9, 10)
    assert not has_left(read_snapshot(tables), 1)
    project.data("restore", "sessions", "1")
    assert has_left(read_snapshot(tables), 1)
    assert not has_left(read_snapshot(tables), None), "by hand, each restore is meant"


def test_stale_results_are_kept_on_demand(project: Project) -> None:
    project.by_hand.hours(8, 9, 10)
    project.data("restore", "sessions", "1", "--keep-stale")
    assert [row["stale"] for row in project.data("results", "sessions", "--view", "all")] == [True, True]
    assert [run["epoch"] for run in project.data("runs", "sessions", "--stale")] == [4, 3, 2, 1]
    project.says(0, "epochs of sessions (2 of 2)", "runs", "sessions")
    project.says(0, "epochs of sessions (1 of 4)", "runs", "sessions", "--stale", "--limit", "1")


def test_a_diff_shows_what_was_added_removed_and_changed(project: Project) -> None:
    by_hand = project.by_hand
    by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:10"), 1), watermark=at("10:00"))
    by_hand.epoch(("bob", at("10:20"), 5), ("cem", at("10:40"), 1), watermark=at("10:35"))
    told = project.data("snapshots", "diff", "sessions", "1")
    assert told["counts"] == {"windows": {"added": 1, "removed": 1, "changed": 1}, "timers": {"added": 2, "removed": 2}}
    (changed,) = (row for row in told["windows"] if row["change"] == "changed")
    assert changed["after"]["acc_total"] == 6
    text = project.says(0, "total 1 -> 6", "snapshots", "diff", "sessions", "1", "2")
    assert "1 added, 1 removed, 1 changed" in text


def test_a_diff_shows_a_missing_value_as_sql_does(project: Project) -> None:
    by_hand = project.by_hand
    by_hand.epoch(("ann", at("10:00"), None), watermark=at("10:00"))
    by_hand.epoch(("ann", at("10:05"), 5), watermark=at("10:05"))
    assert "total null -> 5" in project.tidegate("snapshots", "diff", "sessions", "1", "2")[1]


def test_checksums_tell_equal_key_groups(project: Project) -> None:
    project.by_hand.hours(8)
    project.data("savepoints", "create", "sessions", "same")
    one = project.data("snapshots", "show", "sessions", "--checksums")["key_groups"]
    assert one == project.data("snapshots", "show", "sessions", "savepoint:same", "--checksums")["key_groups"]
    assert len(one[0]["checksum"]) == 16


def test_vacuum_keeps_what_tidegate_toml_says_unless_told_otherwise(project: Project) -> None:
    project.by_hand.hours(*range(8, 14))
    assert project.data("tables", "vacuum", "sessions")["snapshots"] == []
    would = project.data("tables", "vacuum", "sessions", "--snapshots", "2", "--days", "0", "--dry-run")
    assert would["snapshots"] == [4, 3, 2, 1]
    done = project.data("tables", "vacuum", "sessions", "--snapshots", "2", "--days", "0")
    assert (done["snapshots"], done["size"]) == (would["snapshots"], would["size"])
    assert [entry["epoch"] for entry in project.data("snapshots", "list", "sessions")] == [6, 5]
    vacuum = ("tables", "vacuum", "sessions", "--snapshots", "1", "--days", "0")
    project.says(0, "snapshots that can no longer be restored: 1 (5)", *vacuum)
    project.says(2, "--snapshots': 0 is not in the range x>=1", "tables", "vacuum", "sessions", "--snapshots", "0")


def test_forget_asks_first_and_tells_where_the_key_was(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.by_hand.hours(8, 9)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert project.tidegate("forget", "sessions", "ann")[0] == 130
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    project.says(2, "give --yes", "forget", "sessions", "ann")
    assert len(project.data("results", "sessions", "--view", "all")) == 1
    told = project.data("forget", "sessions", "ann", "--yes")
    erased = {row["table"]: row["rows"] for row in told["rows"]}
    assert erased == {"results": 1, "late": 0, "rejects": 0, "state": 1}
    assert project.data("results", "sessions", "--view", "all") == []
    assert [run["kind"] for run in project.data("runs", "sessions")] == ["forget", "stream", "stream"]


def test_the_list_says_which_snapshots_can_be_restored_and_a_restore_of_the_others_is_refused(project: Project) -> None:
    project.by_hand.hours(*range(8, 15))
    project.data("restore", "sessions", "1")
    project.data("tables", "vacuum", "sessions", "--snapshots", "3", "--days", "0")
    listed = project.data("snapshots", "list", "sessions")
    assert [(entry["epoch"], entry["restorable"]) for entry in listed] == [(8, True), (7, False), (6, False)]
    project.says(3, "`tidegate restore sessions --restart`", "restore", "sessions", "6")


def test_a_savepoint_of_the_newest_snapshot_replaces_state_that_can_not_be_read(project: Project) -> None:
    project.by_hand.hours(8, 9, 10)
    project.data("savepoints", "create", "sessions", "before")
    project.says(0, "is already the newest snapshot", "restore", "sessions", "savepoint:before")
    for file in Path(project.by_hand.tables.path("state")).glob("*-000003-*.parquet"):
        file.write_bytes(b"")
    project.says(3, "`tidegate savepoints list sessions`", "snapshots", "show", "sessions")
    project.says(0, "is back at the snapshot of epoch 3", "restore", "sessions", "savepoint:before")
    assert project.data("runs", "sessions")[0]["epoch"] == 4
    project.by_hand.hours(11)
