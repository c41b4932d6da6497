"""The columnar operator is exactly equal to the row operator, whatever the pipeline and the input. Panes, late
elements, counters and state rows are compared after every epoch; doubles agree within 1e-9 relative, everything else
exactly. TIDEGATE_EXAMPLES sets how many pipelines are drawn. A window join on arrays equals the row operator in every
epoch, also where each takes over the other's state. The examples find what was once broken: each of these bugs, planted
again, fails a property that holds without it.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Context
from functools import partial
from itertools import pairwise
from typing import Any, get_args

import datasketches
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, assume, event, example, given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from tests.property import columnar_cases
from tests.property.columnar_cases import MAX_PARALLELISM, SIGNS_MIX, Case, cases, epochs_of
from tests.property.world import KEYS
from tidegate.windowing import (
    CalendarEventTimeWindows,
    CumulateEventTimeWindows,
    First,
    Last,
    Mean,
    SlidingEventTimeWindows,
    StandardDeviation,
    Sum,
    TumblingEventTimeWindows,
    Variance,
    WindowJoin,
    keys,
)
from tidegate.windowing.aggregates import AggregateColumns, ApproxQuantile, chosen, doubles, sketches, spread, sums
from tidegate.windowing.aggregates.exact import SumOutOfRange
from tidegate.windowing.aggregates.order import first_rows, ranks
from tidegate.windowing.assigners import MergingWindowAssigner
from tidegate.windowing.columnar import (
    ColumnarOperator,
    ColumnarWindowJoin,
    joined_outcomes,
    run_in_passes,
    run_in_pieces,
)
from tidegate.windowing.columnar.key_codes import encode_keys
from tidegate.windowing.columnar.parts import Combining
from tidegate.windowing.columnar.slices import Slicing, slicing_of
from tidegate.windowing.compute import JoinKind
from tidegate.windowing.epochs import EpochOutcome
from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.epochs.row_operator import RowOperator
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.keys import SPARK_SEED, KeySchema
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.operators.joins import join_schema
from tidegate.windowing.operators.window.snapshot import state_schema, without_slices
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state.rows import REST, StateSchema
from tidegate.windowing.time import LAST_TIME, MAX_TIMESTAMP, MIN_TIMESTAMP
from tidegate.windowing.triggers import ContinuousEventTimeTrigger

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "30"))
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@given(cases())
@example(SIGNS_MIX)
@settings(PATIENT, max_examples=EXAMPLES)
def test_every_epoch_gives_the_panes_late_rows_counters_and_state_of_the_row_operator(case: Case) -> None:
    assert_equal_in_every_epoch(case)


@given(
    st.one_of(cases(), cases(sliced=True), cases(hashed=True), cases(sliced=True, hashed=True)),
    st.lists(st.integers(0, 30), max_size=4),
    st.randoms(use_true_random=False),
)
@settings(PATIENT, max_examples=EXAMPLES)
def test_elements_that_were_combined_where_they_were_read_give_the_same(
    case: Case, cuts: list[int], draw: random.Random
) -> None:
    """Elements come combined by key, time slot and commit, in any order, in parts of any batches. Those that may be
    late are alone, and so may be others. Both operators take parts, in any epoch of a life.
    """
    combining = Combining.of(case.windows)
    assume(not isinstance(combining, str))
    assert isinstance(combining, Combining)
    panes = PanePolicy(case.windows.accumulation, retract_merged=True, coalesce_late=True)
    schema = state_schema(case.windows, case.key, None, panes)
    state = schema.to_table([], MAX_PARALLELISM)
    for epoch in epochs_of(case):
        if case.closed is not None:
            panes = replace(panes, closed_through=max(MIN_TIMESTAMP, epoch.timeline.initial - case.closed))
        columnar = ColumnarOperator(case.windows, schema, panes, MAX_PARALLELISM)
        row = RowOperator(case.windows, schema, panes, MAX_PARALLELISM)
        parts, rows = parts_of(combining, case.key, epoch, panes.closed_through, cuts, draw)
        event(f"combined: {len(parts) < len(epoch.elements)}")
        try:
            expected = row.run(epoch.elements, state, epoch.timeline)
        except SumOutOfRange:
            for operator in (row, columnar):
                with pytest.raises(SumOutOfRange):
                    operator.run(parts, state, epoch.timeline)
            return
        expected = replace(expected, state=whole(case, schema, expected.state))
        for came in (
            row.run(parts, state, epoch.timeline),
            run_in_passes(columnar, parts, state, epoch.timeline, 3),
            columnar.run(parts, state, epoch.timeline),
        ):
            came = came.with_late_rows(rows)
            assert_same(expected, replace(came, state=whole(case, schema, came.state)))
        state = came.state


def parts_of(
    combining: Combining, key: KeySchema, epoch: columnar_cases.Epoch, closed: int, cuts: list[int], draw: random.Random
) -> tuple[Elements, Any]:
    """The parts of an epoch's elements as elements, with the index of an element of each."""
    elements, timeline = epoch
    bounds = np.maximum(timeline.before - combining.windows.lateness, closed)
    bounds = np.where(timeline.before < MIN_TIMESTAMP + combining.windows.lateness, closed, bounds)
    shuffled = np.array(sorted(range(len(elements)), key=lambda row: draw.random()), np.int64)
    edges = [0, *sorted(cut for cut in cuts if cut < len(elements)), len(elements)]
    found, rows = [], []
    for begin, end in pairwise(edges):
        batch = elements.take(shuffled[begin:end])
        may_be_late = combining.are_late(batch.timestamps, bounds[batch.commits])
        may_be_late |= np.array([draw.random() < 0.1 for _ in range(len(batch))], np.bool_)
        (codes,) = encode_keys(key, (batch.keys, len(batch))).codes
        parts = combining.run(codes, batch.timestamps, batch.commits, batch.columns, may_be_late)
        first = batch.take(parts.rows)
        found.append(replace(first, timestamps=parts.timestamps, columns=parts.columns, counts=parts.counts))
        rows.append(shuffled[begin:end][parts.rows])
    return Elements.concat(found), np.concatenate(rows)


@given(cases(sliced=True))
@settings(PATIENT, max_examples=EXAMPLES)
def test_windows_that_share_slices_give_the_same(case: Case) -> None:
    """In the middle of a life, where the operators swap their states, states of whole windows become slices, and the
    reverse.
    """
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
        row = RowOperator(case.windows, schema, panes, MAX_PARALLELISM)
        if case.swap:
            by_row, by_columns = by_columns, by_row
        try:
            expected = row.run(epoch.elements, by_row, epoch.timeline)
        except SumOutOfRange as error:
            # The two may meet windows and aggregates in different orders, so each may name another aggregate.
            event("a sum leaves its type")
            with pytest.raises(SumOutOfRange) as refused:
                columnar.run(epoch.elements, by_columns, epoch.timeline)
            named = {operator: overflowing(case, operator) for operator in (ColumnarOperator, RowOperator)}
            assert named[ColumnarOperator] == named[RowOperator]
            for told in (error, refused.value):
                assert (type(told), told.arguments[0]) in named[RowOperator].values()
            return
        came = columnar.run(epoch.elements, by_columns, epoch.timeline)
        assert_same(expected, replace(came, state=whole(case, schema, came.state)))
        event(f"all by arrays: {came.rows_by_row == 0}")
        assert not came.rows_by_row or may_go_by_row(case)
        by_row, by_columns = expected.state, came.state


def overflowing(
    case: Case, kind: type[ColumnarOperator] | type[RowOperator]
) -> dict[str, tuple[type[SumOutOfRange], str]]:
    """Return the aggregates that overflow in a life, each computed alone, with the class and column of the error."""
    found = {}
    assert isinstance(case.windows.aggregate, AggregateColumns)
    for name, function in zip(case.windows.aggregate.names, case.windows.aggregate.functions, strict=True):
        windows = replace(case.windows, aggregate=AggregateColumns({name: function}))
        panes = PanePolicy(windows.accumulation, retract_merged=True, coalesce_late=True)
        schema = state_schema(windows, case.key, None, panes)
        state = schema.to_table([], MAX_PARALLELISM)
        for epoch in epochs_of(case._replace(windows=windows)):
            if case.closed is not None:
                panes = replace(panes, closed_through=max(MIN_TIMESTAMP, epoch.timeline.initial - case.closed))
            try:
                state = kind(windows, schema, panes, MAX_PARALLELISM).run(epoch.elements, state, epoch.timeline).state
            except SumOutOfRange as error:
                found[name] = (type(error), error.arguments[0])
                break
    return found


@given(cases())
@settings(PATIENT, max_examples=EXAMPLES // 5)
def test_the_cut_into_epochs_changes_no_pane_no_late_row_and_no_state(case: Case) -> None:
    assume(case.lag is None)
    cuts = case.cuts
    windows = case.windows
    if isinstance(windows.assigner, MergingWindowAssigner) or isinstance(windows.trigger, ContinuousEventTimeTrigger):
        # The order of elements within a commit matters here (BoundPipeline.may_split_commits), so no commit is split.
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
@settings(PATIENT, max_examples=EXAMPLES // 5)
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


@given(cases(), st.lists(st.integers(0, 30), max_size=4), st.integers(1, 40), st.randoms(use_true_random=False))
@settings(PATIENT, max_examples=EXAMPLES // 2)
def test_an_epoch_in_pieces_in_any_order_gives_what_it_gives_at_once(
    case: Case, cuts: list[int], rows_at_a_time: int, draw: random.Random
) -> None:
    """If `Windows.may_split_commits`, the rows of a commit, or of a backfill's interval, may come in any order."""
    assume(case.windows.may_split_commits)
    panes = PanePolicy(case.windows.accumulation, retract_merged=True, coalesce_late=True)
    schema = state_schema(case.windows, case.key, None, panes)
    columnar = ColumnarOperator(case.windows, schema, panes, MAX_PARALLELISM)
    state = schema.to_table([], MAX_PARALLELISM)
    for epoch in epochs_of(case):
        order = np.array(
            sorted(range(len(epoch.elements)), key=lambda row: (epoch.elements.commits[row], draw.random()))
        )
        pieces = pieces_of(epoch.elements, order.astype(np.int64), sorted(cuts), epoch.timeline)
        event(f"pieces: {len(pieces)}, in event order: {case.lag is not None}")
        run = partial(run_in_pieces, columnar, [piece for _, piece in pieces], state, epoch.timeline, rows_at_a_time)
        try:
            expected = columnar.run(epoch.elements, state, epoch.timeline)
        except SumOutOfRange:
            with pytest.raises(SumOutOfRange):
                list(run())
            return
        outcomes = list(run())
        came = [outcome.with_late_rows(rows) for (rows, _), outcome in zip(pieces, outcomes, strict=True)]
        assert_same(expected, joined_outcomes(came))
        state = expected.state


def pieces_of(
    elements: Elements, order: Any, cuts: list[int], timeline: Timeline
) -> list[tuple[Any, tuple[Elements, int, bool]]]:
    """The elements in this order, cut at some places, which may be within a commit; each piece with its rows."""
    pieces = []
    bounds = sorted({0, *(cut for cut in cuts if cut < len(order))})
    for begin, end in pairwise([*bounds, len(order)]):
        rows, rest = order[begin:end], order[end:]
        last, ended = len(timeline.complete) - 1, bool(timeline.complete[-1])
        if len(rest):
            last = int(elements.commits[rows[-1]])
            ended = timeline.lag is None and not (elements.commits[rest] == last).any()
        pieces.append((rows, (elements.take(rows), last, ended)))
    return pieces


def whole(case: Case, schema: StateSchema, state: pa.Table) -> pa.Table:
    """State rows of whole windows: slices are merged into the windows that they belong to."""
    return schema.to_table(without_slices(schema.from_table(state), case.windows), MAX_PARALLELISM)


def may_go_by_row(case: Case) -> bool:
    """Return True if elements may need the row operator: in sessions, and in windows that fire early in event order."""
    windows = case.windows
    merges = isinstance(windows.assigner, MergingWindowAssigner)
    # A sum may overflow its type on the way to a result that fits.
    sums = [f for f in getattr(windows.aggregate, "functions", ()) if f.rest_type == pa.int64()]
    return merges or bool(sums) or (isinstance(windows.trigger, ContinuousEventTimeTrigger) and case.lag is not None)


def run_all(case: Case) -> list[EpochOutcome]:
    """Return the epochs of a case, computed by the columnar operator, with late rows without their number."""
    panes = PanePolicy(case.windows.accumulation, retract_merged=True, coalesce_late=True)
    schema = state_schema(case.windows, case.key, None, panes)
    columnar = ColumnarOperator(case.windows, schema, panes, MAX_PARALLELISM)
    state, outcomes = schema.to_table([], MAX_PARALLELISM), []
    for epoch in epochs_of(case):
        outcome = columnar.run(epoch.elements, state, epoch.timeline)
        state = outcome.state
        outcomes.append(replace(outcome, late=outcome.late.drop_columns(["row"])))
    return outcomes


def assert_same(expected: EpochOutcome, came: EpochOutcome) -> None:
    assert rows(came.panes) == rows(expected.panes)
    assert rows(came.late) == rows(expected.late)
    assert came.counters == expected.counters
    assert came.state.schema.equals(expected.state.schema)
    assert rows(came.state) == rows(expected.state)
    assert came.state["key_group"].to_pylist() == sorted(came.state["key_group"].to_pylist())
    assert came.next_timer == expected.next_timer


def rows(table: pa.Table) -> list[Any]:
    """Rows in a fixed order, with doubles that equal others within 1e-9. The remainders of doubles are left out: they
    show in the results of later epochs, and their last bits depend on the order of additions.
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
    """Convert a quantile sketch to the values that it stores, in a fixed order, and a mean next to a spread to its
    ratio to that spread, because with mixed signs a mean may be almost zero. Any other value is returned unchanged.
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
    row = RowOperator(join, schema, PanePolicy(), GROUPS, results)
    arrays = ColumnarWindowJoin(join, schema, GROUPS, results)
    by_row = by_arrays = schema.to_table([], GROUPS)
    watermark, fired = MIN_TIMESTAMP, 0
    for commits, marks, complete, lag in [*epochs, ([[]], [LAST_TIME - 1] * 3, True, None)]:
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


quickly = settings(
    # It ends at the first failing example. Which one that is also depends on the loaded modules, because Hypothesis
    # uses their constants.
    max_examples=6000,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def holds(monkeypatch: pytest.MonkeyPatch, *kinds: type) -> None:
    """Check that both operators are equal over random pipelines, with aggregates of these kinds."""
    some = {name: made for name, made in columnar_cases.AGGREGATES.items() if isinstance(made, kinds)}
    monkeypatch.setattr(columnar_cases, "AGGREGATES", some)
    test = test_every_epoch_gives_the_panes_late_rows_counters_and_state_of_the_row_operator
    inner = test.hypothesis.inner_test  # type: ignore[attr-defined]

    def check(case: columnar_cases.Case) -> None:
        inner(case)

    run: Callable[[], None] = quickly(given(columnar_cases.cases())(check))
    run()


def in_place(self: Any, rank: Any, valid: Any, values: pa.Array, groups: Any) -> Any:
    """As `First` and `Last` once did: ranks were written to an array that Arrow gives read-only for small integers."""
    best, worst = (groups.max, MIN_TIMESTAMP) if self._largest else (groups.min, MAX_TIMESTAMP)
    ties = rank == best(rank)[groups.ids]
    if ties.sum() > len(groups):
        rank = ranks(values)
        rank[~ties] = worst
        ties &= rank == best(rank)[groups.ids]
    return first_rows(ties, groups)


def test_first_and_last_of_small_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen._Chosen, "_rows", in_place)
    with pytest.raises(ValueError, match="read-only"):
        holds(monkeypatch, First, Last)


def safely(values: pa.Array) -> Any:
    return values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)


def test_averages_of_large_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sums, spread, sketches):
        monkeypatch.setattr(module, "doubles_of", safely)
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        holds(monkeypatch, Mean, Variance, StandardDeviation, ApproxQuantile)


def plainly(numbers: Any, groups: Any, rests: Any = None) -> Any:
    return groups.sum(numbers), np.zeros(len(groups))


@pytest.mark.long
def test_sums_of_doubles_whose_signs_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "sums", plainly)
    with pytest.raises(AssertionError):
        holds(monkeypatch, Sum, Mean)


def hashes_are_those_of_spark() -> None:
    @quickly
    @given(st.sampled_from([kind for kind in KEYS if pa.types.is_decimal(kind) and kind.precision > 18]), st.data())
    def test(kind: Any, data: Any) -> None:
        value = data.draw(st.sampled_from([value for value in KEYS[kind] if value is not None]))
        digits = f"{value:.{kind.scale}f}".replace(".", "")
        number = int(digits)
        size = (number.bit_length() if number >= 0 else (number + 1).bit_length()) // 8 + 1
        expected = xxh64_intdigest(number.to_bytes(size, "big", signed=True), SPARK_SEED)
        assert KeySchema(("k",), (kind,)).hash_of(value) == expected

    run: Callable[[], None] = test
    run()


def test_decimal_keys_of_more_than_28_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes_are_those_of_spark()
    monkeypatch.setattr(keys, "DECIMALS", Context(prec=28))
    with pytest.raises(AssertionError):
        hashes_are_those_of_spark()


def test_totals_are_what_the_sums_of_doubles_know() -> None:
    total = doubles.Total.of(0.0)
    for number in (1e16, 1.0, -1e16, 1e-20):
        total = doubles.added(total, number)
    assert (float(total), total.rest) == (1.0, 1e-20)
