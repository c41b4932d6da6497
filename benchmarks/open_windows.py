"""Measure small epochs over many open sessions: the operator alone in one process, then whole epochs over their tables.

    python -m benchmarks.open_windows [--windows 1000000] [--tables 10000 1000000 10000000] [--json FILE]

For the operator alone, the cost is mostly that of windows which an epoch does not touch: they are read, joined and
written again. Whole epochs have state of version 2, on the local engine, and their processor time is compared.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.events import START, names, one_each
from benchmarks.figures import Figure, Wanted, tell
from benchmarks.kernels import AGGREGATES, GAP, elements, operator_of, seconds
from benchmarks.machine import processor_time
from tidegate import Project
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.run.drive import drive
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import Count, EventTimeSessionWindows, Sum, WatermarkStrategy, Windows
from tidegate.windowing.epochs import Timeline

EPOCHS = (1_000, 10_000, 100_000)
ARRIVE = 1_000
"""Events of a whole epoch."""

PIPELINE = Pipeline(
    name="sessions",
    source=DeltaSource("events", timestamp="at"),
    key=("key",),
    watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(minutes=1)),
    compute=Windows(
        EventTimeSessionWindows.with_gap(timedelta(days=1)), aggregate={"events": Count(), "total": Sum("value")}
    ),
)


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


def whole_epochs(sizes: Sequence[int], rounds: int) -> Iterator[Figure]:
    """Measure the processor time of whole epochs over tables with each number of open windows."""
    least = 0.0
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            took = epochs_over(Path(folder), size, rounds)
        typical, worst = median(took), max(took)
        what, detail = f"whole epoch of {ARRIVE:,} events, open windows", f"the longest of {rounds} {worst:.2f} s"
        yield Figure(what, typical, "s", detail=detail, size=size)
        if least:
            yield Figure(f"{what}, vs. {sizes[0]:,}", typical / least, "x", Wanted("at most", 1.5), size=size)
        else:
            least = typical


def epochs_over(folder: Path, size: int, rounds: int) -> list[float]:
    """Return the processor seconds of epochs over a number of open windows, after those that make base and delta."""
    project = Project(warehouse=folder / "warehouse", work=folder / "work", pipelines=[PIPELINE], engine="local")
    rng, took = np.random.default_rng(7), list[float]()

    def arrive(numbers: np.ndarray, second: int) -> None:
        moments = np.full(len(numbers), (START + second * 1_000) * 1_000)
        columns = {
            "key": names(numbers),
            "at": pa.array(moments).cast(pa.timestamp("us", tz="UTC")),
            "value": pa.array(numbers % 100),
        }
        write_deltalake(str(folder / "warehouse" / "events"), pa.table(columns), mode="append")

    engine = LocalEngine()
    try:
        for number in range(rounds + 3):
            arrive(np.arange(size) if not number else rng.integers(0, size, ARRIVE), number)
            began = processor_time()
            with drive(project.config, PIPELINE, "stream", engine) as driver:
                Stream(driver, lambda manifest: None).run_available()
                took.append(processor_time() - began)
    finally:
        engine.close()
    return took[3:]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=1_000_000)
    parser.add_argument("--tables", type=int, nargs="*", default=[], help="open windows of whole epochs, ascending")
    parser.add_argument("--rounds", type=int, default=9, help="whole epochs for each number of open windows")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.windows:
        tell(measure(options.windows), options.json)
    if options.tables:
        tell(whole_epochs(options.tables, options.rounds), options.json)


if __name__ == "__main__":
    main()
