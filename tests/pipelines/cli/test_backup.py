"""`tidegate backup`: the commands of a loss, and their refusals."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.lake import at
from tests.pipelines.cli.project import TOML, Project


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
    code, told = backed.tidegate("backup", "restore", "sessions", "latest")
    assert (code, "sessions is at epoch 2 again" in told) == (0, True), told
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
    code, told = backed.tidegate("backup", "delete", "sessions", "first")
    assert (code, "files that an interrupted command left" in told) == (0, True), told
    assert not [*(place / "files").rglob("*.parquet"), *(place / "backups").iterdir()]
    code, told = backed.tidegate("backup", "delete", "sessions", "first")
    assert (code, "no backup 'first'" in told) == (2, True), told


def test_a_pipeline_without_tables_leaves_nothing_in_the_place_of_the_backups(project: Project) -> None:
    (project.folder / "tidegate.toml").write_text(f'backups = "elsewhere"\n{TOML}')
    code, told = project.tidegate("backup", "create", "sessions")
    assert (code, "has no snapshot yet" in told) == (3, True), told
    assert not Path(project.folder, "elsewhere").exists()


def test_refusals_name_the_way_out(backed: Project) -> None:
    backed.data("backup", "create", "sessions", "--name", "first")
    code, told = backed.tidegate("backup", "restore", "sessions", "first")
    assert (code, "Move the folder" in told) == (3, True), told
    code, told = backed.tidegate("backup", "restore", "sessions", "second")
    assert (code, "its backups: first" in told) == (2, True), told
    for toml, words in (
        (TOML, "`backups` is not set in"),
        (f'backups = "warehouse/b"\n{TOML}', "lies in the warehouse"),
        (f'backups = "b/../warehouse"\n{TOML}', "lies in the warehouse"),
    ):
        (backed.folder / "tidegate.toml").write_text(toml)
        code, told = backed.tidegate("backup", "list", "sessions")
        assert (code, words in told) == (2, True), told
