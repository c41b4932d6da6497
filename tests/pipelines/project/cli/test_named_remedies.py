"""Commands that a message names as the remedy, run in the situation of the message: `stop`, `unlock`, `backfill`."""

from __future__ import annotations

import re
import shlex
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.lake import Clock, Lake, at
from tests.pipelines.project.cli.project import Project
from tests.pipelines.test_lease import held_by
from tests.waiting import PATIENCE_SECONDS, wait_until
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease

HOUR = 3_600_000
NOW = ("stream", "sessions", "--available-now")
DAYS = [("--start", f"2024-03-0{day}", "--end", f"2024-03-0{day + 1}") for day in (1, 2)]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two days of rows."""
    lake = Lake(tmp_path)
    for day in (0, 1):
        lake.append(("ann", at("08:00", day), 1), ("ann", at("12:00", day), 10))
    return lake


def in_zone(project: Project, zone: str, start: str = "2024-03-01") -> None:
    """Give the pipeline a time zone, in which the times of options are, and the start of its backfill."""
    toml = project.folder / "tidegate.toml"
    toml.write_text(toml.read_text().replace("start = 2024-03-01", f'start = {start}\ntimezone = "{zone}"'))


@pytest.fixture
def project(project_without_jvm: Project, lake: Lake) -> Project:
    """The project over these rows."""
    return project_without_jvm


def heeded(project: Project, told: str, verb: str) -> str:
    """Run the command for a verb that a message names, with values for its placeholders; return its output."""
    named = re.search(rf"`tidegate ({verb}\b[^`]*)`", " ".join(told.split()))
    assert named is not None, told
    code, said = project.tidegate(*shlex.split(named[1]))
    assert code == 0, said
    return said


def totals(project: Project, view: str = "latest") -> dict[str, int]:
    rows = project.data("results", "sessions", "--view", view, "--limit", "0")
    return {row["window_start"][:16]: row["total"] for row in rows}


@pytest.mark.first(1)
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_why_names_the_backfill_that_moves_the_watermark(project: Project, lake: Lake, zone: str) -> None:
    in_zone(project, zone, "2024-03-01T00:00:00Z")
    lake.append(("bob", at("23:50"), 1))
    project.data("backfill", "sessions", "--start", "2024-03-01T00:00Z", "--end", "2024-03-02T00:00Z")
    told = project.says(0, "", "why", "sessions", "--key", "bob")
    heeded(project, told, "backfill")
    starts = [run["interval_start"] for run in project.data("runs", "sessions")]
    assert [start[:13] for start in starts] == ["2024-03-02T00", "2024-03-01T00"]


def test_a_gap_names_the_start_that_leaves_none_in_the_zone_of_the_options(project: Project) -> None:
    in_zone(project, "America/New_York")
    project.data("backfill", "sessions", *DAYS[0])
    told = project.says(3, "", "backfill", "sessions", "--start", "2024-03-03", "--end", "2024-03-04")
    named = re.search(r"Start at (\S+), or", " ".join(told.split()))
    assert named is not None, told
    project.data("backfill", "sessions", "--start", named[1], "--end", "2024-03-04")


def test_late_rows_are_reopened_in_the_zone_of_the_intervals(project: Project, lake: Lake) -> None:
    in_zone(project, "America/New_York")
    project.data(*NOW)
    lake.append(("bob", at("04:30", 1), 7), ("bob", at("05:30", 1), 8))
    project.data(*NOW)
    assert project.data("late", "summary", "sessions")["open"] == 2
    assert project.data("late", "reopen", "sessions", "--start", "2024-03-02")["rows"] == 1
    assert project.data("late", "reopen", "sessions", "--start", "2024-03-01", "--end", "2024-03-02")["rows"] == 1


def test_unlock_takes_the_lease_of_a_driver_that_died_elsewhere(project: Project) -> None:
    clock = Clock(system_clock() + HOUR)
    held_by(project.by_hand.tables, clock, host="elsewhere")
    told = project.says(4, "", *NOW)
    assert "elsewhere" in told
    assert "elsewhere (stream)" in heeded(project, told, "driver unlock")
    project.data(*NOW)
    assert totals(project)


@pytest.mark.parametrize(
    ("command", "exit_code"), [(NOW, 4), (("driver", "unlock", "sessions"), 3)], ids=["stream", "unlock"]
)
def test_stop_ends_the_driver_that_a_command_meets(project: Project, command: tuple[str, ...], exit_code: int) -> None:
    taken = threading.Event()

    def drive() -> None:
        with Lease(project.by_hand.tables, "stream", system_clock) as lease:
            taken.set()
            wait_until(lambda: lease.stop_requested, "the request to stop")

    driver = threading.Thread(target=drive)
    driver.start()
    assert taken.wait(PATIENCE_SECONDS)
    told = project.says(exit_code, "", *command)
    heeded(project, told, "driver stop")
    driver.join()
    project.data(*NOW)
    assert totals(project)


@pytest.mark.parametrize("verb", ["stream", "backfill"])
def test_what_a_command_before_the_first_run_names_is_the_first_run(project: Project, verb: str) -> None:
    told = project.says(3, "", "results", "sessions")
    heeded(project, told.replace("START", DAYS[0][1]).replace("END", DAYS[0][3]), verb)
    assert totals(project)


@pytest.mark.first(1)
@pytest.mark.parametrize("next_command", [NOW, ("backfill", "sessions", "--end-of-input")], ids=["stream", "end"])
@pytest.mark.parametrize(("zone", "midnight"), [("UTC", "00"), ("America/New_York", "05")])
def test_stale_intervals_run_again_by_the_command_that_the_correction_and_the_refusal_name(
    project: Project, lake: Lake, next_command: tuple[str, ...], zone: str, midnight: str
) -> None:
    in_zone(project, zone)
    for day in DAYS:
        project.data("backfill", "sessions", *day)
    lake.append(("ann", at("09:00"), 100))
    corrected = project.says(0, "the intervals that follow are stale", "backfill", "sessions", *DAYS[0])
    refused = project.says(3, "", *next_command)
    following = f"--start 2024-03-02T{midnight}:00:00Z --end 2024-03-03T{midnight}:00:00Z"
    assert f"`tidegate backfill sessions {following} --and-following`" in corrected
    heeded(project, refused, "backfill")
    project.data(*next_command)
    expected = {"2024-03-01T08:00": 1, "2024-03-01T09:00": 100, "2024-03-01T12:00": 10, "2024-03-02T08:00": 1}
    assert {**expected, "2024-03-02T12:00": 10} == totals(project)


def test_everything_is_run_again_with_new_code_after_rows_changed(project: Project, lake: Lake) -> None:
    made = "session_pipeline({}source=DeltaSource('events', timestamp='at', changes='correct'))"
    project.rewrite(made.format(""))
    for day in DAYS:
        project.data("backfill", "sessions", *day)
    DeltaTable(lake.path("events")).update({"value": "value + 5"}, predicate="value = 10")
    project.data("backfill", "sessions", "--start", "2024-03-03", "--end", "2024-03-04")
    project.rewrite(made.format("gap=timedelta(hours=5), "))
    told = project.says(3, "", "backfill", "sessions", *DAYS[1], "--again")
    heeded(project, told, "backfill")
    assert totals(project) == {"2024-03-01T08:00": 16, "2024-03-02T08:00": 16}


def lose_result_files(folder: Path) -> None:
    for file in (folder / "results").glob("*.parquet"):
        file.unlink()


def lose_results(folder: Path) -> None:
    shutil.rmtree(folder / "results")


def lose_state(folder: Path) -> None:
    shutil.rmtree(folder / "state")


@pytest.mark.parametrize(
    ("lose", "command"),
    [
        (lose_result_files, ("results", "sessions")),
        (lose_results, NOW),
        (lose_state, ("restore", "sessions", "latest")),
    ],
    ids=["files", "results", "state"],
)
def test_what_was_lost_is_computed_again_from_the_source(
    project: Project, lake: Lake, lose: Callable[[Path], None], command: tuple[str, ...]
) -> None:
    project.data(*NOW)
    before = totals(project)
    assert before
    folder = Path(lake.path("sessions"))
    lose(folder)
    code, told = project.tidegate(*command)
    assert code == 3, told
    words = " ".join(told.split())
    assert "has no snapshot yet" not in words, "it has lost one"
    assert "`tidegate restore sessions --restart`" in words
    restarted = project.says(0, "tidegate stream sessions --available-now", "restore", "sessions", "--restart")
    heeded(project, restarted, "stream")
    assert totals(project) == before


def test_rows_that_a_vacuum_left_are_computed_by_the_backfill_that_the_refusal_names(
    project: Project, lake: Lake
) -> None:
    project.data(*NOW)
    lake.append(("bob", at("10:00", 1), 5))
    source = DeltaTable(lake.path("events"))
    source.optimize.compact()
    source.vacuum(0, dry_run=False, enforce_retention_duration=False)
    told = " ".join(project.says(3, "", *NOW).split())
    assert "move the pipeline's folder in the warehouse away, and backfill the pipeline" in told
    folder = Path(lake.path("sessions"))
    folder.rename(folder.with_name("before"))
    project.data("backfill", "sessions", "--start", "2024-03-01", "--end", "2024-03-03", "--slice", "1d")
    rows = {**totals(project)}
    assert rows == {
        "2024-03-01T08:00": 1,
        "2024-03-01T12:00": 10,
        "2024-03-02T08:00": 1,
        "2024-03-02T10:00": 5,
        "2024-03-02T12:00": 10,
    }
    project.data(*NOW)
