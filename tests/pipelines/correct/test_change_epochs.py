"""Epochs of kind `change`: what they publish, count and refuse; a crash after any of their steps does no damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.commit_times import vacuum_with_no_hours
from tests.expectations.broken import broken_in
from tests.lake import EVENTS, LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.correct.lakes import (
    CORRECTING,
    HOURS,
    SESSIONS,
    crashed_after,
    newest,
    overwritten,
    panes,
    two_users,
)
from tests.recovery.arrivals import STEPS
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.row_sets import surplus
from tidegate.pipelines.errors import Refused
from tidegate.windowing import (
    Count,
    CountTrigger,
    KeyedProcess,
    KeyedProcessFunction,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.errors import IllegalArgument


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return two_users(tmp_path)


def test_an_update_retracts_the_pane_that_stands_and_publishes_the_new(lake: Lake) -> None:
    lake.stream(LOCAL, HOURS)
    before = newest(lake, HOURS)
    DeltaTable(lake.path("events")).update({"value": "20"}, predicate="value = 2")
    (manifest, *_) = lake.stream(LOCAL, HOURS)
    assert manifest.kind == "change"
    assert panes(lake, HOURS, before) == [("ann", "10:00", 0, "-", 6), ("ann", "10:00", 1, "+", 24)]
    counted = {
        name: manifest.counters[name]
        for name in ("events_in", "on_time", "rows_deleted", "deleted_in_windows", "retracted")
    }
    assert counted == {"events_in": 1, "on_time": 1, "rows_deleted": 1, "deleted_in_windows": 1, "retracted": 1}


@pytest.mark.first(5)
@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ({}, {"where": "value <> 4"}),
        ({}, {"where": "twice <> 8", "columns": {"twice": "value * 2"}}),
        ({"where": "value <> 99"}, {"where": "value <> 4"}),
        ({"null_keys": "keep"}, {"null_keys": "reject"}),
        ({}, {"source": replace(CORRECTING, not_before=datetime(2024, 3, 1, 10, 30))}),
    ],
)
@pytest.mark.parametrize("made", [hourly_pipeline, session_pipeline])
def test_a_deleted_row_leaves_its_window_although_the_current_code_would_not_count_it(
    older: dict[str, Any], newer: dict[str, Any], made: Callable[..., Pipeline], tmp_path: Path
) -> None:
    lake, key = Lake(tmp_path), None if "null_keys" in older else "bob"
    lake.append((key, at("10:00"), 4), (key, at("12:00"), 3), ("end", at("20:00"), 1))
    before, after = (made(**{"source": CORRECTING, **code}) for code in (older, newer))
    lake.stream(LOCAL, before)
    DeltaTable(lake.path("events")).delete("value = 4")
    (manifest, *_) = lake.stream(LOCAL, after)
    assert (manifest.counters["rows_deleted"], manifest.counters["deleted_in_windows"]) == (1, 1)
    assert [row["total"] for row in lake.latest(after).to_pylist()] == [3]
    assert broken_in(lake.tables(after), after) == set()


def test_a_row_that_was_never_counted_is_not_deleted_from_a_window_after_a_change_of_code(tmp_path: Path) -> None:
    """Table rejects has one of them, and `where` of all code dropped the other, whose window is computed in vain."""
    lake = Lake(tmp_path)
    before = hourly_pipeline(source=CORRECTING, where="value <> 4")
    after = hourly_pipeline(source=CORRECTING, where="value <> 4", allowed_lateness=timedelta(hours=1))
    lake.append((None, at("10:00"), 4), (None, at("10:00"), 5), ("bob", at("10:00"), 3), ("end", at("20:00"), 1))
    lake.stream(LOCAL, before)
    DeltaTable(lake.path("events")).delete("value > 3")
    (manifest, *_) = lake.stream(LOCAL, after)
    assert manifest.counters["rows_deleted"] == 2
    assert [row["total"] for row in lake.latest(after).to_pylist()] == [3]
    assert len(lake.rows(after, "rejects")) == 0
    assert broken_in(lake.tables(after), after) == set()


def test_a_window_that_loses_all_its_rows_is_retracted_and_may_come_again(lake: Lake) -> None:
    lake.stream(LOCAL, HOURS)
    before = newest(lake, HOURS)
    DeltaTable(lake.path("events")).delete("user = 'bob'")
    lake.stream(LOCAL, HOURS)
    assert panes(lake, HOURS, before) == [("bob", "10:00", 0, "-", 4)]
    DeltaTable(lake.path("events")).restore(1)
    lake.stream(LOCAL, HOURS)
    assert panes(lake, HOURS, before)[1:] == [("bob", "10:00", 0, "+", 4)]
    assert {row["user"]: row["total"] for row in lake.final(HOURS).to_pylist()} == {"ann": 6, "bob": 4}


def came_again(lake: Lake) -> Pipeline:
    """Bob's session fires and is deleted from the source, and late rows create it again, twice in the end."""
    pipeline = session_pipeline(source=CORRECTING, allowed_lateness=timedelta(hours=9))
    lake.stream(LOCAL, pipeline)
    DeltaTable(lake.path("events")).delete("user = 'bob'")
    lake.stream(LOCAL, pipeline)
    lake.append(("bob", at("10:30"), 7))
    lake.stream(LOCAL, pipeline)
    return pipeline


def test_a_session_that_vanished_and_comes_again_by_late_rows_begins_with_pane_0(lake: Lake) -> None:
    pipeline = came_again(lake)
    of_bob = [pane[1:] for pane in panes(lake, pipeline, 0) if pane[0] == "bob"]
    assert of_bob == [("10:30", 0, "+", 4), ("10:30", 0, "-", 4), ("10:30", 0, "+", 7)]
    lake.append(("bob", at("10:30"), 1))
    lake.stream(LOCAL, pipeline)
    assert {row["user"]: row["total"] for row in lake.latest(pipeline).to_pylist()}["bob"] == 8
    assert broken_in(lake.tables(pipeline), pipeline) == set()
    DeltaTable(lake.path("events")).delete("user = 'bob'")
    lake.append(("bob", at("10:30"), 2))
    lake.stream(LOCAL, pipeline)
    assert {row["user"]: row["total"] for row in lake.latest(pipeline).to_pylist()}["bob"] == 2
    assert broken_in(lake.tables(pipeline), pipeline) == set()


@pytest.mark.parametrize(("before", "after"), [(["a", "b"], ['a","b']), ([], [""])])
@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_lists_are_compared_by_their_values(kind: pa.DataType, before: list[str], after: list[str]) -> None:
    sides = [pa.table({"tags": pa.array([tags], pa.list_(kind))}) for tags in (before, after)]
    assert [flags.tolist() for flags in surplus(*sides, ["tags"])] == [[True], [True]]


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("before", "time", "in_windows"),
    [
        (TumblingEventTimeWindows.of(timedelta(hours=1)), "10:50", [("10:00", 2), ("10:30", 1)]),
        (SlidingEventTimeWindows.of(timedelta(minutes=20), timedelta(minutes=30)), "10:25", [("10:00", 3)]),
    ],
    ids=["another window", "no window"],
)
def test_late_rows_from_before_a_change_of_windows_are_added_to_all_their_windows(
    tmp_path: Path, before: WindowAssigner, time: str, in_windows: list[tuple[str, int]]
) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", at("15:00"), 1))
    sums: dict[str, Any] = {"events": Count(), "total": Sum("value")}
    for assigner, late in ((before, time), (TumblingEventTimeWindows.of(timedelta(minutes=30)), "10:20")):
        pipeline = replace(HOURS, compute=Windows(assigner, aggregate=sums))
        lake.stream(LOCAL, pipeline)
        lake.append(("ann", at(late), 1))
        lake.stream(LOCAL, pipeline)
    lake.append(("ann", at("10:10"), 7))
    lake.stream(LOCAL, pipeline)
    DeltaTable(lake.path("events")).update({"value": "8"}, predicate="value = 7")
    lake.stream(LOCAL, pipeline)
    rows = lake.latest(pipeline).to_pylist()
    assert sorted((f"{row['window_start']:%H:%M}", row["events"]) for row in rows) == in_windows


@pytest.mark.first(1)
@pytest.mark.parametrize("lateness", [0, 9])
def test_a_session_that_starts_again_has_another_id_than_what_a_correction_left_of_it(
    tmp_path: Path, lateness: int
) -> None:
    """A session has the id of its first pane, which begins with rows that are deleted and appear again, too far from
    the rest to join it.
    """
    lake, first = Lake(tmp_path), ("ann", at("10:00"), 1)
    pipeline = session_pipeline(source=CORRECTING, allowed_lateness=timedelta(hours=lateness))
    for rows in ([first, ("bob", at("13:00"), 0)], [("ann", at("10:20"), 2), ("ann", at("10:40"), 4)]):
        lake.append(*rows)
        lake.stream(LOCAL, pipeline)
        lake.reopen(LOCAL, pipeline)
    DeltaTable(lake.path("events")).delete("value in (1, 2)")
    lake.stream(LOCAL, pipeline)
    lake.append(first)
    lake.stream(LOCAL, pipeline)
    lake.reopen(LOCAL, pipeline)
    standing = {(f"{row['window_start']:%H:%M}", row["total"]) for row in lake.latest(pipeline).to_pylist()}
    assert standing == {("10:00", 1), ("10:40", 4)}
    assert broken_in(lake.tables(pipeline), pipeline) == set()


def test_rows_that_are_written_anew_publish_nothing(lake: Lake) -> None:
    lake.stream(LOCAL, HOURS)
    before = lake.versions(HOURS)
    rows = DeltaTable(lake.path("events")).to_pyarrow_table()
    write_deltalake(lake.path("events"), rows.cast(EVENTS), mode="overwrite")
    (manifest, *_) = lake.stream(LOCAL, HOURS)
    assert (manifest.counters["rows_deleted"], manifest.counters["events_in"]) == (0, 0)
    after = lake.versions(HOURS)
    assert {name: after[name] for name in ("results", "late", "rejects")} == {
        name: before[name] for name in ("results", "late", "rejects")
    }


def test_rows_that_an_overwrite_brings_move_the_watermark(lake: Lake) -> None:
    lake.stream(LOCAL, HOURS)
    overwritten(lake, ("ann", at("10:00"), 1), ("cem", at("14:00"), 5), ("dan", at("18:00"), 7))
    kinds = [manifest.kind for manifest in lake.stream(LOCAL, HOURS)]
    assert kinds[:2] == ["change", "stream"]
    totals = {(row["user"], row["total"]) for row in lake.final(HOURS).to_pylist()}
    assert totals == {("ann", 1), ("cem", 5)}
    assert lake.snapshot(HOURS).manifest.position_in("events").files == 0
    assert broken_in(lake.tables(HOURS), HOURS) == set()


QUICK = {(STEPS.index("operated"), 1), (STEPS.index("committed"), 0)}
"""Every run tests the last step before the commit with one pipeline, and the commit with the other."""


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("pipeline", "step"),
    [
        pytest.param(pipeline, step, id=f"{pipeline.name}-{step}", marks=() if (at, by) in QUICK else pytest.mark.long)
        for at, step in enumerate(STEPS)
        for by, pipeline in enumerate((SESSIONS, HOURS))
    ],
)
def test_a_crash_after_any_step_of_a_correction_does_no_harm(lake: Lake, pipeline: Pipeline, step: str) -> None:
    lake.stream(LOCAL, pipeline)
    overwritten(lake, ("ann", at("10:40"), 8), ("bob", at("10:30"), 4), ("cem", at("18:00"), 7))
    beside = Lake(lake.folder.parent / "beside", lake.clock)
    shutil.copytree(lake.folder, beside.folder)
    beside.stream(LOCAL, pipeline)

    crashed_after(lake, pipeline, step)
    lake.stream(LOCAL, pipeline)
    columns = ["user", "window_start", "window_end", "window_id", "pane", "op", "total"]
    for name, of_table in (("results", columns), ("late", ["user", "at", "value"]), ("epochs", ["kind", "events_in"])):
        left, right = (each.rows(pipeline, name).select(of_table).to_pylist() for each in (lake, beside))
        assert sorted(map(str, left)) == sorted(map(str, right)), name


def test_late_rows_are_reopened_between_a_correction_and_its_watermark(lake: Lake) -> None:
    lake.stream(LOCAL, HOURS)
    lake.append(("bob", at("10:45"), 7))
    lake.stream(LOCAL, HOURS)
    overwritten(lake, ("ann", at("10:40"), 8), ("bob", at("10:45"), 7), ("cem", at("18:00"), 7))
    crashed_after(lake, HOURS, "published epochs")
    assert lake.snapshot(HOURS).manifest.position_in("events").files
    lake.reopen(LOCAL, HOURS)
    assert {(row["user"], row["total"]) for row in lake.final(HOURS).to_pylist()} == {("ann", 8), ("bob", 7)}
    lake.stream(LOCAL, HOURS)
    assert {(row["user"], row["total"]) for row in lake.final(HOURS).to_pylist()} == {("ann", 8), ("bob", 7)}
    assert broken_in(lake.tables(HOURS), HOURS) == set()


def test_a_first_interval_that_is_run_again_needs_no_correction(lake: Lake) -> None:
    lake.backfill(LOCAL, HOURS, at("10:00"), at("11:00"))
    DeltaTable(lake.path("events")).delete("user = 'bob'")
    vacuum_with_no_hours(lake.path("events"))
    with pytest.raises(Refused, match="VACUUM removed them"):
        lake.backfill(LOCAL, HOURS, at("11:00"), at("12:00"))
    lake.backfill(LOCAL, HOURS, at("10:00"), at("11:00"), again=True)
    lake.backfill(LOCAL, HOURS, at("11:00"), at("12:00"))
    assert {row["user"] for row in lake.final(HOURS).to_pylist()} == {"ann"}


def test_files_that_are_gone_before_a_change_is_read_are_refused_with_a_way_on_that_works(lake: Lake) -> None:
    lake.stream(LOCAL, HOURS)
    DeltaTable(lake.path("events")).delete("user = 'bob'")
    vacuum_with_no_hours(lake.path("events"))
    with pytest.raises(Refused, match=r"VACUUM removed them .* compared the versions 1 and 2\. .*changes='ignore'"):
        lake.stream(LOCAL, HOURS)
    lake.append(("ann", at("20:00"), 1))
    ignoring = replace(HOURS, source=replace(CORRECTING, changes="ignore"))
    lake.stream(LOCAL, ignoring)
    DeltaTable(lake.path("events")).delete("value = 3")
    lake.append(("ann", at("23:00"), 1))
    lake.stream(LOCAL, ignoring)
    assert {"ann", "bob"} <= {row["user"] for row in lake.final(HOURS).to_pylist()}


# --- refusals ------------------------------------------------------------------------------------


class Doing(KeyedProcessFunction):
    result_type = pa.struct([("value", pa.int64())])

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        """Do nothing."""


TUMBLING = TumblingEventTimeWindows.of(timedelta(hours=1))
COUNTS: dict[str, Any] = {"aggregate": {"events": Count()}}
UNCORRECTABLE: dict[str, tuple[Callable[[], Pipeline], str]] = {
    "a count trigger": (
        lambda: hourly_pipeline(source=CORRECTING, compute=Windows(TUMBLING, CountTrigger.of(3), **COUNTS)),
        "trigger CountTrigger",
    ),
    "a function": (lambda: hourly_pipeline(source=CORRECTING, compute=KeyedProcess(Doing())), "a process function"),
    "a reduce": (
        lambda: hourly_pipeline(source=CORRECTING, compute=Windows(TUMBLING, reduce=lambda a, b: a)),
        "your own function",
    ),
    "a derived key": (
        lambda: hourly_pipeline(source=CORRECTING, key=("day",), columns={"day": "to_date(at)"}),
        "key column 'day', which is derived",
    ),
    "all rows move": (
        lambda: hourly_pipeline(source=CORRECTING, where="value > 4", watermark_from="all"),
        "watermark_from = 'all'",
    ),
}


@pytest.mark.parametrize(("make", "reason"), UNCORRECTABLE.values(), ids=UNCORRECTABLE)
def test_what_can_not_be_corrected_is_told_when_the_pipeline_is_made(make: Callable[[], Pipeline], reason: str) -> None:
    with pytest.raises(IllegalArgument, match=f"source.changes = 'correct': the pipeline has {reason}.*'ignore'"):
        make()


def test_a_source_that_spark_reads_is_not_corrected(lake: Lake) -> None:
    with pytest.raises(Refused, match=r"can't correct changes of source events: .*changes='ignore'"):
        lake.stream(LOCAL, hourly_pipeline(source=replace(CORRECTING, reader="spark")))


def test_a_column_that_the_source_lost_is_named_whether_changes_are_corrected_or_not(lake: Lake) -> None:
    for source in (CORRECTING, replace(CORRECTING, changes="refuse")):
        with pytest.raises(Refused, match=r"^where of pipeline .*: 'kind = 1' names a missing column 'kind'; it has"):
            lake.stream(LOCAL, hourly_pipeline(source=source, where="kind = 1"))


@pytest.mark.first(1)
@pytest.mark.parametrize("pipeline", [HOURS, SESSIONS], ids=["hours", "sessions"])
def test_a_key_whose_name_begins_with_a_dot_is_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline
) -> None:
    """Arrow's group_by mistakes such a name for a path."""
    renamed = EVENTS.set(0, EVENTS.field("user").with_name(".user"))
    monkeypatch.setattr("tests.lake.EVENTS", renamed)
    lake, pipeline = two_users(tmp_path), replace(pipeline, key=(".user",))
    lake.stream(LOCAL, pipeline)
    lake.append(("ann", at("10:50"), 50))
    lake.stream(LOCAL, pipeline)
    assert lake.rows(pipeline, "late").num_rows == 1
    DeltaTable(lake.path("events")).update({"value": "20"}, predicate="value = 2")
    lake.stream(LOCAL, pipeline)
    totals = {(row[".user"], row["total"]) for row in lake.final(pipeline).to_pylist()}
    assert totals == {("ann", 74), ("bob", 4)}, "a correction takes the late row of its window in"
