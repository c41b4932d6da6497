"""Run Nexmark's queries on several systems, compare every answer with the truth, then show times.

    python -m benchmarks.nexmark --events N [--seed 1] [--sides tidegate,duckdb,...] [--queries q5,hop,...]
                                 [--per-commit 500000] [--commits-in-an-epoch 1] [--rounds 1] [--deadline 600]
                                 [--json FILE]

DuckDB computes the truth from all events at once. The final content of each side is compared with it row for row, and
only a side that is equal gets a time; any other gets the reason. Ends with 1 if an answer of Tidegate differs.
docs/benchmarks/nexmark.md says what is compared, and what is fair about it or not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import psutil
import pyarrow as pa

from benchmarks.bench import bench_of
from benchmarks.figures import Figure, ratio, tell
from benchmarks.memory import PeakMemory
from benchmarks.nexmark.events import BASE, Events
from benchmarks.nexmark.ours import Ours
from benchmarks.nexmark.peers import Missing, Peer, clink, flink, pathway
from benchmarks.nexmark.spark import answer_of_spark
from benchmarks.nexmark.truth import QUERIES, Truth
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.engine.spark.engine import SparkEngine
from tidegate.pipelines.run.limits import EpochLimits

SIDES = ("tidegate", "tidegate_spark", "duckdb", "flink", "pyclink", "pathway", "spark")
OURS = ("tidegate", "tidegate_spark")
WANTED = 1.0
"""Wanted ratio to Flink SQL, query by query."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What one side has for one query.

    Args:
        seconds: seconds of the run; None if there is none to show.
        words: the figures behind it, or the reason why there is no time.
        differs: True if the answer is another one than the truth.
    """

    seconds: float | None
    words: str
    differs: bool = False

    def __str__(self) -> str:
        return self.words if self.seconds is None else f"{self.seconds:.2f} s, {self.words}"


Measure = Callable[[str, pa.Table], Cell]
"""Function from a query and its true answer to the cell of a side."""


class Bench:
    """The events, the truth, and the sides.

    Args:
        events: the events.
        rounds: timed runs of Tidegate and Spark, after a first one that is only compared.
        deadline: seconds for all queries of another system.
        limits: the limits of Tidegate's epochs.
    """

    def __init__(self, events: Events, rounds: int, deadline: float, limits: EpochLimits) -> None:
        self._events = events
        self._limits = limits
        self._rounds = rounds
        self._deadline = deadline
        self._truth = Truth(events.tables, BASE)

    @contextmanager
    def sides(self, names: Sequence[str], queries: Sequence[str]) -> Iterator[dict[str, Measure]]:
        """Start the sides, and stop them afterwards."""
        with ExitStack() as stack:
            stack.callback(self._truth.close)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            measures: dict[str, Measure] = {"duckdb": self._duckdb}
            for name, run in (("flink", flink), ("pyclink", clink), ("pathway", pathway)):
                if name in names:
                    measures[name] = self._peer(run(self._events.tables, folder / name, queries, self._deadline))
            spark = None
            if {"spark", "tidegate_spark"} & set(names):
                spark = stack.enter_context(bench_of()).spark
            local = LocalEngine()
            local.start()
            stack.callback(local.close)
            ours = Ours(folder / "lake", local, self._limits)
            ours.write(self._events)
            measures["tidegate"] = self._of(ours.answer, local)
            if spark is not None:
                engine = SparkEngine(spark)
                measures["tidegate_spark"] = self._of(Ours(folder / "lake", engine, self._limits).answer, engine)
                measures["spark"] = self._of(lambda query: answer_of_spark(spark, folder / "lake", query), None)
            yield {name: measures[name] for name in names}

    def answer(self, query: str) -> pa.Table:
        """Return the true answer."""
        return self._truth.answer(query)

    def _duckdb(self, query: str, expected: pa.Table) -> Cell:
        began = perf_counter()
        self._truth.answer(query)
        return self._cell(perf_counter() - began, "a batch over tables in memory")

    def _peer(self, peer: Peer) -> Measure:
        def measure(query: str, expected: pa.Table) -> Cell:
            try:
                came = peer.answer(query, expected.schema)
            except Missing as missing:
                return Cell(None, str(missing))
            if difference := self._truth.difference(expected, came):
                return Cell(None, f"it {difference}", differs=True)
            seconds, scan = peer.seconds(query)
            return self._cell(seconds, f"its scan alone {scan:.2f} s")

        return measure

    def _of(self, answer: Callable[[str], tuple[pa.Table, float]], engine: Engine | None) -> Measure:
        def measure(query: str, expected: pa.Table) -> Cell:
            try:
                came, _ = answer(query)
            except Missing as missing:
                return Cell(None, str(missing))
            if difference := self._truth.difference(expected, came):
                return Cell(None, f"it {difference}", differs=True)
            before = _core_seconds()
            with PeakMemory() as memory:
                seconds = median(answer(query)[1] for _ in range(self._rounds))
            cores = (_core_seconds() - before) / self._rounds
            return self._cell(seconds, f"{self._events.events / cores:,.0f} a core-second, {memory}")

        return measure

    def _cell(self, seconds: float, words: str) -> Cell:
        return Cell(seconds, f"{self._events.events / seconds:,.0f} events/s, {words}")


def _core_seconds() -> float:
    """Return the processor time of this process and of its children, including those that have ended."""
    own = psutil.Process().cpu_times()
    total = own.children_user + own.children_system
    for member in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = member.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def figures_of(query: str, cells: dict[str, Cell]) -> Iterator[Figure]:
    """Yield the figures of a query: the seconds of each side that has them, and the ratio to Flink."""
    others = {name: cell for name, cell in cells.items() if cell.seconds is None}
    reasons = "; ".join(f"{name}: {cell.words}" for name, cell in others.items())
    for name, cell in cells.items():
        if cell.seconds is not None:
            words = f"{cell.words}; {reasons}" if name in OURS and reasons else cell.words
            yield Figure(f"{query}, {name}", cell.seconds, "s", detail=words)
    ours, theirs = cells.get("tidegate"), cells.get("flink")
    if ours and theirs and ours.seconds and theirs.seconds:
        yield ratio(query, ours.seconds, theirs.seconds, "Flink SQL", WANTED)


def main() -> int:
    """Print a cell for each query and side; return 1 if an answer of Tidegate is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sides", default="tidegate,duckdb", help=f"some of {','.join(SIDES)}")
    parser.add_argument("--queries", default=",".join(QUERIES), help=f"some of {','.join(QUERIES)}")
    parser.add_argument("--per-commit", type=int, default=500_000, help="events in a commit of the sources")
    parser.add_argument(
        "--commits-in-an-epoch", type=int, default=1, help="commits that an epoch of Tidegate reads at most"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=600, help="seconds that another system has for all queries")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sides, queries = options.sides.split(","), options.queries.split(",")
    for given, known in ((sides, SIDES), (queries, tuple(QUERIES))):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"{unknown[0]!r} is none of {', '.join(known)}")
    events = Events(options.events, options.seed, options.per_commit)
    print(f"{events.events:,} events in {events.commits} commits, seed {events.seed}", flush=True)
    bench, wrong = Bench(events, options.rounds, options.deadline, EpochLimits(commits=options.commits_in_an_epoch)), []
    with bench.sides(sides, queries) as measures:
        for query in queries:
            expected = bench.answer(query)
            cells = {}
            for name, measure in measures.items():
                cells[name] = measure(query, expected)
                if options.json is None:
                    print(f"{query:9} {name:15} {cells[name]}", flush=True)
            wrong += [f"{query} on {name}" for name in OURS if name in cells and cells[name].differs]
            if options.json is not None:
                tell(figures_of(query, cells), options.json)
    if wrong:
        print(f"wrong answers: {', '.join(wrong)}", file=sys.stderr)
    return int(bool(wrong))
