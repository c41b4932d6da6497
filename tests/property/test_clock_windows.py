"""Windows of a user's assigner that end by the clock: behind the clock none opens, accepts an element or is merged.
test_cuts.py tests that the division into epochs changes no window of the clock and loses no row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import Count, ProcessingTimeTrigger, WatermarkStrategy, Windows
from tidegate.windowing.assigners import MergingWindowAssigner, WindowAssigner
from tidegate.windowing.windows import Merge, TimeWindow


@dataclass(frozen=True)
class Back(WindowAssigner):
    """Ten milliseconds, starting as far before the clock as the element says."""

    def assign_windows(self, element: Any, timestamp: Any, ctx: Any) -> Sequence[TimeWindow]:
        start = ctx.current_processing_time - element["back"]
        return [TimeWindow(start, start + 10)]

    def get_default_trigger(self) -> ProcessingTimeTrigger:
        return ProcessingTimeTrigger()

    @property
    def is_event_time(self) -> bool:
        return False


class Joined(Back, MergingWindowAssigner):
    """Like `Back`, but adjacent windows merge."""


class Ended(Joined):
    """Like `Joined`, but a merge ends as early as one of its windows."""

    def merge_windows(self, windows: Collection[TimeWindow]) -> list[Merge]:
        return [
            Merge(TimeWindow(merge.result.start, min(window.end for window in merge.sources)), merge.sources)
            for merge in super().merge_windows(windows)
        ]


SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64()), ("back", pa.int64())])


def played(assigner: WindowAssigner, *commits: tuple[int, int]) -> PipelineHarness:
    """Return a stream of elements, each with the clock of its commit and how far it looks back."""
    pipeline = Pipeline(
        name="p",
        source=DeltaSource("events", timestamp="at", unit="ms"),
        key=("user",),
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        compute=Windows(assigner, aggregate={"n": Count()}),
        max_ahead=timedelta(9),
    )
    harness = PipelineHarness(pipeline, SCHEMA)
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
