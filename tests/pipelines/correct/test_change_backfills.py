"""Backfills of a source that changes: the next run of any interval corrects the windows of earlier ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.commit_times import vacuum_with_no_hours
from tests.expectations.broken import broken_in
from tests.lake import LOCAL, Lake, at
from tests.pipelines.correct.lakes import HOURS, SESSIONS, newest, two_users
from tidegate.pipelines import Pipeline
from tidegate.pipelines.errors import Refused


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return two_users(tmp_path)


def backfilled(lake: Lake, pipeline: Pipeline, start: str, end: str) -> str:
    (run,) = lake.backfill(LOCAL, pipeline, at(start), at(end))
    return run.state


@pytest.mark.first(1)
@pytest.mark.parametrize("pipeline", [HOURS, SESSIONS], ids=["hours", "sessions"])
def test_a_run_of_any_interval_corrects_the_earlier_ones(lake: Lake, pipeline: Pipeline) -> None:
    for start in range(10, 15):
        backfilled(lake, pipeline, f"{start}:00", f"{start + 1}:00")
    lake.append(("ann", at("10:50"), 50))
    DeltaTable(lake.path("events")).update({"value": "40"}, predicate="user = 'bob'")
    assert backfilled(lake, pipeline, "10:00", "11:00") == "unchanged", "which the correction has just brought"
    totals = {(row["user"], row["total"]) for row in lake.final(pipeline).to_pylist()}
    assert totals == {("ann", 56), ("bob", 40), ("cem", 11)}
    assert lake.rows(pipeline, "late").num_rows == 0
    kinds = [row["kind"] for row in lake.rows(pipeline, "epochs").sort_by("epoch").to_pylist()]
    assert kinds == [*["backfill"] * 5, "change"]
    assert broken_in(lake.tables(pipeline), pipeline) == set()


def test_rows_that_are_appended_after_a_correction_are_taken_in_by_a_run_of_their_interval(lake: Lake) -> None:
    for start in range(10, 15):
        backfilled(lake, HOURS, f"{start}:00", f"{start + 1}:00")
    DeltaTable(lake.path("events")).delete("user = 'bob'")
    assert backfilled(lake, HOURS, "14:00", "15:00") == "unchanged"
    lake.append(("ann", at("11:50"), 50))
    assert backfilled(lake, HOURS, "11:00", "12:00") == "unchanged", "which a correction has just brought"
    assert ("ann", 50) in {(row["user"], row["total"]) for row in lake.final(HOURS).to_pylist()}
    before = newest(lake, HOURS)
    assert backfilled(lake, HOURS, "11:00", "12:00") == "unchanged"
    assert newest(lake, HOURS) == before
    assert broken_in(lake.tables(HOURS), HOURS) == set()


def test_files_of_versions_in_between_may_be_gone(lake: Lake) -> None:
    for start in range(10, 15):
        backfilled(lake, HOURS, f"{start}:00", f"{start + 1}:00")
    lake.append(("dan", at("10:55"), 1))
    DeltaTable(lake.path("events")).update({"value": "2"}, predicate="user = 'dan'")
    assert len(vacuum_with_no_hours(lake.path("events"))) == 1
    assert backfilled(lake, HOURS, "14:00", "15:00") == "unchanged", "which the correction has just brought"
    assert ("dan", 2) in {(row["user"], row["total"]) for row in lake.final(HOURS).to_pylist()}
    assert broken_in(lake.tables(HOURS), HOURS) == set()


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", ["stream", "backfill"])
def test_files_that_were_compacted_and_vacuumed_since_the_last_run_are_not_missed(lake: Lake, kind: str) -> None:
    def run() -> None:
        if kind == "stream":
            lake.stream(LOCAL, HOURS)
        else:
            backfilled(lake, HOURS, "10:00", "11:00")

    lake.append(("ann", at("10:55"), 1))
    run()
    DeltaTable(lake.path("events")).optimize.compact()
    assert len(vacuum_with_no_hours(lake.path("events"))) > 1
    # Nothing is new, so the position may stay before the compaction.
    run()
    DeltaTable(lake.path("events")).delete("user = 'bob'")
    run()
    assert {row["user"] for row in lake.final(HOURS).to_pylist()} == {"ann"}
    assert broken_in(lake.tables(HOURS), HOURS) == set()


def test_rows_before_the_first_interval_stay_out(lake: Lake) -> None:
    lake.append(("ann", at("08:00"), 100), ("ann", at("08:30"), 200))
    backfilled(lake, HOURS, "10:00", "11:00")
    DeltaTable(lake.path("events")).update({"value": "value + 1"}, predicate="value in (1, 100)")
    backfilled(lake, HOURS, "11:00", "12:00")
    assert {(row["user"], row["total"]) for row in lake.final(HOURS).to_pylist()} == {("ann", 7), ("bob", 4)}
    (row,) = [row for row in lake.rows(HOURS, "epochs").to_pylist() if row["kind"] == "change"]
    assert (row["events_in"], row["on_time"], row["no_window"]) == (2, 1, 1)
    assert (row["rows_deleted"], row["deleted_in_windows"]) == (2, 1)
    assert broken_in(lake.tables(HOURS), HOURS) == set()


def test_an_interval_behind_a_change_is_not_run_again_with_new_code_unless_all_are(lake: Lake) -> None:
    for start in range(10, 13):
        backfilled(lake, HOURS, f"{start}:00", f"{start + 1}:00")
    DeltaTable(lake.path("events")).delete("user = 'bob'")
    other = replace(HOURS, max_ahead=timedelta(hours=2))
    told = r"rows of the source have changed since\. .*start=\"2024-03-01T10:00:00Z\".*again=True"
    with pytest.raises(Refused, match=told):
        backfilled(lake, other, "11:00", "12:00")
    assert backfilled(lake, other, "10:00", "11:00") == "done"
    assert {row["user"] for row in lake.final(HOURS).to_pylist()} == {"ann"}


def test_a_stream_takes_over_from_a_backfill_and_corrects_what_changed_in_between(lake: Lake) -> None:
    backfilled(lake, HOURS, "10:00", "11:00")
    DeltaTable(lake.path("events")).delete("value in (3, 5)")
    lake.stream(LOCAL, HOURS)
    lake.append(("ann", at("20:00"), 1))
    lake.stream(LOCAL, HOURS)
    assert {(row["user"], row["total"]) for row in lake.final(HOURS).to_pylist()} == {
        ("ann", 3),
        ("bob", 4),
        ("cem", 6),
    }
