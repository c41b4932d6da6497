"""Idle source partitions under every assigner: commits cut into epochs in any way give the same panes.

The watermark never goes back, whatever inputs do, and a restore on the way changes nothing. `watermark_by` is added,
removed and changed in mid-life: the watermark goes on, for one input and for two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.lake import DAY0, EVENTS, hourly_pipeline
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.definition.recorded import Schemas
from tidegate.pipelines.epoch import event_times, plan_commits
from tidegate.pipelines.epoch.event_times import partitions_of, sides_of, step_of, times_of, watermarks_of
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import (
    AfterCount,
    AfterWatermark,
    CalendarEventTimeWindows,
    Count,
    EventTimeSessionWindows,
    GapColumn,
    GlobalWindows,
    IntervalJoin,
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
from tidegate.windowing.testing import ManualClock, RecordingOutput
from tidegate.windowing.time import MIN_TIMESTAMP
from tidegate.windowing.watermarks import EventTimes

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
    until = plan_commits.step_until
    # Of the values themselves, because numbers of values that are gone are given again.
    asked: list[EventTimes] = []

    def once(times: EventTimes, committed: int) -> Any:
        step = until(times, 0 if any(times is other for other in asked) else committed)
        asked.append(times)
        return step

    monkeypatch.setattr(plan_commits, "step_until", once)

    @settings(database=None, phases=[Phase.generate], max_examples=150)
    @given(st.sampled_from(["tumbling", "sessions"]), st.just("user"), st.just(8), st.just(0), COMMITS)
    def drawn(name: str, by: str, idle: int, lateness: int, commits: list[Any]) -> None:
        agree(name, by, idle, lateness, commits)

    with pytest.raises(AssertionError):
        drawn()


def watermarks(output: RecordingOutput) -> list[int]:
    return [out for out in output.out if isinstance(out, int)]


STRATEGIES = [
    WatermarkStrategy.for_monotonous_timestamps(),
    WatermarkStrategy.for_bounded_out_of_orderness(7),
    WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(7, 10, 5),
    WatermarkStrategy.for_bounded_out_of_orderness(7).with_idleness(15),
]


@given(
    st.sampled_from(STRATEGIES),
    st.lists(st.one_of(st.integers(0, 100), st.none()), max_size=40),
    st.integers(0, 40),
)
def test_a_generator_never_goes_back_and_survives_a_restore(
    strategy: WatermarkStrategy, steps: list[int | None], at: int
) -> None:
    """Numbers are timestamps of events, None is a periodic call 5 ms later."""
    outputs, clock = (RecordingOutput(), RecordingOutput()), ManualClock()
    straight, restored = (strategy.create_generator(clock) for _ in range(2))
    for number, step in enumerate(steps):
        if number == at:
            snapshot = json.loads(json.dumps(restored.snapshot()))
            restored = strategy.create_generator(clock)
            restored.restore(snapshot)
        clock.now += 5 if step is None else 0
        for generator, output in zip((straight, restored), outputs, strict=True):
            if step is None:
                generator.on_periodic_emit(output)
            else:
                generator.on_event("event", step, output)
    assert outputs[0].out == outputs[1].out
    assert watermarks(outputs[0]) == sorted(watermarks(outputs[0]))


@given(
    st.sampled_from(STRATEGIES),
    st.lists(st.one_of(st.integers(0, 100), st.none()), max_size=20),
    st.lists(st.integers(0, 30), min_size=1, max_size=5),
)
def test_calls_in_a_row_lead_where_they_lead_one_by_one(
    strategy: WatermarkStrategy, steps: list[int | None], pauses: list[int]
) -> None:
    outputs = RecordingOutput(), RecordingOutput()
    together, single = (replace(strategy, idle_timeout=None).create_generator(ManualClock()) for _ in range(2))
    for pause in pauses:
        for generator, output in zip((together, single), outputs, strict=True):
            for step in steps:
                if step is None:
                    generator.on_periodic_emit(output)
                else:
                    generator.on_event("event", step + 50 * pause, output)
        together.on_periodic_emits(pause, outputs[0])
        for _ in range(pause):
            single.on_periodic_emit(outputs[1])
        assert together.snapshot() == single.snapshot()
        assert watermarks(outputs[0])[-1:] == watermarks(outputs[1])[-1:]


COLUMNS = (None, "user", "place")

ROWS_BY = st.lists(
    st.fixed_dictionaries(
        {"user": st.sampled_from("ab"), "place": st.sampled_from(["", "x", "y"]), "time": st.integers(0, 1_000)}
    ),
    min_size=1,
    max_size=4,
)
STEPS_BY = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 1), ROWS_BY),
        st.tuples(st.just("change"), st.integers(0, 1), st.sampled_from(COLUMNS)),
    ),
    min_size=4,
    max_size=14,
)


def pipeline_of(columns: Sequence[str | None]) -> Pipeline:
    """One input for each column, which its source partitions are of."""
    options: dict[str, Any] = {
        "name": "hours",
        "source": DeltaSource("events", timestamp="time", unit="ms"),
        "key": ("user",),
        "watermark": WatermarkStrategy.for_monotonous_timestamps(),
        "watermark_by": columns[0],
    }
    if len(columns) == 1:
        windows = Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"n": Count()})
        return Pipeline(**options, compute=windows)
    kind = pa.struct([("x", pa.int64())])
    join = IntervalJoin(timedelta(0), timedelta(hours=1), join=lambda left, right: {"x": 1}, result_type=kind)
    right = Input(source=DeltaSource("payments", timestamp="time", unit="ms"), watermark_by=columns[1])
    return Pipeline(**options, compute=join, right=right)


def manifest_of(pipeline: Pipeline, times: EventTimes, epoch: int) -> Manifest:
    """Return the event time in a snapshot after it was written and read again."""
    manifest = Manifest(
        pipeline=pipeline.name,
        timeline=1,
        epoch=epoch,
        parent=None,
        line=((1, epoch),),
        kind="stream",
        order="arrival",
        positions={},
        watermark=times.watermark,
        partitions=partitions_of(times),
        inputs=watermarks_of(times),
        watermark_by={
            side: one.watermark_by
            for one, side in zip(pipeline.inputs, sides_of(pipeline), strict=True)
            if one.watermark_by is not None
        },
        processing_time=epoch,
        max_parallelism=1,
        shards=(),
        fingerprint="",
        schemas=Schemas(key={}, namespace="", contents={}),
        counters={},
        publish={},
        run_id="",
        started_at=0,
        library_version="",
    )
    return Manifest.parse(manifest.model_dump_json())


def partition_of(row: Mapping[str, Any], column: str | None) -> str:
    return "" if column is None else str(row[column])


def live_by(inputs: int, steps: Sequence[tuple[Any, ...]]) -> None:
    """Hold event time against what the columns of the rows since each change say.

    A column that was changed and changed back between two epochs was never another one: no snapshot knows of it.
    """
    columns: list[str | None] = [None] * inputs
    used: list[str | None] = [None] * inputs
    since: list[dict[str, int]] = [{} for _ in range(inputs)]
    own, expected = [MIN_TIMESTAMP] * inputs, MIN_TIMESTAMP
    manifest: Manifest | None = None
    for epoch, (what, place, value) in enumerate(steps, start=1):
        number = place % inputs
        if what == "change":
            columns[number] = value
            continue
        for changed in range(inputs):
            if columns[changed] != used[changed]:
                used[changed], since[changed] = columns[changed], {}
        pipeline = pipeline_of(columns)
        times = times_of(pipeline, manifest)
        largest: dict[str, int] = {}
        for row in value:
            name = partition_of(row, columns[number])
            largest[name] = max(largest.get(name, 0), row["time"])
            since[number][name] = max(since[number].get(name, 0), row["time"])
        step_of(times, number, largest, epoch)
        own[number] = max(own[number], min(since[number].values()) - 1)
        expected = max(expected, min(own))
        assert times.watermark == expected, (columns, since)
        manifest = manifest_of(pipeline, times, epoch)


@given(st.integers(1, 2), STEPS_BY)
def test_the_watermark_is_that_of_the_partitions_since_the_column_changed(
    inputs: int, steps: list[tuple[Any, ...]]
) -> None:
    live_by(inputs, steps)


@pytest.mark.parametrize("inputs", [1, 2])
def test_the_draws_find_partitions_that_stay_behind(inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_times, "replaced_partitions", lambda pipeline, manifest: set())

    @settings(database=None, phases=[Phase.generate], max_examples=300)
    @given(STEPS_BY)
    def drawn(steps: list[tuple[Any, ...]]) -> None:
        live_by(inputs, steps)

    with pytest.raises(AssertionError):
        drawn()


@given(st.sampled_from(COLUMNS), st.lists(st.sampled_from(["", "a", "b"]), unique=True, max_size=3))
def test_an_older_manifest_tells_by_the_names_of_its_partitions_whether_it_has_any(
    column: str | None, names: list[str]
) -> None:
    pipeline = pipeline_of([None])
    times = times_of(pipeline, None)
    for name in names:
        step_of(times, 0, {name: 5}, 1)
    older = manifest_of(pipeline, times, 1)
    assert "watermark_by" not in older.model_dump()
    only = set(names) <= {""}
    expected = only if column is None else not names or set(names) != {""}
    assert older.are_partitioned_by("", column) == expected
