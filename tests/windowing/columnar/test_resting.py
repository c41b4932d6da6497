"""Windows rest if no element has their key and nothing of them becomes due."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.windowing import Count, EventTimeSessionWindows, TumblingEventTimeWindows, Windows
from tidegate.windowing.aggregates import AggregateColumns
from tidegate.windowing.columnar import ColumnarOperator, operator
from tidegate.windowing.epochs import Elements, Timeline
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.window.snapshot import state_schema
from tidegate.windowing.panes import Accumulation, PanePolicy

START = -(2**63)
GROUPS = 16
COUNTED = AggregateColumns.of({"events": Count()}, pa.schema([("n", pa.int64())]))

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["a", "", "ü€", None]),
    (pa.int32(), [0, -1, 2**31 - 1, None]),
    (pa.int64(), [0, -5, 2**60, None]),
    (pa.date32(), [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), None]),
    (pa.timestamp("us", tz="UTC"), [datetime(1970, 1, 1, 0, 0, 0, i, UTC) for i in range(3)] + [None]),
    (pa.decimal128(30, 2), [Decimal("0.00"), Decimal("-123456789012345678901234.25"), Decimal("1.00"), None]),
    (pa.binary(), [b"", b"\x00\xff", b"\x00", None]),
]


def operator_of(windows: Windows, key: KeySchema) -> tuple[ColumnarOperator, pa.Table]:
    """An operator, and its state before everything."""
    panes = PanePolicy(windows.accumulation, retract_merged=True, coalesce_late=True)
    schema = state_schema(windows, key, None, panes)
    return ColumnarOperator(windows, schema, panes, GROUPS), schema.to_table([], GROUPS)


def elements(key: KeySchema, *some: tuple[Any, ...], dictionary: bool = False) -> Elements:
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
@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_only_windows_of_the_elements_keys_are_worked_on(
    kind: pa.DataType, values: list[Any], dictionary: bool, worked_on: list[int]
) -> None:
    key = KeySchema(("k",), (kind,))
    columnar, nothing = operator_of(Windows(EventTimeSessionWindows(5), aggregate=COUNTED), key)
    before = columnar.run(
        elements(key, *((value, 0) for value in values)), nothing, Timeline.of_commits(START, [(0, True)])
    )
    for value in values:
        one = elements(key, (value, 3), dictionary=dictionary)
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
    columnar, nothing = operator_of(Windows(TumblingEventTimeWindows.of(10), aggregate=COUNTED), key)
    opened = elements(key, *((k, n, 0) for k in "abcd" for n in range(4)))
    before = columnar.run(opened, nothing, Timeline.of_commits(START, [(0, True)]))
    outcome = columnar.run(elements(key, ("a", 0, 1), ("b", 1, 1)), before.state, Timeline.of_commits(0, [(1, True)]))
    assert worked_on[-1] == 4
    counts = {(row["k"], row["n"]): row["acc_events"] for row in outcome.state.to_pylist()}
    assert {pair for pair, count in counts.items() if count == 2} == {("a", 0), ("b", 1)}


def test_what_becomes_due_does_not_rest(worked_on: list[int]) -> None:
    key = KeySchema(("k",), (pa.int64(),))
    windows = Windows(TumblingEventTimeWindows.of(10), allowed_lateness=5, aggregate=COUNTED)
    columnar, state = operator_of(windows, key)
    opened = elements(key, *((k, 10 * (k // 2)) for k in range(20)))
    outcome = columnar.run(opened, state, Timeline.of_commits(START, [(0, True)]))
    seen, watermark = [], 0
    for after in (8, 9, 10, 14, 19):
        outcome = columnar.run(elements(key), outcome.state, Timeline.of_commits(watermark, [(after, True)]))
        seen.append((worked_on[-1], len(outcome.panes), len(outcome.state)))
        watermark = after
    assert seen == [(0, 0, 20), (2, 2, 20), (0, 0, 20), (2, 0, 18), (2, 2, 18)]
    assert outcome.next_timer == 24


def test_of_a_key_with_a_row_that_only_the_row_operator_knows_nothing_rests(worked_on: list[int]) -> None:
    key = KeySchema(("k",), (pa.int64(),))
    windows = Windows(
        EventTimeSessionWindows(5), allowed_lateness=100, accumulation=Accumulation.DISCARDING, aggregate=COUNTED
    )
    columnar, nothing = operator_of(windows, key)
    opened = elements(key, *((k, 50) for k in range(9)), (9, 0), (9, 50))
    before = columnar.run(opened, nothing, Timeline.of_commits(START, [(20, True)]))
    odd = [row["k"] for row in before.state.to_pylist() if row["namespace"] != "window"]
    outcome = columnar.run(elements(key), before.state, Timeline.of_commits(20, [(21, True)]))
    assert odd == [9]
    assert worked_on[-1] == sum(k == 9 for k in before.state["k"].to_pylist()) > 1
    assert outcome.counters.open_windows == 11
