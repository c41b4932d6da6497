"""Every operator as a pipeline, end to end: backfill, stream and restore give what the operator itself gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.lake import DAY0, Lake, conserved
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition.pipeline import Input
from tidegate.windowing import (
    CoProcess,
    IntervalJoin,
    KeyedCoProcessFunction,
    KeyedProcess,
    KeyedProcessFunction,
)
from tidegate.windowing.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from tidegate.windowing.testing import co_process_harness, interval_join_harness, keyed_process_harness
from tidegate.windowing.time import to_millis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from tests.spark.days import END, USER, arrivals, cut, events, pipeline, restored_in_the_middle, results, state

pytestmark = [pytest.mark.long, pytest.mark.spark]

QUIET = 1_800_000


class Quiet(KeyedProcessFunction):
    """Tells of a user who was quiet for half an hour, and what came before, however the events were out of order.

    What lies beyond the watermark may be known already when a timer fires: it is left for a later one.
    """

    result_type = pa.struct([("since", pa.int64()), ("values", pa.map_(pa.int64(), pa.int64()))])
    side_outputs = {"large": pa.struct([("value", pa.int64())])}  # noqa: RUF012

    seen = MapStateDescriptor("seen", pa.int64(), pa.int64())
    told = ReducingStateDescriptor("told", lambda a, b: a + b, pa.int64())

    def states(self) -> list[Any]:
        return [self.seen, self.told]

    def process_element(self, value: dict[str, Any], ctx: Any) -> None:
        seen, amount = ctx.get_state(self.seen), value["value"]
        seen.put(ctx.timestamp, (seen.get(ctx.timestamp) or 0) + amount)
        ctx.timer_service().register_event_time_timer(ctx.timestamp + QUIET)
        if amount >= 48:
            ctx.output("large", {"value": amount})

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[dict[str, Any]]:
        seen = ctx.get_state(self.seen)
        before = sorted((at, amount) for at, amount in seen.items() if at <= timestamp)
        if before and before[-1][0] == timestamp - QUIET:
            ctx.get_state(self.told).add(1)
            yield {"since": timestamp - QUIET, "values": before}
            for at, _ in before:
                seen.remove(at)


def test_a_process_function_gives_the_same_as_a_backfill_a_stream_and_after_a_restore(
    spark: SparkSession, lake: Lake
) -> None:
    for rows in cut(arrivals(1), 4):
        lake.append(*rows)
    batch, stream = (pipeline(name, KeyedProcess(Quiet())) for name in ("batch", "stream"))
    lake.backfill(spark, replace(batch, parallelism=3), DAY0, END + timedelta(days=1))
    assert len(lake.stream(spark, stream, files=2)) == 2
    expected = results(lake, batch)
    assert len(expected) > 100
    assert results(lake, stream) == expected
    restored_in_the_middle(spark, lake, stream, parallelism=5)
    assert results(lake, stream) == expected
    assert conserved(lake.rows(stream, "epochs").to_pylist())

    operator = keyed_process_harness(Quiet(), key=USER)
    for user, at, value in events(1):
        operator.watermark(to_millis(at) - 1)
        operator.element(user, {"value": value}, to_millis(at))
    operator.watermark(to_millis(END + timedelta(days=1)))
    records = operator.records()
    told = [
        (row["user"], row["since"]) for row in lake.latest(batch).to_pylist() if row["since"] and row["user"] != "end"
    ]
    assert sorted(told) == sorted(
        (r.key, r.value["since"]) for r in records if hasattr(r, "key") and "since" in r.value
    )
    large = [(row["user"], row["large"]["value"]) for row in lake.latest(batch).to_pylist() if row["output"] == "large"]
    assert sorted(large) == sorted((r.key, r.value["value"]) for r in records if getattr(r, "tag", "") == "large")


class Spree(KeyedProcessFunction):
    """The values of a user up to ten quiet minutes, as they came: only event order gives one answer."""

    result_type = pa.struct([("values", pa.list_(pa.int64())), ("until", pa.timestamp("ms", tz="UTC"))])
    values = ListStateDescriptor("values", pa.int64())
    last = ValueStateDescriptor("last", pa.int64())

    def states(self) -> list[Any]:
        return [self.values, self.last]

    def process_element(self, value: dict[str, Any], ctx: Any) -> None:
        ctx.get_state(self.values).add(value["value"])
        ctx.get_state(self.last).update(ctx.timestamp)
        ctx.timer_service().register_event_time_timer(ctx.timestamp + 600_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[dict[str, Any]]:
        if timestamp == ctx.get_state(self.last).value() + 600_000:
            yield {"values": ctx.get_state(self.values).get(), "until": timestamp}
            ctx.get_state(self.values).clear()


def test_a_function_that_sees_the_order_gives_in_a_stream_what_it_gives_in_a_backfill(
    spark: SparkSession, lake: Lake
) -> None:
    for rows in cut(arrivals(4, 60), 2):
        lake.append(*rows)
    batch, stream = (pipeline(name, KeyedProcess(Spree())) for name in ("batch", "stream"))
    lake.backfill(spark, batch, DAY0, END + timedelta(days=1))
    assert len(lake.stream(spark, replace(stream, parallelism=3), files=1)) == 2
    expected = results(lake, batch)
    assert any(len(row["values"]) > 1 for row in lake.latest(batch).to_pylist())
    assert results(lake, stream) == expected
    assert conserved(lake.rows(stream, "epochs").to_pylist())


class Balance(KeyedCoProcessFunction):
    """Amounts that came in on the left and did not go out on the right, put out after half an hour without elements."""

    result_type = pa.struct([("balance", pa.int64())])
    amounts = MapStateDescriptor("amounts", pa.int64(), pa.int64())

    def states(self) -> list[Any]:
        return [self.amounts]

    def process_element1(self, value: dict[str, Any], ctx: Any) -> None:
        self._add(value["value"], ctx)

    def process_element2(self, value: dict[str, Any], ctx: Any) -> None:
        self._add(-value["value"], ctx)

    def _add(self, amount: int, ctx: Any) -> None:
        amounts = ctx.get_state(self.amounts)
        amounts.put(ctx.timestamp, (amounts.get(ctx.timestamp) or 0) + amount)
        ctx.timer_service().register_event_time_timer(ctx.timestamp + QUIET)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[dict[str, Any]]:
        before = [(at, amount) for at, amount in ctx.get_state(self.amounts).items() if at <= timestamp]
        if max(at for at, _ in before) == timestamp - QUIET:
            yield {"balance": sum(amount for _, amount in before)}


def of_two(name: str, compute: CoProcess | IntervalJoin, **options: Any) -> Pipeline:
    right = Input(source=DeltaSource("others", timestamp="at"))
    return pipeline(name, compute, right=right, **options)


NEAR = IntervalJoin.between(timedelta(minutes=-10), timedelta(minutes=20))


@pytest.mark.parametrize(
    "compute", [NEAR, pytest.param(CoProcess(Balance()), marks=pytest.mark.long)], ids=["join", "co-process"]
)
def test_two_sources_give_the_same_in_a_backfill_a_replay_a_stream_and_after_a_restore(
    spark: SparkSession, lake: Lake, compute: Any
) -> None:
    for left, right in zip(cut(arrivals(2), 4), cut(arrivals(3), 4), strict=True):
        lake.append(*left)
        lake.append(*right, table="others")
    batch, replay, stream = (of_two(name, compute) for name in ("batch", "replay", "stream"))
    lake.backfill(spark, batch, DAY0, END + timedelta(days=1))
    assert len(lake.replay(spark, replace(replay, parallelism=3), commits_per_epoch=5)) == 2
    assert len(lake.stream(spark, stream, files=2)) > 1
    expected = results(lake, batch)
    assert len(expected) > 50
    assert results(lake, replay) == expected
    assert results(lake, stream) == expected
    assert state(lake, stream) == state(lake, replay)
    restored_in_the_middle(spark, lake, stream, parallelism=5)
    assert results(lake, stream) == expected
    assert conserved(lake.rows(stream, "epochs").to_pylist())

    operator = interval_join_harness(compute, key=USER) if compute is NEAR else co_process_harness(Balance(), key=USER)
    both = [(side, *event) for side, seed in (("left", 2), ("right", 3)) for event in events(seed)]
    for side, user, at, value in sorted(both, key=lambda event: (event[2], event[0])):
        operator.watermark(to_millis(at) - 1)
        operator.element(user, {"user": user, "at": at, "value": value}, to_millis(at), side)
    operator.watermark(to_millis(END + timedelta(days=1)))
    told = [
        (
            row["user"],
            to_millis(row["event_time"]),
            row["balance"] if "balance" in row else pair(row["left"], row["right"]),
        )
        for row in lake.latest(batch).to_pylist()
        if row["user"] != "end"
    ]
    given = [
        (r.key, r.timestamp, r.value["balance"] if "balance" in r.value else pair(*r.value))
        for r in operator.element_results()
    ]
    assert sorted(told) == sorted(given)


def pair(left: dict[str, Any], right: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((to_millis(one["at"]), one["value"]) for one in (left, right))


def test_a_join_is_handed_over_from_a_backfill_and_waits_for_a_source_without_rows(
    spark: SparkSession, lake: Lake
) -> None:
    """The right table is there and empty when the streams begin; what it gets before the backfill's end is late."""
    lake.append()
    lake.append(table="others")
    for rows in cut(arrivals(2), 2):
        lake.append(*rows)
    handed, whole = of_two("handed", NEAR), of_two("whole", NEAR)
    frontier = DAY0 + timedelta(hours=6)
    lake.backfill(spark, handed, DAY0, frontier)
    for of in (handed, whole):
        assert lake.stream(spark, of)
        assert pairs(lake, of) == []
    for rows in cut(arrivals(3), 2):
        lake.append(*rows, table="others")
    for of in (handed, whole):
        lake.stream(spark, of)
    assert len(pairs(lake, whole)) > 50
    assert pairs(lake, handed) == [found for found in pairs(lake, whole) if found[1][1][0] >= to_millis(frontier)]
    assert len(lake.rows(handed, "late")) == sum(at < frontier for _, at, _ in events(3))
    assert len(lake.rows(whole, "late")) == 0


def pairs(lake: Lake, of: Pipeline) -> list[tuple[str, tuple[Any, ...]]]:
    return sorted((row["user"], pair(row["left"], row["right"])) for row in lake.latest(of).to_pylist())
