"""Measure time and memory of a check over many windows: the first, which looks at all, and one after a further epoch.

    python -m benchmarks.large_check [--windows 900000] [--folder FOLDER]

The tables are written directly, as epochs of an hourly pipeline would leave them; no JVM is started. The figures are
those of `tidegate quality check` in a process of its own, its start included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.figures import Figure, tell
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition import results, state
from tidegate.pipelines.definition.binding import BoundPipeline, bind
from tidegate.pipelines.definition.columns import TIMESTAMP
from tidegate.pipelines.definition.config import FILE_NAME, load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.counters import OF_TASKS
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.ledger.manifest import Manifest, Publish, Shard, line_after
from tidegate.pipelines.ledger.snapshots.commit import commit_snapshot
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.tables.files import write_rows
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.windowing import Count, Max, Sum, TumblingEventTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.columnar.hashing import hash_keys, window_ids
from tidegate.windowing.time import to_millis

EVENTS = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("value", pa.int64())])
START = to_millis(datetime(2024, 1, 1, tzinfo=UTC))
HOUR = 3_600_000
EPOCHS = 10
MAX_PARALLELISM = 128

hours = Pipeline(
    name="hours",
    source=DeltaSource("events", timestamp="at"),
    key=("user",),
    compute=Windows(
        TumblingEventTimeWindows.of(timedelta(hours=1)),
        aggregate={"events": Count(), "total": Sum("value"), "largest": Max("value")},
    ),
    watermark=WatermarkStrategy.for_monotonous_timestamps(),
    max_parallelism=MAX_PARALLELISM,
)


def write_epoch(tables: PipelineTables, bound: BoundPipeline, windows: int) -> None:
    """Commit and publish an epoch in which `windows` windows fire, each with one element."""
    head = read_snapshot(tables)
    parent = None if head is None else head.manifest
    number = 1 if parent is None else parent.epoch + 1
    watermark = START + number * HOUR - 1
    schemas = bound.table_schemas
    users = pa.array([f"user {row}" for row in range(windows)])
    start = np.full(windows, START + (number - 1) * HOUR)
    values: dict[str, Any] = {
        "user": users,
        "window_id": window_ids(hash_keys(bound.key, [users], windows), start, start + HOUR),
        "window_start": start,
        "window_end": start + HOUR,
        "pane": np.zeros(windows, np.int32),
        "timing": ["on_time"] * windows,
        "op": ["+"] * windows,
        "final_at": start + HOUR - 1,
        "watermark": np.full(windows, watermark),
        "timeline": np.ones(windows, np.int64),
        "epoch": np.full(windows, number),
        "emitted_at": np.full(windows, watermark),
        "stale": [False] * windows,
        "events": np.ones(windows, np.int64),
        "total": np.arange(windows),
        "largest": np.arange(windows),
    }
    columns = [
        pa.array(values[field.name], pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(TIMESTAMP)
        if field.type == TIMESTAMP
        else pa.array(values[field.name], field.type)
        for field in schemas[results.NAME]
    ]
    rows = pa.table(columns, schema=schemas[results.NAME])
    files = write_rows(tables.warehouse, tables.path(results.NAME), f"results-{number:06d}-00000", rows)
    counters = dict.fromkeys(OF_TASKS, 0) | {"on_time": windows, "fired_on_time": windows}
    manifest = Manifest(
        pipeline=hours.name,
        timeline=1,
        epoch=number,
        parent=None if parent is None else parent.epoch,
        line=line_after(parent, number),
        kind="stream",
        order="arrival",
        positions={"events": Position(version=number)},
        watermark=watermark,
        processing_time=watermark,
        max_parallelism=MAX_PARALLELISM,
        shards=(Shard(first=0, last=MAX_PARALLELISM - 1, counters=counters),),
        fingerprint=bound.fingerprint,
        schemas=bound.schemas,
        counters={**counters, "events_in": windows, "rejected": 0, "dropped": 0},
        publish={table: Publish(files=files if table == results.NAME else ()) for table in PUBLISHED},
        run_id=f"run {number}",
        started_at=watermark,
        library_version="0",
        engine="local",
    )
    handle = tables.open(state.NAME) if head is None else head.handle
    commit_snapshot(tables, handle, manifest, schemas[state.NAME], [])
    publish(tables, manifest)


def check(project: Path, name: str) -> Iterator[Figure]:
    """Measure seconds, processor time and memory of `tidegate quality check`."""
    command = [
        sys.executable,
        "-m",
        "tidegate",
        "quality",
        hours.name,
        "--config",
        str(project / FILE_NAME),
        "--json",
    ]
    with (project / "output.json").open("w") as output:
        began = perf_counter()
        process = subprocess.Popen(command, stdout=output)
        _, status, used = os.wait4(process.pid, 0)
        seconds = perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    answer = json.loads((project / "output.json").read_text().splitlines()[0])
    about = f"{answer['quality']}, {answer['windows']:,} new windows"
    yield Figure(f"{name}: time", seconds, "s", None, about)
    yield Figure(f"{name}: processor", used.ru_utime + used.ru_stime, "s", None, "")
    yield Figure(f"{name}: memory", used.ru_maxrss / 1024, "MB", None, "at its highest")


def measure(windows: int, folder: Path) -> Iterator[Figure]:
    """Measure a check of all windows, and one after a further epoch with a hundredth of them."""
    entry = f'[pipelines.{hours.name}]\nobject = "benchmarks.large_check:hours"\nstart = 2024-01-01\n'
    (folder / FILE_NAME).write_text(f'warehouse = "warehouse"\n{entry}')
    tables = PipelineTables(warehouse_of(load_config(folder / FILE_NAME)), hours.name)
    bound = bind(hours, EVENTS, EVENTS)
    tables.create(bound.table_schemas)
    for _ in range(EPOCHS):
        write_epoch(tables, bound, windows // EPOCHS)
    yield from check(folder, f"first check, {windows:,} windows")
    write_epoch(tables, bound, windows // 100)
    yield from check(folder, f"check of {windows // 100:,} new windows after it")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--windows", type=int, default=900_000)
    parser.add_argument("--folder", type=Path, help="keep the tables there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kept = given.folder or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        tell(measure(given.windows, kept), given.json)


if __name__ == "__main__":
    main()
