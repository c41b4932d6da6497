"""`tidegate source reset`: a pipeline continues with a source table that was dropped and created again."""

from __future__ import annotations

import re
import shlex
import shutil
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.lake import LOCAL, Lake, at, conserved, session_pipeline
from tests.pipelines.project.cli.project import Project
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.run import reset_source as reset_module

NOW = ("stream", "sessions", "--available-now")
RESET = ("source", "reset", "sessions", "--keep-results")
OLD = ((8, 1), (9, 2), (10, 4))
"""Hours of ann's rows in the old table, and their values. They move the watermark to nine o'clock."""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The old table, which a stream has read."""
    lake = Lake(tmp_path_factory.mktemp("old") / "lake")
    for hour, value in OLD:
        lake.append(("ann", at(f"{hour:02d}:00"), value))
    lake.stream(LOCAL, session_pipeline())
    return lake


@pytest.fixture
def lake(project: Project, old: Lake) -> Lake:
    """A copy of it in the project."""
    shutil.copytree(old.folder, project.folder, dirs_exist_ok=True)
    return Lake(project.folder)


def make_anew(lake: Lake, *rows: tuple[int, int]) -> None:
    """Replace the table by another one, with a commit for each row of ann."""
    shutil.rmtree(lake.path("events"))
    for hour, value in rows:
        lake.append(("ann", at(f"{hour:02d}:00"), value))


def totals(project: Project) -> dict[str, int]:
    rows = project.data("results", "sessions", "--view", "latest", "--limit", "0")
    return {row["window_start"][11:16]: row["total"] for row in rows}


def late(project: Project) -> int:
    rows = project.data("late", "summary", "sessions")["rows"]
    assert isinstance(rows, int)
    return rows


def test_the_refusal_names_the_way_out_and_the_stream_goes_on_by_it(project: Project, lake: Lake) -> None:
    before = totals(project)
    make_anew(lake, (8, 100), (10, 200), (12, 400), (15, 800))
    code, told = project.tidegate(*NOW)
    assert code == 3
    way = re.search(r"`tidegate (source reset PIPELINE --keep-results)`", " ".join(told.split()))
    assert way is not None, told
    _, said = project.tidegate(*shlex.split(way[1].replace("PIPELINE", "sessions")))
    assert "The new one is read from its first commit" in " ".join(said.split())
    assert totals(project) == before, "results stay"
    project.data(*NOW)
    assert late(project) == 1, "the row behind the watermark"
    assert totals(project) == {**before, "09:00": 2, "10:00": 4 + 200, "12:00": 400}, (
        "a row of an open window counts beside the old"
    )
    runs = project.data("runs", "sessions")
    assert [run["kind"] for run in reversed(runs)][-2:] == ["reset", "stream"]
    assert conserved(runs)


def test_rows_that_the_new_table_has_now_may_count_as_read(project: Project, lake: Lake) -> None:
    make_anew(lake, *OLD)
    project.data(*RESET, "--from", "now")
    lake.append(("ann", at("10:20"), 8))
    lake.append(("ann", at("15:00"), 1))
    project.data(*NOW)
    assert late(project) == 0
    assert totals(project) == {"08:00": 1, "09:00": 2, "10:00": 4 + 8}, "no row counts twice"


def test_a_backfill_goes_on_at_its_next_interval(project: Project, lake: Lake) -> None:
    shutil.rmtree(lake.path("sessions"))
    day = ("backfill", "sessions", "--start", "2024-03-01", "--end")
    project.data(*day, "2024-03-02")
    before = totals(project)
    make_anew(lake, (8, 100), (23, 7))
    lake.append(("ann", at("12:00", 1), 3))
    following = ("backfill", "sessions", "--start", "2024-03-02", "--end", "2024-03-03")
    assert project.tidegate(*following)[0] == 3
    project.says(2, "its next interval reads the rows", *RESET, "--from", "beginning")
    project.data(*RESET)
    project.data(*following)
    assert totals(project) == {**before, "12:00": 3}
    assert late(project) == 0
    code, told = project.tidegate(*day, "2024-03-02")
    told = " ".join(told.split())
    assert (code, "as it was before it was reset" in told) == (3, True), told
    way = re.search(r"`tidegate (backfill sessions .*? --again --and-following)`", told)
    assert way is not None, told
    project.data(*shlex.split(way[1]))
    assert totals(project) == {"08:00": 100, "23:00": 7, "12:00": 3}


def test_late_rows_are_not_reopened_before_the_new_table_was_read(project: Project, lake: Lake) -> None:
    lake.append(("ann", at("07:00"), 1))
    project.data(*NOW)
    assert late(project) == 1
    make_anew(lake, *OLD)
    project.data(*RESET)
    code, told = project.tidegate("late", "reopen", "sessions")
    told = " ".join(told.split())
    assert (code, "nothing of it has been read yet" in told) == (3, True), told
    way = re.search(r"`tidegate (stream sessions --available-now)`", told)
    assert way is not None, told
    project.data(*shlex.split(way[1]))
    project.data("late", "reopen", "sessions")


def test_a_second_reset_does_nothing_and_a_source_that_was_read_is_not_reset(project: Project, lake: Lake) -> None:
    project.says(3, "has not been replaced, so nothing was reset", *RESET)
    make_anew(lake, *OLD)
    epoch = project.data(*RESET)["epoch"]
    again = project.data(*RESET)
    assert again == {"pipeline": "sessions", "epoch": None, "dry_run": False, "positions": []}
    assert project.data("runs", "sessions")[0]["epoch"] == epoch
    project.data(*NOW)
    assert project.tidegate(*RESET)[0] == 3
    assert project.data(*RESET, "--force")["epoch"] is not None


def test_a_dry_run_shows_the_position_and_changes_nothing(project: Project, lake: Lake) -> None:
    make_anew(lake, *OLD)
    runs = project.data("runs", "sessions")
    (planned,) = project.data(*RESET, "--dry-run")["positions"]
    assert (planned["before"]["version"], planned["after"]["version"]) == (2, -1)
    assert project.data("runs", "sessions") == runs
    assert project.tidegate(*NOW)[0] == 3


def test_without_the_flag_the_command_says_what_it_means(project: Project, lake: Lake) -> None:
    code, told = project.tidegate("source", "reset", "sessions")
    assert (code, "add --keep-results" in told, "--restore none" in " ".join(told.split())) == (2, True, True), told


def test_a_table_that_can_not_be_read_from_its_beginning_is_refused_with_the_other_way(
    project: Project, lake: Lake
) -> None:
    make_anew(lake, *OLD)
    DeltaTable(lake.path("events")).delete("value = 1")
    code, told = project.tidegate(*RESET)
    told = " ".join(told.split())
    assert (code, "can't be read from its first commit" in told, "--from now" in told) == (3, True, True), told
    project.data(*RESET, "--from", "now")
    lake.append(("ann", at("15:00"), 1))
    project.data(*NOW)


def test_a_driver_at_work_is_not_disturbed(project: Project, lake: Lake) -> None:
    make_anew(lake, *OLD)
    with Lease(project.by_hand.tables, "stream", system_clock):
        assert project.tidegate(*RESET)[0] == 4


def test_after_a_crash_the_reset_is_published_and_counts_once(
    project: Project, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_anew(lake, *OLD)

    def crash(*given: Any) -> None:
        raise Refused("crash")

    with monkeypatch.context() as planted:
        planted.setattr(reset_module, "publish", crash)
        assert project.tidegate(*RESET)[0] == 3
    assert project.data(*RESET)["epoch"] is None, "the commit was there already"
    assert project.data("runs", "sessions")[0]["kind"] == "reset"
    with monkeypatch.context() as planted:
        planted.setattr(reset_module, "commit_epoch", crash)
        assert project.tidegate(*RESET, "--force", "--from", "now")[0] == 3
    assert project.data(*RESET, "--force", "--from", "now")["epoch"] is not None


def test_after_a_restore_to_before_it_the_reset_is_asked_for_again(project: Project, lake: Lake) -> None:
    make_anew(lake, *OLD)
    project.data(*RESET, "--from", "now")
    project.data("restore", "sessions", "1")
    assert project.tidegate(*NOW)[0] == 3
    project.data(*RESET, "--from", "now")
    lake.append(("ann", at("15:00"), 1))
    project.data(*NOW)
    assert conserved(project.data("runs", "sessions"))
