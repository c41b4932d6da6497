"""The lateness curve: what it says about a setting is what a run with that setting does, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.commit_times import date_commit, newest_entry
from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.property.event_windows import EVENT_TIME, MINUTE, SUMS
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.ask import arrivals as reading
from tidegate.pipelines.ask.advise import Advice
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.observe.report.columns import Grid
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import (
    Count,
    EventTimeSessionWindows,
    GlobalWindows,
    IntervalJoin,
    ProcessingTimeSessionWindows,
    Repeatedly,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowJoin,
    Windows,
)
from tidegate.windowing.assigners.aligned import WindowStagger
from tidegate.windowing.time import Millis, to_millis
from tidegate.windowing.triggers import AfterCount
from tidegate.windowing.watermarks import PunctuatedWatermarks

BOUNDS = st.sampled_from([0, 1, 5, 10, 30, 70])


def advice_of(lake: Lake, pipeline: Pipeline, **asked: Any) -> Advice:
    return lake.project(pipeline).advise(pipeline.name, **asked)


def dated(lake: Lake, commits: Sequence[tuple[int, Sequence[tuple[str, int, int]]]]) -> None:
    """Write commits: minutes since the previous commit, and rows of user, minutes before the commit, and value."""
    now = DAY0 + timedelta(hours=6)
    for after, rows in commits:
        now += after * MINUTE
        lake.append(*((user, now - before * MINUTE, value) for user, before, value in rows))
        date_commit(newest_entry(lake.path("events")), round(now.timestamp() * 1000), with_files=True)


ROWS = st.lists(
    st.tuples(st.sampled_from(["ann", "bob", "cem"]), st.sampled_from([0, 0, 1, 5, 30, 70]), st.integers(1, 40)),
    min_size=1,
    max_size=5,
)
COMMITS = st.lists(st.tuples(st.sampled_from([1, 10, 35, 90]), ROWS), min_size=2, max_size=8)


def drawn_pipeline(windows: str, bound: int, lateness: int, idleness: int | None, by_user: bool) -> Pipeline:
    """Return windows of a kind, with a bound of out-of-orderness, lateness and idleness in minutes."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound * MINUTE)
    return hourly_pipeline(
        "p",
        watermark=strategy if idleness is None else strategy.with_idleness(idleness * MINUTE),
        watermark_by="user" if by_user else None,
        compute=EVENT_TIME[windows](aggregate=SUMS, allowed_lateness=lateness * MINUTE),
    )


@settings(max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(EVENT_TIME)), COMMITS, BOUNDS, BOUNDS, st.sampled_from([None, 20, 60]), st.booleans())
def test_the_late_rows_are_those_of_a_run(
    windows: str, commits: Any, bound: int, lateness: int, idleness: int | None, by_user: bool
) -> None:
    pipeline = drawn_pipeline(windows, bound, lateness, idleness, by_user)
    with TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        dated(lake, commits)
        lake.stream(LOCAL, pipeline)
        late = lake.rows(pipeline, "late")
        present = advice_of(lake, pipeline).present
        assert present.late == len(late)
        by_partition = Counter(late["user"].to_pylist()) if by_user else Counter({"": len(late)})
        assert Counter(present.late_by_partition) == by_partition

        # Return the same from a pipeline with other settings, as the curve predicts it.
        other = replace(
            pipeline,
            watermark=WatermarkStrategy.for_monotonous_timestamps(),
            compute=EVENT_TIME[windows](aggregate=SUMS),
        )
        curve = advice_of(
            lake,
            other,
            bound=[timedelta(minutes=bound)],
            lateness=[timedelta(minutes=lateness)],
            **({} if idleness is None else {"idleness": [timedelta(minutes=idleness)]}),
        ).curve
        assert curve[-1].late == len(late)
        assert Counter(curve[-1].late_by_partition) == by_partition
        assert curve[-1].wrong == wrong_at_first(lake, replace(pipeline, name="all"), windows)


def wrong_at_first(lake: Lake, pipeline: Pipeline, windows: str) -> int:
    """Count the windows whose first pane lacked a row or was late, in a run that accepts every row however late it
    is.
    """
    everything = EVENT_TIME[windows](aggregate=SUMS, allowed_lateness=timedelta(days=100))
    pipeline = replace(pipeline, compute=everything)
    with lake.driver(LOCAL, pipeline) as driver:
        stream = Stream(driver, lambda manifest: None)
        stream.run_available()
        stream.end_of_input()
    panes = [pane for pane in lake.rows(pipeline, "results").to_pylist() if pane["op"] == "+"]
    wrong = 0
    for window in lake.latest(pipeline).to_pylist():
        within = [
            pane
            for pane in panes
            if pane["user"] == window["user"]
            and pane["window_start"] >= window["window_start"]
            and pane["window_end"] <= window["window_end"]
        ]
        wrong += any(
            pane["timing"] == "late" or (pane["timing"] == "on_time" and pane["events"] < window["events"])
            for pane in within
        )
    return wrong


def hours(lake: Lake, **options: Any) -> Pipeline:
    """Three commits: 10:00, a jump to 13:00, and then a row of 10:30."""
    lake.append(("ann", at("10:00"), 1), ("bob", at("10:10"), 2))
    lake.append(("ann", at("13:00"), 4))
    lake.append(("ann", at("10:30"), 8), ("ann", at("14:30"), 16))
    return hourly_pipeline(**options)


def test_a_curve_says_what_each_bound_does(lake: Lake) -> None:
    advice = advice_of(lake, hours(lake), bound=["0s", "1h", timedelta(hours=3)])
    assert [(point.varied, point.bound, point.late, point.wrong) for point in advice.curve] == [
        ("present", 3_600_000, 1, 1),
        ("bound", 0, 1, 1),
        ("bound", 10_800_000, 0, 0),
    ]
    assert (advice.rows, advice.commits, advice.present.windows) == (5, 3, 4)
    # After 14:30 the watermark is 13:30, or 14:30, or 11:30. All have passed the hours from 10:00, and one has passed
    # that of 13:00.
    assert [point.open_now for point in advice.curve] == [2, 1, 2]
    assert [point.open_most for point in advice.curve] == [2, 2, 3]
    # An hour that ended at 11:00 fires when 13:00 is read, or, three hours later, when 14:30 is.
    assert [point.wait for point in advice.curve] == [7_200_001, 7_200_001, 12_600_001]


def test_a_source_without_usable_rows_holds_event_time_back_by_no_length_of_time(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1), ("ann", at("12:00"), 1))
    lake.append((None, None, 1))
    lake.append((None, None, 1), table="right")
    joined = hourly_pipeline(
        compute=IntervalJoin.between(-5, 5), right=Input(source=DeltaSource("right", timestamp="at"))
    )
    project = lake.project(joined)
    project.stream("hours")
    assert "holds the watermark back, until its next event" in str(project.why("hours"))
    advice = project.advise("hours")
    assert [(part.name, part.held_back, part.behind) for part in advice.partitions] == [("right", 3, 0), ("left", 0, 0)]
    assert "right 0 3 0 ms -" in " ".join(str(advice).split())
    alone = replace(joined, source=joined.right.source, right=None, compute=hourly_pipeline().compute)
    assert "0 rows" in str(advice_of(lake, alone))


def test_both_inputs_of_a_join_keep_the_settings_that_are_not_varied(lake: Lake) -> None:
    bounds = [WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=hours)) for hours in (0, 3)]
    joined = hourly_pipeline(
        compute=IntervalJoin.between(-5, 5),
        watermark=bounds[0],
        right=Input(source=DeltaSource("right", timestamp="at"), watermark=bounds[1]),
    )
    for number, hour in enumerate((10, 12, 14, 13, 11, 16, 12)):
        for table in ("events", "right"):
            lake.append(("ann", at(f"{hour}:05"), 1), table=table)
            date_commit(newest_entry(lake.path(table)), to_millis(at("20:00")) + number)
    advice = advice_of(lake, joined, idleness=[timedelta(days=1)])
    assert [(point.bound, point.late) for point in advice.curve] == [(None, 2), (None, 2)]
    advice = advice_of(lake, joined, bound=[timedelta(0)])
    assert [(point.bound, point.late) for point in advice.curve] == [(None, 2), (0, 6)]
    strict = replace(joined, name="strict", right=Input(source=DeltaSource("right", timestamp="at")))
    for pipeline, point in zip((joined, strict), advice.curve, strict=True):
        lake.project(pipeline).stream(pipeline.name)
        assert len(lake.rows(pipeline, "late")) == point.late


@pytest.mark.long
def test_the_bound_for_a_share_of_the_rows_keeps_so_many_in_time(lake: Lake) -> None:
    for number in range(50):
        lake.append(("ann", at("00:00") + timedelta(minutes=10 * number), 1))
        lake.append(("ann", at("00:00") + timedelta(minutes=10 * number - (number % 20) * 13), 1))
    pipeline = hourly_pipeline(watermark=WatermarkStrategy.for_monotonous_timestamps())
    advice = advice_of(lake, pipeline)
    for share, bound in advice.bounds.items():
        (point,) = [point for point in advice.curve if point.bound == bound and point.varied in ("bound", "present")]
        allowed = advice.rows * (100 - float(share)) / 100
        assert point.late <= allowed
        if bound:
            (less,) = advice_of(lake, pipeline, bound=[timedelta(milliseconds=bound - 1)]).curve[1:] or [advice.present]
            assert less.late > allowed


def test_a_partition_that_holds_the_watermark_back_is_named(lake: Lake) -> None:
    commits: list[tuple[int, list[tuple[str, int, int]]]] = [(10, [("slow", 0, 1)])]
    commits += [(10, [("fast", 0, 1)]) for _ in range(5)]
    dated(lake, commits)
    pipeline = hourly_pipeline(watermark_by="user")
    first, second = advice_of(lake, pipeline).partitions
    assert (first.name, first.held_back, first.behind) == ("slow", 6, 50 * 60_000)
    assert (second.name, second.held_back) == ("fast", 0)
    # An hour and ten minutes of commits, during which the partition without rows becomes idle.
    ascending = replace(pipeline, watermark=WatermarkStrategy.for_monotonous_timestamps())
    waiting, with_idleness = advice_of(lake, ascending, idleness=["15min"]).curve
    assert (waiting.open_now, with_idleness.open_now) == (3, 1)


def test_many_rows_are_taken_in_shares_of_the_keys(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f"user {number}", at("10:00") + timedelta(minutes=7 * number % 300), 1) for number in range(60)]
    for begin in range(0, 60, 12):
        lake.append(*rows[begin : begin + 12])
    for pipeline in (session_pipeline(), hourly_pipeline()):
        whole = advice_of(lake, pipeline)
        monkeypatch.setattr(reading, "ROWS_AT_ONCE", 7)
        assert advice_of(lake, pipeline) == whole
        monkeypatch.undo()


def test_each_option_that_varies_has_a_column(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1), ("ann", at("10:20"), 2), ("ann", at("11:00"), 4))
    pipeline = session_pipeline()
    asked = {"bound": [MINUTE, 2 * MINUTE], "gap": [10 * MINUTE, 40 * MINUTE]}
    advice = advice_of(lake, pipeline, **asked)
    (grid,) = (shown for shown in advice.shown() if isinstance(shown, Grid))
    assert grid.columns[:3] == ["varied", "bound", "gap"]
    assert [tuple(row[1:3]) for row in grid.rows] == [
        ("1 h", "30 min"),
        ("1 min", "10 min"),
        ("1 min", "40 min"),
        ("2 min", "10 min"),
        ("2 min", "40 min"),
    ]
    (other,) = (shown for shown in advice_of(lake, pipeline, bound=[MINUTE]).shown() if isinstance(shown, Grid))
    assert other.columns[:3] == ["varied", "bound", "late"]


def test_the_page_has_the_curve_and_the_run_report_links_it(lake: Lake) -> None:
    pipeline = hours(lake)
    lake.stream(LOCAL, pipeline)
    project = lake.project(pipeline)
    report = Path(project.report(pipeline.name).file)
    assert "tidegate advise hours --page" in report.read_text()
    page = project.advise(pipeline.name, page=True).file
    assert page is not None
    text = Path(page).read_text()
    assert text.count("<svg") == 4
    assert ">now<" in text
    assert 'href="advice.html"' in Path(project.report(pipeline.name).file).read_text()
    assert Path(page).parent == report.parent


def refused(lake: Lake, pipeline: Pipeline) -> str:
    lake.append(("ann", at("10:00"), 1))
    with pytest.raises(Refused) as refusal:
        advice_of(lake, pipeline)
    return str(refusal.value)


def test_windows_that_are_never_late_are_refused(lake: Lake) -> None:
    by_clock = Windows(ProcessingTimeSessionWindows.with_gap(MINUTE), aggregate={"events": Count()})
    assert "end by the clock" in refused(lake, replace(hourly_pipeline(), compute=by_clock))
    never = Windows(GlobalWindows.create(), Repeatedly(AfterCount(2)), aggregate={"events": Count()})
    assert "the global window never ends" in refused(lake, replace(hourly_pipeline(), compute=never))


def own_gap(row: Any) -> Millis:
    return 5


def test_a_gap_is_only_for_sessions_with_one_gap(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1))
    with pytest.raises(UsageError, match=r"--gap: the windows of 'hours' are not sessions with one gap"):
        lake.project(hourly_pipeline()).advise("hours", gap=["5min"])


def test_the_windows_of_a_join_are_refused(lake: Lake) -> None:
    lake.append(("ann", at("10:00"), 1), table="payments")
    joined = hourly_pipeline(
        right=Input(source=DeltaSource("payments", timestamp="at")),
        compute=WindowJoin(TumblingEventTimeWindows.of(timedelta(hours=1)), "inner"),
    )
    told = refused(lake, joined)
    assert "the windows of a join over two inputs can't be counted without a run" in told
    # The remedy of the message: a pipeline with windows over one of the inputs.
    assert advice_of(lake, hourly_pipeline()).rows == 1


def test_a_generator_that_sees_every_event_is_refused(lake: Lake) -> None:
    own = WatermarkStrategy.for_generator(lambda: PunctuatedWatermarks(lambda event, timestamp: timestamp))
    told = refused(lake, hourly_pipeline(watermark=own))
    assert "its watermark generator sees every event" in told
    assert "Look at the late rows" in told


def test_rows_that_only_spark_reads_are_refused(lake: Lake) -> None:
    told = refused(lake, hourly_pipeline(where="hash(value) is not null"))
    assert "rows are read without Spark here" in told
    assert advice_of(lake, hourly_pipeline(where="value is not null")).rows == 1


def test_windows_that_only_a_run_assigns_are_refused(lake: Lake) -> None:
    staggered = TumblingEventTimeWindows.of(timedelta(hours=1), stagger=WindowStagger.RANDOM)
    undrawn = replace(hourly_pipeline(), compute=Windows(staggered, aggregate={"events": Count()}))
    assert "until its stagger is chosen" in refused(lake, undrawn)
    dynamic = Windows(EventTimeSessionWindows.with_dynamic_gap(own_gap), aggregate={"events": Count()})
    assert "can't be counted without a run" in refused(lake, replace(hourly_pipeline(), compute=dynamic))


def test_a_log_that_was_cleaned_up_is_read_from_a_later_version(lake: Lake) -> None:
    pipeline = hours(lake)
    DeltaTable(lake.path("events")).create_checkpoint()
    newest_entry(lake.path("events")).with_name(f"{0:020}.json").unlink()
    with pytest.raises(Refused, match="--from-version"):
        advice_of(lake, pipeline)
    assert advice_of(lake, pipeline, from_version=1).rows == 3
