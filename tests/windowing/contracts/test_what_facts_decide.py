"""The answers of user code decide how its windows run: by row, commits whole, with warnings of losses."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from tests.windowing.contracts.scripted import CountThem, Given, GivenMerging, KeepAll, Scripted
from tests.windowing.contracts.test_facts import OwnGenerator, subclassed
from tidegate.windowing import (
    Accumulation,
    Count,
    CountTrigger,
    EventTimeTrigger,
    GlobalWindows,
    PurgingTrigger,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.aggregates import Aggregate
from tidegate.windowing.columnar import choose_operator
from tidegate.windowing.errors import UnboundedStateWarning
from tidegate.windowing.functions import AggregateElements, AggregateFunction


@dataclass(frozen=True)
class Counted(Aggregate):
    """An aggregate of one's own, which counts."""

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return CountThem()

    @property
    def columns(self) -> tuple[str, ...]:
        return ()


TUMBLING, COUNT = TumblingEventTimeWindows.of(10), {"n": Count()}
WITH_OWN = {
    "assigner": Windows(Given(True), aggregate=COUNT),
    "merging assigner": Windows(GivenMerging(True), aggregate=COUNT),
    "subclass of an assigner": Windows(subclassed(TUMBLING, "assign_windows"), aggregate=COUNT),
    "default trigger": Windows(
        subclassed(TUMBLING, get_default_trigger=lambda self: Scripted()),
        aggregate=COUNT,
    ),
    "trigger": Windows(TUMBLING, Scripted(), aggregate=COUNT),
    "subclass of a trigger": Windows(TUMBLING, subclassed(EventTimeTrigger(), "on_element"), aggregate=COUNT),
    "purging subclass": Windows(
        TUMBLING, PurgingTrigger.of(subclassed(EventTimeTrigger(), "on_element")), aggregate=COUNT
    ),
    "evictor": Windows(TUMBLING, evictor=KeepAll(), process=AggregateElements(CountThem())),
    "aggregate function": Windows(TUMBLING, aggregate=CountThem()),
    "aggregate": Windows(TUMBLING, aggregate={"n": Counted()}),
    "process function": Windows(TUMBLING, process=AggregateElements(CountThem())),
    "reduce": Windows(TUMBLING, reduce=lambda a, b: a),
}


@pytest.mark.parametrize("windows", WITH_OWN.values(), ids=WITH_OWN)
def test_windows_with_code_of_one_s_own_go_by_row_show_the_order_and_keep_commits_whole(windows: Windows) -> None:
    assert not choose_operator(windows).columnar
    assert windows.order_shown_by is not None
    assert not windows.may_split_commits


def test_windows_of_the_library_alone_do_none_of_that() -> None:
    windows = Windows(TUMBLING, aggregate=COUNT)
    assert (choose_operator(windows).columnar, windows.order_shown_by, windows.may_split_commits) == (True, None, True)


@pytest.mark.parametrize("part", ["assigner", "default trigger", "trigger", "subclass of a trigger"])
def test_elements_may_be_lost_to_a_trigger_of_one_s_own(part: str) -> None:
    assert WITH_OWN[part].may_lose_data


@pytest.mark.parametrize(
    "parts",
    [
        {"trigger": Scripted(), "aggregate": COUNT},
        {"trigger": subclassed(PurgingTrigger.of(CountTrigger.of(2)), "on_element"), "aggregate": COUNT},
        {"evictor": KeepAll(), "process": AggregateElements(CountThem())},
    ],
    ids=["trigger", "subclass of a purging trigger", "evictor"],
)
def test_nobody_believes_that_code_of_one_s_own_cleans_the_global_window(parts: dict[str, Any]) -> None:
    with pytest.warns(UnboundedStateWarning):
        Windows(GlobalWindows(), **parts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Windows(GlobalWindows(), accumulation=Accumulation.DISCARDING, **parts)


def test_an_evictor_that_says_it_bounds_the_state_is_believed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        says = subclassed(KeepAll(), bounds_state=True)
        Windows(GlobalWindows(), evictor=says, process=AggregateElements(CountThem()))


def test_a_generator_of_one_s_own_sees_every_event_and_may_move_by_the_clock() -> None:
    strategy = WatermarkStrategy.for_generator(OwnGenerator)
    assert (strategy.reads_events, strategy.moves_by_clock) == (True, True)
    built_in = WatermarkStrategy.for_bounded_out_of_orderness(5)
    assert (built_in.reads_events, built_in.moves_by_clock) == (False, False)
    advancing = WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(5, 5)
    assert (advancing.reads_events, advancing.moves_by_clock) == (False, True)
