"""Triggers inside others, and elements without a timestamp: what runs can be restored, and what can't run says why."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidegate.windowing import (
    ContinuousEventTimeTrigger,
    Count,
    CountTrigger,
    EventTimeTrigger,
    GlobalWindows,
    ProcessingTimeoutTrigger,
    PurgingTrigger,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Windows,
)
from tidegate.windowing.errors import IllegalArgument, MissingTimestamp
from tidegate.windowing.functions import ProcessWindowFunction
from tidegate.windowing.state import ValueStateDescriptor
from tidegate.windowing.testing import window_harness
from tidegate.windowing.triggers import Trigger

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
    """Declares one state of a window and one of its key by the same name."""

    def process(self, key: Any, ctx: Any, elements: Any) -> Any:
        return ()

    def states(self) -> Any:
        return (ValueStateDescriptor("seen", pa.int64()),)

    global_states = states


def test_two_states_of_one_name_are_refused_when_the_windows_are_made() -> None:
    with pytest.raises(IllegalArgument, match=r"states of process = \['seen', 'seen'\]: give each state a name"):
        Windows(TumblingEventTimeWindows.of(10), process=Twice())


def test_a_count_in_the_last_moment_of_a_window_of_the_clock_is_early() -> None:
    """Drawn lives found it: the pane was late, and the one at the end of the window, after it, was on time."""
    trigger = ProcessingTimeoutTrigger.of(CountTrigger.of(2), 100)
    run = window_harness(Windows(TumblingProcessingTimeWindows.of(10), trigger, aggregate={"events": Count()}))
    run.processing_time(9)
    for value in (1, 2):
        run.element("a", {"x": value}, 0)
    run.processing_time(10)
    assert [pane.timing.value for pane in run.results()] == ["early", "on_time"]
