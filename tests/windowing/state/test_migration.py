"""A restore into other code takes over some state, and refuses other state by the name of the field. A snapshot leaves
out state whose time to live has passed, so state does not grow with every key that ever existed. This code restores
snapshots that were once taken, with the results that they had then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import add
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.windowing.contracts.scripted import CONTINUE, Given, Scripted
from tests.windowing.state.snapshots import SCENARIOS, after, before, read
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
from tidegate.windowing.functions import ProcessWindowFunction
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.windowing.state.migration import StateFormat, migrated
from tidegate.windowing.testing import OperatorHarness, keyed_process_harness, window_harness
from tidegate.windowing.windows import TimeWindow

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


def test_an_added_state_is_empty_a_dropped_one_must_be_named_and_one_of_another_type_is_refused() -> None:
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
    error = refused(keyed_process_harness(Remember(one=pa.string(), two=pa.int64())), newer)
    assert (error.field, error.found, error.expected) == ("user state 'one'", "int64", "string")


def grouped(groups: int) -> OperatorHarness:
    return window_harness(Windows(TumblingEventTimeWindows.of(10), aggregate={"n": Count()}), max_parallelism=groups)


def reducing() -> OperatorHarness:
    windows = Windows(TumblingEventTimeWindows.of(10), reduce=lambda a, b: a)
    return window_harness(windows, key=TEXT, value_type=pa.struct(list(VALUES)))


def counting_globally() -> OperatorHarness:
    functions = AggregateColumns.of({"n": Count(), "sum": Sum("x")}, VALUES)
    return window_harness(
        Windows(GlobalWindows.create(), PurgingTrigger.of(CountTrigger.of(3)), aggregate=functions), key=TEXT
    )


def keyed(**columns: pa.DataType) -> OperatorHarness:
    return counting(key=KeySchema.of(**columns))


REFUSED: list[tuple[OperatorHarness, OperatorHarness, Any, str, Any, Any]] = [
    (counting(), counting(n=Count(), sum=Sum("y")), "a", "contents 'acc_sum'", "int64", "double"),
    (keyed(key=pa.int32()), keyed(key=pa.int64()), 5, "key column 'key'", "int32", "int64"),
    (
        keyed(a=pa.string(), b=pa.string()),
        keyed(b=pa.string(), a=pa.string()),
        ("x", "y"),
        "key columns",
        ["a", "b"],
        ["b", "a"],
    ),
    (counting(), counting_globally(), "a", "namespace", "time_window", "global_window"),
    (grouped(128), grouped(64), "a", "max_parallelism", 128, 64),
]


@pytest.mark.parametrize(
    ("older", "newer", "key", "field", "found", "expected"), REFUSED, ids=[field for *_, field, _, _ in REFUSED]
)
def test_state_of_another_shape_is_refused_by_its_field_even_when_dropping_is_allowed(
    older: OperatorHarness, newer: OperatorHarness, key: Any, field: str, found: Any, expected: Any
) -> None:
    error = refused(newer, fed(older, 1, key=key), drop=["acc_sum"])
    assert (error.field, error.found, error.expected) == (field, found, expected)
    assert field != "key column 'key'" or "different hashes" in str(error)


def test_a_reduced_value_does_not_become_an_aggregate() -> None:
    assert refused(counting(n=Count()), fed(reducing(), 1)).field == "contents 'reduced'"


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


def test_rows_of_a_table_that_already_has_the_new_column_are_migrated_as_others() -> None:
    """As when an older snapshot is read after newer code added the column to the table."""
    snapshot, schema = fed(counting(n=Count()), 1).snapshot(), counting().schema(TEXT)
    wider = snapshot.rows
    for name, kind in schema.contents:
        if name not in wider.column_names:
            wider = wider.append_column(name, pa.nulls(len(wider), kind))
    assert wider != snapshot.rows
    assert migrated(wider, snapshot.format, schema).equals(migrated(snapshot.rows, snapshot.format, schema))


def test_the_fingerprint_changes_with_the_format_alone() -> None:
    one, other = (fed(counting(), time).snapshot().format for time in (1, 15))
    assert one.fingerprint == other.fingerprint
    assert fed(counting(n=Count()), 1).snapshot().format.fingerprint != one.fingerprint
    assert fed(counting(key=KeySchema.of(k=pa.string())), 1).snapshot().format.fingerprint != one.fingerprint


TTL = StateTtlConfig(100)
STATES: dict[str, tuple[StateDescriptor, Callable[[Any, Any], None]]] = {
    "value": (ValueStateDescriptor("kept", pa.int64(), TTL), lambda state, value: state.update(value)),
    "list": (ListStateDescriptor("kept", pa.int64(), TTL), lambda state, value: state.add(value)),
    "map": (MapStateDescriptor("kept", pa.int64(), pa.int64(), TTL), lambda state, value: state.put(value, value)),
    "reducing": (ReducingStateDescriptor("kept", add, pa.int64(), TTL), lambda state, value: state.add(value)),
    "aggregating": (
        AggregatingStateDescriptor("kept", Sum("n").bind(pa.schema([("n", pa.int64())])), TTL),
        lambda state, value: state.add({"n": value}),
    ),
}


class Keeps(KeyedProcessFunction):
    """Keeps each element in a state with a time to live."""

    def __init__(self, kind: str) -> None:
        self.state, self.keep = STATES[kind]

    def states(self) -> Sequence[StateDescriptor]:
        return (self.state,)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.keep(ctx.get_state(self.state), value)
        return ()


def rows(harness: OperatorHarness) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = harness.snapshot().rows.to_pylist()
    return found


@pytest.mark.parametrize("kind", STATES)
def test_a_key_whose_state_has_expired_has_no_row(kind: str) -> None:
    harness = keyed_process_harness(Keeps(kind))
    harness.processing_time(1000)
    harness.element("old", 1, 0)
    harness.processing_time(1099)
    harness.element("young", 2, 0)
    assert {row["key"] for row in rows(harness)} == {"old", "young"}
    harness.processing_time(1100)
    assert [row["key"] for row in rows(harness)] == ["young"]
    harness.restore(harness.snapshot())
    assert [row["key"] for row in rows(harness)] == ["young"]


@pytest.mark.parametrize("kind", ["list", "map"])
def test_of_a_list_or_map_only_the_entries_that_live_stay(kind: str) -> None:
    harness = keyed_process_harness(Keeps(kind))
    harness.element("a", 1, 0)
    harness.processing_time(50)
    harness.element("a", 2, 0)
    harness.processing_time(100)
    ((row),) = rows(harness)
    entry = {"value": 2, "at": 50}
    assert row["user_state"]["kept"] == ([entry] if kind == "list" else [(2, entry)])


class Timed(Keeps):
    """Also sets a timer for each element."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        ctx.timer_service().register_event_time_timer(500)
        return super().process_element(value, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_state(self.state).value()


def test_a_key_with_timers_keeps_its_row_when_its_state_has_expired() -> None:
    harness = keyed_process_harness(Timed("value"))
    harness.element("a", 1, 0)
    harness.processing_time(100)
    ((row),) = rows(harness)
    assert row["user_state"] is None
    assert row["event_time_timers"] == [500]
    harness.restore(harness.snapshot())
    harness.watermark(500)
    assert [result.value for result in harness.element_results()] == [None]


class OverWindows(ProcessWindowFunction):
    """Counts the windows of a key, in a state with a time to live."""

    count = ReducingStateDescriptor("count", add, pa.int64(), TTL)

    def global_states(self) -> Sequence[StateDescriptor]:
        return (self.count,)

    def process(self, key: Any, ctx: Any, elements: Sequence[Any]) -> Iterable[Any]:
        state = ctx.global_state.get_state(self.count)
        state.add(1)
        yield state.get()


def test_what_a_window_function_keeps_of_a_key_expires_in_the_snapshot() -> None:
    harness = window_harness(Windows(EventTimeSessionWindows.with_gap(10), process=OverWindows()))
    harness.element("a", 1, 0)
    harness.watermark(50)
    assert [row["namespace"] for row in rows(harness)] == ["key"]
    harness.processing_time(100)
    assert rows(harness) == []
    harness.element("a", 1, 100)
    harness.watermark(150)
    assert [result.value for result in harness.results()] == [1, 1]


def test_what_a_trigger_keeps_of_a_window_expires_in_the_snapshot() -> None:
    state = ValueStateDescriptor("cell", pa.int64(), TTL)

    def remember(window: Any, ctx: Any) -> Any:
        ctx.get_partitioned_state(state).update(7)
        return CONTINUE

    trigger = Scripted(element=remember, state=state)
    harness = window_harness(
        Windows(Given(event_time=True), trigger=trigger, process=OverWindows()),
        value_type=pa.list_(pa.list_(pa.int64())),
    )
    harness.element("a", [TimeWindow(0, 1000)], 0)
    assert [row["trigger_state"] for row in rows(harness)] == [{"cell": {"value": 7, "at": 0}}]
    harness.processing_time(100)
    assert [row["trigger_state"] for row in rows(harness)] == [None]


def test_reduced_states_of_windows_that_merge_live_as_long_as_the_newer_one() -> None:
    state = ReducingStateDescriptor("n", add, pa.int64(), TTL)
    target = {"n": {"value": 1, "at": 5}}
    state.merge(target, {"n": {"value": 2, "at": 3}})
    assert target == {"n": {"value": 3, "at": 5}}


class Pages(KeyedProcessFunction):
    """Stores each page, and emits the order of those that it finds."""

    seen = MapStateDescriptor("seen", pa.string(), pa.int64(), StateTtlConfig(10))

    def states(self) -> Sequence[StateDescriptor]:
        return (self.seen,)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        pages = ctx.get_state(self.seen)
        pages.put(value, 1)
        yield pages.keys()


@pytest.mark.parametrize("restarts", [True, False])
def test_an_entry_that_is_put_again_after_it_expired_is_the_last_with_and_without_a_restart(restarts: bool) -> None:
    harness = keyed_process_harness(Pages())
    for clock, page in ((0, "c"), (8, "b"), (15, "c")):
        harness.processing_time(clock)
        if restarts:
            harness.restore(harness.snapshot())
        harness.element("ann", page, clock)
    assert [result.value for result in harness.element_results()][-1] == ["b", "c"]


FILES = sorted(Path(__file__).parent.glob("frozen/*.parquet"))


@pytest.mark.filterwarnings("ignore::tidegate.windowing.errors.UnboundedStateWarning")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_frozen_snapshot_goes_on_as_it_did(path: Path, parallelism: int) -> None:
    run = SCENARIOS[path.stem]()
    run.restore(read(path), parallelism)
    assert after(run, path.stem) == path.with_suffix(".txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.filterwarnings("ignore::tidegate.windowing.errors.UnboundedStateWarning")
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_state_is_still_written_as_the_same_rows(name: str) -> None:
    frozen = read(Path(__file__).parent / "frozen" / f"{name}.parquet")
    taken = before(name).snapshot()
    order = [(column, "ascending") for column in ("key_group", "namespace", "side", "window_start", "window_end")]
    assert taken.rows.sort_by(order).equals(frozen.rows.sort_by(order))
    assert taken.format == frozen.format


def test_every_scenario_has_a_frozen_snapshot() -> None:
    assert {path.stem for path in FILES} == set(SCENARIOS)


def test_a_format_says_the_same_after_json() -> None:
    for path in FILES:
        found = read(path).format
        assert StateFormat.from_json(found.to_json()) == found
        assert StateFormat.from_json(found.to_json()).fingerprint == found.fingerprint
