"""Pipelines over two sources, without Spark: joins and co-process functions, however commits are divided into
epochs.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables.keys import key_columns
from tidegate.pipelines.sources.delta.description import DeltaSource
from tidegate.pipelines.testing import PipelineHarness, SourceColumns
from tidegate.windowing import (
    CoProcess,
    Count,
    IntervalJoin,
    KeyedCoProcessFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowJoin,
    Windows,
)
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.records import ElementResult, LateElement, SideOutput
from tidegate.windowing.state import ListStateDescriptor, ValueStateDescriptor
from tidegate.windowing.testing import OperatorHarness, co_process_harness, interval_join_harness
from tidegate.windowing.time import MIN_TIMESTAMP, to_millis

TIME = pa.timestamp("us", tz="UTC")
ORDERS = pa.schema([("customer", pa.string()), ("ordered_at", TIME), ("order", pa.int64())])
PAYMENTS = pa.schema([("payer", pa.string()), ("at", TIME), ("paid", pa.float64()), ("order", pa.string())])
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
USER = KeySchema(("customer",), (pa.string(),))
LOWER, UPPER = -300_000, 900_000


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def bounded(count: float) -> WatermarkStrategy:
    return WatermarkStrategy.for_bounded_out_of_orderness(minutes(count))


def order(customer: str, minute: float, number: int = 1) -> dict[str, Any]:
    return {"customer": customer, "ordered_at": NOON + minutes(minute), "order": number}


def payment(payer: str, minute: float, paid: float = 1.0) -> dict[str, Any]:
    return {"payer": payer, "at": NOON + minutes(minute), "paid": float(paid), "order": "-"}


class Unpaid(KeyedCoProcessFunction):
    """Reports an order that was not paid within ten minutes, and a payment without an order."""

    result_type = pa.struct([("unpaid", pa.int64()), ("paid", pa.float64())])
    side_outputs = {"stray": pa.struct([("paid", pa.float64())])}  # noqa: RUF012

    waiting = ValueStateDescriptor("waiting", pa.struct([("order", pa.int64()), ("until", pa.int64())]))
    payments = ListStateDescriptor("payments", pa.float64())

    def states(self) -> list[Any]:
        return [self.waiting, self.payments]

    def process_element1(self, value: dict[str, Any], ctx: Any) -> None:
        until = ctx.timestamp + 600_000
        ctx.get_state(self.waiting).update({"order": value["order"], "until": until})
        ctx.timer_service().register_event_time_timer(until)

    def process_element2(self, value: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        waiting = ctx.get_state(self.waiting)
        ctx.get_state(self.payments).add(value["paid"])
        if waiting.value() is None:
            ctx.output("stray", {"paid": value["paid"]})
            return
        waiting.clear()
        yield {"paid": sum(ctx.get_state(self.payments).get())}

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[dict[str, Any]]:
        waiting = ctx.get_state(self.waiting)
        if waiting.value() is not None and waiting.value()["until"] == timestamp:
            yield {"unpaid": waiting.value()["order"]}
            waiting.clear()


JOIN = IntervalJoin.between(LOWER, UPPER)
IN_WINDOWS = WindowJoin(SlidingEventTimeWindows.of(minutes(2), minutes(1)), "full")


def pipeline(compute: Any = JOIN, **settings: Any) -> Pipeline:
    defaults: dict[str, Any] = {
        "name": "paid",
        "source": DeltaSource("orders", timestamp="ordered_at"),
        "key": ("customer",),
        "watermark": bounded(5),
        "compute": compute,
        "right": Input(source=DeltaSource("payments", timestamp="at"), key=("payer",)),
    }
    return Pipeline(**{**defaults, **settings})


def harness(compute: Any = JOIN, **settings: Any) -> PipelineHarness:
    return PipelineHarness(pipeline(compute, **settings), ORDERS, right=SourceColumns(PAYMENTS))


def commits(seed: int, count: int = 24) -> list[tuple[str, list[dict[str, Any]], datetime]]:
    """Commits of either side with elements up to 15 minutes old, so that some are late; some times are equal."""
    draw = random.Random(seed)
    made = []
    for i in range(count):
        side = draw.choice(["left", "right"])
        make = order if side == "left" else payment
        rows = [make(f"user{draw.randrange(6)}", 3 * i - draw.randrange(15), draw.randrange(50)) for _ in range(8)]
        made.append((side, rows, NOON + minutes(3 * (i - i % 2))))
    return made


def run(compute: Any, seed: int, every: int, parallelisms: list[int]) -> PipelineHarness:
    """Return epochs of `every` commits, ordered by commit time, as a pipeline processes them."""
    made = harness(compute)
    ordered = sorted(commits(seed), key=lambda commit: (commit[2], commit[0]))
    for i, (side, rows, at) in enumerate(ordered):
        made.commit(rows, at=at, side=side)
        if i % every == 0:
            made.run(parallelism=parallelisms[made.epochs % len(parallelisms)])
    made.run(parallelism=2)
    made.pass_time(NOON + minutes(300), parallelism=3)
    return made


def shown(made: PipelineHarness) -> list[str]:
    hidden = ("epoch", "emitted_at")
    rows = [*made.results(), *made.late()]
    return sorted(str({name: value for name, value in row.items() if name not in hidden}) for row in rows)


@pytest.mark.first(3)
@pytest.mark.parametrize("compute", [JOIN, CoProcess(Unpaid()), IN_WINDOWS], ids=["join", "co-process", "windows"])
@pytest.mark.parametrize("seed", range(3))
def test_neither_cuts_nor_restarts_nor_parallelism_show(compute: Any, seed: int) -> None:
    whole, cut = run(compute, seed, 1000, [1]), run(compute, seed, 3, [4, 1, 3])
    assert len(whole.results()) > 20
    assert shown(cut) == shown(whole)
    assert sorted(map(str, cut.state())) == sorted(map(str, whole.state()))
    if not isinstance(compute, CoProcess):
        assert whole.late(), "the data must have late rows"


def feed(operator: OperatorHarness, seed: int) -> None:
    """Feed the same commits to the windowing library's own harness, with a watermark for each side."""
    largest: dict[str, int] = {}
    for side, rows, at in sorted(commits(seed), key=lambda commit: (commit[2], commit[0])):
        operator.processing_time(to_millis(at))
        for row in sorted(rows, key=lambda row: [row[name] for name in _ORDER[side]]):
            time = to_millis(row[_ORDER[side][0]])
            operator.element(row[_ORDER[side][1]], row, time, side)
            largest[side] = max(largest.get(side, 0), time)
        operator.watermark(largest[side] - 300_000 - 1, side)


_ORDER = {"left": ("ordered_at", "customer", "order"), "right": ("at", "payer", "paid")}
"""Columns by which the elements of a commit are in order: time, key, values."""


def test_a_join_gives_what_the_operator_gives() -> None:
    operator = interval_join_harness(JOIN, key=USER)
    feed(operator, 5)
    records, made = operator.records(), run(JOIN, 5, 1, [2])
    pairs = [(row["customer"], to_millis(row["event_time"]), row["left"], row["right"]) for row in made.results()]
    late = [(row["customer"], row["side"], row[row["side"]]) for row in made.late()]
    assert len(pairs) > 20
    assert shapes(pairs) == shapes((r.key, r.timestamp, *r.value) for r in records if isinstance(r, ElementResult))
    assert shapes(late) == shapes((r.key, r.side, r.value) for r in records if isinstance(r, LateElement))


def test_a_co_process_function_gives_what_the_operator_gives() -> None:
    operator = co_process_harness(Unpaid(), key=USER)
    feed(operator, 5)
    records, made = operator.records(), run(CoProcess(Unpaid(), time_sorted=False), 5, 1, [2])
    told = [
        (
            row["customer"],
            to_millis(row["event_time"]),
            row["output"],
            row["unpaid"],
            row["stray"] if row["output"] else row["paid"],
        )
        for row in made.results()
    ]
    expected = [
        (r.key, r.timestamp, None, r.value.get("unpaid"), r.value.get("paid"))
        if isinstance(r, ElementResult)
        else (r.key, r.timestamp, r.tag, None, r.value)
        for r in records
        if isinstance(r, ElementResult | SideOutput)
    ]
    assert {row[2] for row in told} == {None, "stray"}
    assert shapes(told) == shapes(expected)


def shapes(rows: Iterable[Any]) -> list[str]:
    """Return rows as strings in a fixed order; times as milliseconds, whatever their zone object."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        return to_millis(value) if isinstance(value, datetime) else value

    return sorted(str([plain(value) for value in row]) for row in rows)


def test_the_watermark_is_the_smaller_of_both_inputs() -> None:
    made = harness()
    made.commit([order("ann", 60)], at=NOON + minutes(60), side="left")
    made.run()
    assert made.results() == []
    made.commit([payment("ann", 30)], at=NOON + minutes(61), side="right")
    made.run()
    assert made.watermark == to_millis(NOON + minutes(25)) - 1
    made.commit([payment("ann", 90)], at=NOON + minutes(62), side="right")
    made.run()
    assert made.watermark == to_millis(NOON + minutes(55)) - 1


def test_an_idle_input_holds_nobody_back() -> None:
    idle = Input(
        source=DeltaSource("payments", timestamp="at"), key=("payer",), watermark=bounded(0).with_idleness(minutes(10))
    )
    made = harness(right=idle)
    made.commit([payment("ann", 0)], at=NOON, side="right")
    made.commit([order("ann", 30)], at=NOON + minutes(9), side="left")
    made.run()
    assert made.watermark == to_millis(NOON) - 1
    made.pass_time(NOON + minutes(11))
    assert made.watermark == to_millis(NOON + minutes(25)) - 1


def test_an_input_of_which_nothing_ever_came_is_idle_after_its_timeout() -> None:
    never = Input(
        source=DeltaSource("payments", timestamp="at"), key=("payer",), watermark=bounded(0).with_idleness(minutes(10))
    )
    made = harness(right=never)
    made.commit([order("ann", 30)], at=NOON, side="left")
    made.run()
    made.pass_time(NOON + minutes(10))
    assert made.watermark == MIN_TIMESTAMP
    made.pass_time(NOON + minutes(11))
    assert made.watermark == to_millis(NOON + minutes(25)) - 1


@pytest.mark.parametrize(("left", "right"), [(10, 10), (10, 20), (20, 10)])
def test_when_both_inputs_are_idle_the_larger_watermark_counts_whichever_is_idle_first(left: int, right: int) -> None:
    """Otherwise what the input that is ahead has would wait until somebody writes again."""
    watermark = bounded(0).with_idleness(minutes(right))
    payments = Input(source=DeltaSource("payments", timestamp="at"), key=("payer",), watermark=watermark)
    made = harness(right=payments, watermark=bounded(5).with_idleness(minutes(left)))
    made.commit([payment("ann", 0)], at=NOON, side="right")
    made.commit([order("ann", 30)], at=NOON, side="left")
    made.run()
    assert made.watermark == to_millis(NOON) - 1
    for minute in (11, 21):
        made.pass_time(NOON + minutes(minute))
    assert made.watermark == to_millis(NOON + minutes(25)) - 1
    made.commit([payment("ann", 10)], at=NOON + minutes(22), side="right")
    made.run()
    assert made.watermark == to_millis(NOON + minutes(25)) - 1


def test_the_order_of_commits_is_that_of_their_times_whatever_order_they_were_found_in() -> None:
    one, other = harness(CoProcess(Unpaid(), time_sorted=False)), harness(CoProcess(Unpaid(), time_sorted=False))
    one.commit([order("ann", 0)], at=NOON, side="left")
    one.commit([payment("ann", 1)], at=NOON + minutes(1), side="right")
    one.run()
    other.commit([payment("ann", 1)], at=NOON + minutes(1), side="right")
    other.commit([order("ann", 0)], at=NOON, side="left")
    other.run()
    assert shown(one) == shown(other)
    assert [row["paid"] for row in one.results()] == [1.0]


def test_a_late_row_is_kept_whole_with_its_side_and_key() -> None:
    made = harness()
    for side, row in (("left", order("ann", 60)), ("right", payment("ann", 60))):
        made.commit([row], at=NOON, side=side)
    made.commit([payment("bob", 0, 7.5)], at=NOON + minutes(1), side="right")
    made.run()
    (late,) = made.late()
    assert (late["customer"], late["side"], late["left"], late["reason"]) == ("bob", "right", None, "late")
    assert late["right"] == {"payer": "bob", "at": NOON, "paid": 7.5, "order": "-"}
    assert late["lateness_ms"] == 55 * 60_000 - 1
    assert (made.counters["late"], made.counters["on_time"]) == (1, 2)


@pytest.mark.parametrize("compute", [JOIN, IN_WINDOWS], ids=["join", "windows"])
def test_a_backfill_in_slices_is_one_in_a_piece_and_the_streams_pairs_but_for_late_rows(compute: Any) -> None:
    left = [row for side, rows, _ in commits(3) if side == "left" for row in rows]
    right = [row for side, rows, _ in commits(3) if side == "right" for row in rows]
    start = NOON - minutes(30)
    whole, slices = harness(compute), harness(compute)
    whole.backfill(left, start, start + minutes(150), right=right)
    for first in range(0, 150, 25):
        slices.backfill(
            left, start + minutes(first), start + minutes(first + 25), right=right, parallelism=1 + first % 3
        )
    assert shown(slices) == shown(whole)
    assert not whole.late()
    streamed = harness(compute, watermark=bounded(1000))
    for side, rows, at in commits(3):
        streamed.commit(rows, at=at, side=side)
    # Far enough apart not to meet; earlier ones are joined.
    streamed.commit([order("end", 3000)], at=NOON + minutes(4000), side="left")
    streamed.commit([payment("end", 4000)], at=NOON + minutes(4000), side="right")
    streamed.run(parallelism=2)
    assert shown(streamed) == shown(whole)


def test_what_a_join_makes_of_a_pair_is_declared() -> None:
    named = IntervalJoin(
        LOWER,
        UPPER,
        join=lambda left, right: {"order": left["order"], "paid": right["paid"]},
        result_type=pa.struct([("order", pa.int64()), ("paid", pa.float64())]),
    )
    made = harness(named)
    made.commit([order("ann", 0, 4)], at=NOON, side="left")
    made.commit([payment("ann", 3, 2.5)], at=NOON, side="right")
    made.run()
    assert [(row["order"], row["paid"], row["event_time"]) for row in made.results()] == [(4, 2.5, NOON + minutes(3))]


def test_a_window_join_gives_the_bounds_of_its_windows_and_null_for_a_missing_partner() -> None:
    made = harness(WindowJoin(TumblingEventTimeWindows.of(minutes(10)), "full"))
    made.commit([order("ann", 1, 4)], at=NOON, side="left")
    made.commit([payment("ann", 3, 2.5), payment("bob", 12, 9.0)], at=NOON, side="right")
    made.commit([order("cem", 60)], at=NOON, side="left")
    made.commit([payment("cem", 60)], at=NOON, side="right")
    made.run(parallelism=3)
    rows = sorted(made.results(), key=lambda row: row["customer"])
    assert [(row["left"] and row["left"]["order"], row["right"]["paid"]) for row in rows] == [(4, 2.5), (None, 9.0)]
    assert [(row["window_start"], row["window_end"]) for row in rows] == [
        (NOON, NOON + minutes(10)),
        (NOON + minutes(10), NOON + minutes(20)),
    ]
    made.commit([order("ann", 5, 7), order("ann", 59, 8)], at=NOON, side="left")
    made.run()
    (late,) = made.late()
    assert (late["customer"], late["side"], late["left"]["order"]) == ("ann", "left", 7)
    assert (late["window_start"], late["window_end"]) == (NOON, NOON + minutes(10))
    assert {row["side"] for row in made.state()} == {"left", "right"}


@pytest.mark.parametrize(("kind", "expected"), [("semi", [4]), ("anti", [5])])
def test_a_semi_and_an_anti_join_give_left_rows_alone(kind: Any, expected: list[int]) -> None:
    made = harness(WindowJoin(TumblingEventTimeWindows.of(minutes(10)), kind))
    made.commit([order("ann", 1, 4), order("bob", 2, 5), order("end", 60)], at=NOON, side="left")
    made.commit([payment("ann", 3), payment("ann", 4), payment("end", 60)], at=NOON, side="right")
    made.run()
    assert [row["left"]["order"] for row in made.results()] == expected
    assert "right" not in made.results()[0]


def test_an_input_may_read_less_than_all_its_columns() -> None:
    less = Input(source=DeltaSource("payments", timestamp="at"), key=("payer",), uses=("paid",))
    made = harness(right=less, uses=("order",))
    made.commit([order("ann", 0, 4)], at=NOON, side="left")
    made.commit([payment("ann", 3, 2.5)], at=NOON, side="right")
    made.run()
    assert [(row["left"], row["right"]) for row in made.results()] == [({"order": 4}, {"paid": 2.5})]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"right": None}, "right = None: IntervalJoin has two inputs"),
        ({"compute": Windows(TumblingEventTimeWindows.of(10), aggregate={"n": Count()})}, "Windows has one input"),
        ({"right": Input(source=DeltaSource("orders", timestamp="at"))}, "both inputs are the same table"),
        (
            {"right": Input(source=DeltaSource("payments", timestamp="at"), key=("a", "b"))},
            "right.key = \\('a', 'b'\\)",
        ),
        ({"compute": IntervalJoin(0, 1, join=lambda a, b: a)}, "compute.result_type = None"),
        ({"compute": IntervalJoin(0, 1, result_type=pa.struct([("n", pa.int8())]))}, "give join="),
    ],
)
def test_what_can_not_be_is_refused_when_the_pipeline_is_made(change: dict[str, Any], message: str) -> None:
    with pytest.raises(IllegalArgument, match=message):
        pipeline(**change)


def test_an_input_without_columns_is_refused_because_the_state_keeps_its_elements() -> None:
    nothing = Input(source=DeltaSource("payments", timestamp="at"), key=("payer",), uses=())
    with pytest.raises(IllegalArgument, match=r"right\.uses = \(\): the state keeps the elements of both inputs"):
        harness(IN_WINDOWS, right=nothing)


@pytest.mark.parametrize(("right", "message"), [(None, "the pipeline has two inputs: "), (PAYMENTS, "")])
def test_columns_of_the_second_source_are_needed(right: Any, message: str) -> None:
    with pytest.raises(IllegalArgument, match=rf"(?s)^right = .*: {message}give SourceColumns"):
        PipelineHarness(pipeline(), ORDERS, right=right)


@pytest.mark.parametrize(
    ("right", "message"),
    [
        (PAYMENTS.set(0, pa.field("payer", pa.int64())), "'payer' has type bigint .*equal keys would not match"),
        (
            PAYMENTS.set(0, pa.field("who", pa.string())),
            "right.key of pipeline 'paid': table 'payments' has no column 'payer'",
        ),
        (PAYMENTS.set(1, pa.field("at", pa.string())), "right.source.timestamp = 'at' has type string"),
    ],
)
def test_columns_of_the_second_source_that_do_not_fit_are_refused(right: pa.Schema, message: str) -> None:
    with pytest.raises(Refused, match=message):
        bind(pipeline(), ORDERS, ORDERS, (right, right))


def test_late_and_rejected_rows_can_be_told_by_their_key() -> None:
    """So that a key can be forgotten and counted in them, whatever the second source calls it."""
    schemas = bind(pipeline(), ORDERS, ORDERS, (PAYMENTS, PAYMENTS)).table_schemas
    for table in ("late", "rejects"):
        assert schemas[table].names[:4] == ["customer", "side", "left", "right"]
        assert key_columns(table, schemas[table], ("customer",)) == ("customer",)
    assert schemas["late"].field("right").type.field("order").type == pa.string()


def test_a_change_of_the_second_input_is_another_fingerprint() -> None:
    def fingerprint(**change: Any) -> str:
        right = replace(Input(source=DeltaSource("payments", timestamp="at"), key=("payer",)), **change)
        return bind(pipeline(right=right), ORDERS, ORDERS, (PAYMENTS, PAYMENTS)).fingerprint

    assert fingerprint() == fingerprint()
    assert len({fingerprint(), fingerprint(where="paid > 0"), fingerprint(uses=("paid",))}) == 3


def test_a_key_column_may_not_be_named_like_a_side() -> None:
    columns = ORDERS.set(0, pa.field("left", pa.string()))
    with pytest.raises(IllegalArgument, match="key = 'left'"):
        bind(pipeline(key=("left",)), columns, columns, (PAYMENTS, PAYMENTS))
