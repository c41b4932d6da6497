"""Measure what table `windows` adds to an epoch: the same commits, in turns, with the table and without it.

    python -m benchmarks.windows_table [--commits 8] [--sizes 1000 500000] [--json FILE]

Both sides run in this process, and their processor time is compared, so that other work of the machine hardly counts. A
figure is the median of the ratios of pairs of epochs over the same commit, in alternating order.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from statistics import median
from time import process_time

import pyarrow as pa

from benchmarks.bench import ASSIGNERS
from benchmarks.event_table import EventTable
from benchmarks.events import EventSet
from benchmarks.figures import Figure, Wanted, tell
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition.config import Config, WindowsTable
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.run.drive import drive
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import Count, Sum, WatermarkStrategy, Windows

APPENDED, RETRACTED = Wanted("at most", 1.1), None
"""Bounds for epochs that only add windows, and for epochs in which late rows replace windows."""

_WARM = 2
"""First commits, whose epochs create tables and are not counted."""


def pipeline(kind: str, events: str, lateness: timedelta) -> Pipeline:
    """Return a pipeline over the events."""
    return Pipeline(
        name=kind,
        source=DeltaSource(events, timestamp="at"),
        key=("key",),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(0) if lateness else timedelta(minutes=1)),
        compute=Windows(
            ASSIGNERS[kind], aggregate={"events": Count(), "total": Sum("value")}, allowed_lateness=lateness
        ),
    )


def pairs(engine: Engine, kind: str, size: int, commits: int, lateness: timedelta) -> Iterator[tuple[float, float]]:
    """Yield the processor seconds of an epoch with the table, and of one without, for each commit of `size` events."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        events = EventTable(Path(folder) / "events")
        value = pipeline(kind, str(events.path), lateness)
        streams = []
        for name in ("with", "without"):
            config = Config(warehouse=name, root=Path(folder) / name)
            driver = stack.enter_context(drive(config, value, "benchmark", engine=engine))
            driver.windows = WindowsTable(enabled=name == "with")
            streams.append(Stream(driver, lambda manifest: None))
        for number, piece in enumerate(EventSet(size * commits).pieces(size)):
            moments = piece["ts"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
            events.append(piece.set_column(piece.schema.get_field_index("ts"), "at", moments))
            seconds = [0.0, 0.0]
            for side in (0, 1) if number % 2 else (1, 0):
                began = process_time()
                streams[side].run_available()
                seconds[side] = process_time() - began
            if number >= _WARM:
                yield seconds[0], seconds[1]


def measure(sizes: list[int], commits: int) -> Iterator[Figure]:
    """Measure epochs that only add windows, and epochs with late rows within the allowed lateness."""
    # With one core no process is started: the time of this one is all there is.
    engine = LocalEngine(cores=1)
    engine.start()
    try:
        for lateness, wanted in ((timedelta(0), APPENDED), (timedelta(hours=1), RETRACTED)):
            for kind in ASSIGNERS:
                for size in sizes:
                    taken = list(pairs(engine, kind, size, commits, lateness))
                    ratios = sorted(ours / theirs for ours, theirs in taken)
                    sides = [median(side) for side in zip(*taken, strict=True)]
                    yield Figure(
                        f"epoch with table windows, {kind}{', late panes' if lateness else ''}",
                        median(ratios),
                        "x",
                        wanted,
                        f"with {sides[0]:.3f} s, without {sides[1]:.3f} s; ratios {ratios[0]:.2f} to {ratios[-1]:.2f}",
                        size,
                        "an epoch without it",
                    )
    finally:
        engine.close()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=12)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 500_000])
    parser.add_argument("--json", type=Path, help="file for the figures, one a line")
    options = parser.parse_args()
    tell(measure(options.sizes, options.commits), options.json)


if __name__ == "__main__":
    main()
