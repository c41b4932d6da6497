"""Windows that end by the clock: the cut into epochs changes nothing, no window opens twice, and no row is lost.

Commits come at any millisecond of a window, its first and its last included, and clock epochs stand between them.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
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
    CumulateProcessingTimeWindows,
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
from tidegate.windowing.assigners import MergingWindowAssigner, WindowAssigner
from tidegate.windowing.windows import Merge, TimeWindow

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
    CumulateProcessingTimeWindows.of(12, 4),
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
        if (
            shape[1] is None
            and not isinstance(shape[0], CumulateProcessingTimeWindows)
            and accumulation is not Accumulation.DISCARDING
        ):
            copies = 2 if shape[0] == SlidingProcessingTimeWindows.of(10, 5) else 1
            assert sum(row["n"] for row in harness.latest()) == rows * copies


@dataclass(frozen=True)
class Back(WindowAssigner):
    """Ten milliseconds from so long before the clock as an element says."""

    def assign_windows(self, element: Any, timestamp: Any, ctx: Any) -> Sequence[TimeWindow]:
        start = ctx.current_processing_time - element["back"]
        return [TimeWindow(start, start + 10)]

    def get_default_trigger(self) -> ProcessingTimeTrigger:
        return ProcessingTimeTrigger()

    @property
    def is_event_time(self) -> bool:
        return False


class Joined(Back, MergingWindowAssigner):
    """As `Back`, and windows that touch merge."""


class Ended(Joined):
    """As `Joined`, but a merge ends as early as one of its windows."""

    def merge_windows(self, windows: Collection[TimeWindow]) -> list[Merge]:
        return [
            Merge(TimeWindow(merge.result.start, min(window.end for window in merge.sources)), merge.sources)
            for merge in super().merge_windows(windows)
        ]


BACK = pa.schema([*SCHEMA, ("back", pa.int64())])


def played(assigner: WindowAssigner, *commits: tuple[int, int]) -> PipelineHarness:
    """Return a stream of elements, each the clock of its commit and how far it looks back."""
    made = harness_of((TumblingProcessingTimeWindows.of(10), None), Accumulation.ACCUMULATING)
    compute = replace(made.bound.pipeline.compute, assigner=assigner)
    harness = PipelineHarness(replace(made.bound.pipeline, compute=compute), BACK)
    for clock, back in commits:
        harness.commit([{"user": "a", "at": 5, "back": back}], at=clock)
        harness.run()
    harness.pass_time(commits[-1][0] + 100)
    assert harness.counters["on_time"] + harness.counters["late"] == len(commits)
    assert not harness.state()
    return harness


def taken(harness: PipelineHarness) -> tuple[list[tuple[int, int]], list[str]]:
    """Return pane and count of each window, and the reasons of late rows."""
    panes = sorted((row["pane"], row["n"]) for row in harness.results())
    return panes, [row["reason"] for row in harness.late()]


def test_a_window_of_an_assigner_of_ones_own_that_the_clock_has_passed_takes_no_element() -> None:
    assert taken(played(Back(), (1_000, 0), (1_009, 9))) == ([(0, 2)], []), "its last millisecond is in it"
    assert taken(played(Back(), (1_000, 0), (1_010, 10))) == ([(0, 1)], ["windows_passed"])
    assert taken(played(Back(), (1_000, 11))) == ([], ["windows_passed"]), "nor is it opened"


def test_a_merge_that_ends_behind_the_clock_gives_a_late_row() -> None:
    assert taken(played(Joined(), (1_000, 0), (1_009, 12))) == ([(0, 2)], []), "its last millisecond is in it"
    assert taken(played(Joined(), (1_000, 0), (1_010, 12))) == ([(0, 1)], ["windows_passed"])
    assert taken(played(Ended(), (1_000, 0), (1_005, 14))) == ([(0, 1)], ["merged_window_late"])
