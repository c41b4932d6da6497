"""Promises of every trigger, on fixed and on merging windows, in both time domains. As in Flink's trigger tests, state
entries and timers are asserted, not only results.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field
from itertools import product
from operator import sub
from typing import Any

import pyarrow as pa
import pytest

from tests.windowing.contracts.scripted import named
from tidegate.windowing import (
    AfterAll,
    AfterAny,
    AfterCount,
    AfterEach,
    AfterProcessingTime,
    AfterWatermark,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EndOfStreamTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    NeverTrigger,
    OrFinally,
    ProcessingTimeoutTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Repeatedly,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.errors import UnsupportedOperation
from tidegate.windowing.state import ValueStateDescriptor
from tidegate.windowing.testing import OperatorHarness, window_harness
from tidegate.windowing.time import MAX_TIMESTAMP, Millis
from tidegate.windowing.triggers import OnMergeContext, Trigger, TriggerContext, TriggerResult
from tidegate.windowing.windows import Window


def difference(old: int, new: int) -> float:
    return sub(new, old)


@dataclass(frozen=True)
class EveryOther(Trigger):
    """A user's trigger with state and `on_merge` that fires for every other element."""

    seen: ValueStateDescriptor = field(default=ValueStateDescriptor("seen", pa.bool_()))

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        state = ctx.get_partitioned_state(self.seen)
        fires = state.value() is True
        state.update(None if fires else True)
        return TriggerResult.FIRE if fires else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        """The merged window starts again."""

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.get_partitioned_state(self.seen).clear()

    def states(self) -> tuple[ValueStateDescriptor]:
        return (self.seen,)


MERGING: list[Trigger] = [
    EventTimeTrigger(),
    ProcessingTimeTrigger(),
    ContinuousEventTimeTrigger.of(4),
    ContinuousProcessingTimeTrigger.of(4),
    CountTrigger.of(3),
    PurgingTrigger.of(EventTimeTrigger()),
    PurgingTrigger.of(CountTrigger.of(2)),
    NeverTrigger(),
    EndOfStreamTrigger(),
    AfterCount(3),
    AfterProcessingTime(5),
    AfterWatermark(),
    AfterWatermark(early=AfterCount(2), late=None),
    AfterWatermark(early=AfterProcessingTime(3), late=AfterCount(2)),
    AfterAny.of(AfterCount(4), AfterProcessingTime(3)),
    AfterAll.of(AfterCount(2), AfterProcessingTime(3)),
    AfterEach.of(AfterCount(1), AfterProcessingTime(3), AfterWatermark()),
    Repeatedly(AfterAny.of(AfterCount(2), AfterProcessingTime(6))),
    OrFinally(Repeatedly(AfterCount(2)), AfterWatermark(late=None)),
    EveryOther(),
]
NOT_MERGING: list[Trigger] = [
    DeltaTrigger.of(3, difference, pa.int64()),
    PurgingTrigger.of(DeltaTrigger.of(3, difference, pa.int64())),
    ProcessingTimeoutTrigger.of(CountTrigger.of(3), 4),
    ProcessingTimeoutTrigger.of(EventTimeTrigger(), 4, reset_timer_on_new_record=True, clear_on_timeout=False),
]
ALL = MERGING + NOT_MERGING
LEAKS_AS_FLINK = (ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger)
"""Flink's continuous triggers move the next firing to the merged window and leave the timer of the old one."""

FIXED: list[WindowAssigner] = [TumblingEventTimeWindows.of(10), TumblingProcessingTimeWindows.of(10)]
SESSIONS: list[WindowAssigner] = [EventTimeSessionWindows.with_gap(5), ProcessingTimeSessionWindows.with_gap(5)]
STEPS = [
    (0, 1, 1),
    (1, 3, 5),
    (2, 9, 2),
    (3, 4, 9),
    (3, 7, 1),
    (8, 12, 7),
    (9, 14, 7),
    (12, 13, 2),
    (17, 31, 4),
    (22, 30, 6),
]
"""(clock, timestamp, value) of each element; a watermark follows at the clock."""


def harness(assigner: WindowAssigner, trigger: Trigger, lateness: Millis = 0) -> OperatorHarness:
    return window_harness(Windows(assigner, trigger, allowed_lateness=lateness, reduce=lambda a, b: a + b))


def play(run: OperatorHarness, restores: bool = False) -> list[Any]:
    seen = []
    for number, (clock, timestamp, value) in enumerate(STEPS):
        run.processing_time(clock)
        run.element("ab"[number % 2], value, timestamp)
        run.watermark(clock)
        if restores:
            run.restore(run.snapshot(), parallelism=3)
        # Timers of different keys that are due at the same time fire in any order.
        seen.append(sorted((r.key, r.window, r.value, r.pane, r.timing.value) for r in run.results()))
    return seen


def end(run: OperatorHarness) -> list[Any]:
    run.processing_time(10_000)
    run.watermark(10_000)
    run.processing_time(MAX_TIMESTAMP)
    run.watermark(MAX_TIMESTAMP)
    return run.results()


@pytest.mark.parametrize("trigger", ALL, ids=named)
def test_a_trigger_is_a_value(trigger: Trigger) -> None:
    same = pickle.loads(pickle.dumps(trigger))
    assert same == trigger
    assert hash(same) == hash(trigger)
    assert copy.deepcopy(trigger) == trigger
    assert type(trigger).__name__ in repr(trigger)
    assert sum(other == trigger for other in ALL) == 1


@pytest.mark.parametrize("trigger", ALL, ids=named)
@pytest.mark.parametrize("assigner", FIXED, ids=named)
def test_no_state_is_kept_that_is_not_declared(trigger: Trigger, assigner: WindowAssigner) -> None:
    run = harness(assigner, trigger, 5)
    declared = {state.name for state in trigger.states()}
    play(run)
    rows = [row for subtask in run.subtasks for row in subtask.state_rows()]
    assert all(set(row.trigger_state or ()) <= declared for row in rows)


@pytest.mark.parametrize(("trigger", "assigner"), [*product(ALL, FIXED), *product(MERGING, SESSIONS)], ids=named)
def test_restores_change_nothing_and_when_windows_close_neither_state_nor_timers_are_left(
    trigger: Trigger, assigner: WindowAssigner
) -> None:
    straight, restored = harness(assigner, trigger, 5), harness(assigner, trigger, 5)
    assert play(restored, restores=True) == play(straight)
    for run in (straight, restored):
        end(run)
        assert (run.state_entries, run.event_time_timers, run.processing_time_timers) == (0, 0, 0)


@pytest.mark.parametrize(
    ("assigner", "trigger"),
    [
        (FIXED[0], ProcessingTimeoutTrigger.of(EventTimeTrigger(), 4)),
        (FIXED[0], ProcessingTimeoutTrigger.of(AfterWatermark(), 4)),
        (FIXED[1], ProcessingTimeoutTrigger.of(ProcessingTimeTrigger(), 4)),
        (FIXED[1], ProcessingTimeoutTrigger.of(ContinuousProcessingTimeTrigger.of(20), 4)),
    ],
    ids=lambda value: named(value) if isinstance(value, Trigger) else None,
)
@pytest.mark.parametrize("restored", [False, True], ids=["uncut", "restored"])
def test_a_trigger_that_deletes_the_timer_at_the_end_does_not_keep_its_window(
    assigner: WindowAssigner, trigger: Trigger, restored: bool
) -> None:
    run = harness(assigner, trigger)
    for _ in range(2):
        run.element("a", 1, 1)
    run.processing_time(4)
    timers = (run.event_time_timers, run.processing_time_timers)
    assert sum(timers) == 0, "as in Flink, the trigger has no timer left"
    if restored:
        run.restore(run.snapshot())
        assert (run.event_time_timers, run.processing_time_timers) == timers
    assert [r.value for r in run.results()] == [2]
    assert end(run) == [], "its hook does not run at the end"
    assert run.state_entries == 0
    assert not len(run.snapshot().rows)


@pytest.mark.parametrize("trigger", [t for t in MERGING if not isinstance(t, LEAKS_AS_FLINK)], ids=named)
def test_a_window_that_was_merged_away_leaves_no_timer(trigger: Trigger) -> None:
    merged, alone = (harness(EventTimeSessionWindows.with_gap(5), trigger) for _ in range(2))
    for timestamp in (0, 8, 4):
        merged.element("a", 1, timestamp)
    merged_timers = (merged.event_time_timers, merged.processing_time_timers)
    for _ in range(3):
        alone.element("a", 1, 0)
    alone_timers = (alone.event_time_timers, alone.processing_time_timers)
    assert all(after <= before for after, before in zip(merged_timers, alone_timers, strict=True))


@pytest.mark.parametrize("trigger", ALL, ids=named)
def test_keys_do_not_see_each_other(trigger: Trigger) -> None:
    alone = harness(FIXED[0], trigger)
    both = harness(FIXED[0], trigger)
    for clock, timestamp, value in STEPS:
        for run in (alone, both):
            run.processing_time(clock)
            run.element("a", value, timestamp)
        both.element("b", value, timestamp)
        for run in (alone, both):
            run.watermark(clock)
    expected = [(r.window, r.value, r.pane) for r in alone.results()]
    assert [(r.window, r.value, r.pane) for r in both.results() if r.key == "a"] == expected


@pytest.mark.parametrize("trigger", NOT_MERGING, ids=named)
@pytest.mark.parametrize("assigner", SESSIONS, ids=named)
def test_a_trigger_that_can_not_merge_is_refused_on_windows_that_do(trigger: Trigger, assigner: WindowAssigner) -> None:
    assert not trigger.can_merge()
    with pytest.raises(UnsupportedOperation, match="can_merge") as raised:
        harness(assigner, trigger)
    text = str(raised.value)
    assert repr(trigger) in text
    assert type(assigner).__name__ in text
    assert "EventTimeTrigger" in text


@pytest.mark.parametrize("trigger", [t for t in ALL if not isinstance(t, PurgingTrigger)], ids=named)
def test_only_a_purging_trigger_purges(trigger: Trigger) -> None:
    run, purging = (harness(FIXED[0], t, 100) for t in (trigger, PurgingTrigger.of(trigger)))
    for each in (run, purging):
        for clock, timestamp, value in STEPS[:5]:
            each.processing_time(clock)
            each.element("a", value, timestamp)
        each.watermark(9)
    accumulated = [r.value for r in run.results()]
    assert accumulated == sorted(accumulated)
    total = sum(value for _, _, value in STEPS[:5])
    assert sum(r.value for r in purging.results()) <= total
