"""In one process and without Spark: small epochs over a shard that holds many open sessions.

What it costs to read, join and write again the windows that an epoch does not touch. Run:
`python -m benchmarks.open_windows [OPEN_WINDOWS]`.
"""

from __future__ import annotations

import sys

from benchmarks.events import START, one_each
from benchmarks.kernels import AGGREGATES, GAP, elements, operator_of, seconds
from windowing import EventTimeSessionWindows, Windows
from windowing.columnar import Timeline


def main(open_windows: int = 1_000_000) -> None:
    """Print seconds and, of each size of epoch, the cost of a thousand open windows."""
    windows = Windows(EventTimeSessionWindows.with_gap(GAP), aggregate=AGGREGATES)
    operator, schema = operator_of(windows)
    quiet = Timeline.of_commits(START - GAP, [(START - GAP, True)])
    state = operator.run(elements(one_each(open_windows, open_windows, START)), schema.to_table([], 128), quiet).state
    print(f"{len(state):,} open windows")
    for count in (1_000, 10_000, 100_000):
        some = elements(one_each(min(count, open_windows), open_windows, START + 5_000))
        took = seconds(lambda: operator.run(some, state, quiet))  # noqa: B023
        print(f"epoch of {count:>8,} events {took:>8.2f} s {took / open_windows * 1e6:>8.2f} us a window")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
