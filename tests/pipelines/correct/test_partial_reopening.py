"""A reopening adds the late rows that it can, and lists the others with the reason."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.lake import LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.remedies import remedy_of
from tidegate.pipelines import Pipeline
from tidegate.pipelines.errors import NotReopenable, NoWindow, SourceFileMissing
from tidegate.pipelines.remedy import Act
from tidegate.windowing import Count, SlidingEventTimeWindows, Sum, Windows
from tidegate.windowing.time import from_millis

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


@pytest.mark.first(1)
@pytest.mark.parametrize("pipeline", [hourly_pipeline(), session_pipeline()], ids=["hours", "sessions"])
def test_rows_whose_files_are_missing_stay_late_and_the_others_are_reopened(lake: Lake, pipeline: Pipeline) -> None:
    late_lake(lake, pipeline)
    # The files of 1970 and of 03:00.
    lose(lake, 1, 3)
    project = lake.project(pipeline)
    with pytest.raises(SourceFileMissing):
        project.late.reopen(pipeline.name, strict=True)
    done = project.late.reopen(pipeline.name)
    assert done.rows == 6
    assert {row["user"] for row in lake.final(pipeline).to_pylist()} == {"u02", "u05", "u06"}
    assert [(each["kind"], each["rows"]) for each in done.left] == [
        ("source_file_missing", 1),
        ("source_file_missing", 2 if "hours" in pipeline.name else 1),
        *([] if "hours" in pipeline.name else [("source_file_missing", 1)]),
    ]
    assert 0 <= done.left[0]["window_start"] < 10_000
    assert all("is missing" in each["reason"] for each in done.left)
    assert "can't be reopened; they stay in table late" in str(done)
    again = project.late.reopen(pipeline.name)
    assert (again.epoch, again.rows, again.left) == (None, 0, done.left)
    assert again.to_dict()["left"] == list(done.left)


def test_a_selection_of_a_key_lists_only_its_own_rows(lake: Lake) -> None:
    pipeline = hourly_pipeline()
    late_lake(lake, pipeline)
    lose(lake, 3)
    project = lake.project(pipeline)
    assert [each["rows"] for each in project.late.reopen("hours", key="u03").left] == [2]
    assert project.late.reopen("hours", key="u02").left == ()


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
    done = lake.project(replace(pipeline, compute=larger)).late.reopen("hours")
    assert [(each["kind"], each["rows"], each["window_start"]) for each in done.left] == [
        ("windows_of_other_size", 0, None)
    ]


def reopenings(lake: Lake, pipeline: Pipeline) -> int:
    return lake.rows(pipeline, "epochs")["kind"].to_pylist().count("reopen")


def test_a_selection_is_divided_where_the_missing_files_are(lake: Lake) -> None:
    pipeline = hourly_pipeline()
    lake.append(("ann", at("23:00"), 1))
    for hour in range(20):
        lake.append((f"u{hour}", at(f"{hour:02}:10"), 1))
    lake.stream(LOCAL, pipeline)
    lose(lake, 6, 15)
    done = lake.project(pipeline).late.reopen("hours")
    assert done.rows == 18
    assert [from_millis(each["window_start"]) for each in done.left] == [at("05:00"), at("14:00")]
    assert reopenings(lake, pipeline) == 3, "one before, one between and one after them"


def sliding_lake(lake: Lake) -> Pipeline:
    """Run a backfill from 10:00 whose row of 10:20 missed windows from before, and whose rows of 12:00 are late.

    Then rewrite all files, so that it is unknown which rows from before 10:00 were read.
    """
    sliding = Windows(SlidingEventTimeWindows.of(HOUR, HOUR / 4), aggregate={"events": Count(), "total": Sum("value")})
    pipeline = hourly_pipeline(compute=sliding)
    lake.append(("ann", at("08:30"), 100), ("ann", at("10:05"), 1), ("ann", at("13:05"), 1), ("ann", at("16:05"), 1))
    lake.backfill(LOCAL, pipeline, at("10:00"), at("11:00"))
    lake.append(("ann", at("10:20"), 10))
    lake.backfill(LOCAL, pipeline, at("11:00"), at("16:00"))
    lake.append(("ann", at("12:00"), 20), ("bob", at("12:00"), 30))
    lake.backfill(LOCAL, pipeline, at("16:00"), at("17:00"))
    DeltaTable(lake.path("events")).optimize.compact()
    return pipeline


def test_windows_from_before_the_first_interval_keep_no_later_row_late(lake: Lake) -> None:
    pipeline = sliding_lake(lake)
    done = lake.project(pipeline).late.reopen("hours")
    assert done.rows == 2
    assert [(each["kind"], each["rows"]) for each in done.left] == [("rewritten_before_first_interval", 0)]
    assert reopenings(lake, pipeline) == 1
    assert set(lake.rows(pipeline, "late")["reopened"].to_pylist()) == {done.epoch}


def test_the_start_that_the_message_names_reopens_the_others(lake: Lake) -> None:
    pipeline = sliding_lake(lake)
    project = lake.project(pipeline)
    with pytest.raises(NotReopenable) as refused:
        project.late.reopen("hours", strict=True)
    start = remedy_of(refused, Act.REOPEN_FROM).start
    assert start is not None
    assert project.late.reopen("hours", start=from_millis(start), strict=True).rows == 2


@pytest.mark.parametrize("strict", [True, False])
def test_a_late_row_that_the_new_windows_leave_out_stays_late(lake: Lake, strict: bool) -> None:
    pipeline = hourly_pipeline()
    late_lake(lake, pipeline)
    pauses = replace(pipeline.compute, assigner=SlidingEventTimeWindows.of(HOUR / 4, HOUR))  # type: ignore[type-var]
    changed = replace(pipeline, compute=pauses)
    project = lake.project(changed)
    if strict:
        with pytest.raises(NoWindow, match="belong to no window, because its windows have gaps"):
            project.late.reopen("hours", strict=True)
        assert set(lake.rows(pipeline, "late")["reopened"].to_pylist()) == {None}
        return
    done = project.late.reopen("hours")
    rows = lake.rows(pipeline, "late").to_pylist()
    assert {row["at"].minute for row in rows if row["reopened"] is None} == {20}
    assert done.rows == 5
    assert [(each["kind"], each["rows"]) for each in done.left] == [("no_window", 1)] * 4
    again = project.late.reopen("hours")
    assert (again.epoch, again.left) == (None, done.left)
    counted = sum(row["events"] for row in lake.latest(changed).to_pylist())
    assert counted == done.rows, "the row of 20:00 is in a window that is still open"
