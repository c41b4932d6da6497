"""A day of events of seven users in a lake, pipelines over it, and what their tables hold."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.lake import DAY0, Lake
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, read_snapshot
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.windowing import WatermarkStrategy
from tidegate.windowing.keys import KeySchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USER = KeySchema(("user",), (pa.string(),))
BOUND = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=1))
END = DAY0 + timedelta(days=1)

Event = tuple[str, datetime, int]


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
    """Return what table results holds, without what tells of the run; the event that ends the data left out."""
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
