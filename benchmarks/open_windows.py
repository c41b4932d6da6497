"""Measure small epochs over a shard with many open sessions, in one process and without Spark.

    python -m benchmarks.open_windows [--windows 1000000] [--json FILE]

The cost is mostly that of windows which an epoch does not touch: they are read, joined and written again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.events import START, one_each
from benchmarks.figures import Figure, tell
from benchmarks.kernels import AGGREGATES, GAP, elements, operator_of, seconds
from tidegate.windowing import EventTimeSessionWindows, Windows
from tidegate.windowing.epochs import Timeline

EPOCHS = (1_000, 10_000, 100_000)


def measure(open_windows: int) -> Iterator[Figure]:
    """Measure the seconds of each size of epoch, and the time for each open window."""
    windows = Windows(EventTimeSessionWindows.with_gap(GAP), aggregate=AGGREGATES)
    operator, schema = operator_of(windows)
    idle = Timeline.of_commits(START - GAP, [(START - GAP, True)])
    opening = elements(one_each(open_windows, open_windows, START))
    state = operator.run(opening, schema.to_table([], 128), idle).state
    for count in EPOCHS:
        arrived = elements(one_each(min(count, open_windows), open_windows, START + 5_000))
        took = seconds(lambda: operator.run(arrived, state, idle))  # noqa: B023
        detail = f"{took / open_windows * 1e6:.2f} us an open window"
        yield Figure(f"epoch of {count:,} events, {len(state):,} open windows, one process", took, "s", detail=detail)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tell(measure(options.windows), options.json)


if __name__ == "__main__":
    main()
