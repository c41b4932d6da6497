"""Process functions over sorted elements give one result: as a stream, however it is divided and rescaled, and as a
backfill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import Phase, example, find, given, settings
from hypothesis import strategies as st

from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.sources.delta.description import DeltaSource
from tidegate.pipelines.testing import PipelineHarness, SourceColumns
from tidegate.windowing import CoProcess, KeyedCoProcessFunction, KeyedProcess, KeyedProcessFunction, WatermarkStrategy
from tidegate.windowing.operators.held import HeldElements
from tidegate.windowing.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from tidegate.windowing.timers import InternalTimerService

COLUMNS = pa.schema(
    [
        ("user", pa.string()),
        ("at", pa.int64()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("sizes", pa.map_(pa.string(), pa.int32())),
    ]
)
BEFORE_ALL = datetime(1969, 1, 1)
"""Event times are small numbers; a source rejects 0 by default."""
LAST = 1000
"""Time of the element that ends a stream: the watermark passes every other one."""
MARKER = "end"
"""Its key."""

RESULT = pa.struct([("what", pa.string()), ("told", pa.string())])


class Diary:
    """Stores everything that a function can see in every kind of state, and emits it; shared by both functions."""

    result_type = RESULT
    side_outputs = {"odd": pa.struct([("n", pa.int64())])}  # noqa: RUF012

    entries = ListStateDescriptor("entries", pa.string())
    last = ValueStateDescriptor("last", pa.int64())
    seen = MapStateDescriptor("seen", pa.string(), pa.int64())
    total = ReducingStateDescriptor("total", lambda a, b: 2 * a + b, pa.int64())

    def states(self) -> list[Any]:
        return [self.entries, self.last, self.seen, self.total]

    def write(self, side: str, value: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        timers, last, n = ctx.timer_service(), ctx.get_state(self.last), value["n"] or 0
        # NaN is not equal to itself, but strings are.
        entry = f"{side} {ctx.timestamp} {timers.current_watermark()} {sorted(map(str, value.items()))}"
        ctx.get_state(self.entries).add(entry)
        ctx.get_state(self.seen).put(str(value["x"]), n)
        ctx.get_state(self.total).add(n)
        if last.value() is not None:
            timers.delete_event_time_timer(last.value() + 7)
        last.update(ctx.timestamp)
        timers.register_event_time_timer(ctx.timestamp + 7)
        timers.register_event_time_timer(ctx.timestamp - n)
        if n % 2:
            ctx.output("odd", {"n": n})
        if n % 3 == 0:
            yield {"what": "element", "told": f"{entry} {ctx.get_state(self.total).get()}"}

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[dict[str, Any]]:
        timers = ctx.timer_service()
        told = [timers.current_watermark(), ctx.get_state(self.entries).get(), ctx.get_state(self.seen).items()]
        yield {"what": "timer", "told": str(told)}
        if len(told[1]) % 2:
            timers.register_event_time_timer(timestamp + 2)
        ctx.get_state(self.entries).clear()


class Keyed(Diary, KeyedProcessFunction):
    def process_element(self, value: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        return self.write("only", value, ctx)


class Two(Diary, KeyedCoProcessFunction):
    def process_element1(self, value: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        return self.write("left", value, ctx)

    def process_element2(self, value: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        return self.write("right", value, ctx)


class Commit(NamedTuple):
    side: str
    rows: list[dict[str, Any]]
    complete: bool
    parallelism: int | None
    """Parallelism of the epoch that ends with this commit; None if the epoch continues."""


@dataclass(frozen=True)
class Arrivals:
    """The commits of a stream, and how far it waits for older elements."""

    bound: int
    commits: list[Commit]


ROWS = st.fixed_dictionaries(
    {
        "user": st.sampled_from("ab"),
        "at": st.integers(0, 40),
        "n": st.none() | st.integers(0, 9),
        "x": st.sampled_from([None, float("nan"), 0.0, -0.0, 1.5, float("-inf")]),
        "tags": st.none() | st.lists(st.none() | st.sampled_from("xy"), max_size=2),
        "sizes": st.none() | st.dictionaries(st.sampled_from("pq"), st.integers(0, 2), max_size=2),
    }
)
COMMITS = st.builds(
    Commit, st.sampled_from(["left", "right"]), st.lists(ROWS, max_size=5), st.booleans(), st.none() | st.integers(1, 4)
)
ARRIVALS = st.builds(Arrivals, st.integers(0, 15), st.lists(COMMITS, min_size=1, max_size=6))


def pipeline(function: KeyedProcessFunction | KeyedCoProcessFunction, bound: int, time_sorted: bool) -> Pipeline:
    source = DeltaSource("events", timestamp="at", unit="ms", not_before=BEFORE_ALL)
    common: dict[str, Any] = {
        "name": "diary",
        "source": source,
        "key": ("user",),
        "watermark": WatermarkStrategy.for_bounded_out_of_orderness(bound),
    }
    if isinstance(function, KeyedProcessFunction):
        return Pipeline(**common, compute=KeyedProcess(function, time_sorted=time_sorted))
    other = Input(source=DeltaSource("others", timestamp="at", unit="ms", not_before=BEFORE_ALL))
    return Pipeline(**common, right=other, compute=CoProcess(function, time_sorted=time_sorted))


def harness(function: Any, bound: int, time_sorted: bool) -> PipelineHarness:
    right = SourceColumns(COLUMNS) if isinstance(function, KeyedCoProcessFunction) else None
    return PipelineHarness(pipeline(function, bound, time_sorted), COLUMNS, right=right)


def marker(sides: list[str | None]) -> list[tuple[str | None, dict[str, Any]]]:
    row = {"user": MARKER, "at": LAST, "n": None, "x": None, "tags": None, "sizes": None}
    return [(side, row) for side in sides]


def streamed(function: Any, arrivals: Arrivals, time_sorted: bool = True) -> PipelineHarness:
    """The commits, then an element of each input that moves the watermark past all of them."""
    made = harness(function, arrivals.bound, time_sorted)
    two = isinstance(function, KeyedCoProcessFunction)
    open_side: str | None = None
    for at, commit in enumerate(arrivals.commits, 1):
        # The remainder of a commit comes next, whatever else is there.
        side = open_side or (commit.side if two else "left")
        made.commit(commit.rows, at=at, complete=commit.complete, side=side if two else None)
        open_side = None if commit.complete else side
        if commit.parallelism is not None:
            made.run(commit.parallelism)
    if open_side is not None:
        made.commit([], at=len(arrivals.commits), side=open_side if two else None)
    for side_of_last, row in marker(["left", "right"] if two else [None]):
        made.commit([row], at=LAST, side=side_of_last)
    made.run(2)
    return made


def backfilled(function: Any, arrivals: Arrivals, stream: PipelineHarness, slices: int) -> PipelineHarness:
    """Return the rows that were not late in the stream, as intervals up to its watermark."""
    made = harness(function, arrivals.bound, True)
    two = isinstance(function, KeyedCoProcessFunction)
    # The inputs may have equal rows of which only one is late.
    late = [(row["side"], str(row[row["side"]])) if two else ("left", str(row)) for row in without_run(stream.late())]
    rows: dict[str, list[dict[str, Any]]] = {"left": [], "right": []}
    open_side: str | None = None
    for commit in arrivals.commits:
        side = open_side or (commit.side if two else "left")
        open_side = None if commit.complete else side
        for row in commit.rows:
            shown = (side, str(pa.Table.from_pylist([row], schema=COLUMNS).to_pylist()[0]))
            if shown in late:
                late.remove(shown)
            else:
                rows[side].append(row)
    assert not late, "a late row that nobody committed"
    begin, end = 0, stream.watermark + 1
    cuts = [begin, *(begin + 12 * i for i in range(1, slices)), end]
    for start, stop in pairwise(cuts):
        made.backfill(rows["left"], start, stop, parallelism=1 + start % 3, right=rows["right"])
    return made


def without_run(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without what identifies the run that wrote them."""
    ours = {*COLUMNS.names, "side", "left", "right"}
    return [{name: value for name, value in row.items() if name in ours} for row in rows]


def told(made: PipelineHarness) -> tuple[list[str], list[str]]:
    """Return results, and the state of every key except the last element's."""
    hidden = ("epoch", "emitted_at")
    results = [{name: value for name, value in row.items() if name not in hidden} for row in made.results()]
    return sorted(map(str, results)), sorted(str(row) for row in made.state() if row["user"] != MARKER)


def disagree(function: Any, arrivals: Arrivals, slices: int = 1, time_sorted: bool = True) -> bool:
    stream = streamed(function, arrivals, time_sorted)
    return told(backfilled(function, arrivals, stream, slices))[0] != told(stream)[0]


FEWER = settings(max_examples=max(15, settings.default.max_examples // 10))
"""An example is a dozen epochs."""

FUNCTIONS = pytest.mark.parametrize("make", [Keyed, Two], ids=["keyed", "two inputs"])


def row(at: int) -> dict[str, Any]:
    return {"user": "a", "at": at, "n": None, "x": None, "tags": None, "sizes": None}


EQUAL_ROWS_OF_BOTH_INPUTS = [
    Commit("right", [row(0), row(2)], True, None),
    Commit("left", [row(2)], True, 1),
    Commit("left", [row(0)], True, 1),
]
"""The left row of time 0 is late, but the equal row on the right is not."""


@pytest.mark.first(1)
@FUNCTIONS
@FEWER
@given(arrivals=ARRIVALS, slices=st.integers(1, 4))
@example(arrivals=Arrivals(0, EQUAL_ROWS_OF_BOTH_INPUTS), slices=1)
def test_a_stream_however_it_is_cut_and_rescaled_gives_what_a_backfill_gives(
    make: Callable[[], Any], arrivals: Arrivals, slices: int
) -> None:
    stream = streamed(make(), arrivals)
    assert told(stream) == told(backfilled(make(), arrivals, stream, slices))
    counted = stream.counters
    assert (
        counted["usable"]
        == counted["on_time"] + counted["late"]
        == sum(len(c.rows) for c in arrivals.commits) + (2 if make is Two else 1)
    )
    assert counted["late"] == len(stream.late())


@pytest.mark.first(1)
@FUNCTIONS
@FEWER
@given(arrivals=ARRIVALS)
def test_cuts_do_not_show_while_elements_wait(make: Callable[[], Any], arrivals: Arrivals) -> None:
    """State rows, including those of waiting elements, are also those of one epoch."""
    made = []
    for cut in (True, False):
        run = harness(make(), arrivals.bound, True)
        for at, commit in enumerate(arrivals.commits, 1):
            run.commit(commit.rows, at=at, side=commit.side if make is Two else None)
            if cut:
                run.run(commit.parallelism or 1)
        run.run(3)
        made.append((told(run), sorted(map(str, without_run(run.late())))))
    assert made[0] == made[1]


def found(make: Callable[[], Any], time_sorted: bool = True) -> Arrivals:
    """Return arrivals for which stream and backfill disagree; fail if none are found."""
    return find(
        ARRIVALS,
        lambda arrivals: disagree(make(), arrivals, time_sorted=time_sorted),
        settings=settings(max_examples=300, database=None, deadline=None, phases=[Phase.generate]),
        random=Random(7),
    )


@FUNCTIONS
def test_the_draws_tell_elements_as_they_come_from_sorted_ones(make: Callable[[], Any]) -> None:
    assert found(make, time_sorted=False).commits


def test_the_draws_find_equal_times_in_the_order_of_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeldElements, "_in_order", lambda self, elements: elements)
    assert found(Keyed).commits


def test_the_draws_find_timers_that_fire_by_the_watermark_of_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = InternalTimerService.advance_watermark

    def at_once(self: InternalTimerService, watermark: int) -> None:
        advance(self, max(watermark, *(time for time, _ in self.event_time)) if len(self.event_time) > 1 else watermark)

    monkeypatch.setattr(InternalTimerService, "advance_watermark", at_once)
    assert found(Keyed).commits
