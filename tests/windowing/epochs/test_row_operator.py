"""The row operator runs an epoch like the columnar one, whatever it computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.windowing import (
    Count,
    CountTrigger,
    GlobalWindows,
    IntervalJoin,
    KeyedProcess,
    KeyedProcessFunction,
    PurgingTrigger,
    TumblingEventTimeWindows,
    Windows,
)
from tidegate.windowing.aggregates import AggregateColumns
from tidegate.windowing.columnar import ColumnarOperator, run_in_passes
from tidegate.windowing.compute import Compute
from tidegate.windowing.epochs import Elements, EpochOutcome, Timeline
from tidegate.windowing.epochs.row_operator import RowOperator
from tidegate.windowing.errors import IllegalArgument, UnsupportedOperation
from tidegate.windowing.functions import ProcessWindowFunction
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.joins import join_schema
from tidegate.windowing.operators.process import process_schema
from tidegate.windowing.operators.window.snapshot import state_schema
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state.rows import StateSchema

KEY = KeySchema.of(user=pa.string())

GROUPS = 16

PANES = PanePolicy(retract_merged=True, coalesce_late=True)

BEGIN = -(2**63)

SCHEMA = pa.schema([("n", pa.int64())])


def elements(*rows: tuple[int, str, int], commits: list[int] | None = None, sides: list[str] | None = None) -> Elements:
    """Elements of (time, user, n); `sides` makes them elements of two inputs."""
    values = pa.array([n for _, _, n in rows], pa.int64())
    return Elements(
        timestamps=np.array([time for time, _, _ in rows], np.int64),
        commits=np.array(commits or [0] * len(rows), np.int64),
        keys={"user": pa.array([user for _, user, _ in rows], pa.string()).dictionary_encode()},
        columns={"n": values} if sides is None else {"left:n": values, "right:n": values},
        sides=None if sides is None else pa.array(sides),
    )


def operator_of(compute: Compute, state: StateSchema, results: pa.StructType | None = None) -> RowOperator:
    return RowOperator(compute, state, PANES, GROUPS, results)


def run(compute: Compute, state: StateSchema, given: Elements, timeline: Timeline, **settings: Any) -> EpochOutcome:
    return operator_of(compute, state, **settings).run(given, state.to_table([], GROUPS), timeline)


class Clocks(KeyedProcessFunction):
    """Yields the clock at which each element is seen, and sends odd numbers to a side output."""

    result_type = pa.struct([("clock", pa.int64())])
    side_outputs = {"odd": pa.struct([("n", pa.int64())])}  # noqa: RUF012

    def process_element(self, value: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        if value["n"] % 2:
            ctx.output("odd", {"n": value["n"]})
        ctx.timer_service().register_processing_time_timer(500)
        yield {"clock": ctx.timer_service().current_processing_time()}


def test_a_process_function_gives_outputs_with_the_clock_of_each_commit() -> None:
    process = KeyedProcess(Clocks(), time_sorted=False)
    given = elements((5, "ann", 1), (3, "bob", 2), (9, "ann", 4), commits=[0, 0, 1])
    timeline = Timeline.of_commits(BEGIN, [(4, True), (8, True)], clocks=[100, 200], clock=50)
    outcome = run(process, process_schema(process, KEY), given, timeline)
    assert outcome.outputs.to_pylist() == [
        {"key_user": "bob", "timestamp": 3, "output": None, "value_clock": 100, "value_odd": None},
        {"key_user": "ann", "timestamp": 5, "output": "odd", "value_clock": None, "value_odd": {"n": 1}},
        {"key_user": "ann", "timestamp": 5, "output": None, "value_clock": 100, "value_odd": None},
        {"key_user": "ann", "timestamp": 9, "output": None, "value_clock": 200, "value_odd": None},
    ]
    assert outcome.panes.num_columns == 0
    assert (outcome.next_timer, outcome.next_processing_time_timer) == (None, 500)
    assert (outcome.counters.elements, outcome.rows_by_row) == (3, 3)


def test_a_clock_that_reaches_a_timer_fires_it_before_the_elements_of_its_commit() -> None:
    class Late(Clocks):
        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[dict[str, Any]]:
            yield {"clock": -timestamp}

    process = KeyedProcess(Late(), time_sorted=False)
    given = elements((5, "ann", 2), (7, "ann", 2), commits=[0, 1])
    timeline = Timeline.of_commits(BEGIN, [(4, True), (8, True)], clocks=[100, 600], clock=50)
    outcome = run(process, process_schema(process, KEY), given, timeline)
    assert outcome.outputs["value_clock"].to_pylist() == [100, -500, 600]


def test_what_waits_and_what_is_late_comes_back_as_state_and_rows() -> None:
    process = KeyedProcess(Clocks())
    state = process_schema(process, KEY, pa.struct([("n", pa.int64())]))
    timeline = Timeline.of_commits(10, [(20, True)])
    first = run(process, state, elements((30, "ann", 2), (10, "bob", 2), (15, "ann", 4)), timeline)
    assert first.late.to_pylist() == [
        {"row": 1, "reason": "late", "watermark": 10, "window_start": None, "window_end": None}
    ]
    assert (first.outputs["timestamp"].to_pylist(), first.next_timer) == ([15], 30)
    after = operator_of(process, state).run(elements(), first.state, Timeline.of_commits(20, [(30, True)]))
    assert after.outputs["timestamp"].to_pylist() == [30]


def test_a_commit_may_come_in_parts_and_ends_with_its_last() -> None:
    windows = Windows(TumblingEventTimeWindows.of(10), aggregate={"n": Count()}, allowed_lateness=50)
    state = state_schema(windows, KEY, None, PANES)
    given = elements((1, "ann", 1), (2, "ann", 2), (15, "ann", 3), commits=[0, 1, 2])
    timeline = Timeline.of_commits(20, [(25, False), (25, True), (30, True)])
    row = RowOperator(windows, state, PANES, GROUPS)
    panes = row.run(given, state.to_table([], GROUPS), timeline).panes.to_pylist()
    assert [(pane["window_start"], pane["value_n"], pane["watermark"]) for pane in panes] == [(0, 2, 20), (10, 1, 25)]


@pytest.mark.parametrize("rows_of_a_pass", [None, 1, 2, 9])
def test_elements_after_the_end_of_an_epoch_in_event_order_fire_nothing_after_it(rows_of_a_pass: int | None) -> None:
    """They exist where open windows are recomputed. None computes them by row."""
    windows = Windows(TumblingEventTimeWindows.of(10), aggregate=AggregateColumns.of({"n": Count()}, SCHEMA))
    state = state_schema(windows, KEY, None, PANES)
    given = elements((1, "ann", 1), (12, "ann", 2), (15, "bob", 2), (25, "ann", 3), (47, "bob", 3))
    timeline, nothing = Timeline.in_event_order(BEGIN, 20, 1), state.to_table([], GROUPS)
    if rows_of_a_pass is None:
        outcome = RowOperator(windows, state, PANES, GROUPS).run(given, nothing, timeline)
    else:
        columnar = ColumnarOperator(windows, state, PANES, GROUPS)
        outcome = run_in_passes(columnar, given, nothing, timeline, rows_of_a_pass)
    assert sorted(outcome.panes["window_start"].to_pylist()) == [0, 10, 10]
    assert sorted(row.window.start for row in state.from_table(outcome.state) if row.window is not None) == [20, 40]


def test_arrays_take_no_commit_in_parts() -> None:
    aggregate = AggregateColumns.of({"n": Count()}, pa.schema([("n", pa.int64())]))
    windows = Windows(TumblingEventTimeWindows.of(10), aggregate=aggregate)
    state = state_schema(windows, KEY, None, PANES)
    columnar, timeline = (
        ColumnarOperator(windows, state, PANES, GROUPS),
        Timeline.of_commits(0, [(5, False), (5, True)]),
    )
    with pytest.raises(IllegalArgument, match="only the last commit of an epoch may be incomplete"):
        columnar.run(elements(), state.to_table([], GROUPS), timeline)


def test_the_elements_of_two_inputs_have_the_columns_of_their_side() -> None:
    join = IntervalJoin(-5, 5)
    state = join_schema(join, KEY, *[pa.struct([("n", pa.int64())])] * 2)
    given = elements((1, "ann", 1), (2, "ann", 2), (3, "bob", 4), sides=["right", "left", "left"])
    pair = pa.struct([(side, pa.struct([("n", pa.int64())])) for side in ("left", "right")])
    outcome = run(join, state, given, Timeline.of_commits(BEGIN, [(0, True)]), results=pair)
    assert outcome.outputs.to_pylist() == [
        {"key_user": "ann", "timestamp": 2, "output": None, "value_left": {"n": 2}, "value_right": {"n": 1}}
    ]
    assert outcome.state.num_rows == 3


def test_the_global_window_has_no_bounds() -> None:
    windows = Windows(GlobalWindows.create(), PurgingTrigger.of(CountTrigger.of(2)), aggregate={"n": Count()})
    row = RowOperator(windows, state := state_schema(windows, KEY, None, PANES), PANES, GROUPS)
    given = elements((1, "ann", 1), (2, "ann", 2))
    outcome = row.run(given, state.to_table([], GROUPS), Timeline.of_commits(BEGIN, [(9, True)]))
    (pane,) = outcome.panes.to_pylist()
    assert (pane["window_start"], pane["window_end"], pane["value_n"]) == (None, None, 2)


class Aside(ProcessWindowFunction):
    """Sends everything to a side output."""

    result_type = pa.struct([("n", pa.int64())])

    def process(self, key: Any, ctx: Any, elements: Any) -> Iterator[dict[str, Any]]:
        ctx.output("aside", {})
        yield {"n": len(elements)}


def test_a_side_output_of_a_window_is_refused_with_its_tag() -> None:
    windows = Windows(TumblingEventTimeWindows.of(10), process=Aside())
    state = state_schema(windows, KEY, pa.struct([("n", pa.int64())]), PANES)
    with pytest.raises(UnsupportedOperation, match="side output 'aside': all panes of a pipeline have one type"):
        run(windows, state, elements((1, "ann", 1)), Timeline.of_commits(BEGIN, [(20, True)]))


def test_results_of_no_declared_type_are_refused_when_the_operator_is_made() -> None:
    windows = Windows(TumblingEventTimeWindows.of(10), reduce=lambda a, b: a)
    state = state_schema(windows, KEY, pa.struct([("n", pa.int64())]), PANES)
    with pytest.raises(IllegalArgument, match="give the type of a result row"):
        operator_of(windows, state)
    assert operator_of(windows, state, pa.struct([("n", pa.int64())])) is not None
