"""The trigger algebra, run through the window operator: when each term fires, and what it leaves."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidegate.windowing import (
    ContinuousEventTimeTrigger,
    Count,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    ProcessingTimeoutTrigger,
    PurgingTrigger,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.errors import IllegalArgument, MissingTimestamp
from tidegate.windowing.functions import ProcessWindowFunction
from tidegate.windowing.panes import Timing
from tidegate.windowing.state import ValueStateDescriptor
from tidegate.windowing.testing import OperatorHarness, window_harness
from tidegate.windowing.triggers import (
    AfterAll,
    AfterAny,
    AfterCount,
    AfterEach,
    AfterProcessingTime,
    AfterWatermark,
    OrFinally,
    Repeatedly,
    Trigger,
)


def harness(trigger: Trigger, lateness: int = 0, assigner: WindowAssigner | None = None) -> OperatorHarness:
    windows = Windows(
        assigner or TumblingEventTimeWindows(100), trigger, allowed_lateness=lateness, reduce=lambda a, b: a + b
    )
    return window_harness(windows)


def fired(run: OperatorHarness) -> list[Any]:
    return [result.value for result in run.results()]


def feed(run: OperatorHarness, *values: int, at: int = 10) -> list[Any]:
    for value in values:
        run.element("a", value, at)
    return fired(run)


def watermark(run: OperatorHarness, time: int) -> list[Any]:
    run.watermark(time)
    return fired(run)


def clock(run: OperatorHarness, time: int) -> list[Any]:
    run.processing_time(time)
    return fired(run)


SCRIPTS: dict[str, tuple[Trigger, list[tuple[str, Any, list[int]]]]] = {
    "after watermark alone is the event time trigger": (
        AfterWatermark(),
        [("feed", [1, 2], []), ("watermark", 98, []), ("watermark", 99, [3]), ("feed", [4], [7]), ("feed", [8], [15])],
    ),
    "without late firings the end is the last one": (
        AfterWatermark(late=None),
        [("feed", [1], []), ("watermark", 99, [1]), ("feed", [2, 3], [])],
    ),
    "an early count does not go on into the late phase": (
        AfterWatermark(early=AfterCount(3), late=AfterCount(3)),
        [("feed", [1, 1], []), ("watermark", 99, [2]), ("feed", [1, 1], []), ("feed", [1], [5])],
    ),
    "a window that opens after its end fires with its first element": (
        AfterWatermark(late=AfterCount(10)),
        [("watermark", 120, []), ("feed", [1], [1])],
    ),
    "after count fires once": (AfterCount(2), [("feed", [1, 1], [2]), ("feed", [1, 1, 1, 1], [])]),
    "after processing time counts from the first element": (
        AfterProcessingTime(10),
        [
            ("clock", 5, []),
            ("feed", [1], []),
            ("clock", 14, []),
            ("feed", [1], []),
            ("clock", 15, [2]),
            ("feed", [1], []),
        ],
    ),
    "repeatedly starts again": (
        Repeatedly(AfterProcessingTime(10)),
        [("feed", [1], []), ("clock", 10, [1]), ("clock", 50, []), ("feed", [1], []), ("clock", 60, [2])],
    ),
    "after all waits for the last": (
        AfterAll.of(AfterCount(2), AfterProcessingTime(10)),
        [("feed", [1, 1, 1], []), ("clock", 10, [3]), ("feed", [1, 1], [])],
    ),
    "after each goes from one to the next in order": (
        AfterEach.of(AfterCount(1), AfterCount(2), Repeatedly(AfterCount(3))),
        [("feed", [1], [1]), ("feed", [1], []), ("feed", [1], [3]), ("feed", [1, 1, 1], [6]), ("feed", [1, 1, 1], [9])],
    ),
    "or finally fires at the end and never again": (
        OrFinally(Repeatedly(AfterCount(2)), AfterProcessingTime(10)),
        [("feed", [1, 1], [2]), ("feed", [1], []), ("clock", 10, [3]), ("feed", [1, 1, 1], [])],
    ),
}
"""Steps: the values of elements, watermarks and the clock, with what fires at each."""


@pytest.mark.parametrize(("trigger", "steps"), SCRIPTS.values(), ids=SCRIPTS)
def test_a_term_fires_at_its_steps(trigger: Trigger, steps: list[tuple[str, Any, list[int]]]) -> None:
    run = harness(trigger, lateness=50)
    for step, given, expected in steps:
        came = {"watermark": watermark, "clock": clock}[step](run, given) if step != "feed" else feed(run, *given)
        assert came == expected, (step, given)


def test_early_firings_come_again_and_again_before_the_end_and_late_ones_after_it() -> None:
    run = harness(AfterWatermark(early=AfterCount(2), late=AfterCount(3)), lateness=50)
    assert feed(run, 1, 1, 1) == [2]
    assert feed(run, 1, 1) == [4]
    run.watermark(99)
    on_time = run.results()
    assert [(pane.value, pane.timing) for pane in on_time] == [(5, Timing.ON_TIME)]
    assert feed(run, 1, 1) == []
    run.element("a", 1, 10)
    late = run.results()
    assert [(pane.value, pane.timing, pane.pane) for pane in late] == [(8, Timing.LATE, 3)]


def test_after_any_fires_with_the_first_and_drops_the_timers_of_the_others() -> None:
    run = harness(Repeatedly(AfterAny.of(AfterCount(2), AfterProcessingTime(10))))
    feed(run, 1)
    assert run.processing_time_timers == 1
    assert feed(run, 1) == [2]
    assert run.processing_time_timers == 0
    feed(run, 1)
    assert clock(run, 10) == [3]


def test_two_terms_that_wait_for_the_same_time_do_not_take_each_others_timer() -> None:
    either = AfterAny.of(AfterCount(1), AfterProcessingTime(10))
    run = harness(AfterAll.of(either, AfterProcessingTime(10)))
    assert feed(run, 1) == []
    assert run.processing_time_timers == 1
    assert clock(run, 10) == [1]


def test_a_term_that_gives_up_the_end_of_the_window_leaves_the_timer_that_cleans_it() -> None:
    run = harness(OrFinally(AfterWatermark(), AfterProcessingTime(10)))
    feed(run, 1)
    clock(run, 10)
    run.watermark(99)
    assert (run.event_time_timers, run.processing_time_timers, run.state_entries) == (0, 0, 0)


def test_counts_of_merged_sessions_add_up_and_the_next_element_fires() -> None:
    run = harness(Repeatedly(AfterCount(4)), assigner=EventTimeSessionWindows(10))
    for time in (0, 1, 20):
        run.element("a", 1, time)
    run.element("a", 1, 10)
    assert fired(run) == [4]


def test_merged_sessions_leave_no_timer_of_the_windows_that_went() -> None:
    run = harness(AfterWatermark(early=AfterProcessingTime(100)), assigner=EventTimeSessionWindows(10))
    for clock_time, time in ((0, 0), (5, 30), (7, 8), (8, 16), (9, 24)):
        run.processing_time(clock_time)
        run.element("a", 1, time)
    assert (run.event_time_timers, run.processing_time_timers) == (1, 1)
    assert clock(run, 100) == [5]
    assert watermark(run, 39) == [5]
    assert (run.event_time_timers, run.processing_time_timers, run.state_entries) == (0, 0, 0)


def test_a_session_that_grows_past_the_watermark_has_its_end_before_it_again() -> None:
    run = harness(AfterWatermark(late=None), lateness=100, assigner=EventTimeSessionWindows(10))
    run.element("a", 1, 0)
    assert watermark(run, 9) == [1]
    run.element("a", 1, 8)
    assert fired(run) == []
    assert watermark(run, 17) == [2]


timeout = ProcessingTimeoutTrigger.of


@pytest.mark.parametrize(
    "trigger",
    [
        timeout(timeout(EventTimeTrigger(), 50), 100),
        timeout(PurgingTrigger.of(timeout(CountTrigger.of(5), 50)), 100),
        timeout(timeout(timeout(CountTrigger.of(5), 30), 50), 100),
    ],
    ids=repr,
)
def test_timeouts_inside_timeouts_keep_their_deadlines_over_a_restore(trigger: Trigger) -> None:
    def fired_at(restores: bool) -> list[int]:
        harness = window_harness(Windows(TumblingEventTimeWindows.of(1000), trigger, aggregate={"n": Count()}))
        harness.element("a", {}, 1)
        if restores:
            harness.restore(harness.snapshot())
        fired = []
        for clock in range(0, 300, 10):
            harness.processing_time(clock)
            fired += [clock for _ in harness.results()]
        return fired

    assert fired_at(restores=False)
    assert fired_at(restores=True) == fired_at(restores=False)


def test_a_single_timeout_keeps_the_name_that_snapshots_know() -> None:
    assert [state.name for state in timeout(CountTrigger.of(5), 50).states()] == ["timeout", "count"]
    nested = timeout(timeout(CountTrigger.of(5), 30), 50)
    assert [state.name for state in nested.states()] == ["timeout_2", "timeout", "count"]


@pytest.mark.filterwarnings("ignore::tidegate.windowing.errors.UnboundedStateWarning")
@pytest.mark.parametrize("assigner", [GlobalWindows(), TumblingProcessingTimeWindows.of(100)])
def test_a_continuous_event_time_trigger_refuses_an_element_without_a_timestamp(assigner: Any) -> None:
    harness = window_harness(Windows(assigner, ContinuousEventTimeTrigger.of(100), aggregate={"n": Count()}))
    with pytest.raises(MissingTimestamp, match="has no timestamp"):
        harness.element("a", {}, None)


class Twice(ProcessWindowFunction):
    """Declares one state of a window and one of its key with the same name."""

    def process(self, key: Any, ctx: Any, elements: Any) -> Any:
        return ()

    def states(self) -> Any:
        return (ValueStateDescriptor("seen", pa.int64()),)

    global_states = states


def test_two_states_of_one_name_are_refused_when_the_windows_are_made() -> None:
    with pytest.raises(IllegalArgument, match=r"states of process = \['seen', 'seen'\]: give each state a name"):
        Windows(TumblingEventTimeWindows.of(10), process=Twice())


def test_a_count_in_the_last_moment_of_a_window_of_the_clock_is_early() -> None:
    """Found by random lives: the pane was late, and the one at the end of the window, after it, was on time."""
    trigger = ProcessingTimeoutTrigger.of(CountTrigger.of(2), 100)
    run = window_harness(Windows(TumblingProcessingTimeWindows.of(10), trigger, aggregate={"events": Count()}))
    run.processing_time(9)
    for value in (1, 2):
        run.element("a", {"x": value}, 0)
    run.processing_time(10)
    assert [pane.timing.value for pane in run.results()] == ["early", "on_time"]
