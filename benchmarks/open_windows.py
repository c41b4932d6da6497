"""Measure small epochs over many open sessions, in one process and without Spark: the operator, and whole epochs.

    python -m benchmarks.open_windows [--windows 1000000] [--json FILE]

The cost is mostly that of windows which an epoch does not touch: they are read, joined and written again. With deltas
(version 2 of the state) they are not. Whole epochs are measured by processor time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import pyarrow as pa

from benchmarks.events import START, one_each
from benchmarks.figures import Figure, tell
from benchmarks.kernels import AGGREGATES, GAP, elements, operator_of, seconds
from tests.lake import EVENTS, LOCAL, Lake, session_pipeline
from tidegate import Project
from tidegate.pipelines.definition import state
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import EventTimeSessionWindows, Windows
from tidegate.windowing.epochs import Timeline

EPOCHS = (1_000, 10_000, 100_000)


def measure(open_windows: int) -> Iterator[Figure]:
    """Measure the seconds of each size of epoch, and the time for each open window."""
    windows = Windows(EventTimeSessionWindows.with_gap(GAP), aggregate=AGGREGATES)
    operator, schema = operator_of(windows)
    idle = Timeline.of_commits(START - GAP, [(START - GAP, True)])
    opening = elements(one_each(open_windows, open_windows, START))
    rows = operator.run(opening, schema.to_table([], 128), idle).state
    for count in EPOCHS:
        arrived = elements(one_each(min(count, open_windows), open_windows, START + 5_000))
        took = seconds(lambda: operator.run(arrived, rows, idle))  # noqa: B023
        detail = f"{took / open_windows * 1e6:.2f} us an open window"
        yield Figure(f"epoch of {count:,} events, {len(rows):,} open windows, one process", took, "s", detail=detail)


def measure_epochs(open_windows: int, version: int) -> Figure:
    """Measure whole epochs of 1,000 events on the local engine, with state of a version: the fastest of three."""
    pipeline = session_pipeline(timedelta(milliseconds=GAP), parallelism=4)
    taken = []
    with TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        project = Project(warehouse=lake.folder / "warehouse", work=lake.folder, pipelines=[pipeline], engine="local")
        # The first epoch after the upgrade makes bases of which the later ones read a part.
        for number in range(5):
            rows = one_each(min(1_000, open_windows) if number else open_windows, open_windows, START + number)
            times = rows["ts"].cast(pa.timestamp("ms", "UTC")).cast(EVENTS.field("at").type)
            lake.write(pa.table([rows["key"], times, rows["value"]], schema=EVENTS))
            with lake.driver(LOCAL, pipeline) as driver:
                began = process_time()
                Stream(driver, lambda manifest: None).run_available()
                taken.append(process_time() - began)
            if number == 0 and version == state.VERSION:
                project.state_upgrade(pipeline.name)
    what = f"whole epoch of 1,000 events, {open_windows:,} open windows, state of version {version}, processor time"
    return Figure(what, min(taken[2:]), "s")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    epochs = (measure_epochs(options.windows, version) for version in (1, state.VERSION))
    tell(chain(measure(options.windows), epochs), options.json)


if __name__ == "__main__":
    main()
