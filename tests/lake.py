"""Builders: a project in a folder, rows for its source table, pipelines over it, and what they produced."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction

from tests.commit_times import date_commit, newest_entry
from tidegate import Project
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.correct.correct import reopen
from tidegate.pipelines.correct.request import Selection
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.engine.spark.engine import SparkEngine
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.head import Snapshot, read_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.metrics.open import measured
from tidegate.pipelines.run.backfill import IntervalRun, backfill, replay
from tidegate.pipelines.run.drive import drive
from tidegate.pipelines.run.intervals import cut, parse_slice
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stream import Stream
from tidegate.pipelines.storage.delta_log import FOLDER
from tidegate.pipelines.storage.footers import footer_checksum
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing import Count, EventTimeSessionWindows, Sum, TumblingEventTimeWindows, WatermarkStrategy, Windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("value", pa.int64())])

Row = tuple[str | None, datetime | None, int]
"""User, time and value of an event."""

LOCAL = LocalEngine(cores=2, rows_in_driver=1 << 60)
"""The local engine of tests: two cores, and every epoch in the test's own process."""

DAY0 = datetime(2024, 3, 1, tzinfo=UTC)
"""The first time of generated data."""


def at(text: str, day: int = 0) -> datetime:
    """Return the time `HH:MM` on a day after DAY0."""
    hours, minutes = text.split(":")
    return DAY0 + timedelta(days=day, hours=int(hours), minutes=int(minutes))


def session_pipeline(gap: timedelta = timedelta(minutes=30), name: str = "sessions", **options: Any) -> Pipeline:
    """Sessions of each user."""
    lateness = options.pop("allowed_lateness", timedelta(0))
    return _pipeline(name, Windows(EventTimeSessionWindows.with_gap(gap), allowed_lateness=lateness, **_SUMS), options)


def hourly_pipeline(name: str = "hours", **options: Any) -> Pipeline:
    """Hours of each user."""
    lateness = options.pop("allowed_lateness", timedelta(0))
    sums = options.pop("aggregate", _SUMS["aggregate"])
    windows = Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), allowed_lateness=lateness, aggregate=sums)
    return _pipeline(name, windows, options)


_SUMS: dict[str, Any] = {"aggregate": {"events": Count(), "total": Sum("value")}}


def _pipeline(name: str, compute: Windows, options: dict[str, Any]) -> Pipeline:
    return Pipeline(
        **{
            "name": name,
            "source": DeltaSource("events", timestamp="at"),
            "key": ("user",),
            "watermark": WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=1)),
            "compute": compute,
            **options,
        }
    )


def _table(rows: Sequence[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [[], [], []]
    arrays = [pa.array(list(values), kind.type) for values, kind in zip(columns, EVENTS, strict=True)]
    return pa.table(arrays, schema=EVENTS)


def _is_plain(log: Path) -> bool:
    """Return True for the log of a table that contains only what `append` wrote, or that does not exist yet."""
    entries = sorted(log.glob("*")) if log.exists() else []
    expected = [log / f"{version:020}.json" for version in range(len(entries))]
    if entries != expected or (not entries and log.parent.exists()):
        return False
    return not entries or (
        _CREATED in entries[0].read_text() and not any("metaData" in entry.read_text() for entry in entries[1:])
    )


def _commit_by_hand(log: Path, rows: pa.Table) -> int:
    """Add rows to a plain table as deltalake does, which opens the table twice for that; return the table's version."""
    log.mkdir(parents=True, exist_ok=True)
    name, now, version = f"part-{uuid.uuid4().hex}.parquet", int(time.time() * 1000), len([*log.iterdir()])
    pq.write_table(rows, log.parent / name)
    low, high = {}, {}
    for column in rows.column_names:
        bounds = pc.min_max(rows[column])
        if bounds["min"].is_valid:
            low[column], high[column] = (_in_statistics(bounds[side].as_py()) for side in ("min", "max"))
    nulls = {column: rows[column].null_count for column in rows.column_names}
    stats = {"numRecords": len(rows), "minValues": low, "maxValues": high, "nullCount": nulls}
    size = (log.parent / name).stat().st_size
    add = {"path": name, "partitionValues": {}, "size": size, "modificationTime": now, "dataChange": True}
    info = {"timestamp": now, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    if version == 0:
        table = {"id": str(uuid.uuid4()), "createdTime": now, "configuration": {}, "partitionColumns": []}
        actions.append({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
        columns = Schema.from_arrow(rows.schema).to_json()
        actions.append(
            {"metaData": {**table, "format": {"provider": "parquet", "options": {}}, "schemaString": columns}}
        )
    actions.append({"add": {**add, "stats": json.dumps(stats)}})
    with (log / f"{version:020}.json").open("x") as entry:
        entry.write("".join(f"{json.dumps(action)}\n" for action in actions))
    return version


_CREATED = json.dumps({"schemaString": Schema.from_arrow(EVENTS).to_json()})[1:-1]
"""The log entry of a table of events that `append` created."""


def _in_statistics(value: object) -> object:
    """Return a bound as deltalake writes it: the microseconds of a time are truncated."""
    return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03}Z" if isinstance(value, datetime) else value


@dataclass
class Clock:
    """The driver's clock, moved by the test. `now`: int64 epoch milliseconds."""

    now: int = field(default_factory=lambda: int(datetime.now(UTC).timestamp() * 1000))

    def __call__(self) -> int:
        return self.now


def engine_of(given: Engine | SparkSession) -> Engine:
    """Return an engine as it is, and that of the tests' session."""
    return SparkEngine(given) if hasattr(given, "sparkContext") or hasattr(given, "sql") else given


@dataclass
class Lake:
    """A project: its folder, its source table `events`, and its pipelines' tables."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    warehouse: str = "warehouse"
    options: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """As a tidegate.toml in the folder would define it."""
        return Config(warehouse=self.warehouse, root=self.folder, storage_options=self.options)

    def project(self, *pipelines: Pipeline, **options: Any) -> Project:
        """The same in code, on the local engine, with pipelines."""
        places = {"warehouse": self.folder / "warehouse", "work": self.folder / "work", "engine": "local"}
        return Project(**{**places, "pipelines": pipelines, **options})

    def path(self, table: str) -> str:
        """Return the folder of a table below the warehouse."""
        return warehouse_of(self.config).path(table)

    def append(self, *rows: Row, table: str = "events") -> int:
        """Add rows of (user, at, value) in one commit, and return the table's version."""
        log = Path(self.path(table), FOLDER)
        if self.options or not rows or not _is_plain(log):
            return self.write(_table(rows), table)
        return _commit_by_hand(log, _table(rows))

    def append_in_files(self, *files: Sequence[Row], table: str = "events") -> None:
        """Add rows in one commit of several files."""
        if not DeltaTable.is_deltatable(self.path(table)):
            DeltaTable.create(self.path(table), Schema.from_arrow(EVENTS))
        handle = DeltaTable(self.path(table))
        actions = []
        for rows in files:
            name = f"part-{uuid.uuid4().hex}.parquet"
            pq.write_table(_table(rows), f"{self.path(table)}/{name}")
            size = Path(self.path(table), name).stat().st_size
            actions.append(AddAction(name, size, {}, self.clock(), True, json.dumps({"numRecords": len(rows)})))
        handle.create_write_transaction(actions, "append", handle.schema())
        date_commit(newest_entry(self.path(table)), self.clock.now)

    def write(self, rows: pa.Table, table: str = "events") -> int:
        """Add rows in one commit of deltalake, and return the table's version."""
        write_deltalake(self.path(table), rows, mode="append", storage_options=self.options or None)
        return DeltaTable(self.path(table), storage_options=self.options or None).version()

    def tables(self, pipeline: Pipeline) -> PipelineTables:
        """The tables of a pipeline."""
        return PipelineTables(warehouse_of(self.config), pipeline.name)

    @contextmanager
    def driver(
        self, engine: Engine | SparkSession, pipeline: Pipeline, tell: Callable[[str], None] = lambda step: None
    ) -> Iterator[Driver]:
        """Return a driver of the pipeline in the test's session."""
        with drive(
            self.config, pipeline, "test", engine=engine_of(engine), clock=self.clock, tell=tell, observe=measured
        ) as driver:
            yield driver

    def backfill(
        self,
        engine: Engine | SparkSession,
        pipeline: Pipeline,
        start: datetime,
        end: datetime,
        slice_length: str | None = None,
        and_following: bool = False,
        again: bool = False,
    ) -> list[IntervalRun]:
        """Run a backfill to its end."""
        length = None if slice_length is None else parse_slice(slice_length)
        with self.driver(engine, pipeline) as driver:
            return list(backfill(driver, cut(start, end, length), and_following, again))

    def stream(self, engine: Engine | SparkSession, pipeline: Pipeline, **limits: int) -> list[Manifest]:
        """Run the stream over the rows there are, within limits on an epoch; return the manifests of its epochs."""
        made: list[Manifest] = []
        with self.driver(engine, pipeline) as driver:
            Stream(driver, made.append, EpochLimits(**limits)).run_available()
        return made

    def replay(
        self, engine: Engine | SparkSession, pipeline: Pipeline, commits_per_epoch: int | None = None
    ) -> list[Manifest]:
        """Backfill in arrival order, and return the manifests of its epochs."""
        with self.driver(engine, pipeline) as driver:
            return list(replay(driver, commits_per_epoch))

    def reopen(
        self, engine: Engine | SparkSession, pipeline: Pipeline, selection: Selection | None = None
    ) -> Manifest | None:
        """Reopen late rows, by default all; return None if there was nothing to do."""
        with self.driver(engine, pipeline) as driver:
            return reopen(driver, selection or Selection())[0]

    # --- what they produced --------------------------------------------------------------------

    def snapshot(self, pipeline: Pipeline) -> Snapshot:
        """Return the newest snapshot."""
        snapshot = read_snapshot(self.tables(pipeline))
        assert snapshot is not None
        return snapshot

    def rows(self, pipeline: Pipeline, table: str) -> pa.Table:
        """Return all rows of one of the pipeline's tables."""
        tables = self.tables(pipeline)
        return read_table(tables.warehouse, tables.open(table))

    def latest(self, pipeline: Pipeline) -> pa.Table:
        """Return the currently valid windows."""
        return results.latest(self.rows(pipeline, results.NAME), pipeline.key)

    def final(self, pipeline: Pipeline) -> pa.Table:
        """Return the windows that can no longer change."""
        return results.final(self.latest(pipeline), self.snapshot(pipeline).manifest.watermark)

    def versions(self, pipeline: Pipeline) -> dict[str, int]:
        """Return the version of each of the pipeline's tables."""
        tables = self.tables(pipeline)
        return {name: tables.open(name).version() for name in ("state", "results", "late", "rejects", "epochs")}


COMPARED_AWAY = ("epoch", "timeline", "emitted_at", "watermark", "pane", "timing", "op", "final_at", "stale")


def windows_of(rows: pa.Table, ignoring: Iterable[str] = COMPARED_AWAY) -> pd.DataFrame:
    """Return windows as a frame in a fixed order, without what the division into epochs may change."""
    frame = rows.to_pandas().drop(columns=list(ignoring), errors="ignore")
    leading = [name for name in frame.columns if name not in ("window_start", "window_end", "window_id")]
    by = [*[name for name in ("window_start", "window_end") if name in frame], *leading]
    return frame.sort_values(by, ignore_index=True)


def assert_same_windows(actual: pa.Table, expected: pa.Table) -> None:
    """Both have the same windows with the same ids and results; doubles within 1e-9."""
    pd.testing.assert_frame_equal(windows_of(actual), windows_of(expected), rtol=1e-9, atol=0)


def conserved(manifests: Iterable[dict[str, Any]]) -> bool:
    """Return True if in = on time + late + filtered holds for each row of table epochs."""
    return all(
        row["events_in"] == row["on_time"] + row["late"] + row["no_window"] + row["rejected"] + row["dropped"]
        for row in manifests
    )


def record_footer(folder: Path, name: str, before: bytes) -> None:
    """Record the checksum of a file's footer as it is now in a table's log, in place of that of its bytes before."""
    old, new = (footer_checksum(pa.BufferReader(each)) for each in (before, (folder / name).read_bytes()))
    for entry in (folder / "_delta_log").glob("*.json"):
        entry.write_text(entry.read_text().replace(old, new))
    for checkpoint in (folder / "_delta_log").glob("*.checkpoint.parquet"):
        table = pq.read_table(checkpoint)
        rows = table.to_pylist()
        for add in (row["add"] for row in rows if row["add"]):
            add["stats"] = add["stats"].replace(old, new)
        pq.write_table(pa.Table.from_pylist(rows, table.schema), checkpoint)
