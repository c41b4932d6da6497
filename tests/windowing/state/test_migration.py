"""A restore into other code takes over some state, and refuses other state by the name of the field."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidegate.windowing import (
    AfterCount,
    AfterProcessingTime,
    Count,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    KeyedProcessFunction,
    Max,
    Mean,
    PurgingTrigger,
    Sum,
    TumblingEventTimeWindows,
    Windows,
)
from tidegate.windowing.aggregates import AggregateColumns
from tidegate.windowing.errors import IncompatibleSnapshot
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state import ValueStateDescriptor
from tidegate.windowing.state.migration import StateFormat, migrated
from tidegate.windowing.testing import OperatorHarness, keyed_process_harness, window_harness

VALUES = pa.schema([("x", pa.int64()), ("y", pa.float64())])
TEXT = KeySchema.of(key=pa.string())


def counting(
    assigner: Any = None, key: KeySchema = TEXT, panes: PanePolicy | None = None, **functions: Any
) -> OperatorHarness:
    functions = functions or {"n": Count(), "sum": Sum("x")}
    windows = Windows(assigner or TumblingEventTimeWindows.of(10), aggregate=AggregateColumns.of(functions, VALUES))
    return window_harness(windows, key=key, panes=panes)


def fed(run: OperatorHarness, *timestamps: int, key: Any = "a") -> OperatorHarness:
    for timestamp in timestamps:
        run.element(key, {"x": 1, "y": 2.0}, timestamp)
    return run


def refused(run: OperatorHarness, taken_of: OperatorHarness, **options: Any) -> IncompatibleSnapshot:
    with pytest.raises(IncompatibleSnapshot) as raised:
        run.restore(taken_of.snapshot(), **options)
    return raised.value


def test_an_added_aggregate_is_null_for_the_windows_there_were_and_whole_for_new_ones() -> None:
    older = fed(counting(), 1, 2)
    newer = counting(n=Count(), sum=Sum("x"), largest=Max("x"), mean=Mean("y"))
    newer.restore(older.snapshot(), parallelism=3)
    fed(newer, 3, 11)
    newer.watermark(100)
    assert [result.value for result in newer.results()] == [
        {"n": 3, "sum": 3, "largest": None, "mean": None},
        {"n": 1, "sum": 1, "largest": 1, "mean": 2.0},
    ]


def test_it_stays_null_through_another_restore_and_through_merges() -> None:
    older = fed(counting(EventTimeSessionWindows.with_gap(10)), 1)
    newer = counting(EventTimeSessionWindows.with_gap(10), n=Count(), sum=Sum("x"), again=Count())
    newer.restore(older.snapshot())
    newer.restore(newer.snapshot(), parallelism=2)
    fed(newer, 25, 11)
    fed(newer, 20)
    newer.watermark(100)
    assert [result.value for result in newer.results()] == [{"n": 4, "sum": 4, "again": None}]


def test_windows_whose_panes_may_be_retracted_take_an_added_aggregate_too() -> None:
    panes = PanePolicy(retract_merged=True)
    older = fed(counting(EventTimeSessionWindows.with_gap(10), panes=panes), 1)
    newer = counting(EventTimeSessionWindows.with_gap(10), panes=panes, n=Count(), sum=Sum("x"), again=Count())
    newer.restore(older.snapshot())
    newer.watermark(10)
    assert [result.value for result in newer.results()] == [{"n": 1, "sum": 1, "again": None}]


def test_the_retraction_of_an_older_pane_has_the_columns_of_now() -> None:
    def harness(**functions: Any) -> OperatorHarness:
        windows = Windows(
            EventTimeSessionWindows.with_gap(10),
            allowed_lateness=100,
            aggregate=AggregateColumns.of(functions, VALUES),
        )
        return window_harness(windows, key=TEXT, panes=PanePolicy(retract_merged=True))

    older = fed(harness(n=Count(), sum=Sum("x")), 1)
    older.watermark(10)
    newer = harness(n=Count(), again=Count())
    newer.restore(older.snapshot(), drop=["acc_sum"])
    fed(newer, 8)
    newer.watermark(17)
    assert [(result.op, result.value) for result in newer.results()] == [
        ("-", {"n": 1, "again": None}),
        ("+", {"n": 2, "again": None}),
    ]


def test_a_dropped_aggregate_is_dropped_only_when_that_is_asked_for() -> None:
    older = fed(counting(), 1, 2)
    error = refused(counting(n=Count()), older)
    assert (error.field, error.found, error.expected) == ("contents 'acc_sum'", "int64", None)
    assert "in dropped" in str(error)
    newer = counting(n=Count())
    newer.restore(older.snapshot(), drop=["acc_sum"])
    newer.watermark(100)
    assert [result.value for result in newer.results()] == [{"n": 2}]


def test_an_aggregate_of_another_type_is_refused_even_when_dropping_is_allowed() -> None:
    error = refused(counting(n=Count(), sum=Sum("y")), fed(counting(), 1), drop=["acc_sum"])
    assert (error.field, error.found, error.expected) == ("contents 'acc_sum'", "int64", "double")


def test_a_reduced_value_does_not_become_an_aggregate() -> None:
    older = window_harness(
        Windows(TumblingEventTimeWindows.of(10), reduce=lambda a, b: a), key=TEXT, value_type=pa.struct(list(VALUES))
    )
    assert refused(counting(n=Count()), fed(older, 1)).field == "contents 'reduced'"


def test_another_key_type_is_refused() -> None:
    older = fed(counting(key=KeySchema.of(key=pa.int32())), 1, key=5)
    error = refused(counting(key=KeySchema.of(key=pa.int64())), older)
    assert (error.field, error.found, error.expected) == ("key column 'key'", "int32", "int64")
    assert "different hashes" in str(error)


def test_key_columns_in_another_order_are_refused() -> None:
    older = fed(counting(key=KeySchema.of(a=pa.string(), b=pa.string())), 1, key=("x", "y"))
    error = refused(counting(key=KeySchema.of(b=pa.string(), a=pa.string())), older)
    assert (error.field, error.found, error.expected) == ("key columns", ["a", "b"], ["b", "a"])


def test_another_namespace_is_refused() -> None:
    windows = Windows(
        GlobalWindows.create(),
        PurgingTrigger.of(CountTrigger.of(3)),
        aggregate=AggregateColumns.of({"n": Count(), "sum": Sum("x")}, VALUES),
    )
    error = refused(window_harness(windows, key=TEXT), fed(counting(), 1))
    assert (error.field, error.found, error.expected) == ("namespace", "time_window", "global_window")


def test_another_number_of_key_groups_is_refused() -> None:
    windows = Windows(TumblingEventTimeWindows.of(10), aggregate={"n": Count()})
    older, newer = window_harness(windows, max_parallelism=128), window_harness(windows, max_parallelism=64)
    error = refused(newer, fed(older, 1))
    assert (error.field, error.found, error.expected) == ("max_parallelism", 128, 64)


class Remember(KeyedProcessFunction):
    def __init__(self, **states: pa.DataType) -> None:
        self.declared = tuple(ValueStateDescriptor(name, kind) for name, kind in states.items())

    def process_element(self, value: Any, ctx: Any) -> Any:
        seen = {state.name: ctx.get_state(state).value() for state in self.declared}
        for state in self.declared:
            ctx.get_state(state).update(value)
        yield seen

    def states(self) -> Any:
        return self.declared


def test_an_added_state_is_empty_and_a_dropped_one_must_be_named() -> None:
    older = keyed_process_harness(Remember(one=pa.int64()))
    older.element("a", 7, 0)
    newer = keyed_process_harness(Remember(one=pa.int64(), two=pa.int64()))
    newer.restore(older.snapshot())
    newer.element("a", 8, 1)
    assert [result.value for result in newer.element_results()] == [{"one": 7, "two": None}]

    assert refused(keyed_process_harness(Remember(two=pa.int64())), newer).field == "user state 'one'"
    left = keyed_process_harness(Remember(two=pa.int64()))
    left.restore(newer.snapshot(), drop=["one"])
    left.element("a", 9, 2)
    assert [result.value for result in left.element_results()] == [{"two": 8}]


def test_a_state_of_another_type_is_refused() -> None:
    older = keyed_process_harness(Remember(one=pa.int64()))
    older.element("a", 7, 0)
    error = refused(keyed_process_harness(Remember(one=pa.string())), older)
    assert (error.field, error.found, error.expected) == ("user state 'one'", "int64", "string")


def test_another_trigger_may_add_state_but_not_lose_it() -> None:
    def harness(trigger: Any) -> OperatorHarness:
        windows = Windows(
            TumblingEventTimeWindows.of(10), trigger, aggregate=AggregateColumns.of({"n": Count()}, VALUES)
        )
        return window_harness(windows, key=TEXT)

    plain = fed(harness(None), 1, 2)
    harness(AfterCount(3)).restore(plain.snapshot())
    error = refused(harness(AfterProcessingTime(5)), fed(harness(AfterCount(3)), 1))
    assert error.field == "trigger state 'count'"


def test_rows_of_a_version_to_come_are_refused() -> None:
    older = fed(counting(), 1)
    snapshot = older.snapshot()
    schema = older.schema(TEXT)
    found = StateFormat(**{**_fields(snapshot.format), "version": 2})
    with pytest.raises(IncompatibleSnapshot, match="library version") as raised:
        migrated(snapshot.rows, found, schema)
    assert raised.value.field == "version"


def test_the_fingerprint_changes_with_the_format_alone() -> None:
    one, other = (fed(counting(), time).snapshot().format for time in (1, 15))
    assert one.fingerprint == other.fingerprint
    assert fed(counting(n=Count()), 1).snapshot().format.fingerprint != one.fingerprint
    assert fed(counting(key=KeySchema.of(k=pa.string())), 1).snapshot().format.fingerprint != one.fingerprint


def _fields(value: StateFormat) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
