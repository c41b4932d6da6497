"""Windows that end by the clock: the cut into epochs changes nothing, no window opens twice, and no row is lost.

Commits come at any millisecond of a window, its first and its last included, and clock epochs stand between them.
"""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import (
    Accumulation,
    AfterCount,
    AfterProcessingTime,
    AfterWatermark,
    ContinuousProcessingTimeTrigger,
    Count,
    CountTrigger,
    ProcessingTimeoutTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Repeatedly,
    SlidingProcessingTimeWindows,
    TumblingIngestionTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    Windows,
)

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64())])
STEPS = st.lists(
    st.tuples(
        st.integers(0, 7) | st.sampled_from([9, 10, 11]), st.lists(st.sampled_from("ab"), max_size=3) | st.none()
    ),
    min_size=1,
    max_size=10,
)
"""Milliseconds since the step before, and the users of a commit's rows; None for a clock epoch."""

ASSIGNERS = [
    TumblingProcessingTimeWindows.of(10),
    TumblingIngestionTimeWindows.of(10, 3),
    SlidingProcessingTimeWindows.of(10, 5),
    SlidingProcessingTimeWindows.of(10, 10),
    ProcessingTimeSessionWindows.with_gap(4),
    ProcessingTimeSessionWindows.with_gap(1),
]
OF_ALL_WINDOWS = [
    None,
    CountTrigger.of(2),
    PurgingTrigger.of(CountTrigger.of(2)),
    ContinuousProcessingTimeTrigger.of(4),
    Repeatedly(AfterProcessingTime(3)),
    AfterWatermark(early=AfterCount(2)),
]
OF_FIXED_WINDOWS = [
    ProcessingTimeoutTrigger.of(CountTrigger.of(3), 9),
    ProcessingTimeoutTrigger.of(ProcessingTimeTrigger(), 4),
    ProcessingTimeoutTrigger.of(ContinuousProcessingTimeTrigger.of(20), 9, True, False),
]
SHAPES = st.sampled_from(ASSIGNERS).flatmap(
    lambda assigner: st.tuples(
        st.just(assigner), st.sampled_from(OF_ALL_WINDOWS if assigner.merges else OF_ALL_WINDOWS + OF_FIXED_WINDOWS)
    )
)
LAST_MILLISECOND = [(2, ["a", "a"]), (6, ["a"]), (30, [])]


def harness_of(shape: Any, accumulation: Accumulation) -> PipelineHarness:
    assigner, trigger = shape
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    source = DeltaSource("events", timestamp="at", unit="ms")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compute = Windows(assigner, trigger, accumulation=accumulation, aggregate={"n": Count()})
        pipeline = Pipeline(
            name="p", source=source, key=("user",), watermark=strategy, compute=compute, max_ahead=timedelta(9)
        )
    return PipelineHarness(pipeline, SCHEMA)


def play(harness: PipelineHarness, steps: Any, cut: Any) -> None:
    """Commit the steps. `cut` tells after which an epoch runs; None leaves clock epochs out and runs one epoch."""
    clock = 1_000
    for number, (wait, users) in enumerate(steps):
        clock += wait
        if users is not None:
            harness.commit([{"user": user, "at": 5} for user in users], at=clock)
            clock += 1
        if cut is not None and (users is None or number in cut):
            harness.run()
            if users is None:
                harness.pass_time(clock)
    harness.run()
    harness.pass_time(clock + 100)
    harness.pass_time(clock + 200)


def panes(harness: PipelineHarness) -> list[tuple[Any, ...]]:
    names = ("user", "window_id", "window_start", "window_end", "pane", "op", "timing", "n")
    return sorted(tuple(row[name] for name in names) for row in harness.results())


@example(LAST_MILLISECOND, {0, 1}, (TumblingProcessingTimeWindows.of(10), None), Accumulation.ACCUMULATING)
@example(LAST_MILLISECOND, {0, 1}, (TumblingProcessingTimeWindows.of(10), None), Accumulation.RETRACTING)
@example([(3, ["a"]), (5, None)], set(), (ASSIGNERS[0], OF_FIXED_WINDOWS[1]), Accumulation.DISCARDING)
@given(STEPS, st.sets(st.integers(0, 9)), SHAPES, st.sampled_from(Accumulation))
def test_no_cut_changes_panes_and_no_window_opens_twice(
    steps: Any, cut: set[int], shape: Any, accumulation: Accumulation
) -> None:
    whole, parts = (harness_of(shape, accumulation) for _ in range(2))
    play(whole, steps, None)
    play(parts, steps, cut)
    assert panes(parts) == panes(whole)
    rows = sum(len(users or ()) for _, users in steps)
    for harness in (whole, parts):
        marks = [(row["user"], row["window_id"], row["pane"], row["op"]) for row in harness.results()]
        assert len(set(marks)) == len(marks)
        assert harness.counters["on_time"] == rows
        assert not harness.late()
        assert not harness.state()
        if shape[1] is None and accumulation is not Accumulation.DISCARDING:
            copies = 2 if shape[0] == SlidingProcessingTimeWindows.of(10, 5) else 1
            assert sum(row["n"] for row in harness.latest()) == rows * copies
