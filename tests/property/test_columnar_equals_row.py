"""The columnar operator is exactly equal to the row operator, whatever the pipeline and the input.

Panes, late elements, counters and state rows are compared after every epoch; doubles agree within
1e-9 relative, everything else exactly. TIDEGATE_EXAMPLES sets how many pipelines are drawn.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import datasketches
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, event, example, given, settings
from hypothesis import strategies as st

from tests.property.world import INPUT, KEYS, ROWS, key_columns, times
from tests.windowing.columnar.longest import Longest
from tidegate.pipelines.epoch.steps import EventOrder
from tidegate.windowing.aggregates import (
    AggregateColumns,
    AllTrue,
    AnyTrue,
    ApproxCountDistinct,
    ApproxQuantile,
    CollectList,
    CollectSet,
    Count,
    CountIf,
    First,
    Last,
    Max,
    MaxBy,
    Mean,
    Min,
    MinBy,
    StandardDeviation,
    Sum,
    Variance,
)
from tidegate.windowing.aggregates.exact import SumOutOfRange
from tidegate.windowing.assigners import (
    CalendarEventTimeWindows,
    DynamicEventTimeSessionWindows,
    EventTimeSessionWindows,
    GapColumn,
    MergingWindowAssigner,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from tidegate.windowing.columnar import ColumnarOperator, run_in_passes
from tidegate.windowing.compute import Windows
from tidegate.windowing.epochs import Elements, Outcome, Timeline
from tidegate.windowing.epochs.row_operator import RowOperator
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.operators.window.snapshot import state_schema
from tidegate.windowing.panes import Accumulation, PanePolicy
from tidegate.windowing.state.rows import REST
from tidegate.windowing.time import MIN_TIMESTAMP
from tidegate.windowing.triggers import ContinuousEventTimeTrigger, EventTimeTrigger, PurgingTrigger, Trigger

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "1000"))
MAX_PARALLELISM = 16

AGGREGATES = {
    "count": Count(),
    "count_s": Count("é 日本"),
    "count_b": CountIf("b"),
    **{f"sum_{name}": Sum(name) for name in ("n", "N", "x", "`mixed`", "cents[2]", "wide", "tiny")},
    **{f"mean_{name}": Mean(name) for name in ("N", "x", "`mixed`", "cents[2]", "Small")},
    **{f"min_{name}": Min(name) for name in ("n", "x", "f", "cents[2]", "b", "an.int", "raw", "wall")},
    **{f"max_{name}": Max(name) for name in ("x", "é 日本", "at time", "N", "day", "wide", "tiny")},
    **{f"first_{name}": First(name) for name in INPUT.names if name not in ("gap", "N")},
    **{f"last_{name}": Last(name) for name in INPUT.names if name != "gap"},
    "min_by": MinBy("é 日本", "x"),
    "max_by": MaxBy("x", "cents[2]"),
    "max_by_int": MaxBy("raw", "an.int"),
    **{f"list_{name}": CollectList(name) for name in ("x", "é 日本", "Small", "day", "raw")},
    **{f"set_{name}": CollectSet(name) for name in ("x", "at time", "an.int", "wide", "wall")},
    "any_b": AnyTrue("b"),
    "all_b": AllTrue("b"),
    **{f"var_{name}": Variance(name) for name in ("n", "N", "`mixed`")},
    "var_d": Variance("cents[2]", sample=False),
    "dev_x": StandardDeviation("x"),
    "distinct_s": ApproxCountDistinct("é 日本"),
    "distinct_x": ApproxCountDistinct("x", log_size=5),
    "median_x": ApproxQuantile("x", 0.5),
    "median_N": ApproxQuantile("N", 0.5),
}

CALENDARS = [
    CalendarEventTimeWindows.days("Europe/Berlin"),
    CalendarEventTimeWindows.weeks("America/New_York", first_day=6),
    CalendarEventTimeWindows.months("Asia/Kathmandu"),
]
CALENDAR_SCALE = 20 * 3_600_000
"""Milliseconds that one step of drawn times is for calendar windows, which a few steps must cross."""


class Event(NamedTuple):
    key: int
    time: int
    value: dict[str, Any]


class Case(NamedTuple):
    """A pipeline, its commits with the watermark after each, and where the input is cut into epochs."""

    windows: Windows
    key: KeySchema
    keys: list[tuple[Any, ...]]
    commits: list[list[Event]]
    watermarks: list[int]
    cuts: list[int]
    lag: int | None
    swap: bool
    closed: int | None = None
    """Windows that ended so long before an epoch, milliseconds, don't begin anew, whatever lateness they have."""


@st.composite
def assigners(draw: st.DrawFn) -> Any:
    match draw(st.sampled_from(["tumbling", "sliding", "calendar", "session", "session", "dynamic"])):
        case "calendar":
            return draw(st.sampled_from(CALENDARS))
        case "dynamic":
            return DynamicEventTimeSessionWindows(GapColumn("gap"))
        case "tumbling":
            size = draw(st.integers(1, 25))
            return TumblingEventTimeWindows(size, draw(st.integers(1 - size, size - 1)))
        case "sliding":
            slide = draw(st.integers(1, 15))
            return SlidingEventTimeWindows(draw(st.integers(1, 40)), slide, draw(st.integers(1 - slide, slide - 1)))
        case _:
            return EventTimeSessionWindows(draw(st.integers(1, 12)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    chosen = draw(st.lists(st.sampled_from(sorted(AGGREGATES)), min_size=1, max_size=4, unique=True))
    assigner = draw(assigners())
    scale = CALENDAR_SCALE if isinstance(assigner, CalendarEventTimeWindows) else 1
    triggers: list[Trigger | None] = [None, EventTimeTrigger(), PurgingTrigger(EventTimeTrigger())]
    accumulation = draw(st.sampled_from(list(Accumulation)))
    if not isinstance(assigner, MergingWindowAssigner) and accumulation is not Accumulation.DISCARDING:
        triggers += [ContinuousEventTimeTrigger(draw(st.integers(1, 15)) * scale)] * 2
    windows = Windows(
        assigner,
        trigger=draw(st.sampled_from(triggers)),
        allowed_lateness=draw(st.sampled_from([0, 0, 3, 10, 40])) * scale,
        accumulation=accumulation,
        aggregate=draw(
            st.sampled_from(
                [AggregateColumns.of({name: AGGREGATES[name] for name in chosen}, INPUT)] * 9 + [Longest("é 日本")]
            )
        ),
    )
    names, kinds = draw(key_columns())
    key = KeySchema(names, kinds)
    possible = list(product(*(KEYS[kind] for kind in kinds)))
    keys = possible[draw(st.integers(0, len(possible) - 1)) :][:3]
    # Small numbers, so that times tie, sessions touch and windows are shared; key 0 is hot.
    keys_of = st.sampled_from([0, 0, *range(len(keys))])
    events = st.builds(Event, keys_of, draw(times(scale)), st.sampled_from(ROWS))
    commits = draw(st.lists(st.lists(events, max_size=8), min_size=1, max_size=4))
    steps = draw(st.lists(st.integers(-5, 30), min_size=len(commits), max_size=len(commits)))
    watermarks = ((np.cumsum(steps) + draw(st.integers(-30, 10))) * scale).tolist()
    lag = EventOrder.of(windows).lag if draw(st.sampled_from([False, False, False, True])) else None
    cuts = draw(st.lists(st.integers(0, sum(map(len, commits))), max_size=2)) if lag is None else []
    closed = draw(st.sampled_from([None, None, 0, 5 * scale]))
    return Case(windows, key, keys, commits, watermarks, sorted(cuts), lag, draw(st.booleans()), closed)


class Epoch(NamedTuple):
    elements: Elements
    timeline: Timeline


def epochs_of(case: Case) -> list[Epoch]:
    """The input in epochs: each ends where a cut is, inside a commit too."""
    if case.lag is not None:
        return list(event_order_epochs(case))
    found, watermark, seen = [], -(2**63), 0
    pending: list[tuple[int, Event]] = []
    steps: list[tuple[int, bool]] = []
    cuts = list(case.cuts)
    for events, after in zip(case.commits, case.watermarks, strict=True):
        for position in range(len(events) + 1):
            while cuts and cuts[0] == seen and (pending or steps):
                cuts.pop(0)
                inside = [*steps, (after, False)]
                timeline = Timeline.of_commits(watermark, inside)
                found.append(Epoch(elements_of(case, pending), timeline))
                watermark, pending, steps = timeline.final, [], []
            if position < len(events):
                pending.append((len(steps), events[position]))
                seen += 1
        steps.append((after, True))
    found.append(Epoch(elements_of(case, pending), Timeline.of_commits(watermark, steps)))
    return found


def event_order_epochs(case: Case) -> Any:
    """Each commit as the slice of one interval, with stragglers from before it."""
    assert case.lag is not None
    watermark = case.watermarks[0] - 20
    for events, after in zip(case.commits, case.watermarks, strict=True):
        final = max([watermark, after, *(event.time - case.lag for event in events)])
        yield Epoch(
            elements_of(case, [(0, event) for event in events]), Timeline.in_event_order(watermark, final, case.lag)
        )
        watermark = final


def elements_of(case: Case, events: list[tuple[int, Event]]) -> Elements:
    return Elements(
        timestamps=np.array([event.time for _, event in events], np.int64),
        commits=np.array([commit for commit, _ in events], np.int64),
        keys={
            name: pa.array([case.keys[event.key][i] for _, event in events], kind)
            for i, (name, kind) in enumerate(zip(case.key.names, case.key.types, strict=True))
        },
        columns={field.name: pa.array([event.value[field.name] for _, event in events], field.type) for field in INPUT},
    )


SIGNS_MIX = Case(
    Windows(
        TumblingEventTimeWindows(1),
        accumulation=Accumulation.DISCARDING,
        aggregate=AggregateColumns.of({"var_n": AGGREGATES["var_n"]}, INPUT),
    ),
    KeySchema((), ()),
    [()],
    [[Event(0, 1, ROWS[0] | {"n": number}) for number in numbers] for numbers in ((3, 1), (-5, 1))],
    [0, 0],
    [],
    None,
    False,
)
"""The mean is 0, and the row operator's is what rounding leaves."""


@given(cases())
@example(SIGNS_MIX)
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_every_epoch_gives_the_panes_late_rows_counters_and_state_of_the_row_operator(case: Case) -> None:
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
        assert_same(expected, came)
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
