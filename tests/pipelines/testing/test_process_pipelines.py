"""A process function as a pipeline, without Spark: state, timers of both domains, side outputs, restarts, rescaling."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.sources.delta.description import DeltaSource
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import KeyedProcess, KeyedProcessFunction, WatermarkStrategy
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.functions.process import TimeDomain
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.windowing.testing import keyed_process_harness
from tidegate.windowing.time import from_millis, to_millis

SOURCE = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("amount", pa.int64())])
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
QUIET = 600_000
REMIND = 1_800_000


class Account(KeyedProcessFunction):
    """A running total, its parts by amount, the recent amounts, and idle users; every kind of state and timer."""

    result_type = pa.struct(
        [("what", pa.string()), ("total", pa.int64()), ("since", pa.timestamp("us", tz="UTC")), ("kinds", pa.int32())]
    )
    side_outputs = {"large": pa.struct([("amount", pa.int64())])}  # noqa: RUF012

    total = ReducingStateDescriptor("total", lambda a, b: a + b, pa.int64())
    last = ValueStateDescriptor("last", pa.int64())
    kinds = MapStateDescriptor("kinds", pa.int64(), pa.int32())
    recent = ListStateDescriptor("recent", pa.int64(), StateTtlConfig(3_600_000))

    def states(self) -> list[Any]:
        return [self.total, self.last, self.kinds, self.recent]

    def process_element(self, value: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        timers, amount = ctx.timer_service(), value["amount"]
        last, total, kinds = (ctx.get_state(state) for state in (self.last, self.total, self.kinds))
        if last.value() is not None:
            timers.delete_event_time_timer(last.value() + QUIET)
        last.update(max(ctx.timestamp, last.value() or 0))
        timers.register_event_time_timer(last.value() + QUIET)
        timers.register_processing_time_timer(timers.current_processing_time() + REMIND)
        total.add(amount)
        kinds.put(amount, (kinds.get(amount) or 0) + 1)
        ctx.get_state(self.recent).add(amount)
        if amount >= 90:
            ctx.output("large", {"amount": amount})
        if total.get() % 5 == 0:
            yield {"what": "five", "total": total.get()}

    def on_timer(self, timestamp: int, ctx: Any) -> list[dict[str, Any]]:
        if ctx.time_domain is TimeDomain.PROCESSING_TIME:
            return [{"what": "reminder", "total": sum(ctx.get_state(self.recent).get())}]
        kinds = len(ctx.get_state(self.kinds).keys())
        ctx.get_state(self.kinds).clear()
        return [{"what": "quiet", "since": from_millis(timestamp - QUIET), "kinds": kinds}]


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def row(user: str, minute: float, amount: int = 1) -> dict[str, Any]:
    return {"user": user, "at": NOON + minutes(minute), "amount": amount}


def pipeline(function: KeyedProcessFunction | None = None, **settings: Any) -> Pipeline:
    defaults: dict[str, Any] = {
        "name": "accounts",
        "source": DeltaSource("payments", timestamp="at"),
        "key": ("user",),
        "watermark": WatermarkStrategy.for_bounded_out_of_orderness(minutes(5)),
        "compute": KeyedProcess(function or Account(), time_sorted=False),
    }
    return Pipeline(**{**defaults, **settings})


def random_commits(seed: int, count: int = 20) -> list[list[dict[str, Any]]]:
    """Commits five minutes apart, with elements up to 20 minutes old: some are behind the watermark."""
    draw = random.Random(seed)
    return [
        [row(f"user{draw.randrange(9)}", 5 * i - draw.randrange(20), draw.randrange(100)) for _ in range(12)]
        for i in range(count)
    ]


def shown(harness: PipelineHarness) -> list[str]:
    """Return the results that a user can read, without the columns of the run."""
    rows = [
        {name: value for name, value in row.items() if name not in ("epoch", "emitted_at")} for row in harness.results()
    ]
    return sorted(map(str, rows))


def told(row: dict[str, Any]) -> list[Any]:
    since = row.get("since")
    return [row.get("what"), row.get("total"), since and to_millis(since), row.get("kinds")]


def run(seed: int, epochs_at: int, parallelisms: list[int]) -> PipelineHarness:
    harness = PipelineHarness(pipeline(), SOURCE)
    for i, rows in enumerate(random_commits(seed)):
        harness.commit(rows, at=NOON + minutes(5 * i))
        if i % epochs_at == 0:
            harness.run(parallelism=parallelisms[harness.epochs % len(parallelisms)])
    harness.run(parallelism=2)
    harness.pass_time(NOON + minutes(400), parallelism=3)
    return harness


@pytest.mark.first(1)
@pytest.mark.parametrize("seed", range(3))
def test_neither_cuts_nor_restarts_nor_parallelism_show(seed: int) -> None:
    whole = run(seed, 1000, [1])
    cut = run(seed, 3, [1, 5, 2])
    kinds = {row["what"] or row["output"] for row in whole.results()}
    assert kinds == {"five", "reminder", "quiet", "large"}
    assert shown(cut) == shown(whole)
    assert sorted(map(str, cut.state())) == sorted(map(str, whole.state()))


def test_a_pipeline_gives_what_the_operator_gives() -> None:
    """The windowing library's own harness, fed with the same elements, watermarks and clocks."""
    made = PipelineHarness(pipeline(), SOURCE)
    operator = keyed_process_harness(Account(), key=KeySchema(("user",), (pa.string(),)))
    largest = None
    for i, rows in enumerate(random_commits(7)):
        made.commit(rows, at=NOON + minutes(5 * i))
        made.run(parallelism=1 + i % 4)
        operator.processing_time(to_millis(NOON + minutes(5 * i)))
        for element in sorted(rows, key=lambda row: (row["at"], row["user"], row["amount"])):
            operator.element(element["user"], element, to_millis(element["at"]))
            largest = max(largest or element["at"], element["at"])
        operator.watermark(to_millis(largest - minutes(5)) - 1)
    results = [(record.key, record.timestamp, *told(record.value)) for record in operator.element_results()]
    ours = [
        (row["user"], row["event_time"] and to_millis(row["event_time"]), *told(row))
        for row in made.results()
        if row["output"] is None
    ]
    assert len(ours) > 100
    assert sorted(map(str, ours)) == sorted(map(str, results))


def test_no_element_is_late_to_a_process_function() -> None:
    harness = PipelineHarness(pipeline(), SOURCE)
    harness.commit([row("ann", 60)], at=NOON)
    harness.commit([row("ann", 0, 95)], at=NOON)
    harness.run()
    assert harness.late() == []
    assert [made["large"] for made in harness.results() if made["output"] == "large"] == [{"amount": 95}]
    assert harness.counters["on_time"] == 2


def test_in_event_order_a_timer_fires_between_two_elements_of_one_slice() -> None:
    harness = PipelineHarness(pipeline(), SOURCE)
    rows = [row("ann", 0), row("ann", 30), row("bob", 5), row("ann", 33)]
    harness.backfill(rows, NOON, NOON + minutes(60), parallelism=2)
    quiet = [(made["user"], made["since"]) for made in harness.results() if made["what"] == "quiet"]
    assert sorted(quiet) == [("ann", NOON), ("ann", NOON + minutes(33)), ("bob", NOON + minutes(5))]


def test_a_backfill_in_slices_is_one_in_a_piece() -> None:
    rows = [element for commit in random_commits(4) for element in commit]
    start, end = NOON - minutes(60), NOON + minutes(180)
    whole, slices = PipelineHarness(pipeline(), SOURCE), PipelineHarness(pipeline(), SOURCE)
    whole.backfill(rows, start, end)
    for first in range(0, 240, 20):
        slices.backfill(rows, start + minutes(first), start + minutes(first + 20), parallelism=1 + first % 3)
    assert shown(slices) == shown(whole)
    assert sorted(map(str, slices.state())) == sorted(map(str, whole.state()))


def test_state_rows_are_typed_and_hold_timers_of_both_domains() -> None:
    harness = PipelineHarness(pipeline(), SOURCE)
    harness.commit([row("ann", 0, 7)], at=NOON)
    harness.run()
    (kept,) = harness.state()
    assert (kept["namespace"], kept["user"]) == ("key", "ann")
    assert kept["event_time_timers"] == [to_millis(NOON) + QUIET]
    assert kept["processing_time_timers"] == [to_millis(NOON) + REMIND]
    assert kept["user_state"]["total"] == 7
    assert kept["user_state"]["kinds"] == [(7, 1)]
    assert kept["user_state"]["recent"] == [{"value": 7, "at": to_millis(NOON)}]


def test_without_a_key_all_elements_share_state_and_timers() -> None:
    harness = PipelineHarness(pipeline(key=()), SOURCE)
    harness.commit([row("ann", 0, 2), row("bob", 1, 3)], at=NOON)
    harness.run(parallelism=3)
    harness.run()
    assert [made["total"] for made in harness.results()] == [5]
    assert len(harness.state()) == 1


def test_a_key_of_several_columns_is_a_tuple_and_null_is_a_key_if_it_may_be() -> None:
    harness = PipelineHarness(pipeline(key=("user", "amount"), null_keys="keep"), SOURCE)
    harness.commit([row("ann", 0, 5), row("ann", 1, 10), {**row("", 2, 5), "user": None}], at=NOON)
    harness.run(parallelism=2)
    assert sorted((made["user"] or "", made["amount"], made["total"]) for made in harness.results()) == [
        ("", 5, 5),
        ("ann", 5, 5),
        ("ann", 10, 10),
    ]


class Broken(KeyedProcessFunction):
    """Emits whatever it is told to."""

    result_type = pa.struct([("n", pa.int64())])

    def __init__(self, result: Any) -> None:
        self.result = result

    def process_element(self, value: Any, ctx: Any) -> Any:
        if isinstance(self.result, str):
            ctx.output(self.result, {"n": 1})
            return []
        return [self.result]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"m": 1}, "'m' is not one of the declared fields ['n']"),
        ((1, 2), "give a mapping with ['n']"),
        ({"n": "many"}, "result column 'n' = 'many': its declared type is int64"),
        ("alarm", "tag = 'alarm': declare it in side_outputs, which has []"),
    ],
)
def test_a_result_that_was_not_declared_is_refused(result: Any, message: str) -> None:
    harness = PipelineHarness(pipeline(Broken(result)), SOURCE)
    harness.commit([row("ann", 0)], at=NOON)
    with pytest.raises(IllegalArgument) as refused:
        harness.run()
    assert message in str(refused.value)


class Typed(KeyedProcessFunction):
    """Declares what a test says."""

    def __init__(self, result_type: Any, side_outputs: Any = None) -> None:
        self.result_type = result_type
        self.side_outputs = side_outputs or {}

    def process_element(self, value: Any, ctx: Any) -> None:
        """Nothing."""


N = pa.struct([("n", pa.int64())])


@pytest.mark.parametrize(
    ("function", "field"),
    [
        (Typed(None), "compute.function.result_type"),
        (Typed(pa.int64()), "compute.function.result_type"),
        (Typed(pa.struct([("epoch", pa.int64())])), "compute.function.result_type = 'epoch'"),
        (Typed(pa.struct([("n", pa.int64()), ("n", pa.int8())])), "compute.function.result_type"),
        (Typed(N, {"a b": N}), "compute.function.side_outputs = 'a b'"),
        (Typed(N, {"n": N}), "compute.function.side_outputs = 'n'"),
        (Typed(N, {"alarm": pa.int64()}), "compute.function.side_outputs['alarm']"),
    ],
)
def test_types_that_no_table_can_hold_are_refused_when_the_pipeline_is_made(function: Any, field: str) -> None:
    with pytest.raises(IllegalArgument) as refused:
        pipeline(function)
    assert str(refused.value).startswith(field)


def test_a_key_column_may_not_be_named_like_a_result() -> None:
    columns = SOURCE.set(0, pa.field("what", pa.string()))
    with pytest.raises(IllegalArgument, match="key = 'what'"):
        bind(pipeline(key=("what",)), columns, columns)
