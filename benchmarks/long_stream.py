"""Measure lag, memory and files of a stream that runs for long.

    python -m benchmarks.long_stream [--seconds 1800] [--rate 20000] [--interval 5s] [--json FILE]

A process of its own commits a second's events each second; `tidegate stream` takes them as they come. The lag of the
newest snapshot behind the clock, the resident memory of the processes, and the number of files in the tables are
noted once a second. The last third of the run is compared with the middle one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.events import names
from benchmarks.figures import Figure, Wanted, tell
from benchmarks.memory import role
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PipelineTables
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing import Count, EventTimeSessionWindows, Sum, WatermarkStrategy, Windows

WANTED = Wanted("at most", 1.2)
KEYS = 20_000
_ENOUGH_FOR_FILES = 600.0
NAME = "clicks"

PIPELINE = Pipeline(
    name=NAME,
    source=DeltaSource("events", timestamp="at"),
    key=("key",),
    watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=5)),
    compute=Windows(
        EventTimeSessionWindows.with_gap(timedelta(seconds=20)), aggregate={"events": Count(), "total": Sum("value")}
    ),
)
"""A pipeline whose sessions close within the run, so that the state at the end is as large as after a minute."""

PROJECT = f"""
warehouse = "warehouse"
work = "work"

[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "1g"
"spark.sql.shuffle.partitions" = 2

[pipelines.{NAME}]
object = "benchmarks.long_stream:PIPELINE"
start = 2024-01-01
"""
FEW_SNAPSHOTS = """
retain_snapshots = 10
retain_days = 0
"""


@dataclass(frozen=True, slots=True)
class Poll:
    """The numbers of one moment.

    Args:
        at: seconds since the stream's first snapshot.
        lag: seconds from the newest commit in a snapshot until now.
        memory: resident MiB by role: driver, JVM, all workers together.
        files: number of files in the tables' folders, logs included.
    """

    at: float
    lag: float
    memory: dict[str, float]
    files: int


def feed(events: str, rate: int, seconds: float) -> None:
    """Commit a second's events each second: skewed keys, up to five seconds out of order."""
    began = time.time()
    for second in range(int(seconds)):
        commit(events, rate, second)
        time.sleep(max(0.0, began + second + 1 - time.time()))


def commit(events: str, count: int, seed: int) -> None:
    """Commit events of the last five seconds."""
    rng = np.random.default_rng(seed)
    moments = (time.time() - rng.random(count) * 5) * 1_000_000
    table = pa.table(
        {
            "key": names((rng.random(count) ** 2 * KEYS).astype(np.int64)),
            "at": pa.array(moments.astype(np.int64)).cast(pa.timestamp("us", tz="UTC")),
            "value": pa.array(rng.integers(0, 100, count)),
        }
    )
    write_deltalake(events, table, mode="append")


def watch(tables: PipelineTables, process: subprocess.Popen[bytes], seconds: float) -> list[Poll]:
    """Note the numbers once a second, and return all of them."""
    looks: list[Poll] = []
    began = time.time()
    while process.poll() is None and (now := time.time()) - began < seconds:
        snapshot = read_snapshot(tables)
        if snapshot is not None:
            looks.append(
                Poll(
                    at=now - began,
                    lag=now - snapshot.manifest.processing_time / 1000,
                    memory=_memory(process.pid),
                    files=sum(len(files) for table in ALL for _, _, files in os.walk(tables.path(table))),
                )
            )
        time.sleep(1)
    return looks


def _memory(pid: int) -> dict[str, float]:
    memory: dict[str, float] = defaultdict(float)
    driver = psutil.Process(pid)
    for process in [driver, *driver.children(recursive=True)]:
        try:
            memory[role(process, driver)] += process.memory_info().rss / 2**20
        except psutil.NoSuchProcess:
            continue
    return dict(memory)


def figures(looks: list[Poll]) -> list[Figure]:
    """Return the ratio of the last third's median to that of the middle third, for each kind of number."""
    kinds: dict[str, Callable[[Poll], float]] = {"lag": lambda look: look.lag, "files": lambda look: look.files}
    for name in ("driver", "JVM", "worker"):
        kinds[f"memory, {name}"] = lambda look, name=name: look.memory.get(name, 0.0)  # type: ignore[misc]
    third = len(looks) // 3
    # Upkeep removes files only after every 20 epochs, so in a short run their number means little.
    unbounded = {"files"} if looks[-1].at < _ENOUGH_FOR_FILES else set()
    ratios = []
    for what, number_of in kinds.items():
        middle, last = (median(map(number_of, part)) for part in (looks[third : 2 * third], looks[2 * third :]))
        units = {"lag": "s", "files": "files"}
        detail = f"middle third {middle:,.1f}, last third {last:,.1f} {units.get(what, 'MiB')}"
        wanted = None if what in unbounded else WANTED
        ratios.append(Figure(f"last third vs. the middle: {what}", last / middle, "x", wanted, detail))
    return ratios


def measure(seconds: float, rate: int, interval: str, folder: Path) -> list[Poll]:
    """Feed and stream for `seconds` seconds in a folder, and return the numbers of each second."""
    (folder / "tidegate.toml").write_text(PROJECT + FEW_SNAPSHOTS)
    tables = PipelineTables(Warehouse(str(folder / "warehouse")), NAME)
    events = tables.warehouse.path(PIPELINE.source.table)
    commit(events, count=1, seed=0)
    with (folder / "stream.log").open("wb") as log:
        stream = subprocess.Popen(
            [
                *(sys.executable, "-m", "tidegate", "stream", NAME, "--interval", interval),
                *("--config", str(folder / "tidegate.toml")),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    feeder = multiprocessing.get_context("spawn").Process(target=feed, args=(events, rate, seconds + 60), daemon=True)
    try:
        # The feeder starts after Spark, so that no events pile up while Spark starts.
        while read_snapshot(tables) is None and stream.poll() is None:
            time.sleep(0.5)
        feeder.start()
        looks = watch(tables, stream, seconds)
    finally:
        if feeder.pid:
            feeder.terminate()
        stream.send_signal(signal.SIGTERM)
        code = stream.wait(120)
    if code:
        raise RuntimeError(f"the stream ended with exit code {code}: {(folder / 'stream.log').read_text()[-2000:]}")
    return looks


def main() -> int:
    """Measure and print; return 1 if a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--rate", type=int, default=20_000, help="events a second")
    parser.add_argument("--interval", default="5s", help="between two looks of the stream at its source")
    parser.add_argument("--json", type=Path, help="file for the figures, one a line")
    parser.add_argument("--looks", type=Path, help="file for the numbers of each second, one a line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        looks = measure(options.seconds, options.rate, options.interval, Path(folder))
    if options.looks:
        lines = [json.dumps({"at": look.at, "lag": look.lag, "files": look.files, **look.memory}) for look in looks]
        options.looks.write_text("\n".join(lines) + "\n")
    measured = figures(looks)
    tell(measured, options.json)
    return int(not all(figure.is_reached for figure in measured))


if __name__ == "__main__":
    sys.exit(main())
