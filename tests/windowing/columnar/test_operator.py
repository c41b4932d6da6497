"""Promises of the columnar operator to its callers, in addition to its equality with the row operator. Windows are left
alone if no element has their key and nothing in them becomes due.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from tests.windowing.columnar.longest import Longest
from tidegate.windowing.aggregates import AggregateColumns, Count, Sum
from tidegate.windowing.assigners import (
    EventTimeSessionWindows,
    GapColumn,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from tidegate.windowing.assigners.base import WindowAssigner
from tidegate.windowing.columnar import ColumnarOperator, choose_operator, operator
from tidegate.windowing.columnar.hashing import hash_keys, hash_values, key_groups, window_ids
from tidegate.windowing.compute import Windows
from tidegate.windowing.epochs import Elements, EpochOutcome, Timeline
from tidegate.windowing.epochs.row_operator import RowOperator
from tidegate.windowing.errors import IllegalArgument, UnsupportedOperation
from tidegate.windowing.keys import SPARK_SEED, KeySchema, window_identity
from tidegate.windowing.operators.window.snapshot import state_schema
from tidegate.windowing.panes import Accumulation, PanePolicy
from tidegate.windowing.state.migration import StateFormat, migrated
from tidegate.windowing.triggers import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    EventTimeTrigger,
    PurgingTrigger,
    Trigger,
)

INPUT = pa.schema([("value", pa.int64()), ("name", pa.string())])

KEY = KeySchema.of(key=pa.string())

PANES = PanePolicy(retract_merged=True, coalesce_late=True)

START = -(2**63)


def windows_of(assigner: WindowAssigner, aggregate: Any = None, **options: Any) -> Windows:
    bound = AggregateColumns.of({"events": Count(), "total": Sum("value")}, INPUT) if aggregate is None else aggregate
    return Windows(assigner, aggregate=bound, **options)


def operator_of(windows: Windows) -> tuple[ColumnarOperator, pa.Table]:
    """The operator, and the state before anything happened."""
    schema = state_schema(windows, KEY, None, PANES)
    return ColumnarOperator(windows, schema, PANES, 128), schema.to_table([], 128)


def elements(*events: tuple[str, int], commit: int = 0) -> Elements:
    """Events of (key, time); the value is the time, the name is the key."""
    keys, times = [key for key, _ in events], [time for _, time in events]
    return Elements(
        timestamps=np.array(times, np.int64),
        commits=np.full(len(events), commit, np.int64),
        keys={"key": pa.array(keys, pa.string())},
        columns={"value": pa.array(times, pa.int64()), "name": pa.array(keys, pa.string())},
    )


def panes(outcome: EpochOutcome) -> list[tuple[Any, ...]]:
    columns = ["key_key", "window_start", "window_end", "value_events", "op"]
    return sorted(tuple(row.values()) for row in outcome.panes.select(columns).to_pylist())


def test_in_event_order_the_watermark_of_a_pane_does_not_depend_on_other_keys() -> None:
    operator, empty = operator_of(windows_of(EventTimeSessionWindows(10)))
    timeline = Timeline.in_event_order(-100, 1000, 2)
    alone = operator.run(elements(("a", 0)), empty, timeline)
    beside = operator.run(elements(("a", 0), ("b", 40)), empty, timeline)
    assert alone.panes["watermark"].to_pylist() == [9]
    assert 9 in beside.panes["watermark"].to_pylist()


def test_only_clusters_that_a_late_element_may_meet_go_through_the_row_operator() -> None:
    operator, empty = operator_of(windows_of(EventTimeSessionWindows(10), allowed_lateness=50))
    before = operator.run(elements(("a", 0), ("a", 100), ("b", 0)), empty, Timeline.of_commits(START, [(20, True)]))
    outcome = operator.run(
        elements(("a", 5), ("a", 105), ("c", 1), ("c", 60)), before.state, Timeline.of_commits(20, [(70, True)])
    )
    assert outcome.rows_by_row == 1
    assert ("a", 0, 15, 2, "+") in panes(outcome)


@pytest.mark.parametrize("before", [START, -100])
def test_a_session_of_several_commits_is_computed_over_arrays(before: int) -> None:
    operator, empty = operator_of(windows_of(EventTimeSessionWindows(10)))
    first, then = elements(("a", 0), ("b", 3)), elements(("a", 8), ("b", 11), commit=1)
    both = Elements(
        timestamps=np.concatenate([first.timestamps, then.timestamps]),
        commits=np.concatenate([first.commits, then.commits]),
        keys={"key": pa.concat_arrays([first.keys["key"], then.keys["key"]])},
        columns={name: pa.concat_arrays([first.columns[name], then.columns[name]]) for name in INPUT.names},
    )
    outcome = operator.run(both, empty, Timeline.of_commits(before, [(-2, True), (30, True)]))
    assert panes(outcome) == [("a", 0, 18, 2, "+"), ("b", 3, 21, 2, "+")]
    assert outcome.rows_by_row == 0


def test_an_aggregate_of_ones_own_works_on_arrays() -> None:
    windows = windows_of(TumblingEventTimeWindows(10), Longest("name"))
    assert choose_operator(windows).columnar
    operator, empty = operator_of(windows)
    first = operator.run(elements(("a", 1), ("bcd", 2)), empty, Timeline.of_commits(START, [(5, True)]))
    second = operator.run(elements(("bcd", 3)), first.state, Timeline.of_commits(5, [(9, True)]))
    assert sorted(second.panes["value_longest"].to_pylist()) == [1, 3]


def test_windows_without_an_array_form_are_refused_with_the_reason() -> None:
    windows = windows_of(TumblingEventTimeWindows(10), trigger=CountTrigger.of(2))
    with pytest.raises(UnsupportedOperation, match=r"trigger CountTrigger\(max_count=2\) has no array form"):
        operator_of(windows)


def test_aggregates_of_unknown_types_are_refused_with_the_way_out() -> None:
    with pytest.raises(UnsupportedOperation, match="bind the aggregates to the input's schema"):
        operator_of(Windows(TumblingEventTimeWindows(10), aggregate={"total": Sum("value")}))


def test_a_gap_that_is_not_above_zero_is_an_error_that_names_the_column() -> None:
    operator, empty = operator_of(windows_of(EventTimeSessionWindows.with_dynamic_gap(GapColumn("value"))))
    with pytest.raises(IllegalArgument, match="column 'value' must hold milliseconds above zero"):
        operator.run(elements(("a", 5), ("a", 0)), empty, Timeline.of_commits(START, [(0, True)]))


def test_windows_that_an_earlier_assigner_left_stay_apart_from_those_of_today() -> None:
    before, empty = operator_of(windows_of(TumblingEventTimeWindows(10)))
    left = before.run(elements(("a", 1), ("a", 7)), empty, Timeline.of_commits(START, [(0, True)]))
    operator, _ = operator_of(windows_of(TumblingEventTimeWindows(5)))
    outcome = operator.run(elements(("a", 2), ("a", 8)), left.state, Timeline.of_commits(0, [(20, True)]))
    assert panes(outcome) == [("a", 0, 5, 1, "+"), ("a", 0, 10, 2, "+"), ("a", 5, 10, 1, "+")]


VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pa.string(): st.text(max_size=70),
    pa.binary(): st.binary(max_size=100),
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(date(1900, 1, 1)),
    pa.timestamp("us", tz="UTC"): st.integers(-(10**14), 10**15).map(
        lambda micros: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    ),
    pa.decimal128(10, 2): st.integers(-(10**9), 10**9).map(lambda cents: Decimal(cents).scaleb(-2)),
    pa.decimal128(38, 0): st.integers(-(10**27), 10**27).map(Decimal),
}


@pytest.mark.parametrize("kind", list(VALUES), ids=str)
@given(data=st.data())
def test_every_key_hashes_as_one_by_one(kind: pa.DataType, data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.tuples(st.none() | VALUES[kind], st.none() | VALUES[pa.string()]), max_size=8))
    schema = KeySchema(("a", "b"), (kind, pa.string()))
    columns = [pa.array([key[0] for key in keys], kind), pa.array([key[1] for key in keys], pa.string())]
    hashes = hash_keys(schema, columns, len(keys))
    assert hashes.tolist() == [schema.hash_of(key) for key in keys]
    assert key_groups(hashes, 128).tolist() == [schema.key_group_of(key, 128) for key in keys]


FORMS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "plain": lambda column: column,
    "large": lambda column: column.cast(pa.large_string() if pa.types.is_string(column.type) else pa.large_binary()),
    "view": lambda column: column.cast(pa.string_view() if pa.types.is_string(column.type) else pa.binary_view()),
    "dictionary": lambda column: column.dictionary_encode(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
@given(data=st.data())
def test_texts_of_any_length_and_form_hash_as_the_library_does(
    kind: pa.DataType, form: str, data: st.DataObject
) -> None:
    texts = st.text(max_size=300) | st.integers(0, 5_000).map(lambda size: "\u00e9" * size)
    drawn = data.draw(st.lists(st.none() | texts, max_size=12))
    values = [value if value is None or pa.types.is_string(kind) else value.encode() for value in drawn]
    begin = data.draw(st.integers(0, len(values)))
    seeds = np.array([data.draw(st.integers(0, 2**64 - 1)) for _ in values[begin:]], np.uint64)
    hashes = hash_values(FORMS[form](pa.array(values, kind)).slice(begin), kind, "k", seeds)
    for value, seed, hashed in zip(drawn[begin:], seeds.tolist(), hashes.tolist(), strict=True):
        assert value is None or hashed == xxh64_intdigest(value.encode(), seed)


def test_hashing_keys_of_many_lengths_takes_little_time_and_memory() -> None:
    """Each distinct length used to cost a pass over NumPy arrays, and a copy of its keys: 16 CPU seconds here."""
    rows = 6_000
    keys = pa.array([f"{row:020d}" + "x" * row for row in range(rows)])
    seeds = np.full(rows, SPARK_SEED, np.uint64)
    began = process_time()
    tracemalloc.start()
    hash_values(keys, keys.type, "k", seeds)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert process_time() - began < 5
    assert peak < 250 * rows < keys.nbytes // 10


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))))
def test_window_ids_are_those_of_single_windows(windows: list[tuple[int, int, int]]) -> None:
    hashes, starts, ends = (
        np.array([window[i] for window in windows], kind) for i, kind in enumerate((np.uint64, np.int64, np.int64))
    )
    assert window_ids(hashes, starts, ends).tolist() == [window_identity(*window) for window in windows]


GROUPS = 16
COUNTED = AggregateColumns.of({"events": Count()}, pa.schema([("n", pa.int64())]))

KEY_VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["a", "", "ü€", None]),
    (pa.int32(), [0, -1, 2**31 - 1, None]),
    (pa.int64(), [0, -5, 2**60, None]),
    (pa.date32(), [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), None]),
    (pa.timestamp("us", tz="UTC"), [datetime(1970, 1, 1, 0, 0, 0, i, UTC) for i in range(3)] + [None]),
    (pa.decimal128(30, 2), [Decimal("0.00"), Decimal("-123456789012345678901234.25"), Decimal("1.00"), None]),
    (pa.binary(), [b"", b"\x00\xff", b"\x00", None]),
]


def operator_by_key(windows: Windows, key: KeySchema) -> tuple[ColumnarOperator, pa.Table]:
    """An operator, and its initial state."""
    panes = PanePolicy(windows.accumulation, retract_merged=True, coalesce_late=True)
    schema = state_schema(windows, key, None, panes)
    return ColumnarOperator(windows, schema, panes, GROUPS), schema.to_table([], GROUPS)


def elements_of_keys(key: KeySchema, *some: tuple[Any, ...], dictionary: bool = False) -> Elements:
    """Elements of (key columns, time)."""
    kinds = enumerate(zip(key.names, key.types, strict=True))
    columns = {name: pa.array([one[i] for one in some], kind) for i, (name, kind) in kinds}
    if dictionary:
        columns = {name: column.dictionary_encode() for name, column in columns.items()}
    times = np.array([one[-1] for one in some], np.int64)
    commits, values = np.zeros(len(some), np.int64), {"n": pa.array([1] * len(some))}
    return Elements(timestamps=times, commits=commits, keys=columns, columns=values)


@pytest.fixture
def worked_on(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of state rows that became arrays, by run."""
    seen: list[int] = []
    split = operator.resting_rows

    def told(state: pa.Table, *others: Any) -> Any:
        rests = split(state, *others)
        seen.append(len(state) - (0 if rests is None else int(np.count_nonzero(rests))))
        return rests

    monkeypatch.setattr(operator, "resting_rows", told)
    return seen


@pytest.mark.parametrize("dictionary", [False, True], ids=["plain", "dictionary"])
@pytest.mark.parametrize(("kind", "values"), KEY_VALUES, ids=[str(kind) for kind, _ in KEY_VALUES])
def test_only_windows_of_the_elements_keys_are_worked_on(
    kind: pa.DataType, values: list[Any], dictionary: bool, worked_on: list[int]
) -> None:
    key = KeySchema(("k",), (kind,))
    columnar, nothing = operator_by_key(Windows(EventTimeSessionWindows(5), aggregate=COUNTED), key)
    before = columnar.run(
        elements_of_keys(key, *((value, 0) for value in values)), nothing, Timeline.of_commits(START, [(0, True)])
    )
    for value in values:
        one = elements_of_keys(key, (value, 3), dictionary=dictionary)
        outcome = columnar.run(one, before.state, Timeline.of_commits(0, [(1, True)]))
        assert worked_on[-1] == 1
        assert outcome.counters.open_windows == len(values)
        found = {
            row["k"]: (row["window_end"].timestamp() * 1000, row["acc_events"]) for row in outcome.state.to_pylist()
        }
        assert found == {other: (8, 2) if other == value else (5, 1) for other in values}
        groups = outcome.state["key_group"].to_pylist()
        assert groups == sorted(groups)


def test_of_two_columns_a_row_with_the_values_of_two_elements_is_worked_on_too(worked_on: list[int]) -> None:
    key = KeySchema(("k", "n"), (pa.string(), pa.int64()))
    columnar, nothing = operator_by_key(Windows(TumblingEventTimeWindows.of(10), aggregate=COUNTED), key)
    opened = elements_of_keys(key, *((k, n, 0) for k in "abcd" for n in range(4)))
    before = columnar.run(opened, nothing, Timeline.of_commits(START, [(0, True)]))
    outcome = columnar.run(
        elements_of_keys(key, ("a", 0, 1), ("b", 1, 1)), before.state, Timeline.of_commits(0, [(1, True)])
    )
    assert worked_on[-1] == 4
    counts = {(row["k"], row["n"]): row["acc_events"] for row in outcome.state.to_pylist()}
    assert {pair for pair, count in counts.items() if count == 2} == {("a", 0), ("b", 1)}


def test_what_becomes_due_does_not_rest(worked_on: list[int]) -> None:
    key = KeySchema(("k",), (pa.int64(),))
    windows = Windows(TumblingEventTimeWindows.of(10), allowed_lateness=5, aggregate=COUNTED)
    columnar, state = operator_by_key(windows, key)
    opened = elements_of_keys(key, *((k, 10 * (k // 2)) for k in range(20)))
    outcome = columnar.run(opened, state, Timeline.of_commits(START, [(0, True)]))
    seen, watermark = [], 0
    for after in (8, 9, 10, 14, 19):
        outcome = columnar.run(elements_of_keys(key), outcome.state, Timeline.of_commits(watermark, [(after, True)]))
        seen.append((worked_on[-1], len(outcome.panes), len(outcome.state)))
        watermark = after
    assert seen == [(0, 0, 20), (2, 2, 20), (0, 0, 20), (2, 0, 18), (2, 2, 18)]
    assert outcome.next_timer == 24


def test_of_a_key_with_a_row_that_only_the_row_operator_knows_nothing_rests(worked_on: list[int]) -> None:
    key = KeySchema(("k",), (pa.int64(),))
    windows = Windows(
        EventTimeSessionWindows(5), allowed_lateness=100, accumulation=Accumulation.DISCARDING, aggregate=COUNTED
    )
    columnar, nothing = operator_by_key(windows, key)
    opened = elements_of_keys(key, *((k, 50) for k in range(9)), (9, 0), (9, 50))
    before = columnar.run(opened, nothing, Timeline.of_commits(START, [(20, True)]))
    odd = [row["k"] for row in before.state.to_pylist() if row["namespace"] != "window"]
    outcome = columnar.run(elements_of_keys(key), before.state, Timeline.of_commits(20, [(21, True)]))
    assert odd == [9]
    assert worked_on[-1] == sum(k == 9 for k in before.state["k"].to_pylist()) > 1
    assert outcome.counters.open_windows == 11


TUMBLING, SESSIONS = TumblingEventTimeWindows(10), EventTimeSessionWindows(5)
ENDING, EARLY = EventTimeTrigger(), ContinuousEventTimeTrigger(4)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        pytest.param((TUMBLING, CountTrigger(9)), (TUMBLING, ENDING), id="no timer at the end"),
        pytest.param((TUMBLING, EARLY), (TUMBLING, ENDING), id="a timer before the end"),
        pytest.param((TUMBLING, ENDING), (TUMBLING, EARLY), id="no early timer"),
        pytest.param((SlidingEventTimeWindows(8, 4), EARLY), (SlidingEventTimeWindows(8, 4), ENDING), id="slices"),
        pytest.param((TUMBLING, ENDING), (TUMBLING, PurgingTrigger(ENDING)), id="contents that would be purged"),
        pytest.param((TUMBLING, ENDING), (SESSIONS, ENDING), id="windows that touch without merging"),
    ],
)
@pytest.mark.parametrize("lateness", [0, 7])
def test_windows_that_another_trigger_or_assigner_left_continue_as_in_the_row_operator(
    before: tuple[WindowAssigner, Trigger], now: tuple[WindowAssigner, Trigger], lateness: int
) -> None:
    older, newer = (
        windows_of(assigner, trigger=trigger, allowed_lateness=lateness) for assigner, trigger in (before, now)
    )
    of_older, of_newer = (state_schema(windows, KEY, None, PANES) for windows in (older, newer))
    first = elements(("a", 2), ("a", 15), ("b", 15), ("b", 25))
    empty, until = of_older.to_table([], 128), Timeline.of_commits(START, [(9, True)])
    state = RowOperator(older, of_older, PANES, 128).run(first, empty, until).state
    rows = migrated(state, StateFormat.of(of_older), of_newer, drop={"count", "next_firing"})
    timeline = Timeline.of_commits(9, [(11, True), (20, True), (40, True)])
    late = elements(("a", 8), ("a", 14), ("b", 12))
    expected, came = (
        kind(newer, of_newer, PANES, 128).run(late, rows, timeline) for kind in (RowOperator, ColumnarOperator)
    )
    assert panes(came) == panes(expected)
    assert came.counters == expected.counters
    assert came.state.to_pylist() == expected.state.to_pylist()
