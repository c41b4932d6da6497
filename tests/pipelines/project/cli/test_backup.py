"""Copies with all tables, by `tidegate backup` or `savepoint --with-tables`: commands of a loss, and refusals."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.lake import at
from tests.pipelines.project.cli.project import TOML, Project


@pytest.fixture
def backed(project: Project) -> Project:
    """A project with an epoch and a place for backups."""
    (project.folder / "tidegate.toml").write_text(f'backups = "elsewhere"\n{TOML}')
    project.by_hand.epoch(("ann", at("08:00"), 1), watermark=at("08:00"))
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
    """The backup may be removed because of a key in it."""
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
