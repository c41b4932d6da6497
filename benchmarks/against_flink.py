"""Compare with Flink, streaming, in one run: ours writes results and state, Flink writes nothing.

    python -m benchmarks.against_flink [--events 5000000] [--keys 100000] [--rounds 3] [--small 50000]
                                       [--deadline 400] [--json FILE]

Flink SQL's session and tumbling windows read CSV files, ours a Delta table in epochs of 500,000 events; for both the
scan alone is measured too, and the ratio without it. PyFlink's DataStream with an AggregateFunction in Python gets a
small input and a deadline; if it has not finished by then, the ratio is a lower bound and says so. The time of Flink is
the net time of its jobs, on two tasks, warm; ours is the sum of the epochs, warm.
"""

from __future__ import annotations

import argparse
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import pyarrow as pa
from pyarrow import csv
from pyarrow.dataset import dataset

from benchmarks.bench import ASSIGNERS, Bench, bench_of
from benchmarks.events import EventSet
from benchmarks.figures import Figure, ratio, tell
from benchmarks.flink.environment import FLINK, flink_python, run_in_flink
from benchmarks.phases import show, typical

WANTED = 2.0
"""Wanted ratio to Flink SQL's session windows, for the default number of events."""
EVENTS = 5_000_000
FLINK_TASKS = 2
_SQL_SECONDS = 450.0


def write_csv(events: EventSet, folder: Path, length: int) -> None:
    """Write the events for Flink: a file for each task, in order of arrival, so that no element is late."""
    folder.mkdir()
    plain = csv.WriteOptions(include_header=False)
    sinks = [(folder / f"events-{task}.csv").open("wb") for task in range(FLINK_TASKS)]
    for piece in events.pieces(length):
        for task, sink in enumerate(sinks):
            csv.write_csv(piece.take(pa.array(np.arange(task, len(piece), FLINK_TASKS))), sink, plain)
    for sink in sinks:
        sink.close()


def stream_all(bench: Bench, kind: str) -> tuple[float, str]:
    """Return the seconds of all epochs together, and the phases of a typical one."""
    with bench.project() as config:
        runs = bench.epochs(kind, config)
    return sum(run.seconds for run in runs), f"an epoch: {show(typical(run.phases for run in runs))}"


def scan(bench: Bench) -> float:
    """Return the seconds to read the columns that windows need with Arrow, as our tasks read a plain source."""
    began = perf_counter()
    dataset(bench.events, format="parquet").to_table(columns=["key", "at", "value"])
    return perf_counter() - began


def sql(bench: Bench, folder: Path, rounds: int, wanted: float | None) -> Iterator[Figure]:
    """Measure ratios to Flink SQL, with and without the scan."""
    theirs: dict[str, list[float]] = defaultdict(list)
    for line in run_in_flink("sql_windows", [str(folder), str(rounds)], _SQL_SECONDS):
        theirs[line["job"]].append(line["seconds"])
    scan(bench)
    our_scan, their_scan = median(scan(bench) for _ in range(rounds)), median(theirs["scan"])
    yield Figure("scan of Delta by Arrow", our_scan, "s")
    yield Figure("scan of CSV by Flink SQL", their_scan, "s")
    for kind in ASSIGNERS:
        stream_all(bench, kind)
        runs = sorted(stream_all(bench, kind) for _ in range(rounds))
        ours, detail = runs[len(runs) // 2]
        what = f"stream, {kind} windows"
        bound = wanted if kind == "session" else None
        peer = median(theirs[kind])
        yield ratio(what, ours, peer, "Flink SQL", bound, detail)
        yield ratio(f"{what}, without scans", ours - our_scan, peer - their_scan, "Flink SQL", bound)


def data_stream(bench: Bench, folder: Path, deadline: float) -> Iterator[Figure]:
    """Measure the ratio to PyFlink's DataStream, with and without the scan, or a lower bound of it."""
    stream_all(bench, "session")
    ours, _ = stream_all(bench, "session")
    what, peer = f"stream of {bench.per_commit:,}, session windows", "PyFlink DataStream"
    try:
        lines = list(run_in_flink("stream_windows", [str(folder)], deadline))
    except subprocess.TimeoutExpired:
        yield ratio(f"{what}: more than", ours, deadline, peer, detail="it had not finished by then")
        return
    seconds = {line["job"]: line["seconds"] for line in lines}
    yield ratio(what, ours, seconds["session"], peer, detail=f"its scan {seconds['scan']:.2f} s")
    yield ratio(f"{what}, without scans", ours - scan(bench), seconds["session"] - seconds["scan"], peer)


def measure(events: EventSet, small: int, rounds: int, deadline: float) -> Iterator[Figure]:
    """Measure all ratios to Flink."""
    flink_python()
    with bench_of() as bench:
        bench.write(events)
        write_csv(events, bench.folder / "csv", bench.per_commit)
        yield from sql(bench, bench.folder / "csv", rounds, WANTED if events.events >= EVENTS else None)
        few = Bench(bench.folder, bench.spark, small, "few")
        few.write(EventSet(small, events.keys))
        write_csv(EventSet(small, events.keys), bench.folder / "few-csv", small)
        yield from data_stream(few, bench.folder / "few-csv", deadline)


def main() -> None:
    """Print ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", type=int, default=50_000, help="events for PyFlink's DataStream")
    parser.add_argument("--deadline", type=float, default=400, help="seconds that PyFlink's DataStream has")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"Flink {FLINK}; {options.events:,} events, {options.keys:,} keys; median of {options.rounds}", flush=True)
    events = EventSet(options.events, options.keys)
    tell(measure(events, options.small, options.rounds, options.deadline), options.json)


if __name__ == "__main__":
    main()
