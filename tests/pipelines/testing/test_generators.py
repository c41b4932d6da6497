"""A user's watermark generators in a pipeline: they see every event, in one order, and their state is kept."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.sources.delta.description import DeltaSource
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import Count, EventTimeSessionWindows, TumblingEventTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.time import MAX_TIMESTAMP, to_millis
from tidegate.windowing.watermarks import WatermarkGenerator

SOURCE = pa.schema(
    [("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("kind", pa.string()), ("shop", pa.string())]
)
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
HOURS = Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"n": Count()})
SESSIONS = Windows(EventTimeSessionWindows.with_gap(timedelta(minutes=2)), aggregate={"n": Count()})


class UntilTheEnd(WatermarkGenerator):
    """Five minutes of disorder; after an event that marks the end, nothing follows."""

    def __init__(self) -> None:
        self.largest: int | None = None

    def on_event(self, event: Any, timestamp: int, output: Any) -> None:
        self.largest = max(timestamp, self.largest or timestamp)
        if event["kind"] == "end":
            output.emit_watermark(MAX_TIMESTAMP)

    def on_periodic_emit(self, output: Any) -> None:
        if self.largest is not None:
            output.emit_watermark(self.largest - 300_000 - 1)

    def snapshot(self) -> dict[str, Any]:
        return {"largest": self.largest}

    def restore(self, snapshot: Any) -> None:
        self.largest = snapshot["largest"]


class EveryThird(WatermarkGenerator):
    """The time of every third event that it sees, whichever commits and epochs these are in."""

    def __init__(self) -> None:
        self.seen = 0

    def on_event(self, event: Any, timestamp: int, output: Any) -> None:
        self.seen += 1
        if self.seen % 3 == 0:
            output.emit_watermark(timestamp)

    def on_periodic_emit(self, output: Any) -> None:
        """Only events advance it."""

    def snapshot(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def restore(self, snapshot: Any) -> None:
        self.seen = snapshot["seen"]


def row(minute: float, kind: str = "click", shop: str = "x") -> dict[str, Any]:
    return {"user": "ann", "at": NOON + timedelta(minutes=minute), "kind": kind, "shop": shop}


def harness(generator: type[WatermarkGenerator], compute: Windows = HOURS, **settings: Any) -> PipelineHarness:
    pipeline = Pipeline(
        name="visits",
        source=DeltaSource("clicks", timestamp="at"),
        key=("user",),
        watermark=WatermarkStrategy.for_generator(generator),
        compute=compute,
        **settings,
    )
    return PipelineHarness(pipeline, SOURCE)


def test_the_last_window_of_a_finished_stream_fires() -> None:
    made = harness(UntilTheEnd)
    made.commit([row(0), row(70)], at=NOON + timedelta(minutes=70))
    made.run()
    assert [window["n"] for window in made.final()] == [1]
    made.commit([row(72, "end")], at=NOON + timedelta(minutes=73))
    made.run()
    assert made.watermark == MAX_TIMESTAMP
    assert [window["n"] for window in made.final()] == [1, 2]


def test_events_are_seen_in_the_order_of_their_times_and_the_watermark_moves_at_the_commit() -> None:
    made = harness(EveryThird)
    made.commit([row(30), row(10), row(20), row(40)], at=NOON)
    made.run()
    assert made.watermark == to_millis(NOON + timedelta(minutes=30))
    assert made.late() == []


@pytest.mark.first(2)
@pytest.mark.parametrize("compute", [HOURS, SESSIONS], ids=["hours", "sessions"])
@pytest.mark.parametrize("seed", range(3))
def test_the_cut_into_epochs_does_not_show(compute: Windows, seed: int) -> None:
    draw = random.Random(seed)
    commits = [[row(7 * i - draw.randrange(90)) for _ in range(draw.randrange(6))] for i in range(25)]
    made = {every: harness(EveryThird, compute) for every in (1000, 1, 4)}
    for every, one in made.items():
        for i, rows in enumerate(commits):
            one.commit(rows, at=NOON + timedelta(minutes=7 * i))
            if i % every == every - 1:
                one.run(parallelism=1 + i % 3)
        one.run()
    whole, *others = made.values()
    assert whole.late(), "the data must have late rows"
    for other in others:
        assert shown(other) == shown(whole)
        assert other.watermark == whole.watermark


def shown(made: PipelineHarness) -> list[str]:
    """Return the rows that a user can read, without the columns of the run."""
    rows = [*made.results(), *made.late()]
    return sorted(str({name: row[name] for name in row if name not in ("epoch", "emitted_at")}) for row in rows)


def test_a_generator_sees_only_the_columns_that_uses_names() -> None:
    seen: list[dict[str, Any]] = []

    class Looking(EveryThird):
        def on_event(self, event: Any, timestamp: int, output: Any) -> None:
            seen.append(event)

    all_columns, some = harness(Looking), harness(Looking, uses=("kind",))
    for made in (all_columns, some):
        made.commit([row(1)], at=NOON)
        made.run()
    assert seen == [row(1), {"kind": "click"}]


def test_each_source_partition_has_a_generator_of_its_own() -> None:
    made = harness(UntilTheEnd, watermark_by="shop", max_ahead=timedelta(hours=2))
    made.commit([row(70, shop="x"), row(20, shop="y")], at=NOON)
    made.run()
    assert made.watermark == to_millis(NOON + timedelta(minutes=15)) - 1
    made.commit([row(30, "end", shop="y")], at=NOON)
    made.run()
    assert made.watermark == to_millis(NOON + timedelta(minutes=65)) - 1
