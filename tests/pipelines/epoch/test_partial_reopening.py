"""A reopening adds the late rows that it can, and lists the others with the reason."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.lake import LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tidegate.pipelines import Pipeline
from tidegate.pipelines.errors import NotReopenable, SourceFileMissing
from tidegate.windowing import Count, SlidingEventTimeWindows, Windows

HOUR = timedelta(hours=1)
HOURS = ("02", "03", "05", "06")
OLD = datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)


def late_lake(lake: Lake, pipeline: Pipeline) -> None:
    """Run a stream with an event of 20:00, late rows at four hours and in 1970, each in a file of its own."""
    lake.append(("ann", at("20:00"), 1))
    lake.append(("ann", OLD, 1))
    for hour in HOURS:
        lake.append((f"u{hour}", at(f"{hour}:10"), 1), (f"u{hour}", at(f"{hour}:20"), 2))
    lake.stream(LOCAL, pipeline)


def lose(lake: Lake, *versions: int) -> None:
    table = DeltaTable(lake.path("events"))
    for version in versions:
        table.load_as_version(version)
        new = set(table.file_uris())
        table.load_as_version(version - 1)
        (lost,) = new - set(table.file_uris())
        Path(lost.removeprefix("file://")).unlink()


@pytest.mark.parametrize("pipeline", [hourly_pipeline(), session_pipeline()], ids=["hours", "sessions"])
def test_rows_whose_files_are_missing_stay_late_and_the_others_are_reopened(lake: Lake, pipeline: Pipeline) -> None:
    late_lake(lake, pipeline)
    # The files of 1970 and of 03:00.
    lose(lake, 1, 3)
    project = lake.project(pipeline)
    with pytest.raises(SourceFileMissing):
        project.late_reopen(pipeline.name, strict=True)
    done = project.late_reopen(pipeline.name)
    assert done.rows == 6
    assert {row["user"] for row in lake.final(pipeline).to_pylist()} == {"u02", "u05", "u06"}
    assert [(each["kind"], each["rows"]) for each in done.left] == [
        ("source_file_missing", 1),
        ("source_file_missing", 2 if "hours" in pipeline.name else 1),
        *([] if "hours" in pipeline.name else [("source_file_missing", 1)]),
    ]
    assert done.left[0]["window_start"].startswith("1970-01-01 00:00:0")
    assert all("is missing" in each["reason"] for each in done.left)
    assert "can't be reopened; they stay in table late" in str(done)
    again = project.late_reopen(pipeline.name)
    assert (again.epoch, again.rows, again.left) == (None, 0, done.left)
    assert again.to_dict()["left"] == list(done.left)


def test_a_selection_of_a_key_lists_only_its_own_rows(lake: Lake) -> None:
    pipeline = hourly_pipeline()
    late_lake(lake, pipeline)
    lose(lake, 3)
    project = lake.project(pipeline)
    assert [each["rows"] for each in project.late_reopen("hours", key="u03").left] == [2]
    assert project.late_reopen("hours", key="u02").left == ()


def test_each_reason_has_a_name_of_its_own() -> None:
    kinds = [kind.kind for kind in NotReopenable.__subclasses__()]
    assert len(kinds) == len(set(kinds)) == 5


def test_windows_that_miss_a_row_are_listed_even_if_no_late_row_is_left(lake: Lake) -> None:
    # The row of 10:50 comes after its first window closed: it is in the later ones, and not in table late.
    sliding = Windows(SlidingEventTimeWindows.of(HOUR, HOUR / 4), aggregate={"events": Count()})
    pipeline = replace(hourly_pipeline(), compute=sliding)
    lake.append(("ann", at("10:05"), 1))
    lake.append(("bob", at("13:00"), 1))
    lake.append(("ann", at("11:50"), 1))
    lake.stream(LOCAL, pipeline)
    assert lake.rows(pipeline, "late").num_rows == 0
    larger = replace(sliding, assigner=SlidingEventTimeWindows.of(2 * HOUR, HOUR / 4))
    done = lake.project(replace(pipeline, compute=larger)).late_reopen("hours")
    assert [(each["kind"], each["rows"], each["window_start"]) for each in done.left] == [
        ("windows_of_other_size", 0, None)
    ]
