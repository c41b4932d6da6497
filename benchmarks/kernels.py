"""In one process and without Spark: the columnar operator beside the NumPy floor and the row operator.

The floor is the least that session windows can cost on arrays: sort, cut where a gap is, reduce. It
knows no lateness, state, panes or state rows. Run: `python -m benchmarks.kernels [EVENTS]`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.events import EventSet
from windowing import Count, EventTimeSessionWindows, Sum, TumblingEventTimeWindows, Windows
from windowing.aggregates import AggregateColumns
from windowing.columnar import ColumnarOperator, Elements, Timeline
from windowing.keys import KeySchema
from windowing.operators.window.snapshot import state_schema
from windowing.panes import PanePolicy
from windowing.testing.epochs import row_epoch

GAP = 600_000
INPUT = pa.schema([("value", pa.int64())])
KEY = KeySchema.of(key=pa.string())
PANES = PanePolicy(withdraw_merged=True, coalesce_late=True)
AGGREGATES = AggregateColumns.of({"events": Count(), "total": Sum("value")}, INPUT)


def floor(table: pa.Table) -> int:
    """Sessions by sort, flags and reduceat; how many there are."""
    encoded = table["key"].combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    ts, value = table["ts"].to_numpy(), table["value"].to_numpy()
    order = np.lexsort((ts, codes))
    codes, ts, value = codes[order], ts[order], value[order]
    first = np.ones(len(ts), np.bool_)
    first[1:] = (codes[1:] != codes[:-1]) | (ts[1:] > ts[:-1] + GAP)
    starts = np.flatnonzero(first)
    total = np.add.reduceat(value, starts)
    assert len(encoded.dictionary.take(pa.array(codes[starts]))) == len(total)
    return len(starts)


def elements(table: pa.Table) -> Elements:
    """The events as the operators take them, in one commit."""
    return Elements(
        {"key": table["key"].combine_chunks()},
        table["ts"].to_numpy(),
        np.zeros(len(table), np.int64),
        {"value": table["value"].combine_chunks()},
    )


def operator_of(windows: Windows) -> tuple[ColumnarOperator, Any]:
    """The columnar operator for windows, and its state columns."""
    schema = state_schema(windows, KEY, None, PANES)
    return ColumnarOperator(windows, schema, PANES, 128), schema


def seconds(act: Callable[[], Any], times: int = 3) -> float:
    """The fastest of a few runs."""
    runs = []
    for _ in range(times):
        began = perf_counter()
        act()
        runs.append(perf_counter() - began)
    return min(runs)


def main(events: int = 2_500_000, by_row: int = 100_000) -> None:
    """Print seconds and ratios of one run."""
    table = EventSet(events).arrays()
    final = int(np.max(table["ts"].to_numpy())) - 60_000
    timeline = Timeline.of_commits(-(2**63), [(final, True)])
    least = seconds(lambda: floor(table))
    print(f"{'':28}{'events':>12}{'seconds':>10}{'per million':>13}{'x floor':>9}{'x row':>8}")
    print(f"{'NumPy floor, sessions':28}{events:>12,}{least:>10.2f}{least / events * 1e6:>13.3f}{1.0:>9.2f}")
    for name, assigner in (
        ("sessions", EventTimeSessionWindows.with_gap(GAP)),
        ("tumbling 10 min", TumblingEventTimeWindows.of(GAP)),
        ("tumbling 1 day", TumblingEventTimeWindows.of(86_400_000)),
    ):
        windows = Windows(assigner, aggregate=AGGREGATES)
        operator, schema = operator_of(windows)
        empty = schema.to_table([], 128)
        took = seconds(lambda: operator.run(elements(table), empty, timeline))  # noqa: B023
        some = table.slice(0, by_row)
        rows = seconds(
            lambda: row_epoch(windows, schema, PANES, 128, elements(some), empty, timeline),  # noqa: B023
            times=1,
        )
        each, row = took / events, rows / by_row
        print(
            f"{'columnar, ' + name:28}{events:>12,}{took:>10.2f}{each * 1e6:>13.3f}"
            f"{each / (least / events):>9.2f}{row / each:>8.1f}"
        )
        print(f"{'row operator, ' + name:28}{by_row:>12,}{rows:>10.2f}{row * 1e6:>13.3f}{row / (least / events):>9.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
