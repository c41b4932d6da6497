"""The plan of a backfill says which intervals would run, and a run does what the plan says."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tidegate.pipelines import Pipeline


def planned(lake: Lake, pipeline: Pipeline) -> list[str]:
    hour = timedelta(hours=1)
    answer = lake.project(pipeline).plan(pipeline.name, at("10:00"), at("13:00"), slice=hour)
    return [each.state for each in answer.planned]


def test_intervals_whose_code_or_rows_have_changed_would_run_again(lake: Lake) -> None:
    pipeline = hourly_pipeline()
    lake.append(*(("ann", at(f"{hour}:10"), hour) for hour in (10, 11, 12)))
    for hour in (10, 11):
        lake.backfill(LOCAL, pipeline, at(f"{hour}:00"), at(f"{hour + 1}:00"))
    assert planned(lake, pipeline) == [*["unchanged: would not run again"] * 2, "would run"]
    lake.append(("bob", at("10:30"), 1))
    assert planned(lake, pipeline) == [
        "would run again: rows were added",
        "would run again: an interval before it would",
        "would run",
    ]
    states = [lake.backfill(LOCAL, pipeline, at(f"{hour}:00"), at(f"{hour + 1}:00"))[0].state for hour in (10, 11)]
    assert states == ["done", "done"]
    changed = replace(pipeline, where="value > 10")
    assert planned(lake, changed) == [
        *["would run again: the code has changed"] * 2,
        "would run",
    ]
