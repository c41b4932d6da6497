"""Compare with sessions by hand in `transformWithStateInPandas`, streaming with RocksDB.

    python -m benchmarks.against_state_processor [--events 60000] [--per-commit 20000] [--keys 100000]
                                                 [--deadline 120] [--json FILE]

Spark calls it once for each key and batch, so its batches are small here and it has a deadline: if a second batch is
not done by then, the ratio is a lower bound and says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING

from benchmarks.bench import DELAY, GAP, Bench, bench_of
from benchmarks.events import EventSet
from benchmarks.figures import Figure, ratio, tell

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_POLL_SECONDS = 1


def sessions_by_hand(bench: Bench) -> DataFrame:
    """Return the sessions of the bench's events; each commit is a batch."""
    from benchmarks.state_processor import OUTPUT, SessionProcessor

    reader = bench.spark.readStream.format("delta").option("startingVersion", 0).options(**bench.commit_by_commit)
    return (
        reader.load(bench.events)
        .withWatermark("at", f"{DELAY.seconds} seconds")
        .groupBy("key")
        .transformWithStateInPandas(SessionProcessor(GAP.seconds * 1000), OUTPUT, "Append", "EventTime")
    )


def by_hand(bench: Bench, deadline: float) -> list[float]:
    """Return the seconds of each micro-batch that was done before the deadline, in seconds from now."""
    query = (
        sessions_by_hand(bench)
        .writeStream.foreachBatch(lambda batch, number: batch.write.format("noop").mode("overwrite").save())
        .option("checkpointLocation", str(bench.folder / "checkpoint-by-hand"))
        .trigger(availableNow=True)
        .start()
    )
    end = monotonic() + deadline
    while not query.awaitTermination(_POLL_SECONDS) and monotonic() < end:
        continue
    # Stopping the query would wait for its batch, which may take very long; the query ends with the session.
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    return [progress["durationMs"]["triggerExecution"] / 1000 for progress in batches]


def measure(bench: Bench, deadline: float) -> Iterator[Figure]:
    """Measure the ratio of one epoch, or a lower bound of it."""
    what = f"stream of {bench.per_commit:,}, session windows"
    peer = "transformWithStateInPandas"
    # The first run warms the session up; only the second counts.
    bench.stream("session")
    ours = bench.stream("session")
    batches = by_hand(bench, deadline)
    if len(batches) > 1:
        yield ratio(what, ours.seconds, median(batches[1:]), peer, detail=f"Tidegate: {ours}")
    elif batches:
        yield ratio(what, ours.seconds, batches[0], peer, detail="its first batch; the second had not finished in time")
    else:
        yield ratio(
            f"{what}: more than", ours.seconds, deadline, peer, detail="its first batch had not finished by then"
        )


def main() -> None:
    """Print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--per-commit", type=int, default=20_000)
    parser.add_argument("--deadline", type=float, default=120, help="seconds that it has for all batches")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{options.events:,} events, {options.keys:,} keys", flush=True)
    with bench_of(options.per_commit) as bench:
        bench.write(EventSet(options.events, options.keys))
        tell(measure(bench, options.deadline), options.json)


if __name__ == "__main__":
    main()
