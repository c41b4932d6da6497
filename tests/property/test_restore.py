"""Snapshot, restore and rescale at any step change nothing, whatever the windows and the trigger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import (
    Accumulation,
    AfterAny,
    AfterCount,
    AfterProcessingTime,
    AfterWatermark,
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Repeatedly,
    SlidingEventTimeWindows,
    TimeEvictor,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Windows,
)
from tidegate.windowing.functions import ReduceElements
from tidegate.windowing.operators.records import LateElement, SideOutput, WatermarkRecord, WindowResult
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.testing import OperatorHarness, window_harness
from tidegate.windowing.time import MAX_TIMESTAMP


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
ASSIGNERS = st.sampled_from(
    [
        TumblingEventTimeWindows.of(10),
        SlidingEventTimeWindows.of(12, 5),
        EventTimeSessionWindows.with_gap(6),
        TumblingProcessingTimeWindows.of(10, 3),
        ProcessingTimeSessionWindows.with_gap(6),
    ]
)
TRIGGERS = st.sampled_from(
    [
        None,
        EventTimeTrigger(),
        ProcessingTimeTrigger(),
        CountTrigger.of(2),
        PurgingTrigger.of(CountTrigger.of(3)),
        ContinuousEventTimeTrigger.of(4),
        AfterWatermark(early=AfterProcessingTime(5), late=AfterCount(2)),
        Repeatedly(AfterAny.of(AfterCount(3), AfterProcessingTime(8))),
    ]
)
POLICIES = st.builds(PanePolicy, st.sampled_from(Accumulation), st.booleans(), st.booleans())
EVICTORS = st.sampled_from([None, CountEvictor.of(2), TimeEvictor.of(5)])


def plus(a: int, b: int) -> int:
    return a + b


def seen(run: OperatorHarness) -> Counter[Any]:
    """Output of a step as a multiset, since timers of different keys fire in any order."""
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


@given(
    STEPS,
    st.dictionaries(st.integers(0, 26), st.sampled_from([1, 2, 3, 7])),
    ASSIGNERS,
    TRIGGERS,
    EVICTORS,
    POLICIES,
    st.sampled_from([0, 9]),
)
def test_a_restore_at_any_step_and_parallelism_changes_nothing(
    steps: list[Step],
    restores: dict[int, int],
    assigner: Any,
    trigger: Any,
    evictor: Any,
    policy: PanePolicy,
    lateness: int,
) -> None:
    parts: dict[str, Any] = {"reduce": plus} if evictor is None else {"process": ReduceElements(plus)}
    windows = Windows(assigner, trigger, evictor, lateness, policy.accumulation, **parts)
    straight, restored = (window_harness(windows, panes=policy, account_for_all=True) for _ in range(2))
    assert play(restored, steps, restores) == play(straight, steps, {})
