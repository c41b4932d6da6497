"""Measure the time from a source commit to its visible result, for a continuous stream and for Spark beside it.

    python -m benchmarks.latency [--seconds 120] [--rates 20000 100000] [--interval 20ms] [--engine NAME] [--json FILE]

A process of its own commits events every half second. `tidegate stream` takes them as they come; in a turn of its own,
Spark's structured streaming writes the same windows to a Delta table. Both write down what they read and when they
committed it, so the times come from the logs afterwards, and nothing watches the streams.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, Wanted, tell
from benchmarks.long_stream import NAME, PIPELINE, PROJECT, commit
from tidegate.pipelines.definition import epochs
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.delta_log import Action, DeltaLog, commit_info, entry_versions
from tidegate.pipelines.storage.warehouse import Warehouse, read_table
from tidegate.windowing.time import Millis

APART = 0.5
"""Seconds between two source commits."""

P50, P99 = {"local": Wanted("at most", 0.1), "spark": Wanted("at most", 1.0)}, Wanted("at most", 2.5)
WARM_UP = 20.0
"""Seconds at the start of a run that are left out: a JVM compiles while it runs its first epochs."""


@dataclass(frozen=True, slots=True)
class Visible:
    """A commit of results.

    Args:
        version: newest version of the source that the results contain.
        at: commit time, int64 epoch milliseconds.
    """

    version: int
    at: Millis


def latencies(committed: Mapping[int, Millis], visible: Sequence[Visible], since: Millis) -> list[float]:
    """Return the seconds from each source commit to the first results that contain it.

    Args:
        committed: commit time of each version of the source.
        visible: the commits of results.
        since: commits before this time are left out.

    Commits that no results contain yet are left out, too: the run ended before.
    """
    ordered = sorted(visible, key=lambda results: results.version)
    seconds = []
    for version, at in committed.items():
        first = min((results.at for results in ordered if results.version >= version), default=None)
        if at >= since and first is not None:
            seconds.append((first - at) / 1000)
    return seconds


def figures(who: str, rate: int, seconds: Sequence[float], engine: str | None) -> Iterator[Figure]:
    """Return the median and the 99th percentile of latencies."""
    for name, percentile, bound in (("p50", 50, P50.get(engine or "")), ("p99", 99, P99)):
        value = float(np.percentile(seconds, percentile)) if seconds else float("inf")
        detail = f"{len(seconds)} commits, at most {max(seconds, default=0):.2f} s"
        what = f"{who}: {name} from commit to result, events a second"
        yield Figure(what, value, "s", bound if engine else None, detail, size=rate)


def commit_times(log: DeltaLog, names: Sequence[str]) -> dict[int, Millis]:
    """Return the commit time of each version in a log."""
    return {version: int(commit_info(log.actions(version))["timestamp"]) for version in entry_versions(names)}


def visible_epochs(tables: PipelineTables) -> list[Visible]:
    """Return the epochs of a pipeline: table `epochs` is published last, so its commit is that of the whole epoch.

    Raises:
        RuntimeError: the log has no commit of an epoch any more, so its results would seem to come with the next one.
    """
    warehouse, path = tables.warehouse, tables.path(epochs.NAME)
    rows = read_table(warehouse, tables.open(epochs.NAME), ["epoch", "source_version"]).to_pylist()
    reached = {row["epoch"]: row["source_version"] for row in rows}
    log, seen = warehouse.log(path), []
    for version in entry_versions(warehouse.names(f"{path}/_delta_log")):
        info = commit_info(log.actions(version))
        epoch = (info.get("tidegate") or {}).get("epoch")
        if epoch in reached:
            seen.append(Visible(int(reached.pop(epoch)), int(info["timestamp"])))
    if reached:
        raise RuntimeError(f"the commits of {len(reached)} epochs were cleaned up, from epoch {min(reached)} on")
    return seen


def visible_batches(warehouse: Warehouse, sink: str, checkpoint: Path) -> list[Visible]:
    """Return the micro-batches of a query that wrote to a Delta table.

    The checkpoint has the end of each batch in the source; the sink's commit names the batch.
    """
    log, seen = warehouse.log(sink), []
    for version in entry_versions(warehouse.names(f"{sink}/_delta_log")):
        actions = log.actions(version)
        batch = next((action["txn"]["version"] for action in actions if "txn" in action), None)
        if batch is not None:
            lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
            seen.append(Visible(_read_to(json.loads(lines[-1])), int(commit_info(actions)["timestamp"])))
    return seen


def _read_to(offset: Action) -> int:
    """Return the newest version that is read at an offset of Delta's; each commit of the writer has one file."""
    return int(offset["reservoirVersion"]) - (offset["index"] < 0)


def write(events: str, rate: int, stop: Event) -> None:
    """Commit events every half second until told to stop, or until the program that started it was killed."""
    parent = multiprocessing.parent_process()
    began, number = time.time(), 0
    while not stop.is_set() and (parent is None or parent.is_alive()):
        number += 1
        commit(events, int(rate * APART), number)
        time.sleep(max(0.0, began + number * APART - time.time()))


@contextmanager
def writer(events: str, rate: int) -> Iterator[None]:
    """Let a process of its own commit events."""
    spawned = multiprocessing.get_context("spawn")
    stop = spawned.Event()
    process = spawned.Process(target=write, args=(events, rate, stop), daemon=True)
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join(60)


def ours(folder: Path, rate: int, seconds: float, interval: str, engine: str) -> list[float]:
    """Run `tidegate stream` beside the writer, and return the latencies."""
    (folder / "tidegate.toml").write_text(PROJECT)
    tables = PipelineTables(Warehouse(str(folder / "warehouse")), NAME)
    events = tables.warehouse.path(PIPELINE.source.table)
    commit(events, count=1, seed=0)
    with (folder / "stream.log").open("wb") as output:
        stream = subprocess.Popen(
            [
                *(sys.executable, "-m", "tidegate", "stream", NAME, "--interval", interval),
                *("--engine", engine),
                *("--config", str(folder / "tidegate.toml")),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_for(lambda: tables.exist or stream.poll() is not None)
        with writer(events, rate):
            time.sleep(seconds)
        # The last commits become visible, too.
        time.sleep(2 * P99.value)
    finally:
        stream.send_signal(signal.SIGTERM)
        code = stream.wait(120)
    if code:
        raise RuntimeError(f"the stream ended with exit code {code}: {(folder / 'stream.log').read_text()[-2000:]}")
    return _of_source(tables.warehouse, events, visible_epochs(tables))


def structured_streaming(folder: Path, rate: int, seconds: float) -> list[float]:
    """Let Spark write the same windows to Delta beside the writer, and return the latencies."""
    from pyspark.sql import functions as F

    from benchmarks.bench import bench_of

    warehouse = Warehouse(str(folder / "warehouse"))
    events, sink, checkpoint = warehouse.path(PIPELINE.source.table), warehouse.path("windows"), folder / "checkpoint"
    commit(events, count=1, seed=0)
    with bench_of() as bench:
        frame = bench.spark.readStream.format("delta").option("startingVersion", 0).load(events)
        sessions = (
            frame.withWatermark("at", "5 seconds")
            .groupBy("key", F.session_window("at", "20 seconds"))
            .agg(F.count("*").alias("events"), F.sum("value").alias("total"))
        )
        query = (
            sessions.writeStream.format("delta")
            .option("checkpointLocation", str(checkpoint))
            .outputMode("append")
            .start(sink)
        )
        try:
            _wait_for(lambda: warehouse.exists(sink) or not query.isActive)
            with writer(events, rate):
                time.sleep(seconds)
            time.sleep(2 * P99.value)
        finally:
            query.stop()
    return _of_source(warehouse, events, visible_batches(warehouse, sink, checkpoint))


def _of_source(warehouse: Warehouse, events: str, visible: Sequence[Visible]) -> list[float]:
    committed = commit_times(warehouse.log(events), list(warehouse.names(f"{events}/_delta_log")))
    return latencies(committed, visible, since=committed[1] + int(WARM_UP * 1000) if 1 in committed else 0)


def _wait_for(is_there: Callable[[], bool], patience: float = 120.0) -> None:
    deadline = time.monotonic() + patience
    while not is_there():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no results within {patience:.0f} s")
        time.sleep(0.2)


def measure(
    rates: Sequence[int], seconds: float, interval: str, engines: Sequence[str], beside: bool
) -> Iterator[Figure]:
    """Measure all sides at each rate."""
    sides: list[tuple[str, Callable[[Path, int], list[float]], str | None]] = [
        (f"Tidegate, engine {engine}", partial(ours, seconds=seconds, interval=interval, engine=engine), engine)
        for engine in engines
    ]
    if beside:
        sides.append(("Spark", lambda folder, rate: structured_streaming(folder, rate, seconds), None))
    for rate in rates:
        for who, run, engine in sides:
            with tempfile.TemporaryDirectory() as folder:
                yield from figures(who, rate, run(Path(folder), rate), engine)


def main() -> int:
    """Measure and print; return 1 if a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rates", type=int, nargs="+", default=[20_000, 100_000], help="events a second")
    parser.add_argument("--interval", default="20ms", help="between two looks of the stream at its source")
    parser.add_argument("--engine", nargs="+", default=["local", "spark"], choices=("local", "spark"))
    parser.add_argument("--alone", action="store_true", help="without Spark beside it")
    parser.add_argument("--json", type=Path, help="file for the figures, one a line")
    options = parser.parse_args()
    measured: list[Figure] = []

    def noted() -> Iterator[Figure]:
        for figure in measure(options.rates, options.seconds, options.interval, options.engine, not options.alone):
            measured.append(figure)
            yield figure

    tell(noted(), options.json)
    return int(not all(figure.is_reached for figure in measured))


if __name__ == "__main__":
    sys.exit(main())
