"""A window join on arrays equals the row operator in every epoch, also where each takes over the other's state."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import partial
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.property.test_columnar_equals_row import rows
from tidegate.windowing import (
    CalendarEventTimeWindows,
    CumulateEventTimeWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowJoin,
)
from tidegate.windowing.columnar import ColumnarWindowJoin
from tidegate.windowing.compute import JoinKind
from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.epochs.row_operator import RowOperator, make_operator
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.joins import join_schema
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "150"))
GROUPS = 16
MOMENT = pa.timestamp("us", tz="Europe/Berlin")
LEFT = pa.struct([("n", pa.int64()), ("at", MOMENT), ("tags", pa.list_(pa.string()))])
RIGHT = pa.struct([("n", pa.int64()), ("price", pa.float64())])
KEY = KeySchema(("key", "region"), (pa.string(), pa.int32()))
ASSIGNERS = (
    TumblingEventTimeWindows.of(10, 3),
    SlidingEventTimeWindows.of(12, 5),
    SlidingEventTimeWindows.of(3, 8),
    CumulateEventTimeWindows.of(12, 4),
    CalendarEventTimeWindows.months("Europe/Berlin"),
)
JOINS = st.builds(WindowJoin, st.sampled_from(ASSIGNERS), st.sampled_from(get_args(JoinKind)))
ROW = st.tuples(
    st.booleans(), st.sampled_from(["a", "b", None]), st.sampled_from([1, 2]), st.integers(-20, 40), st.integers(0, 3)
)
EPOCH = st.tuples(
    st.lists(st.lists(ROW, max_size=6), min_size=1, max_size=3),
    st.lists(st.integers(-20, 45), min_size=3, max_size=3),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 10)),
)


def results_of(join: WindowJoin) -> pa.StructType:
    bounds = [(name, pa.timestamp("us", tz="UTC")) for name in ("window_start", "window_end")]
    return pa.struct([*bounds, ("left", LEFT), *([("right", RIGHT)] if "right" in join.sides else [])])


def elements_of(commits: list[list[tuple[bool, str | None, int, int, int]]]) -> Elements:
    flat = [(number, *row) for number, commit in enumerate(commits) for row in commit]
    lefts = [is_left for _, is_left, *_ in flat]
    numbers = pa.array([n for *_, n in flat], pa.int64())

    def of_side(left: bool, values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([v if is_left == left else None for v, is_left in zip(values, lefts, strict=True)], kind)

    ns = numbers.to_pylist()
    return Elements(
        timestamps=np.array([time for *_, time, _ in flat], np.int64),
        commits=np.array([number for number, *_ in flat], np.int64),
        keys={
            "key": pa.array([key for _, _, key, *_ in flat], pa.string()).dictionary_encode(),
            "region": pa.array([region for *_, region, _, _ in flat], pa.int32()),
        },
        columns={
            "left:n": of_side(True, ns, pa.int64()),
            "left:at": of_side(True, [datetime(2024, 1, 1 + n, tzinfo=UTC) for n in ns], MOMENT),
            "left:tags": of_side(True, [["x"] * n or None for n in ns], pa.list_(pa.string())),
            "right:n": of_side(False, ns, pa.int64()),
            "right:price": of_side(False, [n / 2 for n in ns], pa.float64()),
        },
        sides=pa.array(["left" if is_left else "right" for is_left in lefts], pa.string()),
    )


@given(JOINS, st.lists(EPOCH, min_size=1, max_size=4), st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_every_epoch_gives_the_rows_late_rows_counters_and_state_of_the_row_operator(
    join: WindowJoin, epochs: list[Any], swap: bool
) -> None:
    results = results_of(join)
    schema = join_schema(join, KEY, LEFT, RIGHT)
    row = RowOperator(partial(make_operator, join, PanePolicy()), join, schema, GROUPS, results)
    arrays = ColumnarWindowJoin(join, schema, GROUPS, results)
    by_row = by_arrays = schema.to_table([], GROUPS)
    watermark, fired = MIN_TIMESTAMP, 0
    for commits, marks, complete, lag in [*epochs, ([[]], [MAX_TIMESTAMP - 1] * 3, True, None)]:
        if lag is None:
            steps = [(mark, True) for mark in marks[: len(commits)]]
            timeline = Timeline.of_commits(watermark, [*steps[:-1], (steps[-1][0], complete)])
        else:
            commits = [[each for commit in commits for each in commit]]
            timeline = Timeline.in_event_order(watermark, max(watermark, marks[0]), lag)
        elements = elements_of(commits)
        if swap:
            by_row, by_arrays = by_arrays, by_row
        expected, came = row.run(elements, by_row, timeline), arrays.run(elements, by_arrays, timeline)
        for table in ("outputs", "late", "state"):
            assert getattr(came, table).schema.equals(getattr(expected, table).schema)
            assert rows(getattr(came, table)) == rows(getattr(expected, table)), table
        assert came.late["row"].to_pylist() == expected.late["row"].to_pylist()
        assert came.outputs["timestamp"].to_pylist() == expected.outputs["timestamp"].to_pylist()
        assert came.counters == expected.counters
        assert came.next_timer == expected.next_timer
        assert came.state["key_group"].to_pylist() == sorted(came.state["key_group"].to_pylist())
        by_row, by_arrays, watermark = expected.state, came.state, timeline.final
        fired += len(came.outputs)
    event(f"rows: {fired > 0}")
