"""Builders: small tables of a pipeline as two correct epochs leave them, written without Spark, to plant errors in."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake

from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition import epochs, late, rejects, results, state
from tidegate.pipelines.definition.binding import BoundPipeline, bind
from tidegate.pipelines.definition.config import Config, PipelineEntry
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.counters import KEPT, OF_SHARDS
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.ledger.manifest import Manifest, Publish, Shard, StaleInterval
from tidegate.pipelines.ledger.tables.keys import key_groups
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.windowing import (
    Count,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.keys import KeySchema, window_identity
from tidegate.windowing.time import to_millis

EVENTS = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
MIDNIGHT = datetime(2024, 3, 1, tzinfo=UTC)

_TEMPLATES = tempfile.TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
"""Lakes that this process has written. Writing one takes longer than the rest of most tests."""


def _pipeline(name: str, assigner: Any, lateness: timedelta = timedelta(0)) -> Pipeline:
    return Pipeline(
        name=name,
        source=DeltaSource("events", timestamp="at"),
        key=("user",),
        compute=Windows(assigner, aggregate={"events": Count()}, allowed_lateness=lateness),
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
    )


sessions = _pipeline("sessions", EventTimeSessionWindows.with_gap(timedelta(minutes=30)))
hours = _pipeline("hours", TumblingEventTimeWindows.of(timedelta(hours=1), timedelta(minutes=15)))
sliding = _pipeline("sliding", SlidingEventTimeWindows.of(timedelta(minutes=30), timedelta(minutes=10)))
waiting = _pipeline(
    "waiting",
    SlidingEventTimeWindows.of(timedelta(minutes=30), timedelta(minutes=10), timedelta(minutes=5)),
    timedelta(minutes=30),
)


def at(text: str) -> datetime:
    """Return the time of day written as `HH:MM`."""
    hours, minutes = text.split(":")
    return MIDNIGHT + timedelta(hours=int(hours), minutes=int(minutes))


def id_of(user: str, start: str, end: str) -> int:
    """Return the id of a window that first fired with these bounds."""
    key = KeySchema(("user",), (pa.string(),))
    return window_identity(key.hash_of(user), to_millis(at(start)), to_millis(at(end)))


def pane(user: str, start: str, end: str, events: int = 1, epoch: int = 1, **changed: Any) -> dict[str, Any]:
    """Return a row of table results: the only pane of a window, on time."""
    return {
        "user": user,
        "window_id": id_of(user, start, end),
        "window_start": at(start),
        "window_end": at(end),
        "pane": 0,
        "timing": "on_time",
        "op": "+",
        "final_at": at(end) - timedelta(milliseconds=1),
        "watermark": at(end),
        "timeline": 1,
        "epoch": epoch,
        "emitted_at": at("20:00"),
        "stale": False,
        "events": events,
        **changed,
    }


def open_window(user: str, start: str, end: str, events: int = 1, **changed: Any) -> dict[str, Any]:
    """Return a row of table state: a window that waits for its end."""
    return {
        "user": user,
        "namespace": "window",
        "window_start": at(start),
        "window_end": at(end),
        "state_window_start": at(start),
        "state_window_end": at(end),
        "in_flight": True,
        "event_time_timers": [to_millis(at(end)) - 1],
        "filled": True,
        "pane": 0,
        "acc_events": events,
        **changed,
    }


@dataclass
class QualityLake:
    """A pipeline's tables as rows. The counters are derived from them when they are created; errors are planted later.

    Args:
        pipeline: the pipeline of the tables.
        panes, late, rejects, state: rows of epochs 1 and 2.
        watermarks: watermark after each epoch.
        taken: number of elements that windows accepted, by epoch.
    """

    pipeline: Pipeline
    panes: list[dict[str, Any]]
    state: list[dict[str, Any]]
    watermarks: tuple[str, str]
    taken: tuple[int, int]
    order: str = "event"
    stale: tuple[tuple[str, str], ...] = ()
    late: list[dict[str, Any]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        gone = {"timeline": 1, "epoch": 2, "stale": False}
        self.late.append({"user": "a", "at": at("09:00"), "reason": "late", "lateness_ms": 60_000, **gone})
        self.rejects.append({"user": None, "at": at("12:00"), "reason": "null_key", **gone})
        self.epochs = [self._epoch(1), self._epoch(2)]

    def _epoch(self, number: int) -> dict[str, Any]:
        panes = [row for row in self.panes if row["epoch"] == number]
        counters = {
            **dict.fromkeys(OF_SHARDS, 0),
            "on_time": self.taken[number - 1],
            "late": sum(row["epoch"] == number for row in self.late),
            "no_window": 0,
            "open_windows": len(self.state) if number == 2 else 0,
            "retracted": sum(row["op"] == "-" for row in panes),
        }
        for timing in ("early", "on_time", "late"):
            counters[f"fired_{timing}"] = sum(row["timing"] == timing and row["op"] == "+" for row in panes)
        rejected = sum(row["epoch"] == number for row in self.rejects)
        return {
            **{counter.name: 0 for counter in KEPT},
            "timeline": 1,
            "epoch": number,
            "parent": None if number == 1 else 1,
            "kind": "backfill",
            "watermark": at(self.watermarks[number - 1]),
            "processing_time": at("20:00"),
            "events_in": counters["on_time"] + counters["late"] + rejected,
            "rejected": rejected,
            "run_id": f"run {number}",
            "started_at": at("20:00"),
            "stale": False,
            "phases": [("operate", 1.0)],
            "shards": [{"first": 0, "last": 127, **counters}],
            **counters,
        }

    def write(self, folder: Path) -> Config:
        """Write the tables, and return a configuration that names the pipeline. Equal lakes are copies of one."""
        template = Path(_TEMPLATES.name, hashlib.sha256(repr(self).encode()).hexdigest())
        if not template.exists():
            self._fill(PipelineTables(warehouse_of(self._config(template)), self.pipeline.name))
        shutil.copytree(template, folder, dirs_exist_ok=True)
        return self._config(folder)

    def _config(self, folder: Path) -> Config:
        entry = PipelineEntry(object=f"{__name__}:{self.pipeline.name}", start=MIDNIGHT)
        return Config(root=folder, pipelines={self.pipeline.name: entry})

    def _fill(self, tables: PipelineTables) -> None:
        bound = bind(self.pipeline, EVENTS, EVENTS)
        schemas = bound.table_schemas
        tables.create(schemas)
        for name, rows in (
            (results.NAME, self.panes),
            (late.NAME, self.late),
            (rejects.NAME, self.rejects),
            (epochs.NAME, self.epochs),
        ):
            record = {"tidegate": {"timeline": 1, "epoch": 2, "parent": 1}}
            self._write(tables, name, pa.Table.from_pylist(rows, schema=schemas[name]), record)
        open_rows = pa.Table.from_pylist(self.state, schema=_nullable(schemas[state.NAME]))
        groups = key_groups(open_rows, self.pipeline.key, self.pipeline.max_parallelism)
        open_rows = open_rows.set_column(0, schemas[state.NAME].field(0), groups).cast(schemas[state.NAME])
        manifest = self._manifest(bound)
        # Two files, as an epoch writes them; the key group tells which one has the manifest.
        self._write(tables, state.NAME, open_rows)
        row = state.manifest_row(manifest.model_dump_json(), schemas[state.NAME])
        self._write(tables, state.NAME, row, {"tidegate": manifest.short()})

    def _write(self, tables: PipelineTables, name: str, rows: pa.Table, metadata: dict[str, Any] | None = None) -> None:
        properties = CommitProperties(custom_metadata=metadata, app_transactions=[Transaction(tables.application, 2)])
        write_deltalake(tables.path(name), rows, mode="append", commit_properties=properties)

    def _manifest(self, bound: BoundPipeline) -> Manifest:
        row = self.epochs[-1]
        shard = row["shards"][0]
        counters = {name: value for name, value in shard.items() if name not in ("first", "last")}
        return Manifest(
            pipeline=self.pipeline.name,
            timeline=1,
            epoch=2,
            parent=1,
            line=((1, 2),),
            kind=row["kind"],
            order=self.order,
            positions={"events": Position(version=0)},
            watermark=to_millis(at(self.watermarks[1])),
            processing_time=to_millis(at("20:00")),
            max_parallelism=self.pipeline.max_parallelism,
            shards=(Shard(first=0, last=127, counters=counters),),
            fingerprint=bound.fingerprint,
            schemas=bound.schemas,
            counters={**counters, "events_in": row["events_in"], "rejected": row["rejected"], "dropped": 0},
            stale=tuple(
                StaleInterval(start=to_millis(at(start)), end=to_millis(at(end)), epochs=(9,))
                for start, end in self.stale
            ),
            publish={name: Publish() for name in PUBLISHED},
            run_id="run 2",
            started_at=to_millis(at("20:00")),
            library_version="0",
            engine="local",
        )


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def session_lake(**changed: Any) -> QualityLake:
    """Three final sessions and an open one."""
    panes = [
        pane("a", "10:00", "10:40", 2),
        pane("b", "10:05", "10:35"),
        pane("a", "12:00", "12:30", epoch=2),
    ]
    return QualityLake(sessions, panes, [open_window("a", "13:00", "13:30")], ("11:00", "13:10"), (3, 2), **changed)


def hour_lake() -> QualityLake:
    """Hours that begin at a quarter past."""
    panes = [
        pane("a", "10:15", "11:15", 4),
        pane("b", "10:15", "11:15", 1),
        pane("a", "11:15", "12:15", 3, epoch=2),
    ]
    return QualityLake(hours, panes, [open_window("b", "12:15", "13:15", 2)], ("11:30", "12:40"), (5, 5))


def sliding_lake() -> QualityLake:
    """Two elements of a, at 10:15 and 10:20, and one of b at 10:05; half an hour every ten minutes."""
    panes = [
        pane("a", "09:50", "10:20", 1),
        pane("a", "10:00", "10:30", 2),
        pane("a", "10:10", "10:40", 2),
        pane("a", "10:20", "10:50", 1),
        pane("b", "09:40", "10:10", 1),
        pane("b", "09:50", "10:20", 1),
        pane("b", "10:00", "10:30", 1),
    ]
    return QualityLake(sliding, panes, [], ("11:00", "12:00"), (3, 0))


def waiting_lake() -> QualityLake:
    """Two elements of a, at 10:15 and 10:27, and one of b, at 10:05; windows begin at :05 and wait half an hour."""
    fired = [
        ("a", "09:55", "10:25", 1),
        ("a", "10:05", "10:35", 2),
        ("a", "10:15", "10:45", 2),
        ("a", "10:25", "10:55", 1),
        ("b", "09:45", "10:15", 1),
        ("b", "09:55", "10:25", 1),
        ("b", "10:05", "10:35", 1),
    ]
    wait = timedelta(minutes=30) - timedelta(milliseconds=1)
    panes = [pane(user, start, end, events, final_at=at(end) + wait) for user, start, end, events in fired]
    # It has fired, but accepts elements for five more minutes, so it is not final.
    waits = open_window("a", "10:25", "10:55", event_time_timers=[to_millis(at("11:25")) - 1], fired=True)
    return QualityLake(waiting, panes, [waits], ("11:00", "11:20"), (3, 0))


LAKES: dict[str, Callable[[], QualityLake]] = {
    "sessions": session_lake,
    "hours": hour_lake,
    "sliding": sliding_lake,
    "waiting": waiting_lake,
}
