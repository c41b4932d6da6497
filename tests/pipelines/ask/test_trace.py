"""The trace of a key: its rows reproduce each published value, and lateness is reported as it was decided."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.ask.test_advise import BOUNDS, COMMITS, dated, drawn_pipeline
from tests.pipelines.quiet import Quiet
from tests.property.event_windows import EVENT_TIME, MINUTE
from tidegate import EpochLimits
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.ask.trace import Trace
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.observe.report.columns import Grid
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import spelled
from tidegate.pipelines.sources.parquet_reader import SourceParquet
from tidegate.windowing import (
    Count,
    KeepFirst,
    KeyedProcess,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    Sum,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.watermarks import PunctuatedWatermarks

ROW = pa.struct([("value", pa.int64())])


def value_of(trace: Trace, rows: Sequence[int]) -> tuple[int, int]:
    values = [trace.elements[row].value["value"] for row in rows]
    return len(values), sum(values)


def assert_told(lake: Lake, pipeline: Pipeline, users: Sequence[str] = ("ann", "bob", "cem")) -> int:
    """Compare every pane and late row of some keys with their traces; return the number of compared panes."""
    compared, project = 0, lake.project(pipeline)
    late = lake.rows(pipeline, "late").to_pylist()
    published = lake.rows(pipeline, "results").to_pylist()
    for user in users:
        trace = project.trace(pipeline.name, (user,))
        assert len(trace.panes) == sum(pane["user"] == user and not pane["stale"] for pane in published)
        for traced in trace.panes:
            if traced.pane["op"] == "+" and traced.pane["timing"] != "early":
                assert traced.rows is not None, traced.pane
                assert value_of(trace, traced.rows) == (traced.pane["events"], traced.pane["total"])
                compared += 1
        told = sorted((row.time, row.value["value"], row.reopened) for row in trace.elements if row.late)
        of_user = [row for row in late if row["user"] == user and not row["stale"]]
        assert told == sorted((round(row["at"].timestamp() * 1000), row["value"], row["reopened"]) for row in of_user)
    return compared


@pytest.mark.first(1)
@pytest.mark.parametrize("windows", sorted({*EVENT_TIME} - {"early"}))
@settings(max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(COMMITS, BOUNDS, BOUNDS, st.sampled_from([None, 20, 60]), st.booleans())
def test_the_rows_of_a_trace_give_the_published_values(
    windows: str, commits: Any, bound: int, lateness: int, idleness: int | None, by_user: bool
) -> None:
    pipeline = drawn_pipeline(windows, bound, lateness, idleness, by_user)
    with TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        dated(lake, commits)
        lake.stream(LOCAL, pipeline, commits=2)
        assert_told(lake, pipeline)


@pytest.mark.first(1)
@pytest.mark.parametrize("make", [session_pipeline, hourly_pipeline])
def test_a_backfill_then_a_stream_then_reopened_rows(make: Any, lake: Lake) -> None:
    pipeline = make(watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(minutes=10)))
    lake.append(("ann", at("00:10"), 1), ("ann", at("00:20"), 2), ("bob", at("05:00"), 4), ("ann", at("11:50"), 8))
    lake.append(("ann", at("12:05"), 16))
    lake.backfill(LOCAL, pipeline, DAY0, DAY0 + timedelta(hours=12), "6h")
    lake.append(("ann", at("00:15"), 32), ("ann", at("13:00"), 64))
    lake.append(("ann", at("20:00"), 128), ("bob", at("05:10"), 256))
    lake.stream(LOCAL, pipeline)
    assert assert_told(lake, pipeline, ("ann", "bob")) >= 4
    lake.reopen(LOCAL, pipeline)
    lake.append(("ann", at("23:00"), 512))
    lake.stream(LOCAL, pipeline)
    assert assert_told(lake, pipeline, ("ann", "bob")) >= 6


def test_after_a_restore_the_trace_is_that_of_the_line_that_holds(lake: Lake) -> None:
    pipeline = session_pipeline()
    lake.append(("ann", at("00:10"), 1))
    lake.stream(LOCAL, pipeline)
    lake.append(("ann", at("03:00"), 2))
    lake.stream(LOCAL, pipeline)
    project = lake.project(pipeline)
    project.restore("sessions", 1)
    assert [row.value["value"] for row in project.trace("sessions", ("ann",)).elements] == [1]
    lake.append(("ann", at("00:20"), 4), ("ann", at("09:00"), 8))
    lake.stream(LOCAL, pipeline)
    assert assert_told(lake, pipeline, ["ann"]) == 2
    # The oldest retained snapshot is now the newest, and the trace still goes back to the first row.
    project.tables.vacuum("sessions", snapshots=1, days=0)
    assert len(project.trace("sessions", ("ann",)).elements) == 4
    assert assert_told(lake, pipeline, ["ann"]) == 2


@pytest.mark.first(1)
@pytest.mark.parametrize("make", [session_pipeline, hourly_pipeline])
def test_after_rows_of_the_source_changed_the_trace_begins_with_the_correction(make: Any, lake: Lake) -> None:
    pipeline = make(source=DeltaSource("events", timestamp="at", changes="correct"))
    lake.append(("ann", at("00:10"), 1), ("ann", at("00:20"), 2), ("bob", at("00:10"), 4))
    lake.append(("ann", at("05:00"), 8))
    lake.append(("ann", at("00:30"), 16))
    lake.stream(LOCAL, pipeline, commits=1)
    DeltaTable(lake.path("events")).delete("value = 2")
    lake.stream(LOCAL, pipeline)
    corrected = lake.snapshot(pipeline).manifest.epoch
    lake.append(("ann", at("05:10"), 32), ("ann", at("12:00"), 64))
    lake.append(("ann", at("04:50"), 128))
    lake.stream(LOCAL, pipeline, commits=1)
    trace = lake.project(pipeline).trace(pipeline.name, ("ann",))
    assert trace.begins == corrected
    # The correction recomputed the night, and included its late row.
    assert [row.value["value"] for row in trace.elements if row.late] == [128]
    told = [traced for traced in trace.panes if traced.rows is not None]
    assert all(value_of(trace, one.rows) == (one.pane["events"], one.pane["total"]) for one in told)
    # The newest pane of each window is explained, but not the panes that the correction retracted.
    assert [one.pane["total"] for one in told] == [17, 40]
    assert {one.pane["total"] for one in trace.panes if one.rows is None} == {3}


def test_rows_from_before_the_history_are_listed_only_if_they_give_the_result_of_the_pane(lake: Lake) -> None:
    hour = timedelta(hours=1)
    sliding = Windows(SlidingEventTimeWindows.of(2 * hour, hour), aggregate={"events": Count(), "total": Sum("value")})
    pipeline = hourly_pipeline(source=DeltaSource("events", timestamp="at", changes="correct"), compute=sliding)
    lake.append(("ann", at("10:10"), 1), ("bob", at("12:30"), 2))
    lake.append(("ann", at("10:40"), 4), ("bob", at("16:00"), 8))
    lake.stream(LOCAL, pipeline, commits=1)
    DeltaTable(lake.path("events")).delete("value = 2")
    lake.stream(LOCAL, pipeline)
    trace = lake.project(pipeline).trace("hours", ("ann",))
    # The second row missed the first window.
    told = [(one.pane["total"], one.rows) for one in trace.panes]
    assert told == [(1, None), (5, (0, 1))]


def test_a_forgotten_key_has_no_trace(lake: Lake) -> None:
    pipeline = session_pipeline()
    lake.append(("ann", at("00:10"), 1), ("bob", at("00:10"), 2))
    lake.append(("ann", at("05:00"), 4))
    lake.stream(LOCAL, pipeline)
    project = lake.project(pipeline)
    project.forget("sessions", ("ann",))
    trace = project.trace("sessions", ("ann",))
    assert (trace.elements, trace.events, trace.panes) == ((), (), ())
    assert "was forgotten" in str(trace.remark)
    assert len(project.trace("sessions", ("bob",)).elements) == 1
    # What follows it is a key like any other.
    lake.append(("ann", at("08:00"), 8))
    lake.stream(LOCAL, pipeline)
    assert [row.value["value"] for row in project.trace("sessions", ("ann",)).elements] == [8]


def test_a_window_has_its_merges_and_a_page_with_a_time_line(lake: Lake) -> None:
    pipeline = session_pipeline(watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=1)))
    lake.append(("ann", at("10:00"), 1), ("ann", at("10:50"), 2), ("ann", at("20:00"), 64))
    lake.append(("ann", at("10:25"), 4))
    project = lake.project(pipeline)
    lake.stream(LOCAL, pipeline, commits=1)
    page = lake.folder / "page.html"
    trace = project.trace("sessions", ("ann",), window=at("10:00"), to=page)
    told = [(event.what, event.rows) for event in trace.events]
    assert ("opened", ()) in told
    assert {row.value["value"] for row in trace.elements} >= {1}
    assert 64 not in {row.value["value"] for row in trace.elements}
    text = page.read_text()
    assert text.count("<svg") == 1
    assert "sessions: trace of ann" in text
    between = str(project.trace("sessions", ("ann",), window=at("11:11")).remark)
    assert "never had a window that starts at 2024-03-01T11:11:00Z" in between
    named = re.search(r"the window from (\S+) to \S+ (?:has that time|is the nearest): --window (\S+)$", between)
    assert named is not None, between
    assert project.trace("sessions", ("ann",), window=named[2]).remark is None
    assert named[1] == named[2]


def test_a_long_trace_shows_the_newest_lines_and_has_all(lake: Lake) -> None:
    lake.append(*(("ann", at("00:00") + timedelta(hours=hour), 1) for hour in range(60)))
    pipeline = session_pipeline(max_ahead=timedelta(days=9))
    lake.stream(LOCAL, pipeline)
    project = lake.project(pipeline)
    trace = project.trace("sessions", ("ann",), to=(page := lake.folder / "page.html"))
    grids = [shown for shown in trace.shown() if isinstance(shown, Grid)]
    count = len(trace.events)
    assert grids[0].title.endswith(f", the last 100 of {count}")
    assert [len(grid.rows) for grid in grids] == [100, 60, len(trace.panes)]
    assert "`--limit 0` shows all lines" in str(trace)
    assert len(trace.to_dict()["events"]) == count > 100
    (events, rows, *_) = [
        shown for shown in project.trace("sessions", ("ann",), limit=7).shown() if isinstance(shown, Grid)
    ]
    assert (len(events.rows), rows.title, rows.rows[-1][0]) == (7, "rows, the last 7 of 60", 59)
    whole = project.trace("sessions", ("ann",), limit=None)
    assert [len(grid.rows) for grid in whole.shown() if isinstance(grid, Grid)] == [count, 60, len(trace.panes)]
    assert f"the last 100 of {count} events" in page.read_text()


def test_a_file_is_read_once_for_all_intervals_of_a_backfill(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The times of the files are not known, so each interval has a part of each file."""
    pipeline = session_pipeline(source=DeltaSource("events", timestamp="t"), columns={"t": "coalesce(at, at)"})
    for hour in range(3):
        lake.append(*(("ann", at("00:00") + timedelta(hours=hour + 3 * day), 1) for day in range(8)))
    lake.backfill(LOCAL, pipeline, DAY0, DAY0 + timedelta(days=1), "3h")
    reads, read = list[int](), SourceParquet.read
    monkeypatch.setattr(SourceParquet, "read", lambda *given: reads.append(1) or read(*given))
    assert len(lake.project(pipeline).trace("sessions", ("ann",)).elements) == 24
    assert len(reads) == 3


def test_a_trace_of_a_session_of_many_rows_grows_with_their_number(lake: Lake) -> None:
    pipeline = session_pipeline()
    lake.append(*(("ann", at("10:00") + timedelta(seconds=second), 1) for second in range(300)))
    lake.stream(LOCAL, pipeline)
    project = lake.project(pipeline)
    waiting = project.trace("sessions", ("ann",), window=at("10:00"))
    assert len(waiting.elements) == 300
    lake.append(("ann", at("20:00"), 1))
    lake.stream(LOCAL, pipeline)
    trace = project.trace("sessions", ("ann",), window=at("10:00"))
    assert len(trace.panes[0].rows or ()) == 300
    assert sum(len(event.rows) for event in trace.events) == 2 * 300
    assert "  0-299  " in str(trace)


@pytest.mark.first(1)
@pytest.mark.parametrize("key", [("user", "item"), (), ("user",)])
def test_a_report_draws_a_window_of_a_key_with_slashes(lake: Lake, tmp_path: Path, key: tuple[str, ...]) -> None:
    times = [at("10:05"), at("10:15")]
    lake.write(pa.table({"user": ["/a/b", "/a/b"], "item": ["x/y", "x/y"], "at": times, "value": [1, 2]}))
    project = lake.project(hourly_pipeline(key=key))
    project.stream("hours", end_of_input=True)
    shown = "/".join({"user": "/a/b", "item": "x/y"}[name] for name in key) or "all"
    page = Path(project.report("hours", key=shown, window=at("10:00"), to=tmp_path / "page.html").file).read_text()
    assert f"Window of {shown} from 2024-03-01T10:00:00Z" in page


def test_a_pipeline_without_a_key_has_a_trace(lake: Lake) -> None:
    lake.append(("ann", at("10:05"), 1), ("bob", at("10:15"), 2))
    project = lake.project(hourly_pipeline(key=()))
    project.stream("hours", end_of_input=True)
    trace = project.trace("hours")
    assert [(value_of(trace, traced.rows or ()), traced.pane["events"]) for traced in trace.panes] == [((2, 3), 2)]
    assert "hours: what happened up to epoch" in str(trace)


def test_what_can_not_be_told_is_refused(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    by_clock = Windows(ProcessingTimeSessionWindows.with_gap(MINUTE), aggregate={"events": Count()})
    pipeline = replace(hourly_pipeline(), compute=by_clock)
    lake.stream(LOCAL, pipeline)
    with pytest.raises(Refused, match="does not compute `Windows` of event time"):
        lake.project(pipeline).trace("hours", ("ann",))
    pipeline = session_pipeline()
    lake.append(("ann", at("14:00"), 1))
    lake.stream(LOCAL, pipeline)
    other = replace(pipeline, watermark=WatermarkStrategy.for_monotonous_timestamps())
    with pytest.raises(Refused, match="a different watermark strategy was in use then"):
        lake.project(other).trace("sessions", ("ann",))


def test_a_source_that_was_replaced_is_refused(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    pipeline = hourly_pipeline()
    lake.stream(LOCAL, pipeline)
    rmtree(lake.path("events"))
    lake.append(("ann", at("11:00"), 2))
    project = lake.project(pipeline)
    project.source.reset("hours", keep_results=True, from_="beginning")
    with pytest.raises(Refused, match="its source was replaced and read from the beginning"):
        project.trace("hours", ("ann",))
    assert "its source was replaced" in str(project.verify("hours", sample="all").why_unverifiable)


def test_rows_and_watermarks_that_are_not_read_here_are_refused(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    pipeline = hourly_pipeline()
    lake.stream(LOCAL, pipeline)
    own = WatermarkStrategy.for_generator(lambda: PunctuatedWatermarks(lambda event, timestamp: timestamp))
    for other, told in (
        (replace(pipeline, where="hash(value) is not null"), "its rows are read without Spark here"),
        (replace(pipeline, watermark=own), "its watermark generator sees every event"),
        (replace(pipeline, compute=KeyedProcess(KeepFirst(ROW))), "does not compute `Windows` of event time"),
    ):
        with pytest.raises(Refused, match=told):
            lake.project(other).trace("hours", ("ann",))


def test_why_and_late_rows_point_to_the_trace(lake: Lake) -> None:
    pipeline = hourly_pipeline()
    lake.append(("ann o", at("10:00"), 1), ("ann o", at("13:00"), 2))
    lake.append(("ann o", at("10:30"), 4))
    lake.stream(LOCAL, pipeline, commits=1)
    project = lake.project(pipeline)
    of_key = project.why("hours", key=("ann o",))
    trace = Remedy(Act.TRACE, "hours", key=("ann o",))
    assert of_key.remedies == (Remedy(Act.REOPEN, "hours"), trace)
    assert spelled(trace) in str(of_key)
    assert project.why("hours").remedies == ()
    assert any('project.trace("hours", KEY)' in str(line) for line in project.late.summary("hours").shown())
    (late,) = [event for event in project.trace("hours", ("ann o",)).events if event.what == "late"]
    assert "had passed 2024-03-01T10:59:59.999Z" in late.why


def test_late_summary_names_a_trace_only_where_it_works(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1), ("ann", at("13:00"), 2))
    lake.append(("ann", at("10:30"), 4), ("bob", at("10:30"), 5))
    derived = hourly_pipeline("derived", key=("initial",), columns={"initial": "substring(user, 1, 1)"})
    quiet = hourly_pipeline("quiet", compute=KeyedProcess(Quiet()))
    project = lake.project(hourly_pipeline(key=()), derived, quiet)
    for name, key, windows in (("hours", (), 1), ("derived", None, None), ("quiet", (), 0)):
        project.stream(name, limits=EpochLimits(commits=1))
        summary = project.late.summary(name)
        assert summary.trace == (None if name == "quiet" else Remedy(Act.TRACE, name, key=key))
        assert [group["windows"] for group in summary.groups] == [windows]
