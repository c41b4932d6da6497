"""Compare with Spark's own windows, in one session and one run: ours writes results and state, the peer nothing.

    python -m benchmarks.against_spark [--events 5000000] [--keys 100000] [--rounds 3] [--streamed N]
                                       [--only batch|stream] [--kind session|tumbling] [--hot 0.5] [--json FILE]

Batch is one backfill over all events against `groupBy(session_window or window)` into the noop sink. Streaming
is one epoch for each commit of 500,000 events against the same query in structured streaming with RocksDB: for both,
the median of all epochs but the first counts. The sides take turns, a batch is warmed up once, and the ratio is that
of the medians.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.bench import ASSIGNERS, DELAY, GAP, Bench, Run, bench_of, typical_run
from benchmarks.events import EventSet
from benchmarks.figures import Figure, ratio, tell

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WANTED = {
    ("batch", "session"): 2.5,
    ("batch", "tumbling"): 1.0,
    ("stream", "session"): 4.0,
    ("stream", "tumbling"): 3.0,
}
"""Wanted ratios, for the default numbers of events and keys."""
EVENTS, KEYS = 5_000_000, 100_000


@dataclass(frozen=True)
class Peer:
    """Spark's own windows over the events of a bench."""

    bench: Bench

    def batch(self, kind: str) -> float:
        """Return the seconds of a query over all events."""
        began = perf_counter()
        frame = self.bench.spark.read.format("delta").load(self.bench.events)
        _summed_up(self.grouped(frame, kind))
        return perf_counter() - began

    def stream(self, kind: str) -> float:
        """Return the median seconds of a micro-batch, the first left out."""
        checkpoint = self.bench.folder / "checkpoint"
        shutil.rmtree(checkpoint, ignore_errors=True)
        # Without a starting version Spark reads the files not in the order of commits, and drops late rows.
        reader = self.bench.spark.readStream.format("delta").option("startingVersion", 0)
        frame = reader.options(**self.bench.commit_by_commit).load(self.bench.events)
        query = (
            self.grouped(frame.withWatermark("at", f"{DELAY.seconds} seconds"), kind)
            .writeStream.foreachBatch(lambda batch, number: _into_nothing(batch))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        return median(float(progress["durationMs"]["triggerExecution"]) / 1000 for progress in batches[1:] or batches)

    def grouped(self, frame: DataFrame, kind: str) -> DataFrame:
        """Return the count and the sum of each key and window."""
        from pyspark.sql import functions as F

        minutes = f"{GAP.seconds // 60} minutes"
        window: Column = F.session_window("at", minutes) if kind == "session" else F.window("at", minutes)
        bench = self.bench
        frame = frame.withColumns({name: F.expr(text) for name, text in bench.columns.items()})
        frame = frame if bench.where is None else frame.where(bench.where)
        grouped = frame.groupBy("key", window.alias("window"))
        return grouped.agg(F.count("*").alias("events"), F.sum(bench.summed).alias("total"))


def _summed_up(frame: DataFrame) -> None:
    """Compute every row and keep none. A sink that keeps nothing can't be: Delta refuses it deletion vectors."""
    from pyspark.sql import functions as F

    frame.agg(F.count("*"), F.max("window.end"), F.sum("events"), F.sum("total")).collect()


def _into_nothing(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def compare(
    what: str, ours: Callable[[], Run], theirs: Callable[[], float], rounds: int, wanted: float | None
) -> Figure:
    """Run both sides in turns, and return the ratio."""
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    run = typical_run([run for run, _ in pairs])
    return ratio(what, run.seconds, median(seconds for _, seconds in pairs), "Spark", wanted, detail=f"Tidegate: {run}")


def measure(
    benches: Mapping[str, Bench], kinds: tuple[str, ...], rounds: int, title: str, wanted: bool
) -> Iterator[Figure]:
    """Measure the ratios of kinds of windows in each mode (`batch`, `stream`), over the events of its bench."""
    for mode, bench in benches.items():
        for kind in kinds:
            what = f"{'batch' if mode == 'batch' else f'stream of {bench.per_commit:,}'}, {kind} windows{title}"
            ours, theirs = (partial(getattr(side, mode), kind) for side in (bench, Peer(bench)))
            if mode == "batch":
                ours(), theirs()
            yield compare(what, ours, theirs, rounds, WANTED[mode, kind] if wanted else None)


def main() -> None:
    """Print ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--streamed", type=int, help="events for the streams, where not as many")
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--hot", type=float, default=0.0, help="share of all events that one more key has")
    parser.add_argument("--per-commit", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("batch", "stream"))
    parser.add_argument("--kind", choices=tuple(ASSIGNERS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    modes = (options.only,) if options.only else ("batch", "stream")
    kinds = (options.kind,) if options.kind else tuple(ASSIGNERS)
    title = f", {options.hot:.0%} of events in one key" if options.hot else ""
    print(f"{options.events:,} events, {options.keys:,} keys{title}; median of {options.rounds}", flush=True)
    with bench_of(options.per_commit) as bench:
        bench.write(EventSet(options.events, options.keys, options.hot))
        benches = dict.fromkeys(modes, bench)
        if options.streamed and "stream" in modes:
            benches["stream"] = replace(bench, name="streamed")
            benches["stream"].write(EventSet(options.streamed, options.keys, options.hot))
        wanted = (options.events, options.keys, options.hot) == (EVENTS, KEYS, 0)
        tell(measure(benches, kinds, options.rounds, title, wanted), options.json)


if __name__ == "__main__":
    main()
