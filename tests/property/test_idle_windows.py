"""Idle source partitions under every assigner: commits cut into epochs in any way give the same panes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.lake import DAY0, EVENTS, hourly_pipeline
from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import (
    AfterCount,
    AfterWatermark,
    CalendarEventTimeWindows,
    Count,
    EventTimeSessionWindows,
    GapColumn,
    GlobalWindows,
    Max,
    ProcessingTimeSessionWindows,
    Repeatedly,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    Windows,
)

MINUTE = timedelta(minutes=1)
SUMS = {"events": Count(), "total": Sum("value"), "largest": Max("value")}

EVENT_TIME: dict[str, Callable[..., Windows]] = {
    "tumbling": lambda **more: Windows(TumblingEventTimeWindows.of(20 * MINUTE, 7 * MINUTE), **more),
    "sliding": lambda **more: Windows(SlidingEventTimeWindows.of(50 * MINUTE, 20 * MINUTE), **more),
    "sliding with gaps": lambda **more: Windows(SlidingEventTimeWindows.of(10 * MINUTE, 25 * MINUTE), **more),
    "sessions": lambda **more: Windows(EventTimeSessionWindows.with_gap(15 * MINUTE), **more),
    "gaps": lambda **more: Windows(EventTimeSessionWindows.with_dynamic_gap(GapColumn("value")), **more),
    "calendar": lambda **more: Windows(CalendarEventTimeWindows.days("Europe/Berlin"), **more),
    "early": lambda **more: Windows(
        TumblingEventTimeWindows.of(30 * MINUTE), AfterWatermark(early=AfterCount(2), late=AfterCount(1)), **more
    ),
}
OTHERS: dict[str, Callable[..., Windows]] = {
    "global": lambda **more: Windows(GlobalWindows.create(), Repeatedly(AfterCount(2)), aggregate=more["aggregate"]),
    "tumbling by the clock": lambda **more: Windows(
        TumblingProcessingTimeWindows.of(20 * MINUTE), aggregate=more["aggregate"]
    ),
    "sliding by the clock": lambda **more: Windows(
        SlidingProcessingTimeWindows.of(50 * MINUTE, 20 * MINUTE), aggregate=more["aggregate"]
    ),
    "sessions by the clock": lambda **more: Windows(
        ProcessingTimeSessionWindows.with_gap(15 * MINUTE), aggregate=more["aggregate"]
    ),
}

ROWS = st.lists(
    st.tuples(st.sampled_from(["ann", "bob", "cem"]), st.sampled_from([0, 0, 1, 5, 30, 70]), st.integers(1, 40)),
    max_size=4,
)
"""User, minutes before the commit, and a value that serves as a gap too."""
COMMITS = st.lists(st.tuples(st.sampled_from([1, 10, 35, 90]), ROWS, st.booleans()), min_size=2, max_size=7)
"""Minutes since the commit before, its rows, and whether an epoch ends with it."""


def live(compute: Windows, by: str | None, idle: int | None, commits: Sequence[tuple[Any, ...]], cut: bool) -> Any:
    """Panes, late rows and counters of commits; in epochs as drawn, or one for each commit."""
    watermark = WatermarkStrategy.for_bounded_out_of_orderness(5 * MINUTE)
    pipeline = hourly_pipeline(
        "p",
        watermark=watermark if idle is None else watermark.with_idleness(idle * MINUTE),
        watermark_by=by,
        compute=compute,
    )
    harness = PipelineHarness(pipeline, EVENTS)
    now = DAY0 + timedelta(days=1)
    for number, (apart, rows, ends) in enumerate(commits):
        now += apart * MINUTE
        events = [(user, now - before * MINUTE, value * 60_000) for user, before, value in rows]
        harness.commit([dict(zip(EVENTS.names, event, strict=True)) for event in events], at=now)
        if ends or not cut or number == len(commits) - 1:
            harness.run(parallelism=1 + number % 2 if cut else 1)
    harness.pass_time(now + timedelta(days=3))
    return harness


def panes(harness: PipelineHarness) -> list[tuple[Any, ...]]:
    names = ("user", "window_start", "window_end", "pane", "timing", "op", "watermark", *SUMS)
    return sorted((tuple(row[name] for name in names) for row in harness.results()), key=repr)


def late(harness: PipelineHarness) -> list[str]:
    return sorted(str({**row, "epoch": None}) for row in harness.late())


def agree(name: str, by: str | None, idle: int | None, lateness: int, commits: Sequence[tuple[Any, ...]]) -> None:
    """Hold epochs as they are drawn against an epoch for each commit, and all elements against the counters."""
    make = {**EVENT_TIME, **OTHERS}[name]
    compute = make(aggregate=cast("Any", SUMS), allowed_lateness=lateness * MINUTE)
    cut, whole = (live(compute, by, idle, commits, is_cut) for is_cut in (True, False))
    assert panes(cut) == panes(whole)
    assert late(cut) == late(whole)
    rows = sum(len(rows) for _, rows, _ in commits)
    for harness in (cut, whole):
        taken = harness.counters["on_time"] + harness.counters["late"] + harness.counters.get("no_window", 0)
        assert taken == rows


DRAWN = (
    st.sampled_from([*EVENT_TIME, *OTHERS]),
    st.sampled_from(["user", None]),
    st.sampled_from([None, 8, 20, 60]),
    st.sampled_from([0, 0, 25]),
    COMMITS,
)


@settings(max_examples=15)
@given(*DRAWN)
def test_epochs_do_not_show_where_partitions_are_idle(
    name: str, by: str | None, idle: int | None, lateness: int, commits: list[Any]
) -> None:
    agree(name, by, idle, lateness, commits)


@pytest.mark.long
@pytest.mark.parametrize("name", [*EVENT_TIME, *OTHERS])
def test_no_assigner_shows_the_epochs(name: str) -> None:
    @settings(max_examples=60)
    @given(*DRAWN[1:])
    def drawn(by: str | None, idle: int | None, lateness: int, commits: list[Any]) -> None:
        agree(name, by, idle, lateness, commits)

    drawn()


def test_the_draws_find_time_that_stands_still_until_an_epoch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seeded bug: idleness is noticed at the first commit of an epoch alone."""
    until = EventTimes.until
    # Of the values themselves, because numbers of values that are gone are given again.
    asked: list[EventTimes] = []

    def once(times: EventTimes, committed: int) -> Any:
        step = until(times, 0 if any(times is other for other in asked) else committed)
        asked.append(times)
        return step

    monkeypatch.setattr(EventTimes, "until", once)

    @settings(database=None, phases=[Phase.generate], max_examples=150)
    @given(st.sampled_from(["tumbling", "sessions"]), st.just("user"), st.just(8), st.just(0), COMMITS)
    def drawn(name: str, by: str, idle: int, lateness: int, commits: list[Any]) -> None:
        agree(name, by, idle, lateness, commits)

    with pytest.raises(AssertionError):
        drawn()
