"""Random lives of joins and process functions: their results are those of a new stream over the on-time rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.lake import Lake
from tests.pipelines.ask.test_lives_that_verify import FLOATS, KEYS, MINUTE, SEED, Life
from tidegate import Input, IntervalJoin, KeyedProcess, KeyedProcessFunction, Project, WindowJoin
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.windowing import TumblingEventTimeWindows, WatermarkStrategy
from tidegate.windowing.state import ReducingStateDescriptor, ValueStateDescriptor

COLUMNS = pa.schema(
    [("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("id", pa.int64()), ("ratio", pa.float64())]
)
WINDOWS = TumblingEventTimeWindows.of(timedelta(minutes=45), timedelta(minutes=10))
HIDDEN = {"epoch", "timeline", "emitted_at", "stale", "watermark"}


class Bursts(KeyedProcessFunction):
    """The rows of a key until 15 minutes have passed without one; it sets and deletes timers."""

    result_type = pa.struct([("rows", pa.int64())])
    rows = ReducingStateDescriptor("rows", lambda a, b: a + b, pa.int64())
    ends = ValueStateDescriptor("ends", pa.int64())

    def states(self) -> list[Any]:
        return [self.rows, self.ends]

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.get_state(self.rows).add(1)
        if (ends := ctx.get_state(self.ends).value()) is not None:
            ctx.timer_service().delete_event_time_timer(ends)
        ctx.get_state(self.ends).update(ctx.timestamp + 900_000)
        ctx.timer_service().register_event_time_timer(ctx.timestamp + 900_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield {"rows": ctx.get_state(self.rows).get()}
        ctx.get_state(self.rows).clear()
        ctx.get_state(self.ends).clear()


COMPUTES = [
    KeyedProcess(Bursts()),
    IntervalJoin(-10 * MINUTE, 20 * MINUTE),
    *(WindowJoin(WINDOWS, kind) for kind in ("inner", "left", "right", "full", "semi", "anti")),  # type: ignore[arg-type]
]


class Drawn(Life):
    """A life of a join or a process function."""

    name = "joined"

    def __init__(self, lake: Lake, seed: int) -> None:
        super().__init__(lake, seed)
        self.id = 0
        self.compute, self.bound = COMPUTES[seed % len(COMPUTES)], self.draw.choice([0, 30, 60]) * MINUTE
        self.inputs = ("left",) if isinstance(self.compute, KeyedProcess) else ("left", "right")
        self.parallelism = self.draw.choice([1, 2, 5])
        for name in self.inputs:
            self.append(name)

    def project_in(self, lake: Lake) -> Project:
        pipeline = Pipeline(
            name="joined",
            source=DeltaSource("left", timestamp="at"),
            key=("user",),
            watermark=WatermarkStrategy.for_bounded_out_of_orderness(self.bound),
            compute=self.compute,
            parallelism=self.parallelism,
            right=Input(source=DeltaSource("right", timestamp="at")) if len(self.inputs) > 1 else None,
        )
        return lake.project(pipeline)

    @property
    def project(self) -> Project:  # type: ignore[override]
        return self.project_in(self.lake)

    def append(self, name: str) -> None:
        rows = []
        for _ in range(self.draw.choice([1, 10, 40])):
            self.id += 1
            moment = self.now + self.draw.randint(-150, 40) * MINUTE
            user, ratio = self.draw.choice([*KEYS, None]), self.draw.choice(FLOATS)
            rows.append({"user": user, "at": moment, "id": self.id, "ratio": ratio})
        self.lake.write(pa.Table.from_pylist(rows, schema=COLUMNS), name)

    def rescale(self) -> None:
        self.parallelism = self.draw.choice([1, 2, 3, 7])
        self.project.stream("joined")

    def deeds(self) -> list[Callable[[], object]]:
        project = self.project
        return [
            *[lambda: self.append(self.draw.choice(self.inputs)), lambda: project.stream("joined")] * 5,
            self.savepoint,
            self.restore,
            self.rescale,
            self.lose_and_restore,
            lambda: project.tables.vacuum("joined", snapshots=self.draw.choice([1, 3]), days=0),
            lambda: project.tables.optimize("joined"),
            lambda: DeltaTable(self.lake.path("left")).optimize.compact(),
        ]


def results_in(lake: Lake) -> Counter[str]:
    rows = DeltaTable(lake.path("joined/results")).to_pyarrow_table().to_pylist()
    return Counter(repr({name: row[name] for name in sorted(row.keys() - HIDDEN)}) for row in rows if not row["stale"])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED, SEED + 24))
def test_a_drawn_life_of_a_join_has_the_results_of_a_fresh_stream(lake: Lake, seed: int, tmp_path: Path) -> None:
    life = Drawn(lake, seed)
    life.live(35)
    life.project.quality.check("joined").require()
    late = [row for row in DeltaTable(lake.path("joined/late")).to_pyarrow_table().to_pylist() if row["stale"] is False]
    ids = {(row[side] if (side := row.get("side")) else row)["id"] for row in late}
    fresh = Lake(tmp_path / "fresh")
    for name in life.inputs:
        rows = DeltaTable(lake.path(name)).to_pyarrow_table()
        fresh.write(rows.filter(pa.array([each not in ids for each in rows["id"].to_pylist()])), name)
    life.project_in(fresh).stream("joined")
    assert results_in(lake) == results_in(fresh)
