"""Commands on a pipeline that has no windows: what its function put out, keeps and waits for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tests.pipelines.project.cli.project import CODE, TOML, Project
from tests.pipelines.quiet import quiet_pipeline
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.observe.inspect.explanation import explain
from tidegate.windowing import IntervalJoin, WatermarkStrategy
from tidegate.windowing.watermarks import PunctuatedWatermarks


@pytest.fixture
def quiet(project: Project) -> Project:
    """A project with the pipeline `quiet`, and two epochs of it."""
    toml = Path(project.folder / "tidegate.toml")
    toml.write_text(TOML + '\n[pipelines.quiet]\nobject = "of_the_project:quiet"\nstart = 2024-03-01\n')
    (project.folder / "of_the_project.py").write_text(
        CODE + "\nfrom tests.pipelines.quiet import quiet_pipeline\n\nquiet = quiet_pipeline()\n"
    )
    by_hand = ByHand(project.folder, quiet_pipeline())
    by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:05"), 2), watermark=at("10:01"))
    by_hand.epoch(("ann", at("10:30"), 4), watermark=at("10:12"))
    return project


def test_results_are_what_the_function_put_out(quiet: Project) -> None:
    (row,) = quiet.data("results", "quiet")
    assert (row["user"], row["total"], row["event_time"]) == ("ann", 5, "2024-03-01T10:10:00+00:00")
    for view in ("final", "latest", "all"):
        quiet.says(0, f"{view} results of quiet (1 of 1)", "results", "quiet", "--view", view)
    assert "WHERE NOT `stale`" in quiet.data("results", "quiet", "--sql")["sql"]


def test_why_tells_what_each_key_waits_for(quiet: Project) -> None:
    told = quiet.data("why", "quiet", "--key", "bob")
    (bob,) = told["windows"]
    assert bob["reason"].startswith("the watermark must reach 2024-03-01 10:15")
    assert quiet.data("why", "quiet", "--key", "ann")["last_fired"] == "a result, in epoch 2"
    quiet.says(0, "keys (2 of 2", "why", "quiet")


def test_snapshots_are_shown_and_compared(quiet: Project) -> None:
    shown = quiet.data("snapshot", "show", "quiet")["windows"]
    assert {row["user"]: row["user_state"] for row in shown} == {"ann": {"total": 5}, "bob": {"total": 2}}
    for command, told in (
        (("snapshot", "show", "quiet"), "total 5"),
        (("snapshot", "diff", "quiet", "1", "2"), "user_state"),
        (("runs", "quiet"), "stream"),
    ):
        quiet.says(0, told, *command)


def test_explain_says_what_the_function_is_and_keeps(quiet: Project) -> None:
    # The rows are made by hand, so there is no source, and the explanation ends with 3.
    code, shown = quiet.tidegate("explain", "quiet", "--json")
    told = json.loads(shown)
    assert code == 3
    assert told["operator"] == {
        "name": "row",
        "reason": "KeyedProcess sees elements one by one, with state and timers",
    }
    assert told["order"].startswith(
        "the result depends on the order of arrival (a process function with time_sorted=False)"
    )
    steps = [step["does"] for step in told["steps"]]
    assert any("Quiet" in step and "timers" in step for step in steps), steps
    assert any("state (total)" in step for step in steps)


def test_explain_says_how_two_sources_become_one() -> None:
    explanation = explain(
        Pipeline(
            name="paid",
            source=DeltaSource("orders", timestamp="ordered_at"),
            key=("customer",),
            watermark=WatermarkStrategy.for_bounded_out_of_orderness(5),
            compute=IntervalJoin.between(-300_000, 900_000),
            right=Input(source=DeltaSource("payments", timestamp="at"), key=("payer",)),
        )
    )
    steps = [step.does for step in explanation.steps]
    assert (
        "commits of both sources by commit time (left first if equal); the watermark is the smaller of the two"
        in steps[0]
    )
    assert [step.split(":")[0] for step in steps[1:3]] == ["read the files of orders", "read the files of payments"]
    assert "right - left from -5 min to 15 min" in " ".join(steps)
    assert explanation.order.startswith("the result depends on the set of elements")


def test_explain_tells_of_a_generator_that_sees_every_event() -> None:
    own = WatermarkStrategy.for_generator(lambda: PunctuatedWatermarks(lambda event, timestamp: timestamp))
    explained = explain(replace(quiet_pipeline(), watermark=own))
    told = "the events of events, by commit and time, through your watermark generator"
    assert any(told in step.does for step in explained.steps)
    assert not any(told in step.does for step in explain(quiet_pipeline()).steps)
