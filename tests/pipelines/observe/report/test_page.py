"""The contents of a run report, and the ways to ask for it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.expectations.quality_lake import at, session_lake
from tests.lake import DAY0, Lake, hourly_pipeline
from tests.lake import at as lake_at
from tidegate import expectations
from tidegate.pipelines import DeltaSource, Input
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.page import render
from tidegate.pipelines.observe.report.plain_text import look, templates_in
from tidegate.pipelines.observe.report.run import read_run
from tidegate.pipelines.project.cli import run
from tidegate.windowing import (
    Count,
    GlobalWindows,
    IntervalJoin,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowJoin,
    Windows,
)
from tidegate.windowing.time import to_millis

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> PipelineTables:
    """The tables of a run; no test changes them."""
    return PipelineTables(warehouse_of(session_lake().write(tmp_path_factory.mktemp("run"))), "sessions")


def test_the_timeline_is_of_the_busiest_key_and_has_its_open_windows(tables: PipelineTables) -> None:
    report = read_run(tables)
    assert report.key == "a"
    assert [(session.start, session.is_open) for session in report.timeline] == [
        (to_millis(at("10:00")), False),
        (to_millis(at("12:00")), False),
        (to_millis(at("13:00")), True),
    ]


def test_open_windows_are_counted_for_each_key_group(tables: PipelineTables) -> None:
    counts = read_run(tables).open_by_key_group
    assert len(counts) == 128
    assert sum(counts) == 1


def test_a_run_that_was_never_checked_says_how_to_check_it(tables: PipelineTables) -> None:
    page = render(read_run(tables))
    assert "never checked" in page
    assert "tidegate quality check sessions --epoch 2" in page


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "compute",
    [
        Windows(TumblingEventTimeWindows.of(HOUR), aggregate={"events": Count()}),
        Windows(TumblingProcessingTimeWindows.of(HOUR), aggregate={"events": Count()}),
        Windows(GlobalWindows.create_with_end_of_stream_trigger(), aggregate={"events": Count()}),
        IntervalJoin.between(-HOUR, HOUR),
        WindowJoin(TumblingEventTimeWindows.of(HOUR), "inner"),
    ],
    ids=["event time", "clock", "global", "interval join", "window join"],
)
def test_hints_name_only_commands_that_work(compute: Windows | IntervalJoin | WindowJoin, lake: Lake) -> None:
    right = None if isinstance(compute, Windows) else Input(source=DeltaSource("right", timestamp="at"))
    pipeline = hourly_pipeline(compute=compute, right=right)
    for table in ("events", "right"):
        lake.append(("ann", lake_at("10:00"), 1), table=table)
    project = lake.project(pipeline)
    project.stream("hours")
    failed = quality.QualityRow("1", DAY0, 1, 1, "panes", "expect_it", "user", "critical", False, "", 1, 1, 1)
    page = render(replace(read_run(lake.tables(pipeline)), quality=[failed]))
    for command, ask in (
        ("trace", lambda: project.trace("hours", ("ann",))),
        ("advise", lambda: project.advise("hours")),
    ):
        try:
            works = bool(ask())
        except Refused:
            works = False
        assert (f"tidegate {command} hours" in page) == works


def test_the_command_writes_to_the_work_folder_and_tells_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = session_lake().write(tmp_path).pipelines["sessions"]
    file = tmp_path / "tidegate.toml"
    file.write_text(f'[pipelines.sessions]\nobject = "{entry.object}"\nstart = 2024-03-01\n')
    assert run(["report", "sessions", "--config", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["file"]) == tmp_path / ".work" / "reports" / "sessions" / "epoch-000002.html"
    assert Path(told["file"]).read_text().startswith("<!doctype html>")
    assert run(["report", "sessions", "--config", str(file), "--key", "nobody", "--key", "at all"]) == 2
    assert "--key 'nobody/at all': no window of that key" in capsys.readouterr().err


def test_data_docs_have_it_unescaped() -> None:
    assert '"Segoe UI"' in look()
    pages = templates_in(Path(expectations.__file__).parent)
    assert look() in pages.get_template("docs_index.html").render(pipeline="hours", checks=[])
