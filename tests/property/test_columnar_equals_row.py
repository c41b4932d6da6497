"""The columnar operator is exactly equal to the row operator, whatever the pipeline and the input.

Panes, late elements, counters and state rows are compared after every epoch; doubles agree within
1e-9 relative, everything else exactly. TIDEGATE_EXAMPLES sets how many pipelines are drawn.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, event, example, given, settings
from hypothesis import strategies as st

from tests.property.columnar_cases import MAX_PARALLELISM, SIGNS_MIX, Case, cases, epochs_of
from tidegate.windowing.aggregates.exact import SumOutOfRange
from tidegate.windowing.assigners import MergingWindowAssigner
from tidegate.windowing.columnar import ColumnarOperator, run_in_passes
from tidegate.windowing.columnar.slices import Slicing, slicing_of
from tidegate.windowing.epochs import Outcome
from tidegate.windowing.epochs.row_operator import RowOperator
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.operators.window.snapshot import state_schema, without_slices
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state.rows import REST, StateSchema
from tidegate.windowing.time import MIN_TIMESTAMP
from tidegate.windowing.triggers import ContinuousEventTimeTrigger

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "150"))


@given(cases())
@example(SIGNS_MIX)
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_every_epoch_gives_the_panes_late_rows_counters_and_state_of_the_row_operator(case: Case) -> None:
    assert_equal_in_every_epoch(case)


@given(cases(sliced=True))
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_windows_that_share_slices_give_the_same(case: Case) -> None:
    """States of whole windows become slices in mid-life, and slices windows, where the operators swap their states."""
    event(f"slices: {isinstance(slicing_of(case.windows), Slicing)}, swap: {case.swap}")
    assert_equal_in_every_epoch(case)


def assert_equal_in_every_epoch(case: Case) -> None:
    panes = PanePolicy(case.windows.accumulation, retract_merged=True, coalesce_late=True)
    schema = state_schema(case.windows, case.key, None, panes)
    by_row = by_columns = schema.to_table([], MAX_PARALLELISM)
    for epoch in epochs_of(case):
        if case.closed is not None:
            panes = replace(panes, closed_through=max(MIN_TIMESTAMP, epoch.timeline.initial - case.closed))
        columnar = ColumnarOperator(case.windows, schema, panes, MAX_PARALLELISM)
        row = RowOperator.of_windows(case.windows, schema, panes, MAX_PARALLELISM)
        if case.swap:
            by_row, by_columns = by_columns, by_row
        try:
            expected = row.run(epoch.elements, by_row, epoch.timeline)
        except SumOutOfRange as error:
            # Which window is met first is not the same; that a result leaves its type is.
            event("a sum leaves its type")
            with pytest.raises(SumOutOfRange, match=f"the sum of column {re.escape(repr(error.arguments[0]))}"):
                columnar.run(epoch.elements, by_columns, epoch.timeline)
            return
        came = columnar.run(epoch.elements, by_columns, epoch.timeline)
        assert_same(expected, replace(came, state=whole(case, schema, came.state)))
        event(f"all by arrays: {came.rows_by_row == 0}")
        assert not came.rows_by_row or may_go_by_row(case)
        by_row, by_columns = expected.state, came.state


@given(cases())
@settings(
    max_examples=EXAMPLES // 5, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_the_cut_into_epochs_changes_no_pane_no_late_row_and_no_state(case: Case) -> None:
    assume(case.lag is None)
    cuts = case.cuts
    windows = case.windows
    if isinstance(windows.assigner, MergingWindowAssigner) or isinstance(windows.trigger, ContinuousEventTimeTrigger):
        # The order of elements within a commit shows here (BoundPipeline.may_split_commits), so none is cut.
        ends = np.cumsum([len(events) for events in case.commits]).tolist()
        cuts = [cut for cut in case.cuts if cut in ends]
    try:
        whole = run_all(case._replace(cuts=[]))
    except SumOutOfRange:
        with pytest.raises(SumOutOfRange):
            run_all(case._replace(cuts=cuts))
        return
    parts = run_all(case._replace(cuts=cuts))
    for name in ("panes", "late"):
        assert rows(pa.concat_tables([getattr(outcome, name) for outcome in parts])) == rows(getattr(whole[0], name))
    assert rows(parts[-1].state) == rows(whole[0].state)
    counters = Counters.total(outcome.counters for outcome in parts)
    counters.open_windows = parts[-1].counters.open_windows
    assert counters == whole[0].counters


@given(cases(), st.integers(1, 5))
@settings(
    max_examples=EXAMPLES // 5, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_an_epoch_in_passes_gives_what_it_gives_at_once(case: Case, rows_at_a_time: int) -> None:
    panes = PanePolicy(case.windows.accumulation, retract_merged=True, coalesce_late=True)
    schema = state_schema(case.windows, case.key, None, panes)
    columnar = ColumnarOperator(case.windows, schema, panes, MAX_PARALLELISM)
    state = schema.to_table([], MAX_PARALLELISM)
    for epoch in epochs_of(case):
        try:
            expected = columnar.run(epoch.elements, state, epoch.timeline)
        except SumOutOfRange:
            with pytest.raises(SumOutOfRange):
                run_in_passes(columnar, epoch.elements, state, epoch.timeline, rows=rows_at_a_time)
            return
        came = run_in_passes(columnar, epoch.elements, state, epoch.timeline, rows=rows_at_a_time)
        assert_same(expected, came)
        state = expected.state


def whole(case: Case, schema: StateSchema, state: pa.Table) -> pa.Table:
    """State rows of whole windows: slices merged into the windows that they belong to."""
    return schema.to_table(without_slices(schema.from_table(state), case.windows), MAX_PARALLELISM)


def may_go_by_row(case: Case) -> bool:
    """Return True if elements may need the row operator: in sessions, and in windows that fire early in event order."""
    windows = case.windows
    merges = isinstance(windows.assigner, MergingWindowAssigner)
    # A sum may leave its type on the way to a result that fits.
    sums = [f for f in getattr(windows.aggregate, "functions", ()) if f.rest_type == pa.int64()]
    return merges or bool(sums) or (isinstance(windows.trigger, ContinuousEventTimeTrigger) and case.lag is not None)


def run_all(case: Case) -> list[Outcome]:
    """The epochs of a case, through the columnar operator; late rows without their number."""
    panes = PanePolicy(case.windows.accumulation, retract_merged=True, coalesce_late=True)
    schema = state_schema(case.windows, case.key, None, panes)
    columnar = ColumnarOperator(case.windows, schema, panes, MAX_PARALLELISM)
    state, outcomes = schema.to_table([], MAX_PARALLELISM), []
    for epoch in epochs_of(case):
        outcome = columnar.run(epoch.elements, state, epoch.timeline)
        state = outcome.state
        outcomes.append(replace(outcome, late=outcome.late.drop_columns(["row"])))
    return outcomes


def assert_same(expected: Outcome, came: Outcome) -> None:
    assert rows(came.panes) == rows(expected.panes)
    assert rows(came.late) == rows(expected.late)
    assert came.counters == expected.counters
    assert came.state.schema.equals(expected.state.schema)
    assert rows(came.state) == rows(expected.state)
    assert came.state["key_group"].to_pylist() == sorted(came.state["key_group"].to_pylist())
    assert came.next_timer == expected.next_timer


def rows(table: pa.Table) -> list[Any]:
    """Rows in an order of their own, with doubles that equal others within 1e-9.

    The rests of doubles are left out: what they hold shows in the results of later epochs, and their last bits depend
    on the order of additions.
    """
    rests = [name for name in table.column_names if name.startswith(REST) and table[name].type == pa.float64()]
    table = table.drop_columns(rests)
    return sorted((Row(row) for row in table.to_pylist()), key=repr)


class Row:
    def __init__(self, values: dict[str, Any]) -> None:
        self.values = {name: opened(value) for name, value in values.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and same(self.values, other.values)

    def __repr__(self) -> str:
        return repr(rounded(self.values))


def opened(value: Any) -> Any:
    """A sketch of quantiles as the values that it keeps, in an order of their own, and the mean beside a spread as what
    it is to that spread: where signs mix it may be next to nothing. Any other value as it is.
    """
    if isinstance(value, dict) and value.keys() == {"count", "mean", "m2"} and value["count"]:
        spread = math.sqrt(value["m2"] / value["count"])
        return {**value, "mean": value["mean"] if abs(value["mean"]) >= 1e-6 * spread else 0.0}
    if not isinstance(value, dict) or "sketch" not in value:
        return value
    kept = datasketches.kll_doubles_sketch.deserialize(value["sketch"])
    return {**value, "sketch": sorted([number, weight] for number, weight in kept)}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value + 0.0:.6g}")
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list) else value
