"""Commands show numbers, lags and lists in readable form, and JSON that every parser reads."""

from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console

from tests.lake import at
from tests.pipelines.project.cli.project import Project
from tidegate.pipelines.observe.report.columns import Grid
from tidegate.pipelines.project.clean import spans
from tidegate.pipelines.project.cli.screen import Screen, as_table, command, plain_console
from tidegate.windowing.time import show_duration


@pytest.mark.parametrize(
    ("width", "terminal", "lines"),
    [
        (25, True, ["two of them", "key     ann", "first   10000000000", "second  20000000000", "", "key     bob"]),
        (40, True, ["two of them", "key  first        second", "ann  10000000000  20000000000"]),
        (25, False, ["two of them"]),
    ],
)
def test_a_row_takes_a_line_for_each_field_where_a_terminal_is_too_narrow(
    width: int, terminal: bool, lines: list[str]
) -> None:
    grid = Grid("two of them", ("key", "first", "second"), [(key, 10**10, 2 * 10**10) for key in ("ann", "bob")])
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    with console.capture() as shown:
        console.print(as_table(grid, console))
    assert [line.rstrip() for line in shown.get().splitlines()][: len(lines)] == lines


def test_a_very_long_table_is_plain_lines_whatever_the_width(capsys: pytest.CaptureFixture[str]) -> None:
    console, grid = plain_console(), Grid("numbers", ("number", "text"), [(n, "x" * 300) for n in range(1001)])
    Screen(False, console, None).show({}, as_table(grid, console))
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], len(lines), lines[2].split()) == ("numbers", 1003, ["0", "x" * 300])


@pytest.mark.parametrize(
    ("millis", "shown"),
    [(None, "-"), (7_400, "7.4 s"), (-7_400, "-7.4 s"), (3_600_000 * 25, "1.04 d"), (86_400_000 * 5_066, "5,066 d")],
)
def test_a_lag_is_shown_in_units_that_people_read(millis: int | None, shown: str) -> None:
    assert show_duration(millis) == shown


@pytest.mark.parametrize(
    ("epochs", "told"),
    [
        ((), "none"),
        ((7,), "1 (7)"),
        ((5, 4, 3, 2, 1), "5 (1 to 5)"),
        ((9, 8, 6, 3, 2), "5 (2 to 3, 6, 8 to 9)"),
        (tuple(range(1, 41, 2)), "20 (1, 3, 5, 7, 9, 11, 13, 15, 17, 19, and 10 more such runs)"),
    ],
)
def test_numbers_are_told_by_their_runs(epochs: tuple[int, ...], told: str) -> None:
    assert spans(epochs) == told


def test_the_interval_of_a_backfill_has_no_lag_for_its_age_says_nothing(project: Project) -> None:
    project.by_hand.epoch(("ann", at("10:00"), 1), watermark=at("12:00"))
    days = (at("00:00", 1), at("00:00", 2))
    project.by_hand.epoch(("ann", at("10:00", 1), 1), watermark=days[1], kind="backfill", interval=days)
    _, told = project.tidegate("runs", "sessions")
    backfill, stream = (line.split() for line in told.splitlines() if line.strip()[:1] in "12")
    assert "-" in backfill
    assert "-" not in stream


def test_numbers_of_results_stand_at_the_right_and_texts_at_the_left(project: Project) -> None:
    project.by_hand.epoch(("ann", at("10:00"), 5), ("bob", at("10:00"), 12_000), watermark=at("12:00"))
    _, told = project.tidegate("results", "sessions")
    _, heads, *rows = [line.rstrip() for line in told.splitlines()]
    assert heads.endswith("events  total")
    assert {(row[:3], row[-6:]) for row in rows} == {("ann", "     5"), ("bob", " 12000")}


@pytest.mark.parametrize(("key", "is_asked"), [("ann", False), ("Ann", True)])
def test_forgetting_a_key_that_no_row_held_asks_for_its_spelling(project: Project, key: str, is_asked: bool) -> None:
    project.by_hand.epoch(("ann", at("10:00"), 5), watermark=at("10:10"))
    code, told = project.tidegate("forget", "sessions", key, "--yes")
    assert (code, f"no row has the key {key}: check that it is spelled as in the data" in told) == (0, is_asked), told


def test_forgetting_a_key_twice_does_not_ask_for_its_spelling(project: Project) -> None:
    """The second run can't know that the first one had finished, so it removes the files of older snapshots again."""
    project.by_hand.epoch(("ann", at("10:00"), 5), watermark=at("10:10"))
    project.tidegate("forget", "sessions", "ann", "--yes")
    told = project.says(0, "erased by epoch 3 of sessions", "forget", "sessions", "ann", "--yes")
    assert "no row has the key ann any longer, but older snapshots or files, or an interrupted" in " ".join(
        told.split()
    )
    assert "spelled" not in told


def test_json_is_one_document_that_every_parser_reads(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has no NaN and no infinity, and the output of a project's module is not part of the document."""

    @command()
    def show(screen: Screen) -> None:
        print("a suite is imported")
        screen.show({"mean": math.nan, "range": [-math.inf, math.inf, 0.1], "name": "NaN"})

    show.main(["--json"], standalone_mode=False)
    printed = capsys.readouterr()
    assert printed.err == "a suite is imported\n"
    shown = json.loads(printed.out, parse_constant=pytest.fail)
    assert shown == {"mean": "NaN", "range": ["-Infinity", "Infinity", 0.1], "name": "NaN"}
