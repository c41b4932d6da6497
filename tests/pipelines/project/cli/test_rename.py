"""`tidegate rename`: the steps before it, and its refusals, whose remedies work."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lake import Lake, at, session_pipeline
from tests.pipelines.project.cli.project import TOML, Project
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.backups.renamed import copy_tables
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease

OLD, NEW = "sessions", "visits"
RENAME = ("rename", OLD, NEW)


@pytest.fixture
def begun(project: Project) -> Project:
    """A project with an epoch, and names that have already been changed."""
    project.by_hand.hours(8)
    edit(project)
    return project


def edit(project: Project) -> None:
    (project.folder / "tidegate.toml").write_text(TOML.replace("[pipelines.sessions]", "[pipelines.visits]"))
    project.rewrite("session_pipeline(name='visits')")


def folder(project: Project, name: str) -> Path:
    return project.folder / "warehouse" / name


def refused(project: Project, code: int, words: str, *command: str) -> None:
    before = folder(project, OLD).exists()
    found, told = project.tidegate(*(command or RENAME))
    assert (found, words in told) == (code, True), told
    assert folder(project, OLD).exists() == before


def test_a_first_run_under_the_new_name_says_what_to_do_and_that_works(project: Project) -> None:
    Lake(project.folder).append(("ann", at("08:00"), 1))
    project.says(0, "epoch 1", "stream", OLD, "--available-now")
    edit(project)
    told = project.says(0, "visits starts from scratch", "stream", NEW, "--available-now")
    assert f"`tidegate {' '.join(RENAME)}`" in told
    assert "from scratch" not in project.says(0, "", "stream", NEW, "--available-now")
    shutil.rmtree(folder(project, NEW))
    assert project.data(*RENAME)["epoch"] == 1


def test_code_and_file_are_renamed_first(project: Project) -> None:
    project.by_hand.hours(8)
    refused(project, 2, "still has [pipelines.sessions]: first change")
    toml = project.folder / "tidegate.toml"
    toml.write_text(TOML.replace("[pipelines.sessions]", "[pipelines.others]"))
    refused(project, 2, "has no [pipelines.visits]: first change")
    toml.write_text(TOML.replace("[pipelines.sessions]", "[pipelines.visits]"))
    refused(project, 2, "is still named 'sessions'. First change it to name='visits' in the code")
    edit(project)
    done = project.data(*RENAME)
    assert (done["pipeline"], done["old"], done["epoch"]) == (NEW, OLD, 1)
    assert [each["epoch"] for each in project.data("snapshot", "list", NEW)] == [1]
    refused(project, 2, "was it already renamed?")
    refused(project, 2, "there are no tables of pipeline 'nobody'", "rename", "nobody", NEW)
    assert not folder(project, "nobody").exists()


def test_branches_are_deleted_by_the_command_that_the_refusal_names(project: Project) -> None:
    project.by_hand.hours(8)
    project.data("branch", OLD, "wide", "--set", "allowed_lateness=2h")
    edit(project)
    refused(project, 3, "`tidegate branch sessions wide --delete`")
    project.says(0, "is deleted", "branch", OLD, "wide", "--delete")
    assert project.data(*RENAME)["pipeline"] == NEW


def test_a_pipeline_that_runs_is_not_renamed(begun: Project) -> None:
    for name, words in ((OLD, "end the run by Ctrl-C"), (NEW, "is being driven by")):
        with Lease(replace(begun.by_hand.tables, pipeline=name), "stream", system_clock):
            refused(begun, 4, words)
    assert begun.tidegate(*RENAME)[0] == 0


def test_a_name_that_has_tables_is_refused_until_they_are_removed(begun: Project) -> None:
    for left in ("state", "results", "savepoints/kept", "other"):
        shutil.copytree(folder(begun, OLD) / "epochs", folder(begun, NEW) / left)
        refused(begun, 3, "pipeline 'visits' exists")
        shutil.rmtree(folder(begun, NEW))
    assert begun.tidegate(*RENAME)[0] == 0


def test_a_pipeline_that_went_on_after_it_was_copied_loses_nothing(begun: Project) -> None:
    old = begun.by_hand.tables
    new = replace(old, pipeline=NEW)
    copy_tables(old, new)
    begun.by_hand.epoch(("ann", at("09:00"), 2), watermark=at("09:30"))
    refused(begun, 3, "was run after it had been copied")
    shutil.rmtree(folder(begun, NEW))
    assert begun.data(*RENAME)["epoch"] == 2


def test_a_copy_of_another_pipeline_is_finished_first(begun: Project) -> None:
    old = begun.by_hand.tables
    copy_tables(old, replace(old, pipeline=NEW))
    shutil.copytree(folder(begun, OLD), folder(begun, "others"))
    refused(begun, 3, "first run `tidegate rename sessions visits`", "rename", "others", NEW)
    assert begun.tidegate(*RENAME)[0] == 0


def test_a_damaged_table_is_not_renamed_and_nothing_is_removed(begun: Project) -> None:
    lost = next(iter((folder(begun, OLD) / "epochs").glob("*.parquet")))
    content = lost.read_bytes()
    lost.unlink()
    refused(begun, 3, "can't be copied, and nothing was removed")
    lost.write_bytes(content)
    assert begun.tidegate(*RENAME)[0] == 0


def test_runs_of_another_pipeline_whose_name_begins_the_same_stay(begun: Project) -> None:
    ours, theirs = (
        begun.folder / f"work/runs/{name}__quality/manual/check/1/log.txt" for name in (OLD, f"{OLD}__by_day")
    )
    for log in (ours, theirs):
        log.parent.mkdir(parents=True)
        log.write_text("log")
        os.utime(log, (0, 0))
    assert begun.data(*RENAME)["files"] == 1
    assert (ours.exists(), theirs.exists()) == (False, True)


def test_a_project_in_code_is_not_told_of_a_file(lake: Lake) -> None:
    for name in (OLD, "others"):
        with pytest.raises(UsageError, match=r"^the project .* the name of its Pipeline in the code to 'visits'$"):
            lake.project(session_pipeline(name=name)).rename(OLD, NEW)
