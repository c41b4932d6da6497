"""Measure the local engine beside Spark's: the first result of a small project, and a batch of millions of events.

    python -m benchmarks.engines [--events 5000000] [--rounds 3] [--json FILE]

The first result is the wall time of the command `tidegate backfill` on a project in which nothing was run. Batches run
in sessions and pools that are warm. `benchmarks.latency` measures latency on both engines, and `benchmarks.scaling
large_local` the memory of the local one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.against_spark import KEYS
from benchmarks.bench import ASSIGNERS, Bench, bench_of, typical_run
from benchmarks.events import EventSet
from benchmarks.figures import Figure, Wanted, ratio, tell
from benchmarks.long_stream import NAME, PIPELINE, PROJECT, commit
from tidegate import Project
from tidegate.pipelines.definition.config import EngineName
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.storage.warehouse import Warehouse

FIRST_RESULT = Wanted("at most", 3.0)
SMALL = 10_000
"""Events of the small project."""


def first_result(engine: EngineName) -> float:
    """Return the wall time in seconds of a backfill of a small project in which nothing was run.

    Raises:
        RuntimeError: it failed, or wrote no results.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tidegate.toml"
        file.write_text(PROJECT)
        commit(Warehouse(str(Path(folder) / "warehouse")).path(PIPELINE.source.table), count=SMALL, seed=0)
        began = perf_counter()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tidegate", "backfill", NAME, "--start", "2024-01-01"),
                *("--end", "2100-01-01", "--end-of-input", "--engine", engine, "--config", str(file)),
            ],
            capture_output=True,
            text=True,
        )
        seconds = perf_counter() - began
        if done.returncode or not Project(file).results(NAME).total:
            raise RuntimeError(f"backfill on {engine} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return seconds


def batches(bench: Bench, kinds: Sequence[str], rounds: int) -> Iterator[Figure]:
    """Measure batches of both engines in turns, over the same events."""
    local = LocalEngine()
    local.start()
    ours = replace(bench, engine=local)
    try:
        for kind in kinds:
            ours.batch(kind), bench.batch(kind)
            pairs = [(ours.batch(kind), bench.batch(kind)) for _ in range(rounds)]
            run = typical_run([first for first, _ in pairs])
            theirs = median(second.seconds for _, second in pairs)
            what = f"batch, {kind} windows, engine local"
            yield ratio(what, run.seconds, theirs, "engine spark", 1.0, detail=f"Tidegate: {run}")
    finally:
        local.close()


def measure(events: int, rounds: int) -> Iterator[Figure]:
    """Measure first results, then batches."""
    times: dict[EngineName, float] = {
        engine: median(first_result(engine) for _ in range(rounds)) for engine in ("local", "spark")
    }
    for engine, seconds in times.items():
        wanted = FIRST_RESULT if engine == "local" else None
        yield Figure(f"first result of `tidegate backfill`, engine {engine}", seconds, "s", wanted, f"{SMALL:,} events")
    with bench_of() as bench:
        bench.write(EventSet(events, KEYS))
        yield from batches(bench, tuple(ASSIGNERS), rounds)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for the figures, one a line")
    options = parser.parse_args()
    tell(measure(options.events, options.rounds), options.json)


if __name__ == "__main__":
    main()
