"""Bad input: the typed error, with the field, the value and the remedy."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from tests.windowing.contracts.scripted import named
from tidegate.windowing import (
    AfterAll,
    AfterAny,
    AfterCount,
    AfterEach,
    AfterProcessingTime,
    AfterWatermark,
    Aggregate,
    CalendarEventTimeWindows,
    CalendarProcessingTimeWindows,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CoProcess,
    Count,
    CountEvictor,
    CountTrigger,
    CumulateEventTimeWindows,
    CumulateProcessingTimeWindows,
    EventTimeSessionWindows,
    IntervalJoin,
    KeepFirst,
    KeyedProcess,
    OrFinally,
    ProcessingTimeoutTrigger,
    ProcessingTimeSessionWindows,
    Repeatedly,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TopN,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    WindowJoin,
    Windows,
    count_windows,
)
from tidegate.windowing.assigners import (
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    WindowAssigner,
)
from tidegate.windowing.errors import (
    IllegalArgument,
    IllegalState,
    IncompatibleSnapshot,
    MissingTimestamp,
    UnsupportedOperation,
    WindowingError,
)
from tidegate.windowing.functions import AggregateFunction, KeyedProcessFunction
from tidegate.windowing.keys import KeySchema, key_group_range
from tidegate.windowing.state import StateTtlConfig, ValueStateDescriptor
from tidegate.windowing.testing import ManualClock, RecordingOutput, keyed_process_harness, window_harness
from tidegate.windowing.watermarks import (
    BoundedOutOfOrdernessWatermarks,
    BoundedOutOfOrdernessWithIdleAdvance,
    IdlenessTimer,
    StatusWatermarkValve,
)


def plus(a: int, b: int) -> int:
    return a + b


class Median(AggregateFunction):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Median)

    def __repr__(self) -> str:
        return "Median()"

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[int]) -> int:
        return sorted(accumulator)[len(accumulator) // 2]

    def merge(self, accumulator: list[int], other: list[int]) -> list[int]:
        return accumulator + other


class Nothing(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        """Nothing."""


def tumbling(**parts: Any) -> Windows:
    return Windows(TumblingEventTimeWindows.of(10), **parts)


TUMBLING = [TumblingEventTimeWindows, TumblingProcessingTimeWindows]
SLIDING = [SlidingEventTimeWindows, SlidingProcessingTimeWindows]
CUMULATE = [CumulateEventTimeWindows, CumulateProcessingTimeWindows]
SESSIONS = [EventTimeSessionWindows, ProcessingTimeSessionWindows]

SETTINGS: list[tuple[Any, str, Any]] = [
    *[(lambda kind=kind, bad=bad: kind.of(bad), "size", bad) for kind in TUMBLING for bad in (0, -1, timedelta(-1))],
    *[(lambda kind=kind, bad=bad: kind.of(10, bad), "offset", bad) for kind in TUMBLING for bad in (10, -10, 11)],
    *[(lambda kind=kind, bad=bad: kind.of(bad, 5), "size", bad) for kind in SLIDING for bad in (0, -1)],
    *[(lambda kind=kind, bad=bad: kind.of(10, bad), "slide", bad) for kind in SLIDING for bad in (0, -5)],
    *[(lambda kind=kind, bad=bad: kind.of(10, 5, bad), "offset", bad) for kind in SLIDING for bad in (5, -5, 7)],
    *[(lambda kind=kind, bad=bad: kind.of(bad, 5), "max_size", bad) for kind in CUMULATE for bad in (0, -1)],
    *[(lambda kind=kind, bad=bad: kind.of(10, bad), "step", bad) for kind in CUMULATE for bad in (0, -5, 3, 20)],
    *[(lambda kind=kind, bad=bad: kind.of(10, 5, bad), "offset", bad) for kind in CUMULATE for bad in (10, -10)],
    *[(lambda kind=kind, bad=bad: kind.with_gap(bad), "gap", bad) for kind in SESSIONS for bad in (0, -1)],
    (lambda: TumblingEventTimeWindows.of(1.5), "size", 1.5),  # type: ignore[arg-type]
    (lambda: TumblingEventTimeWindows.of(True), "size", True),
    (lambda: TumblingEventTimeWindows.of(timedelta(microseconds=1)), "size", timedelta(microseconds=1)),
    (lambda: TopN(0, by="x"), "TopN.n", 0),
    (lambda: TopN(1, by="x", ties="id"), "TopN.ties", "id"),
    (lambda: TopN(1, by="x", also=[1]), "TopN.also", [1]),  # type: ignore[list-item]
    (lambda: CountTrigger.of(0), "max_count", 0),
    (lambda: ContinuousEventTimeTrigger.of(0), "interval", 0),
    (lambda: ContinuousProcessingTimeTrigger.of(-1), "interval", -1),
    (lambda: ProcessingTimeoutTrigger.of(CountTrigger.of(1), 0), "timeout", 0),
    (lambda: AfterProcessingTime(-1), "delay", -1),
    (lambda: AfterProcessingTime(0), "delay", 0),
    (lambda: AfterCount(0), "count", 0),
    (lambda: AfterAny.of(), "terms", ()),
    (lambda: AfterAll.of(CountTrigger(2)), "terms", CountTrigger(2)),  # type: ignore[arg-type]
    (lambda: AfterEach(AfterCount(1)), "terms", AfterCount(1)),  # type: ignore[arg-type]
    (lambda: Repeatedly(CountTrigger(2)), "term", CountTrigger(2)),  # type: ignore[arg-type]
    (lambda: OrFinally(AfterCount(1), "end"), "until", "end"),  # type: ignore[arg-type]
    (lambda: AfterWatermark(early=CountTrigger(2)), "early", CountTrigger(2)),  # type: ignore[arg-type]
    (lambda: count_windows(0, reduce=plus), "size", 0),
    (lambda: count_windows(2, 0, reduce=plus), "slide", 0),
    (lambda: count_windows(True, reduce=plus), "size", True),
    (lambda: count_windows(2), "aggregate", None),
    (lambda: CalendarEventTimeWindows.days("Europe/Atlantis"), "zone", "Europe/Atlantis"),
    (lambda: CalendarEventTimeWindows.months("UTC", 0), "count", 0),
    (lambda: CalendarEventTimeWindows.weeks("UTC", first_day=7), "first_day", 7),
    (lambda: CalendarProcessingTimeWindows("days"), "calendar", "days"),  # type: ignore[arg-type]
    (lambda: KeepFirst(None), "KeepFirst.result_type", None),  # type: ignore[arg-type]
    (lambda: KeepFirst(pa.int64()), "KeepFirst.result_type", pa.int64()),
    (lambda: KeepFirst(pa.struct([])), "KeepFirst.result_type", pa.struct([])),
    (lambda: KeepFirst(pa.struct([("id", pa.int64())]), within=0), "KeepFirst.within", 0),
    (lambda: CountEvictor.of(-1), "max_count", -1),
    (lambda: TimeEvictor.of(-1), "size", -1),
    (lambda: StateTtlConfig(0), "ttl", 0),
    (lambda: ValueStateDescriptor("two words", pa.int64()), "name", "two words"),
    (lambda: ValueStateDescriptor("x", int), "type", int),  # type: ignore[arg-type]
    (lambda: WatermarkStrategy.for_bounded_out_of_orderness(-1), "delay", -1),
    (lambda: WatermarkStrategy.no_watermarks().with_idleness(0), "timeout", 0),
    (lambda: WatermarkStrategy.no_watermarks().with_interval(-1), "interval", -1),
    (lambda: WatermarkStrategy.for_generator(3), "supplier", 3),  # type: ignore[arg-type]
    (lambda: WatermarkStrategy.for_generator(dict).create_generator(ManualClock()), "supplier", dict),  # type: ignore[arg-type]
    (lambda: WatermarkStrategy.no_watermarks().with_timestamp_assigner("at"), "timestamp_assigner", "at"),  # type: ignore[arg-type]
    (lambda: WatermarkStrategy.no_watermarks().with_watermark_alignment("", 1), "group", ""),
    (lambda: WatermarkStrategy.no_watermarks().with_watermark_alignment("planes", -1), "max_drift", -1),
    (lambda: WatermarkStrategy.no_watermarks().with_watermark_alignment("planes", 1, 0), "update_interval", 0),
    *[
        (lambda bad=bad: BoundedOutOfOrdernessWatermarks(bad), "delay", bad)
        for bad in (-1, timedelta(microseconds=1), "1s", True)
    ],
    (lambda: BoundedOutOfOrdernessWithIdleAdvance(-1, 0, 1), "delay", -1),
    (lambda: BoundedOutOfOrdernessWithIdleAdvance(0, -1, 1), "wait", -1),
    (lambda: BoundedOutOfOrdernessWithIdleAdvance(0, 0, 0), "interval", 0),
    *[(lambda bad=bad: IdlenessTimer(bad, ManualClock()), "timeout", bad) for bad in (0, -1)],
    *[(lambda bad=bad: StatusWatermarkValve(bad, RecordingOutput()), "channels", bad) for bad in (0, -1, True, 1.5)],
    (lambda: IntervalJoin.between(5, 4), "lower", 5),
    (lambda: key_group_range(0, 129, 128), "parallelism", 129),
    (lambda: Windows(TumblingEventTimeWindows.of(10), allowed_lateness=-1, reduce=plus), "allowed_lateness", -1),
    (lambda: Windows("tumbling", reduce=plus), "assigner", "tumbling"),  # type: ignore[arg-type]
    (lambda: Windows(TumblingEventTimeWindows.of(10), "count", reduce=plus), "trigger", "count"),  # type: ignore[arg-type]
    (lambda: Windows(TumblingEventTimeWindows.of(10)), "aggregate", None),
    (lambda: Windows(TumblingEventTimeWindows.of(10), aggregate={"n": Count()}, reduce=plus), "reduce", plus),
    (lambda: tumbling(aggregate={"m": Median()}), "aggregate['m']", Median()),
    (lambda: tumbling(aggregate={"x": "sum(value)"}), "aggregate['x']", "sum(value)"),
    (lambda: tumbling(aggregate={"x": Count}), "aggregate['x']", Count),
    (lambda: tumbling(aggregate={5: Count()}), "aggregate", 5),
    (lambda: tumbling(aggregate={}), "aggregate", {}),
    (lambda: tumbling(aggregate=Count()), "aggregate", Count()),
    (lambda: tumbling(aggregate="count"), "aggregate", "count"),
    (lambda: tumbling(reduce="max"), "reduce", "max"),
    (lambda: tumbling(process=plus), "process", plus),
    (lambda: tumbling(accumulation="retracting"), "accumulation", "retracting"),
    (lambda: Count("*"), "Count.column", "*"),
    (lambda: IntervalJoin(0, 1, join="pair"), "join", "pair"),  # type: ignore[arg-type]
    (lambda: KeyedProcess("function"), "function", "function"),  # type: ignore[arg-type]
    (lambda: KeyedProcess(Nothing), "function", Nothing),  # type: ignore[arg-type]
    (lambda: CoProcess("function"), "function", "function"),  # type: ignore[arg-type]
    (lambda: WindowJoin(TumblingEventTimeWindows.of(10), "outer"), "kind", "outer"),  # type: ignore[arg-type]
    (lambda: WindowJoin(TumblingEventTimeWindows.of(10), join="pair"), "join", "pair"),  # type: ignore[arg-type]
    (lambda: IntervalJoin(0, "soon"), "upper", "soon"),  # type: ignore[arg-type]
    (lambda: KeyedProcess(Nothing(), time_sorted="yes"), "time_sorted", "yes"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(
    ("make", "field", "value"), SETTINGS, ids=[f"{f}={named(v)} {i}" for i, (_, f, v) in enumerate(SETTINGS)]
)
def test_a_setting_that_can_not_be_is_refused_when_it_is_made(make: Any, field: str, value: Any) -> None:
    with pytest.raises(IllegalArgument) as raised:
        make()
    assert (raised.value.field, raised.value.value) == (field, value)
    assert str(raised.value).startswith(f"{field} = {value!r}: ")
    assert len(raised.value.remedy.split()) > 3


@pytest.mark.parametrize(
    "assigner",
    [
        TumblingEventTimeWindows.of(10),
        SlidingEventTimeWindows.of(10, 5),
        EventTimeSessionWindows.with_gap(10),
        DynamicEventTimeSessionWindows(lambda value: 5),
    ],
    ids=lambda assigner: type(assigner).__name__,
)
def test_an_element_without_a_timestamp_gets_flinks_hint(assigner: WindowAssigner) -> None:
    run = window_harness(Windows(assigner, reduce=plus))
    with pytest.raises(MissingTimestamp) as raised:
        run.element("a", 1, None)
    text = str(raised.value)
    assert "no timestamp" in text
    assert "processing time" in text
    assert "with_timestamp_assigner" in text


@pytest.mark.parametrize("kind", [DynamicEventTimeSessionWindows, DynamicProcessingTimeSessionWindows])
@pytest.mark.parametrize("gap", [0, -5, 2.5, None])
def test_a_gap_that_an_element_brings_must_be_one(kind: Any, gap: Any) -> None:
    run = window_harness(Windows(kind(lambda value: gap), reduce=plus))
    with pytest.raises(IllegalArgument, match="above zero") as raised:
        run.element("a", 1, 5)
    assert (raised.value.field, raised.value.value) == ("gap", gap)


class Reminder(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(5)


def test_timers_of_other_types_are_not_restored() -> None:
    run = keyed_process_harness(Reminder(), key=KeySchema(("user",), (pa.string(),)))
    run.element("a", 1, 1)
    other = keyed_process_harness(Reminder(), key=KeySchema(("user",), (pa.int64(),)))
    with pytest.raises(IncompatibleSnapshot, match="user") as raised:
        other.restore(run.snapshot())
    assert other.event_time_timers == 0
    assert "int64" in str(raised.value)


def test_timers_of_another_subtask_are_not_restored() -> None:
    run = keyed_process_harness(Reminder(), key=KeySchema(("user",), (pa.string(),)))
    for number in range(20):
        run.element(f"user-{number}", 1, 1)
    run.restore(run.snapshot(), parallelism=3)
    for subtask, operator in enumerate(run.subtasks):
        groups = key_group_range(subtask, 3, run.max_parallelism)
        keys = [key for _, (key, _) in operator.timers.event_time]
        assert keys
        assert all(run.key.key_group_of(key, run.max_parallelism) in groups for key in keys)
    assert run.event_time_timers == 20


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.int64()), pa.struct([("a", pa.int64())])], ids=str)
def test_what_can_not_be_a_key_is_refused_with_the_column(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedOperation, match=r"'speed'.*derive one"):
        KeySchema.of(speed=kind)


def test_every_error_is_a_windowing_error() -> None:
    for kind in (IllegalArgument, IllegalState, MissingTimestamp, UnsupportedOperation):
        assert issubclass(kind, WindowingError)


def test_an_aggregate_function_alone_is_the_result_and_wrapped_it_is_a_column() -> None:
    """Both remedies for an AggregateFunction among named aggregates."""

    class MedianOf(Aggregate):
        columns = ("n",)

        def bind(self, schema: pa.Schema | None) -> AggregateFunction:
            return Median()

    for aggregate, expected in ((Median(), 2), ({"middle": MedianOf(), "n": Count()}, {"middle": 2, "n": 3})):
        run = window_harness(tumbling(aggregate=aggregate))
        for number in (3, 1, 2):
            run.element("a", number, number)
        run.watermark(20)
        assert [result.value for result in run.results()] == [expected]


def test_a_duration_without_end_is_told_to_be_too_long() -> None:
    with pytest.raises(IllegalArgument, match="a duration is at most"):
        TumblingEventTimeWindows.of(timedelta.max)
    with pytest.raises(IllegalArgument, match="give a whole number of milliseconds"):
        TumblingEventTimeWindows.of(timedelta(microseconds=1500))
