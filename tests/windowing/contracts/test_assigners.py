"""Promises of every assigner, in both time domains, modelled on Flink's tests of window assigners. Promises of every
evictor, before and after the function, in both time domains.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.windowing.contracts.scripted import named
from tidegate.windowing import (
    CalendarEventTimeWindows,
    CalendarProcessingTimeWindows,
    CountEvictor,
    CountTrigger,
    CumulateEventTimeWindows,
    CumulateIngestionTimeWindows,
    CumulateProcessingTimeWindows,
    DeltaEvictor,
    EventTimeSessionWindows,
    GlobalWindows,
    IngestionTimeSessionWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingIngestionTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TumblingEventTimeWindows,
    TumblingIngestionTimeWindows,
    TumblingProcessingTimeWindows,
    Windows,
    WindowStagger,
)
from tidegate.windowing.assigners import (
    DynamicEventTimeSessionWindows,
    DynamicIngestionTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    MergingWindowAssigner,
    WindowAssigner,
)
from tidegate.windowing.errors import MissingTimestamp
from tidegate.windowing.evictors import Evictor, EvictorContext, TimestampedValue
from tidegate.windowing.functions import ProcessWindowFunction
from tidegate.windowing.testing import OperatorHarness, window_harness
from tidegate.windowing.time import MAX_TIMESTAMP, Millis
from tidegate.windowing.triggers import EndOfStreamTrigger, EventTimeTrigger, NeverTrigger, ProcessingTimeTrigger
from tidegate.windowing.windows import TimeWindow, Window


def gap_of_five(element: Any) -> Millis:
    return 5


EVENT_TIME: list[WindowAssigner] = [
    TumblingEventTimeWindows.of(10),
    TumblingEventTimeWindows.of(10, -3),
    TumblingEventTimeWindows.of(10, 2, WindowStagger.RANDOM, stagger_seed=7),
    TumblingEventTimeWindows.of(10, 0, WindowStagger.NATURAL),
    SlidingEventTimeWindows.of(10, 3),
    SlidingEventTimeWindows.of(10, 10, 4),
    CumulateEventTimeWindows.of(12, 3),
    CumulateEventTimeWindows.of(12, 4, -5),
    EventTimeSessionWindows.with_gap(10),
    DynamicEventTimeSessionWindows(gap_of_five),
    CalendarEventTimeWindows.days("Europe/Berlin"),
    CalendarEventTimeWindows.weeks("UTC"),
    CalendarEventTimeWindows.months("America/New_York", 3),
]

PROCESSING_TIME: list[WindowAssigner] = [
    TumblingProcessingTimeWindows.of(10),
    TumblingProcessingTimeWindows.of(10, -3),
    TumblingProcessingTimeWindows.of(10, 2, WindowStagger.RANDOM, stagger_seed=7),
    SlidingProcessingTimeWindows.of(10, 3),
    CumulateProcessingTimeWindows.of(12, 3),
    ProcessingTimeSessionWindows.with_gap(10),
    DynamicProcessingTimeSessionWindows(gap_of_five),
    CalendarProcessingTimeWindows.days("Europe/Berlin"),
]

GLOBAL: list[WindowAssigner] = [GlobalWindows.create(), GlobalWindows.create_with_end_of_stream_trigger()]

TIMED = EVENT_TIME + PROCESSING_TIME

ALL = TIMED + GLOBAL

TIMES = [0, 1, 9, 10, 12, -1, -10, 1_711_846_799_999, 1_711_846_800_000]


@dataclass
class At:
    """An assigner's context with nothing but a clock."""

    current_processing_time: Millis = 0


def windows_at(assigner: WindowAssigner, time: Millis) -> list[TimeWindow]:
    """Return the windows of an element at a time of either domain."""
    timestamp, clock = (time, 0) if assigner.is_event_time else (None, time)
    windows = assigner.assign_windows({"x": 1}, timestamp, At(clock))
    assert all(isinstance(window, TimeWindow) for window in windows)
    return list(windows)  # type: ignore[arg-type]


def harness(assigner: WindowAssigner, lateness: Millis = 0) -> OperatorHarness:
    return window_harness(Windows(assigner, allowed_lateness=lateness, reduce=lambda a, b: a + b))


def move(run: OperatorHarness, assigner: WindowAssigner, time: Millis) -> None:
    (run.watermark if assigner.is_event_time else run.processing_time)(time)


@pytest.mark.parametrize("assigner", TIMED, ids=named)
@pytest.mark.parametrize("time", TIMES)
def test_each_window_of_an_element_holds_its_time(assigner: WindowAssigner, time: Millis) -> None:
    windows = windows_at(assigner, time)
    assert windows
    assert all(window.start <= time < window.end for window in windows)
    assert windows == sorted(set(windows), reverse=True)


@pytest.mark.parametrize("assigner", [a for a in TIMED if not isinstance(a, MergingWindowAssigner)], ids=named)
def test_times_in_one_window_agree_on_it_unless_windows_merge(assigner: WindowAssigner) -> None:
    for time in TIMES:
        for window in windows_at(assigner, time):
            assert window in windows_at(assigner, window.start)
            assert window in windows_at(assigner, window.max_timestamp)
            assert window not in windows_at(assigner, window.end)
            assert window not in windows_at(assigner, window.start - 1)


@pytest.mark.parametrize("assigner", EVENT_TIME, ids=named)
def test_event_time_needs_a_timestamp_and_fires_by_the_watermark(assigner: WindowAssigner) -> None:
    assert assigner.get_default_trigger() == EventTimeTrigger()
    with pytest.raises(MissingTimestamp, match="timestamp"):
        assigner.assign_windows({"x": 1}, None, At())


@pytest.mark.parametrize("assigner", PROCESSING_TIME, ids=named)
def test_processing_time_ignores_timestamps_and_fires_by_the_clock(assigner: WindowAssigner) -> None:
    assert assigner.get_default_trigger() == ProcessingTimeTrigger()
    assert assigner.assign_windows({}, 999, At(42)) == assigner.assign_windows({}, None, At(42))


def test_the_global_window_fires_never_or_at_the_end_of_input() -> None:
    assert [assigner.get_default_trigger() for assigner in GLOBAL] == [NeverTrigger(), EndOfStreamTrigger()]
    assert not any(assigner.is_event_time for assigner in GLOBAL)


@pytest.mark.parametrize("assigner", ALL, ids=named)
def test_an_assigner_is_a_value(assigner: WindowAssigner) -> None:
    same = pickle.loads(pickle.dumps(assigner))
    assert same == assigner
    assert hash(same) == hash(assigner)
    assert copy.deepcopy(assigner) == assigner
    assert type(assigner).__name__ in repr(assigner)
    assert sum(other == assigner for other in ALL) == 1


@pytest.mark.parametrize("assigner", TIMED, ids=named)
@pytest.mark.parametrize("lateness", [0, 7])
def test_one_element_opens_its_windows_and_closing_them_leaves_nothing(assigner: WindowAssigner, lateness: int) -> None:
    run = harness(assigner, lateness)
    run.processing_time(100)
    run.element("a", 1, 100)
    windows = windows_at(run.subtasks[0].assigner, 100)  # type: ignore[attr-defined]
    late = lateness if assigner.is_event_time else 0
    merging = isinstance(assigner, MergingWindowAssigner)
    cleanups = {(window.max_timestamp + late, window) for window in windows}
    firings = {(window.max_timestamp, window) for window in windows}
    timers = (run.event_time_timers, run.processing_time_timers)
    assert timers == ((len(firings | cleanups), 0) if assigner.is_event_time else (0, len(firings)))
    assert run.state_entries == len(windows) + merging

    first, last = min(firings)[0], max(firings)[0]
    move(run, assigner, first - 1)
    assert run.results() == []
    move(run, assigner, last)
    assert sorted((result.timestamp, result.window) for result in run.results()) == sorted(firings)
    move(run, assigner, last + late)
    assert run.results() == []
    assert (run.event_time_timers, run.processing_time_timers, run.state_entries) == (0, 0, 0)


@pytest.mark.filterwarnings("ignore::tidegate.windowing.errors.UnboundedStateWarning")
@pytest.mark.parametrize("assigner", ALL, ids=named)
def test_a_restore_keeps_windows_where_they_are(assigner: WindowAssigner) -> None:
    run, restored = harness(assigner), harness(assigner)
    for step, time in enumerate([100, 104, 103, 250, 99, 251]):
        for each in (run, restored):
            each.processing_time(100 + step)
            each.element("a", 1, time)
        restored.restore(restored.snapshot(), parallelism=3)
    for each in (run, restored):
        move(each, assigner, MAX_TIMESTAMP)
    key = [sorted((r.window, r.value) for r in each.results()) for each in (run, restored)]
    assert key[0] == key[1]


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


def distance(element: int, last: int) -> float:
    return abs(last - element)


@dataclass(frozen=True)
class DropOdd(Evictor):
    """A user's evictor: it removes odd values, including those in the middle of a window."""

    do_evict_after: bool = False

    def evict_before(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        return elements if self.do_evict_after else [e for e in elements if e.value % 2 == 0]

    def evict_after(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        return [e for e in elements if e.value % 2 == 0] if self.do_evict_after else elements


class Collect(ProcessWindowFunction):
    """The elements that the function gets, even if there are none."""

    def process(self, key: Any, ctx: Any, elements: Sequence[Any]) -> Iterable[Any]:
        return [list(elements)]


BEFORE: list[Evictor] = [
    CountEvictor.of(2),
    CountEvictor.of(0),
    TimeEvictor.of(3),
    DeltaEvictor.of(3, distance),
    DropOdd(),
]
AFTER: list[Evictor] = [
    CountEvictor.of(2, do_evict_after=True),
    CountEvictor.of(0, do_evict_after=True),
    TimeEvictor.of(3, do_evict_after=True),
    DeltaEvictor.of(3, distance, do_evict_after=True),
    DropOdd(do_evict_after=True),
]
EVICTORS = BEFORE + AFTER
ASSIGNERS: list[WindowAssigner] = [TumblingEventTimeWindows.of(100), TumblingProcessingTimeWindows.of(100)]
ELEMENTS = [(4, 1), (7, 5), (2, 2), (8, 8), (3, 9), (5, 7), (6, 6)]
"""(value, timestamp), two for each firing."""
WINDOW = TimeWindow(0, 100)


@dataclass
class Clocks:
    current_watermark: int = 0
    current_processing_time: int = 0


def is_subsequence(part: Sequence[Any], whole: Sequence[Any]) -> bool:
    rest = iter(whole)
    return all(item in rest for item in part)


@pytest.mark.parametrize("evictor", EVICTORS, ids=named)
def test_an_evictor_is_a_value(evictor: Evictor) -> None:
    same = pickle.loads(pickle.dumps(evictor))
    assert (same, hash(same)) == (evictor, hash(evictor))
    assert sum(other == evictor for other in EVICTORS) == 1


@pytest.mark.parametrize("evictor", EVICTORS, ids=named)
def test_it_only_takes_out_and_keeps_the_order(evictor: Evictor) -> None:
    for count in range(len(ELEMENTS) + 1):
        elements = [TimestampedValue(*element) for element in ELEMENTS[:count]]
        before = evictor.evict_before(list(elements), WINDOW, Clocks())
        assert is_subsequence(before, elements)
        assert is_subsequence(evictor.evict_after(list(before), WINDOW, Clocks()), before)


@pytest.mark.parametrize("evictor", EVICTORS, ids=named)
def test_evicting_again_takes_out_nothing_more(evictor: Evictor) -> None:
    elements = [TimestampedValue(*element) for element in ELEMENTS]
    for evict in (evictor.evict_before, evictor.evict_after):
        once = evict(list(elements), WINDOW, Clocks())
        assert evict(list(once), WINDOW, Clocks()) == once


@pytest.mark.parametrize("evictor", EVICTORS, ids=named)
def test_it_takes_out_before_or_after_the_function(evictor: Evictor) -> None:
    elements = [TimestampedValue(*element) for element in ELEMENTS]
    ways = evictor.evict_before, evictor.evict_after
    left = [len(evict(list(elements), WINDOW, Clocks())) for evict in ways]
    assert [count < len(elements) for count in left] == [evictor in BEFORE, evictor in AFTER]


@pytest.mark.parametrize("assigner", ASSIGNERS, ids=named)
@pytest.mark.parametrize("evictor", EVICTORS, ids=named)
@pytest.mark.parametrize("restoring", [False, True])
def test_what_was_evicted_is_gone_at_the_next_firing_and_all_when_the_window_closes(
    assigner: WindowAssigner, evictor: Evictor, restoring: bool
) -> None:
    run = window_harness(Windows(assigner, CountTrigger.of(2), evictor, process=Collect()))
    contents: list[TimestampedValue] = []
    for number, (value, timestamp) in enumerate(ELEMENTS):
        contents.append(TimestampedValue(value, timestamp))
        run.element("a", value, timestamp)
        if restoring:
            run.restore(run.snapshot(), parallelism=3)
        fired = [result.value for result in run.results()]
        if number % 2 == 0:
            assert fired == []
            continue
        contents = evictor.evict_before(contents, WINDOW, Clocks())
        assert fired == ([[element.value for element in contents]])
        contents = evictor.evict_after(contents, WINDOW, Clocks())
        held = [row.contents for subtask in run.subtasks for row in subtask.state_rows()]
        assert held == [[[{"timestamp": e.timestamp, "value": e.value} for e in contents]] if contents else None]
    run.watermark(MAX_TIMESTAMP)
    run.processing_time(MAX_TIMESTAMP)
    assert (run.state_entries, run.event_time_timers, run.processing_time_timers) == (0, 0, 0)
