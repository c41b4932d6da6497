"""Snapshot, restore and rescale at any step change nothing, whatever the windows and the trigger. After all windows
have ended, neither state nor timers remain.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from tests.windowing.contracts.test_triggers import MERGING, NOT_MERGING
from tidegate.windowing import (
    Accumulation,
    CountEvictor,
    CumulateEventTimeWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    ProcessingTimeoutTrigger,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    Repeatedly,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.errors import UnboundedStateWarning
from tidegate.windowing.operators.records import LateElement, SideOutput, WatermarkRecord, WindowResult
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.testing import OperatorHarness, window_harness
from tidegate.windowing.time import MAX_TIMESTAMP
from tidegate.windowing.triggers import Term, Trigger


class Element(NamedTuple):
    key: str
    value: int
    timestamp: int


class Watermark(NamedTuple):
    by: int


class Clock(NamedTuple):
    by: int


class EndOfCommit(NamedTuple):
    pass


Step = Element | Watermark | Clock | EndOfCommit
STEPS = st.lists(
    st.one_of(
        st.builds(Element, st.sampled_from("abcd"), st.integers(1, 9), st.integers(0, 60)),
        st.builds(Watermark, st.integers(0, 15)),
        st.builds(Clock, st.integers(0, 15)),
        st.builds(EndOfCommit),
    ),
    max_size=25,
)


OF_ALL_WINDOWS: st.SearchStrategy[Trigger] = st.sampled_from(MERGING)
OF_ALL_WINDOWS |= OF_ALL_WINDOWS.filter(lambda trigger: isinstance(trigger, Term)).map(Repeatedly)
OF_ALL_WINDOWS |= OF_ALL_WINDOWS.map(PurgingTrigger)
OF_FIXED_WINDOWS = st.recursive(
    OF_ALL_WINDOWS | st.sampled_from(NOT_MERGING),
    lambda nested: st.one_of(
        nested.map(PurgingTrigger),
        st.builds(ProcessingTimeoutTrigger, nested, st.sampled_from([3, 5, 9]), st.booleans(), st.booleans()),
    ),
    max_leaves=3,
)
"""Every trigger that the contracts test, alone and inside the triggers that contain another one."""

SHAPES = st.one_of(
    st.tuples(
        st.sampled_from(
            [
                TumblingEventTimeWindows.of(10),
                SlidingEventTimeWindows.of(12, 5),
                CumulateEventTimeWindows.of(12, 4),
                TumblingProcessingTimeWindows.of(10, 3),
                SlidingProcessingTimeWindows.of(12, 5),
            ]
        ),
        st.none() | OF_FIXED_WINDOWS,
    ),
    st.tuples(
        st.sampled_from([EventTimeSessionWindows.with_gap(6), ProcessingTimeSessionWindows.with_gap(6)]),
        st.none() | OF_ALL_WINDOWS,
    ),
    # A continuous trigger would fire here until the end of time.
    st.tuples(st.just(GlobalWindows()), OF_FIXED_WINDOWS.filter(lambda trigger: "Continuous" not in repr(trigger))),
)
POLICIES = st.builds(PanePolicy, st.sampled_from(Accumulation), st.booleans(), st.booleans())
EVICTORS = st.sampled_from([None, CountEvictor.of(2), TimeEvictor.of(5)])


def plus(a: int, b: int) -> int:
    return a + b


def seen(run: OperatorHarness) -> Counter[Any]:
    """Return the output of a step as a multiset, because timers of different keys fire in any order."""
    kinds = (WindowResult, LateElement, SideOutput, WatermarkRecord)
    return Counter((type(record).__name__, record) for record in run.records() if isinstance(record, kinds))


def play(run: OperatorHarness, steps: Sequence[Step], restores: dict[int, int]) -> list[Counter[Any]]:
    watermark, clock, out = 0, 0, []
    for number, step in enumerate([*steps, Clock(MAX_TIMESTAMP), Watermark(MAX_TIMESTAMP)]):
        match step:
            case Element(key, value, timestamp):
                run.element(key, value, timestamp)
            case Watermark(by):
                watermark = min(watermark + by, MAX_TIMESTAMP)
                run.watermark(watermark)
            case Clock(by):
                clock = min(clock + by, MAX_TIMESTAMP)
                run.processing_time(clock)
            case EndOfCommit():
                run.end_commit()
        out.append(seen(run))
        if number in restores:
            entries = (run.state_entries, run.event_time_timers, run.processing_time_timers)
            snapshot = run.snapshot()
            run.restore(snapshot, restores[number])
            assert (run.state_entries, run.event_time_timers, run.processing_time_timers) == entries
            assert run.snapshot().rows.sort_by(ORDER).equals(snapshot.rows.sort_by(ORDER))
    return out


ORDER = [(name, "ascending") for name in ("key", "namespace", "window_start", "window_end")]


TIMEOUT = (TumblingEventTimeWindows.of(10), ProcessingTimeoutTrigger.of(EventTimeTrigger(), 5))
"""The timeout deletes the timer at the end of the window, which also cleans up the window."""


@example([Element("a", 1, 1), Clock(5)], {1: 1}, TIMEOUT, None, PanePolicy(), 0)
@given(
    STEPS,
    st.dictionaries(st.integers(0, 26), st.sampled_from([1, 2, 3, 7])),
    SHAPES,
    EVICTORS,
    POLICIES,
    st.sampled_from([0, 9]),
)
def test_a_restore_at_any_step_and_parallelism_changes_nothing(
    steps: list[Step],
    restores: dict[int, int],
    shape: tuple[WindowAssigner, Trigger | None],
    evictor: Any,
    policy: PanePolicy,
    lateness: int,
) -> None:
    assigner, trigger = shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnboundedStateWarning)
        windows = Windows(assigner, trigger, evictor, lateness, policy.accumulation, reduce=plus)
    straight, restored = (window_harness(windows, panes=policy, account_for_all=True) for _ in range(2))
    assert play(restored, steps, restores) == play(straight, steps, {})
    if not assigner.is_global:
        for run in (straight, restored):
            assert (run.state_entries, run.event_time_timers, run.processing_time_timers) == (0, 0, 0)
            assert not len(run.snapshot().rows)
