"""Measure what it costs that rows of the source change, beside epochs that append rows and beside a full backfill.

    python -m benchmarks.changed_rows [--rows 5000000] [--rounds 5] [--feed files feed] [--json FILE]

The table has a hundred files. A commit rewrites one of them to change a hundred of its rows, as UPDATE and MERGE do.
The epoch that corrects their windows is compared with an epoch that appends as many rows as the file has, with an epoch
of 1,000 rows, and with a backfill of the whole table: once by the files, and once by the table's change feed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.bench import Bench, bench_of
from benchmarks.figures import Figure, Wanted, tell
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.engine.spark.engine import SparkEngine
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.ledger.manifest import Interval
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.drive import drive
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing.time import to_millis

FILES, CHANGED, SMALL = 100, 100, 1_000
BEGIN = datetime(2024, 3, 1, tzinfo=UTC)
SPAN = timedelta(days=1)
MOST_TIMES_AN_APPEND, MOST_TIMES_A_SMALL_EPOCH = 3.0, 1.5


@dataclass
class ChangingTable:
    """A table of numbered rows in time order, a file for each commit.

    Args:
        path: folder of the table.
        rows: number of its rows in the beginning.
        keys: number of keys.
        has_feed: True if it has a change feed.
    """

    path: str
    rows: int
    keys: int
    has_feed: bool = False
    appended: int = 0
    draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    @property
    def per_file(self) -> int:
        """Number of rows of a file."""
        return self.rows // FILES

    def append(self, count: int) -> None:
        """Append rows in one commit of one file; their times follow those of the rows before."""
        step = SPAN / timedelta(microseconds=1) / self.rows
        numbers = np.arange(self.appended, self.appended + count)
        times = (to_millis(BEGIN) * 1_000 + numbers * step).astype(np.int64)
        columns = {
            "number": pa.array(numbers),
            "at": pa.array(times, pa.timestamp("us", tz="UTC")),
            "key": pa.array(self.draw.integers(0, self.keys, count)),
            "value": pa.array(self.draw.integers(0, 1_000, count)),
        }
        feed = {"delta.enableChangeDataFeed": str(self.has_feed).lower()}
        write_deltalake(self.path, pa.table(columns), mode="append", configuration=None if self.appended else feed)
        self.appended += count

    def fill(self) -> None:
        """Append the first rows, in a hundred commits."""
        for _ in range(FILES):
            self.append(self.per_file)

    def change(self, file: int) -> None:
        """Change some rows of a file, by writing the file anew."""
        first = file * self.per_file
        DeltaTable(self.path).update(
            {"value": "value + 1"}, predicate=f"number >= {first} and number < {first + CHANGED}"
        )


def measure(bench: Bench, kind: str, rows: int, rounds: int, has_feed: bool = False) -> Iterator[Figure]:
    """Measure windows of a kind, over a table with a change feed or without."""
    with bench.project() as config:
        table = ChangingTable(str(config.root / "changing"), rows, max(1, rows // 50), has_feed)
        table.fill()
        source = DeltaSource(table.path, timestamp="at", changes="correct")
        pipeline: Pipeline = replace(bench.pipeline(kind), source=source)
        with drive(config, pipeline, "bench", SparkEngine(bench.spark)) as driver:
            stream = Stream(driver, lambda manifest: None)
            stream.run_available()
            seconds: dict[str, list[float]] = {"append": [], "small": [], "change": []}
            for number in range(rounds + 1):
                table.append(table.per_file)
                seconds["append"].append(_seconds(stream))
                table.append(SMALL)
                seconds["small"].append(_seconds(stream))
                table.change(FILES // 2 + number)
                seconds["change"].append(_seconds(stream))
        # The first round warms up.
        append, small, change = (median(of_kind[1:]) for of_kind in seconds.values())
        with drive(config, replace(pipeline, name="whole"), "bench", SparkEngine(bench.spark)) as driver:
            whole = _backfill_seconds(driver)
    what = f"{CHANGED} of {rows:,} rows change, {kind}, {'change feed' if has_feed else 'files'}"
    detail = f"change {change:.2f} s, append of {table.per_file:,} rows {append:.2f} s"
    wanted = Wanted("at most", MOST_TIMES_AN_APPEND)
    yield Figure(
        what, change / append, "x", None if has_feed else wanted, detail, peer="an append of the rewritten rows"
    )
    detail = f"change {change:.2f} s, append of {SMALL:,} rows {small:.2f} s"
    wanted = Wanted("at most", MOST_TIMES_A_SMALL_EPOCH)
    yield Figure(what, change / small, "x", wanted if has_feed else None, detail, peer=f"an append of {SMALL:,} rows")
    detail = f"change {change:.2f} s, backfill {whole:.2f} s"
    yield Figure(what, change / whole, "x", detail=detail, peer="a full backfill")


def _seconds(stream: Stream) -> float:
    """Return the seconds in which a stream reads what is new; a correction has a further epoch for the watermark."""
    began = perf_counter()
    stream.run_available()
    return perf_counter() - began


def _backfill_seconds(driver: Driver) -> float:
    began = perf_counter()
    list(backfill(driver, [Interval(start=to_millis(BEGIN), end=to_millis(BEGIN + SPAN))]))
    return perf_counter() - began


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kind", nargs="+", default=["tumbling", "session"])
    parser.add_argument("--feed", nargs="+", choices=["files", "feed"], default=["files", "feed"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with bench_of() as bench:
        tell(
            (
                figure
                for kind in options.kind
                for way in options.feed
                for figure in measure(bench, kind, options.rows, options.rounds, way == "feed")
            ),
            options.json,
        )


if __name__ == "__main__":
    main()
