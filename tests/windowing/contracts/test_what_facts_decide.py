"""The answers of user code decide how its windows run: by row, with whole commits, with warnings about losses."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from tests.windowing.contracts.scripted import CountThem, Given, GivenMerging, KeepAll, Scripted, named
from tests.windowing.contracts.test_assigners import harness
from tests.windowing.contracts.test_facts import OwnGenerator, subclassed
from tidegate.windowing import (
    Accumulation,
    AfterCount,
    AfterWatermark,
    Count,
    CountTrigger,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GapColumn,
    GlobalWindows,
    ProcessingTimeoutTrigger,
    PurgingTrigger,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.aggregates import Aggregate
from tidegate.windowing.columnar import choose_operator
from tidegate.windowing.errors import UnboundedStateWarning, UnsupportedOperation
from tidegate.windowing.functions import AggregateFunction, ProcessWindowFunction
from tidegate.windowing.triggers import Trigger


@dataclass(frozen=True)
class Counted(Aggregate):
    """A user's aggregate, which counts."""

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return CountThem()

    @property
    def columns(self) -> tuple[str, ...]:
        return ()


class NumberOfThem(ProcessWindowFunction):
    def process(self, key: Any, ctx: Any, elements: Sequence[Any]) -> list[int]:
        return [len(elements)]


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
    "evictor": Windows(TUMBLING, evictor=KeepAll(), aggregate=COUNT),
    "aggregate function": Windows(TUMBLING, aggregate=CountThem()),
    "aggregate": Windows(TUMBLING, aggregate={"n": Counted()}),
    "process function": Windows(TUMBLING, process=NumberOfThem()),
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
        {"evictor": KeepAll(), "aggregate": COUNT},
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
        Windows(GlobalWindows(), evictor=says, aggregate=COUNT)


def test_a_generator_of_one_s_own_sees_every_event_and_may_move_by_the_clock() -> None:
    strategy = WatermarkStrategy.for_generator(OwnGenerator)
    assert (strategy.reads_events, strategy.moves_by_clock) == (True, True)
    built_in = WatermarkStrategy.for_bounded_out_of_orderness(5)
    assert (built_in.reads_events, built_in.moves_by_clock) == (False, False)
    advancing = WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(5, 5)
    assert (advancing.reads_events, advancing.moves_by_clock) == (False, True)


class Doubled(GapColumn):
    """Computes a different gap from the column."""

    def __call__(self, element: Any) -> int:
        return 2 * super().__call__(element)


class Patience(GapColumn):
    """Overrides nothing."""


def test_a_gap_that_is_computed_from_a_column_is_not_the_column() -> None:
    doubled, same = (EventTimeSessionWindows.with_dynamic_gap(kind("gap")) for kind in (Doubled, Patience))
    assert (doubled.column_of_gaps, same.column_of_gaps) == (None, "gap")
    assert not choose_operator(Windows(doubled, aggregate={"n": Count()})).columnar
    assert choose_operator(Windows(same, aggregate={"n": Count()})).columnar


class Reading(AfterCount):
    """A user's term that looks at elements as a trigger does."""

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> Any:
        return super().on_element(element["n"], timestamp, window, ctx)


@pytest.mark.parametrize(
    ("trigger", "reads"),
    [
        (AfterWatermark(early=AfterCount(1)), False),
        (Reading(1), True),
        (PurgingTrigger.of(CountTrigger.of(2)), False),
        (PurgingTrigger.of(Scripted()), True),
        (ProcessingTimeoutTrigger.of(DeltaTrigger.of(1, max, pa.int64()), 5), True),
    ],
    ids=named,
)
def test_columns_are_read_by_triggers_that_get_the_element(trigger: Trigger, reads: bool) -> None:
    assert trigger.reads_elements is reads
    assert Windows(TUMBLING, trigger, aggregate=COUNT).reads_whole_elements is reads


@dataclass(frozen=True)
class Shifted(TumblingEventTimeWindows):
    """Windows that a draw shifts by some milliseconds, which the stagger's offset doesn't mention."""

    def staggered(self, clock: int) -> Shifted:
        return replace(self, offset=self.offset + clock % 7)


@dataclass(frozen=True)
class Rounded(TumblingEventTimeWindows):
    """Windows whose restored offset differs from the drawn one."""

    def staggered(self, clock: int) -> Rounded:
        return self if self.stagger_offset is not None else replace(self, stagger_offset=3)

    def with_stagger(self, offset: int) -> Rounded:
        return replace(self, stagger_offset=offset // 2)


@dataclass(frozen=True)
class Third(TumblingEventTimeWindows):
    """Windows with a user's own rule for the draw, which the offset keeps."""

    def staggered(self, clock: int) -> Third:
        return self if self.stagger_offset is not None else self.with_stagger(self.size // 3)


@pytest.mark.parametrize("member", ["staggered", "with_stagger", "stagger_offset"])
def test_an_assigner_with_a_part_of_the_stagger_is_refused_with_the_rest(member: str) -> None:
    others = {"staggered", "with_stagger", "stagger_offset"} - {member}
    with pytest.raises(UnsupportedOperation, match=f"overrides {member} of WindowAssigner, but not ") as refused:
        Windows(subclassed(Given(True), member), aggregate=COUNT)
    assert all(other in str(refused.value) for other in others)


def test_an_assigner_with_all_of_the_stagger_or_nothing_of_it_is_taken() -> None:
    assert Windows(Given(True), aggregate=COUNT)
    assert Windows(subclassed(Given(True), "staggered", "with_stagger", "stagger_offset"), aggregate=COUNT)


@pytest.mark.parametrize("kind", [Shifted, Rounded])
def test_a_stagger_that_a_restore_would_not_bring_back_is_refused_when_it_is_drawn(
    kind: type[TumblingEventTimeWindows],
) -> None:
    run = harness(kind(10))
    run.processing_time(5)
    with pytest.raises(UnsupportedOperation, match=r"would have different windows.*: its stagger_offset is"):
        run.element("ann", {}, 12)


def test_a_rule_of_one_s_own_for_the_draw_is_taken_if_the_offset_keeps_it() -> None:
    run = harness(Third(9))
    run.element("ann", {}, 12)
    assert run.snapshot().stagger_offset == 3


@pytest.mark.parametrize("member", ["stored", "restored"])
def test_an_aggregate_that_only_writes_or_only_reads_its_state_is_refused(member: str) -> None:
    function = subclassed(CountThem(), member)
    with pytest.raises(UnsupportedOperation, match=f"overrides {member} of AggregateFunction, but not "):
        Windows(TumblingEventTimeWindows.of(10), aggregate=function)
    assert Windows(TumblingEventTimeWindows.of(10), aggregate=subclassed(CountThem(), "stored", "restored"))


@pytest.mark.parametrize("member", ["snapshot", "restore"])
def test_a_generator_that_only_writes_or_only_reads_its_state_is_refused(member: str) -> None:
    generator = subclassed(OwnGenerator(), member)
    with pytest.raises(UnsupportedOperation, match=f"overrides {member} of WatermarkGenerator, but not "):
        WatermarkStrategy.for_generator(lambda: generator).create_generator(lambda: 0)
    both = subclassed(OwnGenerator(), "snapshot", "restore")
    assert WatermarkStrategy.for_generator(lambda: both).create_generator(lambda: 0) is both
