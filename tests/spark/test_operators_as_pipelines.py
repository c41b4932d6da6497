"""Every operator as a pipeline, end to end: backfill, stream and restore give what the operator itself gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.lake import DAY0, Lake, conserved
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition.pipeline import Input
from tidegate.pipelines.snapshots.head import list_snapshots, read_snapshot
from tidegate.pipelines.snapshots.restore import restore
from tidegate.windowing import (
    CoProcess,
    IntervalJoin,
    KeyedCoProcessFunction,
    KeyedProcess,
    KeyedProcessFunction,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.evictors import Evictor
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from tidegate.windowing.testing import co_process_harness, interval_join_harness, keyed_process_harness, window_harness
from tidegate.windowing.time import MAX_TIMESTAMP, to_millis
from tidegate.windowing.triggers import Trigger, TriggerResult
from tidegate.windowing.watermarks import WatermarkGenerator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

USER = KeySchema(("user",), (pa.string(),))
QUIET = 1_800_000
BOUND = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=1))
END = DAY0 + timedelta(days=1)

Event = tuple[str, datetime, int]


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


def events(seed: int, count: int = 300) -> list[Event]:
    """A day of events of seven users, in the order of their times."""
    draw = random.Random(seed)
    moments = sorted(draw.randrange(86_400) for _ in range(count))
    return [(f"user{draw.randrange(7)}", DAY0 + timedelta(seconds=at), draw.randrange(50)) for at in moments]


def arrivals(seed: int, count: int = 300) -> list[Event]:
    """The same, at most 50 minutes out of order, an hour being allowed; the last moves the watermark past all."""
    draw = random.Random(seed)
    rows = sorted(events(seed, count), key=lambda event: event[1] + timedelta(minutes=draw.randrange(50)))
    return [*rows, ("end", END + timedelta(hours=3), 0)]


def cut(rows: list[Event], commits: int) -> list[list[Event]]:
    size = len(rows) // commits + 1
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def results(lake: Lake, of: Pipeline) -> list[str]:
    """What table results holds, without what tells of the run; the event that ends the data left out."""
    rows = lake.latest(of).drop_columns(["timeline", "epoch", "emitted_at", "stale"]).to_pylist()
    return sorted(str(row) for row in rows if row["user"] != "end")


def state(lake: Lake, of: Pipeline) -> list[str]:
    rows = lake.rows(of, "state").drop_columns(["manifest"]).to_pylist()
    return sorted(str(row) for row in rows if row["key_group"] >= 0)


def pipeline(name: str, compute: Any, **options: Any) -> Pipeline:
    settings = {"source": DeltaSource("events", timestamp="at"), "key": ("user",), "watermark": BOUND}
    return Pipeline(**{"name": name, "compute": compute, **settings, **options})


def restored_in_the_middle(spark: SparkSession, lake: Lake, of: Pipeline, parallelism: int) -> None:
    """A stream that went to its end is put back to the middle, and goes on at another parallelism."""
    tables = lake.tables(of)
    entries = list_snapshots(tables)
    target = read_snapshot(tables, entries[len(entries) // 2].version)
    assert target is not None
    restore(tables, target, lake.clock())
    lake.stream(spark, replace(of, parallelism=parallelism))


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
    """What came in on the left and has not gone out on the right, told once nothing came for half an hour."""

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


@dataclass(frozen=True)
class LargeAtOnce(Trigger):
    """Fires at every other large value, and at the end of the window."""

    large: int
    count = ReducingStateDescriptor("large", lambda a, b: a + b, pa.int64())

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp)
        if element["value"] < self.large:
            return TriggerResult.CONTINUE
        count = ctx.get_partitioned_state(self.count)
        count.add(1)
        return TriggerResult.CONTINUE if count.get() % 2 else TriggerResult.FIRE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp else TriggerResult.CONTINUE

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.get_partitioned_state(self.count).clear()
        ctx.delete_event_time_timer(window.max_timestamp)

    def states(self) -> list[Any]:
        return [self.count]


@dataclass(frozen=True)
class WithoutZeros(Evictor):
    """Lets the function see no zeros, and keeps the newest five for the next firing."""

    def evict_before(self, elements: Any, window: Any, ctx: Any) -> Any:
        return [element for element in elements if element.value["value"]]

    def evict_after(self, elements: Any, window: Any, ctx: Any) -> Any:
        return elements[-5:]


class Seen(ProcessWindowFunction):
    """The values that a firing saw, in order, and how many firings the user had in all windows."""

    result_type = pa.struct([("values", pa.list_(pa.int64())), ("firings", pa.int64())])
    firings = ValueStateDescriptor("firings", pa.int64())

    def process(self, key: Any, ctx: Any, elements: Any) -> Iterator[dict[str, Any]]:
        firings = ctx.global_state.get_state(self.firings)
        firings.update((firings.value() or 0) + 1)
        yield {"values": [element["value"] for element in elements], "firings": firings.value()}

    def global_states(self) -> list[Any]:
        return [self.firings]


class UntilTheEnd(WatermarkGenerator):
    """An hour of disorder; an event of user `end` says that nothing comes any more."""

    largest: int | None = None

    def on_event(self, event: Any, timestamp: int, output: Any) -> None:
        self.largest = max(timestamp, self.largest or timestamp)
        if event["user"] == "end":
            output.emit_watermark(MAX_TIMESTAMP)

    def on_periodic_emit(self, output: Any) -> None:
        if self.largest is not None:
            output.emit_watermark(self.largest - 3_600_000 - 1)

    def snapshot(self) -> dict[str, Any]:
        return {"largest": self.largest}

    def restore(self, snapshot: Any) -> None:
        self.largest = snapshot["largest"]


def test_windows_of_a_users_own_trigger_evictor_function_and_generator(spark: SparkSession, lake: Lake) -> None:
    commits = cut(arrivals(4), 4)
    for rows in commits:
        lake.append(*rows)
    windows = Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), LargeAtOnce(40), WithoutZeros(), process=Seen())
    own = WatermarkStrategy.for_generator(UntilTheEnd)
    replay, stream = (pipeline(name, windows, watermark=own) for name in ("replay", "stream"))
    lake.replay(spark, replay)
    assert len(lake.stream(spark, stream, files=2)) > 1
    manifest = lake.snapshot(stream).manifest
    assert manifest.watermark == MAX_TIMESTAMP
    assert [known.generator for known in manifest.partitions.values()] == [{"largest": to_millis(END) + 10_800_000}]
    assert panes(lake, stream) == panes(lake, replay)
    assert state(lake, stream) == state(lake, replay)
    restored_in_the_middle(spark, lake, stream, parallelism=5)
    assert panes(lake, stream) == panes(lake, replay)

    policy = PanePolicy(windows.accumulation, withdraw_merged=True, coalesce_late=True)
    operator = window_harness(windows, key=USER, panes=policy, account_for_all=True)
    largest = 0
    for rows in commits:
        for user, at, value in sorted(rows, key=lambda event: (event[1], event[0], event[2])):
            operator.element(user, {"user": user, "at": at, "value": value}, to_millis(at))
            largest = max(largest, to_millis(at))
        operator.end_commit()
        operator.watermark(MAX_TIMESTAMP if rows[-1][0] == "end" else largest - 3_600_000 - 1)
    given = [
        (r.key, r.window.start, r.pane, r.timing.value, r.value["values"], r.value["firings"])
        for r in operator.results()
    ]
    assert {timing for _, _, _, timing, _, _ in given} == {"early", "on_time"}
    assert panes(lake, stream) == sorted(given)


def panes(lake: Lake, of: Pipeline) -> list[tuple[Any, ...]]:
    return sorted(
        (row["user"], to_millis(row["window_start"]), row["pane"], row["timing"], row["values"], row["firings"])
        for row in lake.rows(of, "results").to_pylist()
    )
