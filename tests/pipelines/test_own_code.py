"""A user's own code in a pipeline: nothing is reopened, cut or counted unless the code explicitly allows it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from tests.lake import EVENTS, at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.windowing.contracts.scripted import CountThem
from tests.windowing.contracts.test_facts import OwnGenerator, subclassed
from tests.windowing.contracts.test_what_facts_decide import WITH_OWN, Counted, Shifted
from tidegate.pipelines import Input, Pipeline
from tidegate.pipelines.ask.explain import explanation_of
from tidegate.pipelines.correct.request import check_reopenable
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.definition.user_code import members_of
from tidegate.pipelines.definition.window_shape import window_shape
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.delta.description import DeltaSource
from tidegate.windowing import (
    AggregateFunction,
    CoProcess,
    Count,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GapColumn,
    KeyedCoProcessFunction,
    KeyedProcess,
    KeyedProcessFunction,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.errors import UnsupportedOperation

HOURS = TumblingEventTimeWindows.of(timedelta(hours=1))


def of(compute: Any) -> Pipeline:
    return hourly_pipeline(compute=compute, uses=("value",))


class Own(KeyedProcessFunction):
    """A process function."""

    result_type = pa.struct([("n", pa.int64())])

    def process_element(self, value: Any, ctx: Any) -> None:
        """No results."""


class OwnOfTwo(KeyedCoProcessFunction):
    """A process function over two inputs."""

    result_type = pa.struct([("n", pa.int64())])

    def process_element1(self, value: Any, ctx: Any) -> None:
        """No results."""

    def process_element2(self, value: Any, ctx: Any) -> None:
        """No results."""


COMPUTES: dict[str, Any] = WITH_OWN | {
    "keyed process": KeyedProcess(Own()),
    "keyed process in order of arrival": KeyedProcess(Own(), time_sorted=False),
    "co-process": CoProcess(OwnOfTwo()),
}


@pytest.mark.parametrize("compute", COMPUTES.values(), ids=COMPUTES)
@pytest.mark.filterwarnings("ignore::tidegate.windowing.errors.LostElementsWarning")
def test_code_of_one_s_own_goes_by_row_and_its_late_rows_stay_late(compute: Any) -> None:
    right = Input(source=DeltaSource("others", timestamp="at")) if isinstance(compute, CoProcess) else None
    pipeline = hourly_pipeline(compute=compute, right=right)
    assert explanation_of(pipeline).operator.name == "row"
    with pytest.raises(Refused, match="can't be reopened"):
        check_reopenable(pipeline)


@pytest.mark.parametrize("part", ["assigner", "subclass of a trigger", "aggregate"])
@pytest.mark.filterwarnings("ignore::tidegate.windowing.errors.LostElementsWarning")
def test_an_epoch_does_not_end_inside_a_commit_where_code_of_one_s_own_may_see_the_order(part: str) -> None:
    windows = replace(WITH_OWN[part], aggregate={"n": Counts()} if part == "aggregate" else {"n": Count()})
    assert not bind(of(windows), EVENTS, EVENTS).may_split_commits
    assert bind(of(Windows(HOURS, aggregate={"n": Count()})), EVENTS, EVENTS).may_split_commits


def test_it_does_not_where_a_generator_of_one_s_own_makes_the_watermarks() -> None:
    pipeline = hourly_pipeline(watermark=WatermarkStrategy.for_generator(OwnGenerator))
    assert not bind(pipeline, EVENTS, EVENTS).may_split_commits


@pytest.mark.filterwarnings("ignore::tidegate.windowing.errors.LostElementsWarning")
@pytest.mark.parametrize(
    "windows",
    [
        Windows(subclassed(HOURS, "assign_windows"), aggregate={"n": Count()}),
        Windows(HOURS, subclassed(EventTimeTrigger(), "on_element"), aggregate={"n": Count()}),
    ],
    ids=["assigner", "trigger"],
)
def test_no_rule_of_an_audit_counts_on_code_of_one_s_own(windows: Windows) -> None:
    changed, plain = window_shape(of(windows)), window_shape(of(Windows(HOURS, aggregate={"n": Count()})))
    assert changed is not None
    assert (plain.size, plain.count, plain.may_lose_data) == (3_600_000, "n", False)
    assert changed.size is None or (changed.count is None and changed.may_lose_data)


def test_the_gap_column_is_read_whatever_a_subclass_does_with_it() -> None:
    assigner = subclassed(EventTimeSessionWindows.with_dynamic_gap(GapColumn("value")), "assign_windows")
    pipeline = session_pipeline(compute=Windows(assigner, aggregate={"n": Count()}), uses=("user",))
    assert bind(pipeline, EVENTS, EVENTS).used == ("user", "value")


class Noted(EventTimeTrigger):
    """A trigger with a method of its own."""

    def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> Any:
        return EventTimeTrigger.on_element(self, element, timestamp, window, ctx)


def test_a_fingerprint_tells_a_class_by_what_it_says_itself_and_not_by_the_safe_answers() -> None:
    """With a different fingerprint, every interval of a backfill would run again after an upgrade."""
    assert Noted().sees_order
    assert [name for name, _ in members_of(Noted)] == ["on_element"]


def test_the_safe_answers_go_along_to_the_tasks() -> None:
    def made_here() -> type[EventTimeTrigger]:
        class Local(EventTimeTrigger):
            def on_element(self, element: Any, timestamp: Any, window: Any, ctx: Any) -> Any:
                return EventTimeTrigger.on_element(self, element, timestamp, window, ctx)

        return Local

    local = pickle.loads(cloudpickle.dumps(made_here()))
    assert (local().sees_order, local().array_firing) == (True, None)


class Tally(CountThem):
    """Counts, and does not say whether the order matters."""

    result_type = pa.int64()


class OrderFreeTally(Tally):
    """Counts, and says that the order does not matter."""

    sees_order = False


class Counts(Counted):
    """A column of `Tally`."""

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return Tally()


class CountsInAnyOrder(Counted):
    """A column of `OrderFreeTally`."""

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return OrderFreeTally()


def test_an_aggregate_that_says_the_order_does_not_matter_may_be_reopened_and_cut() -> None:
    """The remedy that the other one's refusal names."""
    with pytest.raises(Refused, match="aggregate function Tally, which does not declare sees_order = False"):
        check_reopenable(of(Windows(HOURS, aggregate={"n": Counts()})))
    pipeline = of(Windows(HOURS, aggregate={"n": CountsInAnyOrder()}))
    assert check_reopenable(pipeline) == pipeline.compute
    assert bind(pipeline, EVENTS, EVENTS).may_split_commits


def test_a_stagger_that_a_restore_would_not_bring_back_is_refused_when_the_first_epoch_is_planned(
    tmp_path: Path,
) -> None:
    windows = Windows(Shifted(3_600_000), aggregate={"n": Count()})
    planned = ByHand(tmp_path, of(windows)).planned([("ann", at("10:00"), 1)], at("11:00"))
    with pytest.raises(UnsupportedOperation, match="would have different windows after a restore"):
        assert planned.plan.compute


def test_a_fingerprint_stays_after_the_code_was_sent_to_tasks() -> None:
    """Pickling an instance stores a list of its slots in its class."""

    class Sent(Own):
        """A function that has not been pickled yet."""

    pipeline = of(KeyedProcess(Sent()))
    before = bind(pipeline, EVENTS, EVENTS).fingerprint
    cloudpickle.dumps(pipeline)
    assert "__slotnames__" in vars(Sent)
    assert bind(pipeline, EVENTS, EVENTS).fingerprint == before
