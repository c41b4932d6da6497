"""`tidegate backfill --fill-gaps`: the missing intervals before the given one run first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lake import Lake, at
from tests.pipelines.project.cli.project import Project
from tidegate.windowing.time import from_millis

DAYS = 5


@pytest.fixture
def project(project: Project, tmp_path: Path) -> Project:
    """The project, and a source with a session of ann over each midnight."""
    lake = Lake(tmp_path)
    for day in range(DAYS):
        lake.append(("ann", at("00:10", day), 1), ("ann", at("23:50", day), 10))
    return project


def day(number: int) -> tuple[str, ...]:
    return ("backfill", "sessions", "--start", f"2024-03-0{number}", "--end", f"2024-03-0{number + 1}")


def windows(project: Project) -> list[tuple[str, str, int]]:
    rows = project.data("results", "sessions", "--limit", "0")
    return sorted((row["window_start"], row["window_end"], row["total"]) for row in rows)


def test_the_refusal_names_the_option_and_with_it_every_day_is_an_epoch_as_if_run_in_turn(project: Project) -> None:
    project.data(*day(1))
    code, told = project.tidegate(*day(4))
    assert (
        code,
        re.search(r"run the intervals in between with (--fill-gaps)", " ".join(told.split())) is not None,
    ) == (3, True)
    runs = project.data(*day(4), "--fill-gaps")["runs"]
    assert [(run["epoch"], run["state"]) for run in runs] == [(2, "done"), (3, "done"), (4, "done")]
    filled = windows(project)
    project.data(*day(5), "--fill-gaps")
    assert [total for _, _, total in filled] == [1, 11, 11, 11], "sessions over midnight are whole"
    assert [run["epoch"] for run in project.data("runs", "sessions")] == [5, 4, 3, 2, 1]


def test_a_first_run_fills_from_the_start_of_the_pipeline(project: Project) -> None:
    assert len(project.data(*day(3), "--fill-gaps")["runs"]) == 3


def test_a_gap_is_cut_as_the_slices_are(project: Project) -> None:
    project.data(*day(1))
    runs = project.data(*day(3), "--slice", "12h", "--fill-gaps")["runs"]
    assert {run["interval"]["end"] - run["interval"]["start"] for run in runs} == {43_200_000}
    assert len(runs) == 4


def test_without_a_gap_nothing_else_runs(project: Project) -> None:
    project.data(*day(1))
    assert len(project.data(*day(2), "--fill-gaps")["runs"]) == 1
    assert [run["state"] for run in project.data(*day(1), "--fill-gaps")["runs"]] == ["unchanged"]


def test_slices_are_days_of_the_pipelines_calendar_also_when_the_clocks_change(project: Project) -> None:
    file = project.folder / "tidegate.toml"
    file.write_text(file.read_text().replace("start = 2024-03-01", 'start = 2024-03-30\ntimezone = "Europe/Berlin"'))

    def hours(*arguments: str) -> list[tuple[str, float]]:
        planned = project.data("plan", "sessions", *arguments, "--slice", "1d")["planned"]
        spans = [(each["interval"]["start"], each["interval"]["end"]) for each in planned]
        return [(from_millis(start).isoformat(), (end - start) / 3_600_000) for start, end in spans]

    days = [("2024-03-29T23:00:00+00:00", 24), ("2024-03-30T23:00:00+00:00", 23), ("2024-03-31T22:00:00+00:00", 24)]
    assert hours("--start", "2024-03-30", "--end", "2024-04-02") == days
    assert hours("--start", "2024-03-29T23:00Z", "--end", "2024-04-01T22:00Z") == days
    assert hours("--start", "2024-04-01", "--end", "2024-04-02", "--fill-gaps") == days
