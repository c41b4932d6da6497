"""Ingestion time: windows by the time of the source commit that an element came with."""

from __future__ import annotations

from tidegate.windowing import (
    CumulateIngestionTimeWindows,
    IngestionTimeSessionWindows,
    SlidingIngestionTimeWindows,
    TumblingIngestionTimeWindows,
    Windows,
)
from tidegate.windowing.assigners import DynamicIngestionTimeSessionWindows, WindowAssigner
from tidegate.windowing.testing import window_harness

COMMITS = [(1_000, [7, 3]), (1_004, [1]), (1_030, [900])]
"""Commit times, and the event times of each commit's elements, which must not matter."""


def windows_of(assigner: WindowAssigner, pause_after: int | None = None) -> list[tuple[int, int, int]]:
    run = window_harness(Windows(assigner, reduce=lambda a, b: a + b))
    for number, (commit_time, timestamps) in enumerate(COMMITS):
        run.processing_time(commit_time)
        for timestamp in timestamps:
            run.element("a", 1, timestamp)
        run.end_commit()
        if number == pause_after:
            run.restore(run.snapshot())
    run.processing_time(2_000)
    return [(result.window.start, result.window.end, result.value) for result in run.results()]


def test_elements_are_in_the_windows_of_their_commits_time() -> None:
    assert windows_of(TumblingIngestionTimeWindows.of(10)) == [(1_000, 1_010, 3), (1_030, 1_040, 1)]
    assert windows_of(IngestionTimeSessionWindows.with_gap(6)) == [(1_000, 1_010, 3), (1_030, 1_036, 1)]
    assert windows_of(DynamicIngestionTimeSessionWindows(lambda value: 28))[0] == (1_000, 1_058, 4)
    assert windows_of(SlidingIngestionTimeWindows.of(10, 5))[0] == (995, 1_005, 2)
    assert windows_of(CumulateIngestionTimeWindows.of(10, 5))[0] == (1_000, 1_005, 2)


def test_a_replay_cut_anywhere_gives_the_same_windows() -> None:
    for cut in range(len(COMMITS)):
        assert windows_of(TumblingIngestionTimeWindows.of(10), cut) == windows_of(TumblingIngestionTimeWindows.of(10))
