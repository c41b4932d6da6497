"""The contract of engines: an epoch writes the same under each, and each continues the other's snapshots. Windows of
each kind, process functions, joins, corrections and reopened late rows, with kills at the steps of an epoch and
restores at another parallelism, are, row by row, those of a single run in this process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.lake import DAY0, LOCAL, Lake, hourly_pipeline, session_pipeline
from tests.pipelines.project import test_each_computation as typed
from tests.pipelines.project.test_each_computation import COMPUTES
from tests.recovery.arrivals import STEPS, copy_of, crash_after, differences, rows_of, run
from tests.recovery.test_equality import HOUR, MINUTE, PIPELINES, SUMS, arrive, commits_come_hourly, put_back
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.correct.correct import reopen
from tidegate.pipelines.correct.request import Selection
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.engine.spark.engine import SparkEngine
from tidegate.pipelines.epoch import exchange
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.windowing import (
    CalendarEventTimeWindows,
    EventTimeSessionWindows,
    IntervalJoin,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.evictors import Evictor
from tidegate.windowing.state import ReducingStateDescriptor, ValueStateDescriptor
from tidegate.windowing.triggers import Trigger, TriggerResult
from tidegate.windowing.watermarks import WatermarkGenerator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.recovery

Expected = Callable[[str], dict[str, list[str]]]


class UntilTheLargest(WatermarkGenerator):
    """Event time follows the element with the largest value, so that the order of the events of a commit matters."""

    def __init__(self) -> None:
        self.largest = -1
        self.time = 0

    def on_event(self, event: Any, timestamp: int, output: Any) -> None:
        if (event["value"] or 0) >= self.largest or timestamp > self.time + 3_600_000:
            self.largest, self.time = event["value"] or 0, timestamp
            output.emit_watermark(timestamp - 1_200_000)

    def on_periodic_emit(self, output: Any) -> None:
        """Only events advance it."""

    def snapshot(self) -> dict[str, Any]:
        return {"largest": self.largest, "time": self.time}

    def restore(self, state: dict[str, Any]) -> None:
        self.largest, self.time = state["largest"], state["time"]


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
class WithoutOnes(Evictor):
    """Hides ones from the function, and keeps the newest five elements for the next firing."""

    def evict_before(self, elements: Any, window: Any, ctx: Any) -> Any:
        return [element for element in elements if element.value["value"] != 1]

    def evict_after(self, elements: Any, window: Any, ctx: Any) -> Any:
        return elements[-5:]


class Seen(ProcessWindowFunction):
    """The values that a firing saw, in order, and the number of the user's firings in all windows."""

    result_type = pa.struct([("values", pa.list_(pa.int64())), ("firings", pa.int64())])
    firings = ValueStateDescriptor("firings", pa.int64())

    def process(self, key: Any, ctx: Any, elements: Any) -> Iterator[dict[str, Any]]:
        firings = ctx.global_state.get_state(self.firings)
        firings.update((firings.value() or 0) + 1)
        yield {"values": [element["value"] for element in elements], "firings": firings.value()}

    def global_states(self) -> list[Any]:
        return [self.firings]


def pair(left: Any, right: Any) -> dict[str, Any]:
    return {"more": right["value"] - left["value"]}


PIPELINES_OF_ENGINES: dict[str, Pipeline] = {
    **PIPELINES,
    "days of a calendar": hourly_pipeline(compute=Windows(CalendarEventTimeWindows.days("America/New_York"), **SUMS)),
    "SQL": hourly_pipeline(
        columns={"value": "value * 2", "kind": "upper(user)"}, where="value % 3 <> 0 and user is not null"
    ),
    "windows of user code": hourly_pipeline(
        compute=Windows(TumblingEventTimeWindows.of(HOUR), LargeAtOnce(40), WithoutOnes(), process=Seen())
    ),
    "an own generator": hourly_pipeline(watermark=WatermarkStrategy.for_generator(UntilTheLargest)),
    "a join": hourly_pipeline(
        right=Input(source=DeltaSource("others", timestamp="at"), where="value > 30"),
        where="value < 70",
        compute=IntervalJoin(-10 * MINUTE, 10 * MINUTE, join=pair, result_type=pa.struct([("more", pa.int64())])),
    ),
    "corrected": hourly_pipeline(
        source=DeltaSource("events", timestamp="at", changes="correct"),
        compute=Windows(TumblingEventTimeWindows.of(HOUR), **SUMS),
    ),
    "corrected sessions": session_pipeline(
        10 * MINUTE,
        source=DeltaSource("events", timestamp="at", changes="correct"),
        compute=Windows(EventTimeSessionWindows.with_gap(10 * MINUTE), **SUMS),
    ),
}

REOPENED = ("sessions with lateness", "sliding", "SQL", "corrected", "corrected sessions")
"""Pipelines whose late rows are reopened at the end."""
CORRECTED = ("corrected", "corrected sessions")
"""Pipelines whose source changes at the end."""
FEW = {"in place": (), "exchanged": ("corrected sessions",)}
"""Pipelines that always run on Spark, by how events reach their shards; the others do so in the long form."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("source") / "lake")
    arrive(lake)
    draw = random.Random(5)
    for number in range(4):
        end_of_hour = DAY0 + (number + 1) * HOUR
        times = [end_of_hour - timedelta(seconds=draw.randrange(5400)) for _ in range(40)]
        rows = [(draw.choice(("ann", "bob", "often")), time, draw.randrange(100)) for time in times]
        lake.append(*rows, table="others")
    commits_come_hourly(lake, "others")
    commits_come_hourly(lake, "events")
    return lake


@pytest.fixture(scope="module")
def expected(source: Lake, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """The outcome of a single run in this process, by pipeline."""
    found: dict[str, dict[str, list[str]]] = {}

    def of(name: str) -> dict[str, list[str]]:
        if name not in found:
            lake = copy_of(source, tmp_path_factory.mktemp("expected") / "lake")
            pipeline = PIPELINES_OF_ENGINES[name]
            run(LOCAL, lake, pipeline=pipeline, limits=EpochLimits())
            end(LOCAL, lake, name)
            found[name] = contents(lake, pipeline)
            assert found[name]["results"], name
        return found[name]

    return of


def contents(lake: Lake, pipeline: Pipeline) -> dict[str, list[str]]:
    """Return the contents of the tables without the numbers of epochs, including the epochs that reopened late rows."""
    return rows_of(lake, pipeline, ("epoch", "timeline", "reopened"))


def end(engine: Engine, lake: Lake, name: str) -> None:
    """The end of a life: late rows are reopened, and rows of the source are deleted."""
    pipeline = PIPELINES_OF_ENGINES[name]
    if name in CORRECTED:
        DeltaTable(lake.path("events")).delete("value % 10 = 3")
        lake.clock.now += 60_000
        run(engine, lake, pipeline=pipeline, limits=EpochLimits())
    if name in REOPENED:
        with lake.driver(engine, pipeline) as driver:
            manifest, rows = reopen(driver, Selection())
        assert manifest is not None
        assert rows > 0
        assert (manifest.engine or "spark") == engine.name


def live(engines: Sequence[Engine], lake: Lake, name: str, draw: random.Random) -> None:
    """Random engines, epochs, steps to crash after, snapshots to restore and parallelism; then to the end."""
    pipeline = PIPELINES_OF_ENGINES[name]
    for _ in range(3):
        here = replace(pipeline, parallelism=draw.choice((1, 2, 5)))
        limits = EpochLimits(files=draw.choice((1, 2)))
        crash_after(draw.choice(engines), lake, draw.choice(STEPS), draw.choice((1, 2)), pipeline=here, limits=limits)
        put_back(lake, pipeline, draw)
    run(engines[0], lake, pipeline=replace(pipeline, parallelism=5), limits=EpochLimits(files=3))
    assert (lake.snapshot(pipeline).manifest.engine or "spark") == engines[0].name
    lake.clock.now += 1
    run(engines[-1], lake, pipeline=replace(pipeline, parallelism=5), limits=EpochLimits(files=3))
    end(draw.choice(engines), lake, name)


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalEngine]:
    """The local engine, with a process for every task."""
    engine = LocalEngine(cores=2, rows_in_driver=0)
    yield engine
    engine.close()


@pytest.fixture(params=["in place", "exchanged"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How events reach their shards: each task reads all files, or tasks exchange packs."""
    if request.param == "exchanged":
        monkeypatch.setattr(exchange, "_ROWS_READ_AGAIN", -1)
        monkeypatch.setattr(exchange, "_TASKS_THAT_READ", 0)
    return str(request.param)


@pytest.mark.first(1)
@pytest.mark.parametrize("name", PIPELINES_OF_ENGINES)
def test_processes_of_this_machine_write_what_one_process_writes(
    source: Lake,
    expected: Callable[[str], dict[str, list[str]]],
    tmp_path: Path,
    pool: LocalEngine,
    way: str,
    name: str,
) -> None:
    lake = copy_of(source, tmp_path / "lake")
    live([pool, LOCAL], lake, name, random.Random(f"{name} {way}"))
    assert differences(contents(lake, PIPELINES_OF_ENGINES[name]), expected(name)) == {}


@pytest.mark.parametrize(
    ("way", "name"),
    [
        pytest.param(way, name, marks=() if name in few else pytest.mark.long)
        for way, few in FEW.items()
        for name in PIPELINES_OF_ENGINES
    ],
    indirect=["way"],
)
def test_spark_and_this_machine_go_on_from_each_other(
    source: Lake,
    expected: Callable[[str], dict[str, list[str]]],
    tmp_path: Path,
    spark: SparkSession,
    way: str,
    name: str,
) -> None:
    lake = copy_of(source, tmp_path / "lake")
    live([SparkEngine(spark), LOCAL], lake, name, random.Random(f"{name} {way}"))
    assert differences(contents(lake, PIPELINES_OF_ENGINES[name]), expected(name)) == {}


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in COMPUTES if name != "staggered"])
@pytest.mark.parametrize("way", ["exchanged"], indirect=True)
def test_each_computation_of_typed_columns_is_the_same_under_each_engine(
    tmp_path: Path, spark: SparkSession, pool: LocalEngine, way: str, name: str
) -> None:
    pipeline, tables = typed.pipeline_of(COMPUTES[name]), typed.tables_of(COMPUTES[name])
    lake = Lake(tmp_path / "source")
    for hour, rows in typed.COMMITS:
        typed.commit(lake, hour, rows, *tables)
    found = []
    for number, engine in enumerate((LOCAL, pool, SparkEngine(spark))):
        own = copy_of(lake, tmp_path / str(number))
        run(engine, own, pipeline=pipeline, limits=EpochLimits(files=1))
        typed.change(own, *tables)
        own.clock.now += 60_000
        run(engine, own, pipeline=pipeline, limits=EpochLimits())
        # The time of the change is that of this machine.
        found.append(rows_of(own, pipeline, ("epoch", "timeline", "emitted_at")))
        del found[-1]["position"]
    assert differences(found[1], found[0]) == differences(found[2], found[0]) == {}
