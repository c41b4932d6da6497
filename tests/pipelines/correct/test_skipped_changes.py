"""A pipeline that skipped a change of its source goes on, and computes no window again from the source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.windowing import Count, Sum, Windows

IGNORING = hourly_pipeline(source=DeltaSource("events", timestamp="at", changes="ignore"))
CORRECTING = replace(IGNORING, source=DeltaSource("events", timestamp="at", changes="correct"))
SKIPPED = r"skipped a version of its source that changed rows \(changes = 'ignore'\).*under another name"


@pytest.fixture
def unread(tmp_path: Path) -> Lake:
    """A stream with a late row, and a deletion that it has not read."""
    lake = Lake(tmp_path)
    lake.append(("ann", at("10:00"), 1), ("ann", at("10:10"), 2), ("end", at("20:00"), 0))
    lake.stream(LOCAL, IGNORING)
    lake.append(("ann", at("10:30"), 4))
    lake.stream(LOCAL, IGNORING)
    DeltaTable(lake.path("events")).delete("value = 2")
    return lake


@pytest.fixture
def lake(unread: Lake) -> Lake:
    """A stream with a late row that skipped a deletion."""
    unread.stream(LOCAL, IGNORING)
    return unread


def totals(lake: Lake, pipeline: Pipeline = IGNORING) -> dict[Any, Any]:
    return {row["window_start"]: row["total"] for row in lake.latest(pipeline).to_pylist()}


def test_the_stream_goes_on_and_its_windows_keep_the_rows(lake: Lake) -> None:
    lake.append(("ann", at("20:30"), 8), ("end", at("23:00"), 0))
    lake.stream(LOCAL, IGNORING)
    assert totals(lake)[at("10:00")] == 3
    # So does one with other code: nothing that was read is computed again.
    more = replace(
        IGNORING,
        compute=Windows(
            IGNORING.compute.assigner, aggregate={"events": Count(), "total": Sum("value"), "more": Count()}
        ),
    )  # type: ignore[union-attr]
    lake.append(("ann", at("23:30"), 16), ("end", at("23:59"), 0))
    lake.stream(LOCAL, more)
    assert totals(lake)[at("10:00")] == 3


def test_late_rows_are_reopened_beside_the_rows_of_a_change_that_is_yet_unread(unread: Lake) -> None:
    assert unread.project(IGNORING).late.reopen("hours").left == ()
    assert totals(unread) == {at("10:00"): 7}
    assert unread.project(IGNORING).verify("hours", sample="all").faults == ()


def test_late_rows_stay_late(lake: Lake) -> None:
    project = lake.project(IGNORING)
    with pytest.raises(Refused, match=SKIPPED):
        project.late.reopen("hours")
    assert (len(lake.rows(IGNORING, "late")), totals(lake)) == (1, {at("10:00"): 3})


def test_no_window_can_be_verified_or_traced(lake: Lake) -> None:
    project = lake.project(IGNORING)
    found = project.verify("hours", sample="all")
    assert (found.faults, found.windows, found.unverifiable) == ((), 0, 1)
    assert "skipped a version of its source" in str(found.why_unverifiable)
    with pytest.raises(Refused, match=SKIPPED):
        project.trace("hours", ("ann",))


def test_later_changes_are_not_corrected_but_may_be_skipped(lake: Lake) -> None:
    DeltaTable(lake.path("events")).delete("value = 1")
    with pytest.raises(Refused, match=r"skipped a version of its source .*Start a new pipeline with a backfill"):
        lake.stream(LOCAL, CORRECTING)
    lake.stream(LOCAL, IGNORING)
    assert totals(lake) == {at("10:00"): 3}


def test_a_pipeline_with_another_name_is_computed_from_the_source_as_it_is(lake: Lake) -> None:
    named = replace(CORRECTING, name="again")
    lake.backfill(LOCAL, named, at("00:00"), at("22:00"))
    assert totals(lake, named)[at("10:00")] == 5
    project = lake.project(named)
    assert project.verify("again", sample="all").faults == ()
    DeltaTable(lake.path("events")).delete("value = 1")
    lake.backfill(LOCAL, named, at("22:00"), at("23:00"))
    assert totals(lake, named)[at("10:00")] == 4


def test_a_snapshot_from_before_the_change_can_be_corrected(lake: Lake) -> None:
    project = lake.project(CORRECTING)
    project.restore("hours", "2")
    lake.stream(LOCAL, CORRECTING)
    assert totals(lake)[at("10:00")] == 5
    assert project.verify("hours", sample="all").faults == ()


def test_an_interval_after_a_skipped_change_is_of_the_source_as_it_is_and_the_first_one_starts_over(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", at("10:00"), 1), ("ann", at("10:10"), 2), ("ann", at("12:00"), 4), ("ann", at("12:10"), 8))
    lake.backfill(LOCAL, IGNORING, at("10:00"), at("12:00"))
    DeltaTable(lake.path("events")).delete("value in (2, 4)")
    lake.backfill(LOCAL, IGNORING, at("12:00"), at("14:00"))
    assert totals(lake) == {at("10:00"): 3, at("12:00"): 8}
    project = lake.project(IGNORING)
    with pytest.raises(Refused, match=SKIPPED):
        project.late.reopen("hours")
    lake.backfill(LOCAL, IGNORING, at("10:00"), at("12:00"), again=True, and_following=True)
    assert totals(lake) == {at("10:00"): 1, at("12:00"): 8}
    assert project.verify("hours", sample="all").faults == ()
