"""Windows made of user code alone, as a pipeline: replay, stream and restore give what the operator itself gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.lake import Lake
from tidegate.pipelines import Pipeline
from tidegate.windowing import (
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.evictors import Evictor
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state import (
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from tidegate.windowing.testing import window_harness
from tidegate.windowing.time import MAX_TIMESTAMP, to_millis
from tidegate.windowing.triggers import Trigger, TriggerResult
from tidegate.windowing.watermarks import WatermarkGenerator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.spark.days import END, USER, arrivals, cut, pipeline, restored_in_the_middle, state

pytestmark = [pytest.mark.long, pytest.mark.spark]


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

    policy = PanePolicy(windows.accumulation, retract_merged=True, coalesce_late=True)
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
