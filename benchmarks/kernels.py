"""Compare the columnar operator with the NumPy floor and the row operator, in one process and without Spark.

    python -m benchmarks.kernels [--events 2500000] [--by-row 100000] [--json FILE]

The floor is the smallest cost of session windows on arrays: sort, cut at the gaps, reduce. It has no lateness, state,
panes or state rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.events import EventSet
from benchmarks.figures import Figure, tell
from tidegate.windowing import Count, EventTimeSessionWindows, Sum, TumblingEventTimeWindows, Windows
from tidegate.windowing.aggregates import AggregateColumns
from tidegate.windowing.columnar import ColumnarOperator
from tidegate.windowing.epochs import Elements, Timeline
from tidegate.windowing.epochs.row_operator import RowOperator
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.window.snapshot import state_schema
from tidegate.windowing.panes import PanePolicy

GAP = 600_000
INPUT = pa.schema([("value", pa.int64())])
KEY = KeySchema.of(key=pa.string())
PANES = PanePolicy(retract_merged=True, coalesce_late=True)
AGGREGATES = AggregateColumns.of({"events": Count(), "total": Sum("value")}, INPUT)
ASSIGNERS = {
    "sessions": EventTimeSessionWindows.with_gap(GAP),
    "windows of 10 minutes": TumblingEventTimeWindows.of(GAP),
    "windows of a day": TumblingEventTimeWindows.of(86_400_000),
}


def floor(table: pa.Table) -> int:
    """Compute sessions by sort, flags and reduceat, and return their number."""
    encoded = table["key"].combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    ts, value = table["ts"].to_numpy(), table["value"].to_numpy()
    # Key and time are packed into one number, so one sort is enough.
    order = np.argsort(codes * (np.ptp(ts) + 1) + (ts - ts.min()))
    codes, ts, value = codes[order], ts[order], value[order]
    first = np.ones(len(ts), np.bool_)
    first[1:] = (codes[1:] != codes[:-1]) | (ts[1:] > ts[:-1] + GAP)
    starts = np.flatnonzero(first)
    total = np.add.reduceat(value, starts)
    assert len(encoded.dictionary.take(pa.array(codes[starts]))) == len(total)
    return len(starts)


def elements(table: pa.Table) -> Elements:
    """Return the events as elements of one commit."""
    return Elements(
        timestamps=table["ts"].to_numpy(),
        commits=np.zeros(len(table), np.int64),
        keys={"key": table["key"].combine_chunks()},
        columns={"value": table["value"].combine_chunks()},
    )


def operator_of(windows: Windows) -> tuple[ColumnarOperator, Any]:
    """Return the columnar operator for windows, and its state columns."""
    schema = state_schema(windows, KEY, None, PANES)
    return ColumnarOperator(windows, schema, PANES, 128), schema


def seconds(act: Callable[[], Any], times: int = 3) -> float:
    """Return the seconds of the fastest run."""
    runs = []
    for _ in range(times):
        began = perf_counter()
        act()
        runs.append(perf_counter() - began)
    return min(runs)


def measure(events: int, by_row: int) -> Iterator[Figure]:
    """Measure microseconds for an event: of the floor, and of the columnar operator compared with both others."""
    table = EventSet(events).arrays()
    final = int(np.max(table["ts"].to_numpy())) - 60_000
    timeline = Timeline.of_commits(-(2**63), [(final, True)])
    least = seconds(lambda: floor(table)) / events
    yield Figure("NumPy floor, sessions, an event", least * 1e6, "us")
    part = table.slice(0, by_row)
    for name, assigner in ASSIGNERS.items():
        windows = Windows(assigner, aggregate=AGGREGATES)
        operator, schema = operator_of(windows)
        empty = schema.to_table([], 128)
        arrays = seconds(lambda: operator.run(elements(table), empty, timeline)) / events  # noqa: B023
        rows = seconds(
            lambda: RowOperator(windows, schema, PANES, 128).run(elements(part), empty, timeline),  # noqa: B023
            times=1,
        )
        detail = (
            f"{arrays / least:.2f} times the floor; the row operator takes {rows / by_row / arrays:.0f} times as long"
        )
        yield Figure(f"columnar, {name}, an event", arrays * 1e6, "us", detail=detail)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2_500_000)
    parser.add_argument("--by-row", type=int, default=100_000, help="events for the row operator")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tell(measure(options.events, options.by_row), options.json)


if __name__ == "__main__":
    main()
