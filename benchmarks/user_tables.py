"""Compare with Spark's own windows over tables as users have them: the same events, in other layouts and through SQL.

    python -m benchmarks.user_tables [--events 5000000] [--rounds 3] [--table plain ...] [--windows many|few ...]
                                     [--only batch|stream] [--kind session|tumbling] [--json FILE]

Each table has the same events in the same commits: plain, partitioned, with deletion vectors for one row of a hundred,
with mapped and renamed columns, and plain with a `where` and a derived column. Two sets of events show what decides
the ratio: `many` windows, as in `against_spark`, and `few`, where most events lie in the windows of few keys, so that
both sides mostly read. Each figure is a ratio to Spark over the same table; each table but the plain one is also held
against the plain one.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.against_spark import Peer
from benchmarks.bench import ASSIGNERS, Bench, Run, bench_of, typical_run
from benchmarks.events import EventSet
from benchmarks.figures import Figure, Wanted, ratio, tell

TABLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "partitioned": {"layout": "partitioned"},
    "deletion vectors": {"layout": "deleted"},
    "mapped columns": {"layout": "mapped"},
    "where and a derived column": {"where": "value > 0", "columns": {"amount": "value * 2"}, "summed": "amount"},
}
"""Fields of the bench of each kind of table."""
EVENTS = {"many": EventSet(0), "few": EventSet(0, is_steep=True)}
"""Sets of events, by the number of their windows."""
WANTED = {
    ("batch", "session"): 5.0,
    ("batch", "tumbling"): 1.5,
    ("stream", "session"): 3.0,
    ("stream", "tumbling"): 2.0,
}
"""Wanted ratios to Spark, for every kind of table and both sets of events."""
BESIDE_PLAIN = Wanted("at most", 1.25)
MODES = ("batch", "stream")


def measure(
    benches: dict[str, Bench], modes: Sequence[str], kinds: Sequence[str], rounds: int, title: str, wanted: bool
) -> Iterator[Figure]:
    """Measure all tables in turns, and yield their ratios to Spark and to the first of them.

    Args:
        benches: a bench for each table.
        modes: `batch`, `stream` or both.
        kinds: kinds of windows.
        rounds: number of turns, whose medians count.
        title: text for the set of events.
        wanted: True for figures with the wanted bounds.
    """
    for mode in modes:
        for kind in kinds:
            what = f"{mode}, {kind} windows, {title}"
            ours: dict[str, list[Run]] = defaultdict(list)
            theirs: dict[str, list[float]] = defaultdict(list)
            # The first turn of a batch warms both sides up; a stream leaves its own first epoch out.
            for turn in range(-1 if mode == "batch" else 0, rounds):
                for table, bench in benches.items():
                    run, seconds = getattr(bench, mode)(kind), getattr(Peer(bench), mode)(kind)
                    if turn >= 0:
                        ours[table].append(run)
                        theirs[table].append(seconds)
            typical = {table: typical_run(runs) for table, runs in ours.items()}
            first = next(iter(typical))
            for table, run in typical.items():
                bound = WANTED[mode, kind] if wanted else None
                seconds = median(theirs[table])
                yield ratio(f"{what}: {table}", run.seconds, seconds, "Spark", bound, f"ours: {run}")
                if table != first:
                    beside = f"{run.seconds:.2f} s, {first} {typical[first].seconds:.2f} s"
                    times = run.seconds / typical[first].seconds
                    yield Figure(f"{what}: {table} vs. {first}", times, "x", BESIDE_PLAIN if wanted else None, beside)


def main() -> None:
    """Print ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--per-commit", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", nargs="+", choices=tuple(TABLES), default=tuple(TABLES))
    parser.add_argument("--windows", nargs="+", choices=tuple(EVENTS), default=tuple(EVENTS))
    parser.add_argument("--only", choices=MODES)
    parser.add_argument("--kind", choices=tuple(ASSIGNERS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    modes = (options.only,) if options.only else MODES
    kinds = (options.kind,) if options.kind else tuple(ASSIGNERS)
    with bench_of(options.per_commit) as bench:
        for windows in options.windows:
            benches = {}
            for table in options.table:
                benches[table] = replace(bench, name=f"{windows}-{table}".replace(" ", "-"), **TABLES[table])
                benches[table].write(replace(EVENTS[windows], events=options.events))
            wanted = options.events == parser.get_default("events")
            figures = measure(benches, modes, kinds, options.rounds, f"{windows} windows", wanted)
            tell(figures, options.json)


if __name__ == "__main__":
    main()
