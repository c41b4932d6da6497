"""A trigger that claims to lose nothing loses nothing, and what others lose is counted, even across a restore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from tidegate.windowing import (
    AfterAll,
    AfterAny,
    AfterCount,
    AfterEach,
    AfterProcessingTime,
    AfterWatermark,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    Count,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    OrFinally,
    ProcessingTimeoutTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Repeatedly,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Windows,
)
from tidegate.windowing.operators.window import WindowOperator
from tidegate.windowing.testing import OperatorHarness, window_harness
from tidegate.windowing.time import MAX_TIMESTAMP
from tidegate.windowing.triggers import EndOfStreamTrigger, NeverTrigger, Term, Trigger, TriggerContext, TriggerResult


def terms() -> st.SearchStrategy[Term]:
    leaves = st.sampled_from(
        [AfterCount(1), AfterCount(3), AfterProcessingTime(10), AfterWatermark(), AfterWatermark(late=None)]
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds(AfterAny.of, inner, inner)
            | st.builds(AfterAll.of, inner, inner)
            | st.builds(AfterEach.of, inner, inner)
            | st.builds(Repeatedly, inner)
            | st.builds(OrFinally, inner, inner)
            | st.builds(AfterWatermark, st.none() | inner, st.none() | inner)
        ),
        max_leaves=4,
    )


@dataclass(frozen=True)
class Unknown(Trigger):
    """A trigger that does not say what it loses."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """Nothing to drop."""


class Emptying(Unknown):
    """A trigger that empties its windows without emitting anything."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.PURGE


def triggers() -> st.SearchStrategy[Trigger]:
    plain: list[Trigger] = [
        EventTimeTrigger(),
        ProcessingTimeTrigger(),
        CountTrigger.of(1),
        CountTrigger.of(3),
        ContinuousEventTimeTrigger.of(4),
        ContinuousProcessingTimeTrigger.of(7),
        EndOfStreamTrigger(),
        NeverTrigger(),
    ]
    simple = st.sampled_from(plain) | terms()
    nested = simple | st.builds(PurgingTrigger, simple) | st.just(Emptying())
    return nested | st.builds(ProcessingTimeoutTrigger, nested, st.just(7), st.booleans(), st.booleans())


ASSIGNERS = [
    TumblingEventTimeWindows.of(10),
    SlidingEventTimeWindows.of(10, 5),
    EventTimeSessionWindows.with_gap(5),
    TumblingProcessingTimeWindows.of(10),
    ProcessingTimeSessionWindows.with_gap(5),
]
STEPS = st.lists(st.tuples(st.sampled_from("eeewp"), st.integers(0, 40)), max_size=25)


def run(harness: OperatorHarness, steps: list[tuple[str, int]]) -> None:
    for kind, number in steps:
        if kind == "e":
            harness.element("a", {}, number)
        elif kind == "w":
            harness.watermark(number)
        else:
            harness.processing_time(number)


def counted(harness: OperatorHarness) -> int:
    return sum(operator.counters.never_emitted for operator in harness.subtasks)


@given(triggers(), st.sampled_from(ASSIGNERS), st.sampled_from([0, 7]), STEPS, st.booleans())
def test_a_trigger_that_loses_nothing_leaves_no_element_unseen(
    trigger: Trigger, assigner: Any, lateness: int, steps: list[tuple[str, int]], clock_first: bool
) -> None:
    assume(trigger.can_merge() or not assigner.merges)
    windows = Windows(assigner, trigger, allowed_lateness=lateness, aggregate={"n": Count()})
    harness = window_harness(windows)
    (operator,) = harness.subtasks
    assert isinstance(operator, WindowOperator)
    operator._counts_unseen = True
    run(harness, steps)
    ends = [harness.processing_time, harness.watermark]
    for end in ends if clock_first else reversed(ends):
        end(1_000 if end is harness.processing_time else MAX_TIMESTAMP)
    event(f"says it may lose elements: {windows.may_lose_data}, and did: {counted(harness) > 0}")
    assert windows.may_lose_data or counted(harness) == 0


@pytest.mark.parametrize(
    ("trigger", "lateness", "loses"),
    [
        (EventTimeTrigger(), 5, False),
        (PurgingTrigger.of(EventTimeTrigger()), 5, False),
        (ContinuousEventTimeTrigger.of(4), 0, False),
        (ProcessingTimeoutTrigger.of(CountTrigger.of(5), 10), 0, False),
        (CountTrigger.of(1), 0, False),
        (AfterWatermark(early=AfterCount(3)), 5, False),
        (AfterWatermark(late=None), 0, False),
        (Repeatedly(AfterAny.of(AfterCount(100), AfterWatermark())), 5, False),
        (CountTrigger.of(2), 0, True),
        (AfterCount(1), 0, True),
        (AfterWatermark(late=None), 5, True),
        (AfterWatermark(late=AfterCount(2)), 5, True),
        (PurgingTrigger.of(CountTrigger.of(2)), 0, True),
        (Unknown(), 0, True),
        (ProcessingTimeoutTrigger.of(Emptying(), 10), 0, True),
        (ProcessingTimeoutTrigger.of(PurgingTrigger.of(NeverTrigger()), 10), 0, False),
    ],
    ids=str,
)
def test_what_a_trigger_says(trigger: Trigger, lateness: int, loses: bool) -> None:
    windows = Windows(TumblingEventTimeWindows.of(10), trigger, allowed_lateness=lateness, aggregate={"n": Count()})
    assert windows.may_lose_data is loses


@pytest.mark.filterwarnings("ignore::tidegate.windowing.errors.UnboundedStateWarning")
def test_the_global_window_loses_nothing_because_it_never_goes() -> None:
    assert not Windows(GlobalWindows(), CountTrigger.of(2), aggregate={"n": Count()}).may_lose_data


@pytest.mark.parametrize(
    ("trigger", "lost"),
    [
        (AfterCount(1), 2),
        (CountTrigger.of(2), 1),
        (PurgingTrigger.of(CountTrigger.of(2)), 1),
        (NeverTrigger(), 3),
        (EventTimeTrigger(), 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("restores", [False, True])
def test_elements_that_no_pane_shows_are_counted_when_their_window_goes(
    trigger: Trigger, lost: int, restores: bool
) -> None:
    harness = window_harness(Windows(TumblingEventTimeWindows.of(10), trigger, aggregate={"n": Count()}))
    for time in (1, 2, 3):
        harness.element("a", {}, time)
        assert counted(harness) == 0
        if restores:
            harness.restore(harness.snapshot())
    harness.watermark(9)
    assert counted(harness) == lost


def test_elements_that_code_within_a_timeout_purges_are_counted() -> None:
    trigger = ProcessingTimeoutTrigger.of(Emptying(), 10)
    harness = window_harness(Windows(TumblingEventTimeWindows.of(10), trigger, aggregate={"n": Count()}))
    for time in (1, 2, 3):
        harness.element("a", {}, time)
    assert counted(harness) == 3


def test_windows_that_merge_bring_their_unseen_elements_along() -> None:
    harness = window_harness(Windows(EventTimeSessionWindows.with_gap(5), CountTrigger.of(9), aggregate={"n": Count()}))
    for time in (0, 8, 4):
        harness.element("a", {}, time)
    harness.watermark(50)
    assert counted(harness) == 3
