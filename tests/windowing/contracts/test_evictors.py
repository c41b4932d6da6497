"""Promises of every evictor, before and after the function, in both time domains."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.windowing.contracts.scripted import named
from tidegate.windowing import (
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    TimeEvictor,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.evictors import Evictor, EvictorContext, TimestampedValue
from tidegate.windowing.functions import ProcessWindowFunction
from tidegate.windowing.testing import OperatorHarness, window_harness
from tidegate.windowing.time import MAX_TIMESTAMP
from tidegate.windowing.windows import TimeWindow, Window


def distance(element: int, last: int) -> float:
    return abs(last - element)


@dataclass(frozen=True)
class DropOdd(Evictor):
    """A user's evictor: odd values go, from the middle of a window too."""

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
ALL = BEFORE + AFTER
ASSIGNERS: list[WindowAssigner] = [TumblingEventTimeWindows.of(100), TumblingProcessingTimeWindows.of(100)]
ELEMENTS = [(4, 1), (7, 5), (2, 2), (8, 8), (3, 9), (5, 7), (6, 6)]
"""(value, timestamp), two to a firing."""
WINDOW = TimeWindow(0, 100)


@dataclass
class Clocks:
    current_watermark: int = 0
    current_processing_time: int = 0


def harness(assigner: WindowAssigner, evictor: Evictor) -> OperatorHarness:
    return window_harness(Windows(assigner, CountTrigger.of(2), evictor, process=Collect()))


def is_subsequence(part: Sequence[Any], whole: Sequence[Any]) -> bool:
    rest = iter(whole)
    return all(item in rest for item in part)


@pytest.mark.parametrize("evictor", ALL, ids=named)
def test_an_evictor_is_a_value(evictor: Evictor) -> None:
    same = pickle.loads(pickle.dumps(evictor))
    assert (same, hash(same)) == (evictor, hash(evictor))
    assert sum(other == evictor for other in ALL) == 1


@pytest.mark.parametrize("evictor", ALL, ids=named)
def test_it_only_takes_out_and_keeps_the_order(evictor: Evictor) -> None:
    for count in range(len(ELEMENTS) + 1):
        elements = [TimestampedValue(*element) for element in ELEMENTS[:count]]
        before = evictor.evict_before(list(elements), WINDOW, Clocks())
        assert is_subsequence(before, elements)
        assert is_subsequence(evictor.evict_after(list(before), WINDOW, Clocks()), before)


@pytest.mark.parametrize("evictor", ALL, ids=named)
def test_evicting_again_takes_out_nothing_more(evictor: Evictor) -> None:
    elements = [TimestampedValue(*element) for element in ELEMENTS]
    for evict in (evictor.evict_before, evictor.evict_after):
        once = evict(list(elements), WINDOW, Clocks())
        assert evict(list(once), WINDOW, Clocks()) == once


@pytest.mark.parametrize("evictor", BEFORE, ids=named)
def test_before_means_the_function_does_not_see_them(evictor: Evictor) -> None:
    elements = [TimestampedValue(*element) for element in ELEMENTS]
    assert len(evictor.evict_before(list(elements), WINDOW, Clocks())) < len(elements)
    assert evictor.evict_after(list(elements), WINDOW, Clocks()) == elements


@pytest.mark.parametrize("evictor", AFTER, ids=named)
def test_after_means_the_function_still_sees_them(evictor: Evictor) -> None:
    elements = [TimestampedValue(*element) for element in ELEMENTS]
    assert evictor.evict_before(list(elements), WINDOW, Clocks()) == elements
    assert len(evictor.evict_after(list(elements), WINDOW, Clocks())) < len(elements)


@pytest.mark.parametrize("assigner", ASSIGNERS, ids=named)
@pytest.mark.parametrize("evictor", ALL, ids=named)
@pytest.mark.parametrize("restoring", [False, True])
def test_what_was_evicted_is_gone_at_the_next_firing(
    assigner: WindowAssigner, evictor: Evictor, restoring: bool
) -> None:
    run = harness(assigner, evictor)
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


@pytest.mark.parametrize("assigner", ASSIGNERS, ids=named)
@pytest.mark.parametrize("evictor", ALL, ids=named)
def test_nothing_is_left_when_the_window_closes(assigner: WindowAssigner, evictor: Evictor) -> None:
    run = harness(assigner, evictor)
    for value, timestamp in ELEMENTS:
        run.element("a", value, timestamp)
    run.watermark(MAX_TIMESTAMP)
    run.processing_time(MAX_TIMESTAMP)
    assert (run.state_entries, run.event_time_timers, run.processing_time_timers) == (0, 0, 0)
