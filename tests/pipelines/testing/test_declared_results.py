"""Results of user code in tables: epoch milliseconds become timestamps everywhere, and values that don't fit are
refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.sources.delta.description import DeltaSource
from tidegate.pipelines.testing import PipelineHarness, SourceColumns
from tidegate.windowing import (
    Accumulation,
    EventTimeSessionWindows,
    IntervalJoin,
    KeyedProcess,
    KeyedProcessFunction,
    Last,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.functions import AggregateFunction, ProcessWindowFunction
from tidegate.windowing.state import ValueStateDescriptor

MS = pa.timestamp("ms", tz="UTC")
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
NOON_MILLIS = 1_714_564_800_000
SOURCE = pa.schema([("user", pa.string()), ("at", pa.int64()), ("seen", pa.timestamp("us", tz="UTC"))])


def row(after: int, user: str = "ann") -> dict[str, Any]:
    return {"user": user, "at": NOON_MILLIS + after, "seen": NOON}


def harness(compute: Any, other: SourceColumns | None = None, **settings: Any) -> PipelineHarness:
    made = Pipeline(
        name="told",
        source=DeltaSource("events", timestamp="at", unit="ms"),
        key=("user",),
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        compute=compute,
        **settings,
    )
    return PipelineHarness(made, SOURCE, right=other)


class Told(KeyedProcessFunction):
    """Yields time in a unit of its own, and sends it to a side output."""

    result_type = pa.struct([("since", MS), ("all", pa.list_(pa.struct([("at", MS)])))])
    side_outputs = {"alarm": pa.struct([("at", pa.timestamp("us", tz="UTC"))])}  # noqa: RUF012

    def __init__(self, since: Any = None) -> None:
        self.since = since

    def process_element(self, value: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        ctx.output("alarm", {"at": ctx.timestamp})
        yield {"since": self.since or ctx.timestamp, "all": [{"at": ctx.timestamp}]}


def test_a_process_function_may_yield_the_timestamp_of_its_context() -> None:
    made = harness(KeyedProcess(Told(), time_sorted=False))
    made.commit([row(0)], at=NOON)
    made.run()
    alarm, told = sorted(made.results(), key=lambda shown: shown["output"] is None)
    assert (told["since"], told["all"], alarm["alarm"]) == (NOON, [{"at": NOON}], {"at": NOON})


def test_an_error_names_column_value_and_the_type_as_it_was_declared() -> None:
    made = harness(KeyedProcess(Told("noon"), time_sorted=False))
    made.commit([row(0)], at=NOON)
    with pytest.raises(IllegalArgument) as refused:
        made.run()
    assert str(refused.value).startswith(
        "pipeline told: Told: result column 'since' = 'noon': its declared type is timestamp[ms, tz=UTC]: give a "
        "datetime, or epoch "
    )


def test_a_join_may_too() -> None:
    join = IntervalJoin(-5, 5, join=lambda left, right: {"met": right["at"]}, result_type=pa.struct([("met", MS)]))
    other = Input(source=DeltaSource("others", timestamp="at", unit="ms"))
    made = harness(join, SourceColumns(SOURCE), right=other)
    made.commit([row(0)], at=NOON, side="left")
    made.commit([row(0)], at=NOON, side="right")
    made.run()
    assert [told["met"] for told in made.results()] == [NOON]


class Span(ProcessWindowFunction):
    """The first time of a window, in milliseconds."""

    result_type = pa.struct([("first", pa.timestamp("us", tz="UTC")), ("n", pa.int32())])

    def process(self, key: Any, ctx: Any, elements: Any) -> Iterator[dict[str, Any]]:
        yield {"first": min(element["at"] for element in elements), "n": len(elements)}


class First(AggregateFunction):
    """The same, stored as an int."""

    accumulator_type = pa.int64()
    result_type = Span.result_type

    def create_accumulator(self) -> int:
        return 2**60

    def add(self, value: dict[str, Any], accumulator: int) -> int:
        return min(accumulator, value["at"])

    def get_result(self, accumulator: int) -> dict[str, Any]:
        return {"first": accumulator}

    def merge(self, accumulator: int, other: int) -> int:
        return min(accumulator, other)


@pytest.mark.parametrize("code", [{"process": Span()}, {"aggregate": First()}], ids=["process", "aggregate"])
@pytest.mark.parametrize("restart", [True, False])
def test_a_window_s_pane_and_its_retraction_hold_the_same_time(code: dict[str, Any], restart: bool) -> None:
    """After a restart, the retracted pane comes from the snapshot."""
    windows = Windows(
        EventTimeSessionWindows.with_gap(10), allowed_lateness=1000, accumulation=Accumulation.RETRACTING, **code
    )
    made = harness(windows)
    made.commit([row(20), row(100, "bob")], at=NOON)
    if restart:
        made.run()
    made.commit([row(15)], at=NOON)
    made.run()
    told = [(shown["op"], shown["first"]) for shown in made.results() if shown["user"] == "ann"]
    late, first = (datetime.fromtimestamp((NOON_MILLIS + after) / 1000, UTC) for after in (15, 20))
    assert told == [("+", first), ("-", first), ("+", late)]


@pytest.mark.parametrize("restart", [True, False])
def test_a_reduce_may_put_milliseconds_where_its_input_has_a_timestamp(restart: bool) -> None:
    made = harness(
        Windows(
            TumblingEventTimeWindows.of(1000),
            reduce=lambda a, b: {**a, "seen": max(a["at"], b["at"]), "at": max(a["at"], b["at"])},
        ),
        uses=("at", "seen"),
    )
    made.commit([row(0), row(7)], at=NOON)
    if restart:
        made.run()
    made.commit([row(3), row(2000)], at=NOON)
    made.run()
    assert [told["seen"] for told in made.results()] == [datetime.fromtimestamp((NOON_MILLIS + 7) / 1000, UTC)]


class Wrong(ProcessWindowFunction):
    """Emits whatever it is told to."""

    result_type = pa.struct([("n", pa.int8())])

    def __init__(self, result: Any) -> None:
        self.result = result

    def process(self, key: Any, ctx: Any, elements: Any) -> list[Any]:
        return [self.result]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (7, "result = 7: give a mapping with ['n']"),
        ({"m": 1}, "'m' is not one of the declared fields ['n']"),
        ({"n": 300}, "result column 'n' = 300: its declared type is int8"),
        ({"n": 1.5}, "result column 'n' = 1.5: its declared type is int8: give an int"),
    ],
)
def test_what_a_window_function_did_not_declare_is_refused(result: Any, message: str) -> None:
    made = harness(Windows(TumblingEventTimeWindows.of(10), process=Wrong(result)))
    made.commit([row(0), row(20)], at=NOON)
    with pytest.raises(IllegalArgument) as refused:
        made.run()
    assert message in str(refused.value)


def test_what_a_window_s_result_leaves_out_is_null() -> None:
    made = harness(Windows(TumblingEventTimeWindows.of(10), process=Wrong({})))
    made.commit([row(0), row(20)], at=NOON)
    made.run()
    assert [told["n"] for told in made.results()] == [None]


class Keeps(KeyedProcessFunction):
    """Stores whatever it is told to in state of a given type."""

    result_type = pa.struct([("n", pa.int8())])

    def __init__(self, value: Any, kind: pa.DataType) -> None:
        self.value = value
        self.state = ValueStateDescriptor("since", kind)

    def states(self) -> list[Any]:
        return [self.state]

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.get_state(self.state).update(self.value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (NOON_MILLIS, pa.timestamp("us", tz="UTC")),
        ([NOON_MILLIS], pa.list_(MS)),
        ({"at": NOON_MILLIS}, pa.struct([("at", MS)])),
    ],
)
def test_an_int_in_a_timestamp_of_state_is_refused_since_a_restart_would_make_it_another_value(
    value: Any, kind: pa.DataType
) -> None:
    made = harness(KeyedProcess(Keeps(value, kind), time_sorted=False))
    made.commit([row(0)], at=NOON)
    with pytest.raises(
        IllegalArgument, match=r"state 'since'.* give a datetime, or declare int64 for epoch milliseconds"
    ):
        made.run()


@pytest.mark.parametrize(("value", "kind"), [(NOON, MS), (NOON_MILLIS, pa.int64())])
def test_both_ways_out_of_it_hold(value: Any, kind: pa.DataType) -> None:
    made = harness(KeyedProcess(Keeps(value, kind), time_sorted=False))
    made.commit([row(0)], at=NOON)
    made.run()
    assert [kept["user_state"] for kept in made.state()] == [{"since": value}]


def test_a_struct_has_no_first_and_as_a_text_it_has() -> None:
    """The remedy that the error names; Spark's to_json is replaced by Python here."""
    columns = pa.schema([("user", pa.string()), ("at", pa.int64()), ("point", pa.struct([("x", pa.int64())]))])
    common: dict[str, Any] = {
        "name": "points",
        "source": DeltaSource("events", timestamp="at", unit="ms"),
        "key": ("user",),
        "watermark": WatermarkStrategy.for_monotonous_timestamps(),
    }
    with pytest.raises(IllegalArgument, match=r'columns=\{"point_json": "to_json\(point\)"\}'):
        PipelineHarness(
            Pipeline(**common, compute=Windows(TumblingEventTimeWindows.of(10), aggregate={"p": Last("point")})),
            columns,
        )
    windows = Windows(TumblingEventTimeWindows.of(10), aggregate={"p": Last("point_json")})
    made = PipelineHarness(
        Pipeline(**common, compute=windows, columns={"point_json": "to_json(point)"}),
        columns,
        derived=columns.append(pa.field("point_json", pa.string())),
        derive=lambda row: {**row, "point_json": json.dumps(row["point"])},
    )
    made.commit([{"user": "ann", "at": at, "point": {"x": at}} for at in (1, 3, 20)], at=NOON)
    made.run()
    assert [told["p"] for told in made.results()] == ['{"x": 3}']
