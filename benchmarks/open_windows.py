"""In one process and without Spark: small epochs over a shard that holds many open sessions.

What it costs to read, join and write again the windows that an epoch does not touch. Run:
`python -m benchmarks.open_windows [OPEN_WINDOWS]`.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa

from benchmarks.events import START
from benchmarks.kernels import AGGREGATES, GAP, elements, operator_of, seconds
from windowing import EventTimeSessionWindows, Windows
from windowing.columnar import Timeline


def events(count: int, keys: int, start: int) -> pa.Table:
    """One event for each of the first `count` of `keys` keys, spread over them."""
    numbers = np.arange(count) * (keys // count)
    return pa.table(
        {
            "key": pa.array([f"user-{number}" for number in numbers]),
            "ts": pa.array(start + np.arange(count) % 1000),
            "value": pa.array(np.ones(count, np.int64)),
        }
    )


def main(open_windows: int = 1_000_000) -> None:
    """Print seconds and, of each size of epoch, the cost of a thousand open windows."""
    windows = Windows(EventTimeSessionWindows.with_gap(GAP), aggregate=AGGREGATES)
    operator, schema = operator_of(windows)
    quiet = Timeline.of_commits(START - GAP, [(START - GAP, True)])
    state = operator.run(elements(events(open_windows, open_windows, START)), schema.to_table([], 128), quiet).state
    print(f"{len(state):,} open windows")
    for count in (1_000, 10_000, 100_000):
        some = elements(events(min(count, open_windows), open_windows, START + 5_000))
        took = seconds(lambda: operator.run(some, state, quiet))  # noqa: B023
        print(f"epoch of {count:>8,} events {took:>8.2f} s {took / open_windows * 1e6:>8.2f} us a window")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
