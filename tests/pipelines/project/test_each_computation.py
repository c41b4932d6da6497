"""Each computation that the library offers, with every aggregate, goes through every command of a life.

A command does what it says or refuses with an error of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.lake import Lake, at, hourly_pipeline
from tidegate import Project
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.errors import QualityFailed, TidegateError
from tidegate.windowing import (
    Accumulation,
    AfterCount,
    AfterProcessingTime,
    AfterWatermark,
    AggregateFunction,
    AllTrue,
    AnyTrue,
    ApproxCountDistinct,
    ApproxQuantile,
    CalendarEventTimeWindows,
    CalendarProcessingTimeWindows,
    CollectList,
    CollectSet,
    ContinuousEventTimeTrigger,
    CoProcess,
    Count,
    CountEvictor,
    CountIf,
    CountTrigger,
    CumulateEventTimeWindows,
    DeltaEvictor,
    DeltaTrigger,
    EventTimeSessionWindows,
    First,
    GapColumn,
    GlobalWindows,
    IntervalJoin,
    KeepFirst,
    KeyedCoProcessFunction,
    KeyedProcess,
    Last,
    Max,
    MaxBy,
    Mean,
    Min,
    MinBy,
    NeverTrigger,
    ProcessingTimeoutTrigger,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    StandardDeviation,
    Sum,
    TimeEvictor,
    TopN,
    TumblingEventTimeWindows,
    TumblingIngestionTimeWindows,
    TumblingProcessingTimeWindows,
    Variance,
    WindowJoin,
    Windows,
    WindowStagger,
    count_windows,
)
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.state import ListStateDescriptor, MapStateDescriptor, StateDescriptor

MINUTE = timedelta(minutes=1)
HOUR = 60 * MINUTE
COLUMNS = pa.schema(
    [
        ("user", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("part", pa.int32()),
        ("amount", pa.decimal128(12, 2)),
        ("ratio", pa.float64()),
        ("paid", pa.bool_()),
        ("text", pa.string()),
        ("gap", pa.int64()),
        ("day", pa.date32()),
    ]
)
AGGREGATES = {
    "n": Count(),
    "paid": CountIf("paid"),
    "total": Sum("amount"),
    "ratios": Sum("ratio"),
    "mean": Mean("amount"),
    "variance": Variance("ratio"),
    "deviation": StandardDeviation("ratio"),
    "least": Min("text"),
    "latest": Max("day"),
    "first": First("text"),
    "last": Last("part"),
    "richest": MaxBy("text", by="amount"),
    "poorest": MinBy("text", by="ratio"),
    "all_paid": AllTrue("paid"),
    "any_paid": AnyTrue("paid"),
    "texts": CollectList("text"),
    "parts": CollectSet("part"),
    "about": ApproxCountDistinct("text"),
    "median": ApproxQuantile("ratio", 0.5),
    "best": TopN(2, by="amount", also=["text"]),
}


class Parts(AggregateFunction):
    """The sum of `part`, by code of one's own."""

    accumulator_type = pa.int64()
    result_type = pa.struct([("parts", pa.int64())])

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + (value["part"] or 0)

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def get_result(self, accumulator: int) -> dict[str, int]:
        return {"parts": accumulator}


class Number(ProcessWindowFunction):
    """The number of what a window hands over: its elements, or one aggregate."""

    result_type = pa.struct([("number", pa.int64())])

    def process(self, key: Any, ctx: Any, elements: Iterable[Any]) -> Iterator[dict[str, int]]:
        yield {"number": len([*elements])}


class Both(KeyedCoProcessFunction):
    """The number of elements of each input ten minutes after each one of the left."""

    result_type = pa.struct([("left", pa.int64()), ("right", pa.int64())])
    left, right = ListStateDescriptor("left", pa.int32()), MapStateDescriptor("right", pa.string(), pa.date32())

    def states(self) -> list[StateDescriptor]:
        return [self.left, self.right]

    def process_element1(self, value: Any, ctx: Any) -> None:
        ctx.get_state(self.left).add(value["part"] or 0)
        ctx.timer_service().register_event_time_timer(ctx.timestamp + 600_000)

    def process_element2(self, value: Any, ctx: Any) -> None:
        ctx.get_state(self.right).put(value["text"] or "none", value["day"])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[dict[str, int]]:
        yield {"left": len(ctx.get_state(self.left).get()), "right": len([*ctx.get_state(self.right).keys()])}


def far(one: dict[str, Any], other: dict[str, Any]) -> float:
    return abs(float(one["ratio"] - other["ratio"]))


def added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {**one, "part": (one["part"] or 0) + (other["part"] or 0)}


HOURS = TumblingEventTimeWindows.of(HOUR)
SESSIONS = EventTimeSessionWindows.with_gap(20 * MINUTE)
EARLY, RATIO = AfterWatermark(early=AfterCount(2), late=AfterCount(1)), pa.struct([("ratio", pa.float64())])
NAMED, COUNTED, OWN = {"aggregate": AGGREGATES}, {"aggregate": {"n": Count()}}, {"aggregate": Parts()}
TWO_INPUTS = CoProcess | IntervalJoin | WindowJoin
COMPUTES: dict[str, Any] = {
    "the last two of an hour": Windows(HOURS, evictor=CountEvictor.of(2), **NAMED),
    "hours": Windows(HOURS, **NAMED),
    "the last quarter of an hour": Windows(HOURS, evictor=TimeEvictor.of(15 * MINUTE), **NAMED),
    "sliding": Windows(SlidingEventTimeWindows.of(HOUR, 15 * MINUTE), **NAMED),
    "cumulative": Windows(CumulateEventTimeWindows.of(4 * HOUR, HOUR), **NAMED),
    "sessions with lateness": Windows(SESSIONS, allowed_lateness=HOUR, **NAMED),
    "sessions by a column": Windows(EventTimeSessionWindows.with_dynamic_gap(GapColumn("gap")), **COUNTED),
    "count": count_windows(3, **NAMED),
    "count, sliding": count_windows(3, 2, **NAMED),
    "count, sliding, own": count_windows(3, 2, **OWN),
    "count, sliding, reduced": count_windows(3, 2, reduce=added),
    "own aggregate": Windows(HOURS, **OWN),
    "reduced": Windows(HOURS, reduce=added),
    "processed": Windows(HOURS, process=Number()),
    "aggregated and processed": Windows(SESSIONS, process=Number(), **COUNTED),
    "aggregated and processed, the last two": Windows(HOURS, None, CountEvictor.of(2), process=Number(), **COUNTED),
    "staggered": Windows(TumblingEventTimeWindows.of(HOUR, 0, WindowStagger.RANDOM), **COUNTED),
    "by ingestion": Windows(TumblingIngestionTimeWindows.of(HOUR), **COUNTED),
    "by the clock": Windows(TumblingProcessingTimeWindows.of(HOUR), **NAMED),
    "sessions by the clock": Windows(ProcessingTimeSessionWindows.with_gap(HOUR), **NAMED),
    "global": Windows(GlobalWindows(end_of_stream=True), **NAMED),
    "continuous": Windows(HOURS, ContinuousEventTimeTrigger.of(10 * MINUTE), **NAMED),
    "with a timeout": Windows(HOURS, ProcessingTimeoutTrigger.of(CountTrigger.of(100), HOUR), **COUNTED),
    "first of each key": KeyedProcess(KeepFirst(pa.struct([("text", pa.string())]))),
    "days of a time zone": Windows(CalendarEventTimeWindows.days("America/New_York"), allowed_lateness=HOUR, **NAMED),
    "days by the clock": Windows(CalendarProcessingTimeWindows.days("Europe/Berlin"), **OWN),
    "sliding by the clock": Windows(SlidingProcessingTimeWindows.of(HOUR, 15 * MINUTE), **NAMED),
    "sessions by a function": Windows(EventTimeSessionWindows.with_dynamic_gap(lambda row: row["gap"]), **NAMED),
    "by a distance": Windows(GlobalWindows(), DeltaTrigger.of(2, far, RATIO), DeltaEvictor.of(3, far), **NAMED),
    "early and late": Windows(SESSIONS, EARLY, accumulation=Accumulation.RETRACTING, allowed_lateness=HOUR, **NAMED),
    "in parts": Windows(SESSIONS, EARLY, accumulation=Accumulation.DISCARDING, allowed_lateness=HOUR, **OWN),
    "never": Windows(HOURS, NeverTrigger(), **COUNTED),
    "early by the clock": Windows(HOURS, AfterWatermark(early=AfterProcessingTime(10 * MINUTE)), **NAMED),
    "two inputs": CoProcess(Both()),
    "two inputs as they arrive": CoProcess(Both(), time_sorted=False),
    "joined by time": IntervalJoin(-10 * MINUTE, 10 * MINUTE, lower_inclusive=False),
    "joined by windows": WindowJoin(SlidingEventTimeWindows.of(HOUR, 15 * MINUTE), "full"),
    "not joined": WindowJoin(CalendarEventTimeWindows.days("Europe/Berlin"), "anti"),
}


COMMITS = ((0, 20), (1, 30), (-6, 10), (48, 10))
"""Hour and number of rows of each commit."""


def commit(lake: Lake, hour: int, rows: int, *tables: str) -> None:
    """Append rows seven minutes apart, with nulls in every column but time, ratio and gap."""
    numbers = range(rows)
    columns = [
        [f"u{n % 3}" if n % 7 else None for n in numbers],
        [at("10:00") + hour * HOUR + 7 * n * MINUTE for n in numbers],
        [n % 4 if n % 5 else None for n in numbers],
        [Decimal(n) if n % 6 else None for n in numbers],
        [n / 3 for n in numbers],
        [n % 2 == 0 if n % 8 else None for n in numbers],
        [f"t{n}" if n % 4 else None for n in numbers],
        [600_000 + n for n in numbers],
        [date(2024, 3, 1 + n % 9) if n % 9 else None for n in numbers],
    ]
    for table in tables:
        lake.write(pa.table(columns, schema=COLUMNS), table)


def change(lake: Lake, *tables: str) -> None:
    """Change rows of each commit."""
    for table in tables:
        DeltaTable(lake.path(table)).update(predicate="part = 2", updates={"ratio": "ratio + 1"})


def commands(project: Project) -> Iterator[Callable[[], Any]]:
    """Yield the commands of a life in an order in which each has something to do."""
    name, key = "hours", ("u1",)
    for view in ("all", "final", "latest"):
        yield lambda view=view: project.results(name, view=view)  # type: ignore[misc]
    yield lambda: project.explain(name)
    yield lambda: project.tables.lineage(name)
    yield lambda: project.verify(name, sample="all").require()
    yield lambda: project.quality.check(name).require()
    yield lambda: project.runs(name)
    yield lambda: project.why(name, key=key)
    yield lambda: project.advise(name)
    yield lambda: project.size(name)
    yield lambda: project.trace(name, key)
    yield lambda: project.late.reopen(name)
    yield lambda: project.savepoints.create(name, "kept")
    yield lambda: project.restore(name, 1)
    yield lambda: project.stream(name)
    yield lambda: project.forget(name, key)
    yield lambda: project.stream(name)
    yield lambda: project.tables.optimize(name)
    yield lambda: project.tables.vacuum(name, snapshots=1, days=0)
    yield lambda: project.tables.rebuild_windows(name)
    yield lambda: project.verify(name, sample="all").require()
    yield lambda: project.quality.check(name).require()
    yield lambda: project.report(name)


def tables_of(compute: Any) -> tuple[str, ...]:
    return ("events", "right") if isinstance(compute, TWO_INPUTS) else ("events",)


def pipeline_of(compute: Any, changes: Literal["correct", "ignore"] = "correct") -> Pipeline:
    """Return a pipeline that corrects its results when rows change, or ignores these if it can't."""
    left, right = (DeltaSource(name, timestamp="at", changes=changes) for name in ("events", "right"))
    more = {"right": Input(source=right)} if "right" in tables_of(compute) else {}
    try:
        return hourly_pipeline(compute=compute, null_keys="keep", parallelism=2, source=left, **more)
    except IllegalArgument:
        if changes == "ignore":
            raise
        return pipeline_of(compute, "ignore")


@pytest.mark.first(1)
@pytest.mark.parametrize("compute", COMPUTES.values(), ids=COMPUTES)
def test_each_command_does_what_it_says_or_refuses(lake: Lake, compute: Any) -> None:
    pipeline, tables = pipeline_of(compute), tables_of(compute)
    project = lake.project(pipeline)
    for hour, rows in COMMITS:
        commit(lake, hour, rows, *tables)
        project.stream("hours")
    change(lake, *tables)
    project.stream("hours")
    epochs = lake.rows(pipeline, "epochs")
    assert pc.sum(epochs.filter(pc.equal(epochs["kind"], "stream"))["events_in"]).as_py() == 70 * len(tables)
    for command in commands(project):
        try:
            answer = command()
        except QualityFailed:
            raise
        except TidegateError:
            continue
        assert str(answer)
        if hasattr(answer, "_repr_html_"):
            assert answer._repr_html_()
