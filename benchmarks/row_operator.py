"""Measure elements per second and bytes per open window of the row operator, compared with a bare dict loop.

    python -m benchmarks.row_operator [--elements 1000000] [--keys 100000] [--json FILE]

It runs in one process on one core, and counts processor seconds: elements spread over a day, one in ten out of order
by up to five minutes, windows or gaps of ten minutes, a watermark every thousand elements. The bare loop does the
minimum that Python can do with the same elements (one dict, one sum for a window, no firing), so the ratio is the
cost of exact windows over it on any machine.
"""

from __future__ import annotations

import argparse
import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import NamedTuple

from benchmarks.figures import Figure, tell
from tidegate.windowing import EventTimeSessionWindows, Sum, TumblingEventTimeWindows, Windows
from tidegate.windowing.operators.records import WindowResult
from tidegate.windowing.operators.window import WindowOperator
from tidegate.windowing.time import MAX_TIMESTAMP

DAY = 86_400_000
TEN_MINUTES = 600_000
FIVE_MINUTES = 300_000
WATERMARK_EVERY = 1_000
SUM = {"total": Sum("value")}

WORKLOADS = {
    "tumbling sum": Windows(TumblingEventTimeWindows(TEN_MINUTES), aggregate=SUM),
    "sessions": Windows(EventTimeSessionWindows(TEN_MINUTES), aggregate=SUM),
}


class Element(NamedTuple):
    """An event: its key, its value as a row, its time in epoch milliseconds."""

    key: int
    value: dict[str, int]
    timestamp: int


@dataclass(frozen=True, slots=True)
class Speed:
    """The seconds of a workload, and those of the bare loop on the same elements."""

    elements: int
    results: int
    seconds: float
    bare_seconds: float

    @property
    def per_second(self) -> float:
        """Return elements per second."""
        return self.elements / self.seconds

    @property
    def times_bare(self) -> float:
        """Return the ratio to the time of the bare loop."""
        return self.seconds / self.bare_seconds


def elements_of_a_day(count: int, keys: int, seed: int = 1) -> list[Element]:
    """Return events in order of arrival: one in ten comes up to five minutes after its time."""
    draw = random.Random(seed)
    step = DAY / count
    return [
        Element(
            draw.randrange(keys),
            {"value": i % 100},
            int(i * step) - (draw.randrange(FIVE_MINUTES) if draw.random() < 0.1 else 0),
        )
        for i in range(count)
    ]


def run(windows: Windows, elements: Sequence[Element]) -> int:
    """Run the elements through the operator, and return the number of results."""
    operator = WindowOperator(windows)
    results = 0
    for start in range(0, len(elements), WATERMARK_EVERY):
        batch = elements[start : start + WATERMARK_EVERY]
        process = operator.process_element
        for key, value, timestamp in batch:
            process(key, value, timestamp)
        operator.process_watermark(batch[-1].timestamp - FIVE_MINUTES - 1)
        results += sum(1 for record in operator.take_output() if isinstance(record, WindowResult))
    operator.process_watermark(MAX_TIMESTAMP)
    return results + sum(1 for record in operator.take_output() if isinstance(record, WindowResult))


def bare_loop(elements: Sequence[Element]) -> int:
    """Sum up each key and ten minutes in one dict, without time, firing or lateness; return the number of sums."""
    sums: dict[tuple[int, int], int] = {}
    for key, value, timestamp in elements:
        slot = (key, timestamp // TEN_MINUTES)
        sums[slot] = sums.get(slot, 0) + value["value"]
    return len(sums)


def measure_speed(windows: Windows, elements: Sequence[Element]) -> Speed:
    """Measure both loops, one after the other."""
    bare_seconds, _ = _timed(lambda: bare_loop(elements))
    seconds, results = _timed(lambda: run(windows, elements))
    return Speed(len(elements), results, seconds, bare_seconds)


def bytes_per_open_window(windows: Windows, open_windows: int) -> float:
    """Return the bytes that the operator holds for an open window, with one open window for each key."""
    elements = [Element(key, {"value": key}, key) for key in range(open_windows)]
    tracemalloc.start()
    try:
        operator = WindowOperator(windows)
        for key, value, timestamp in elements:
            operator.process_element(key, value, timestamp)
        return tracemalloc.get_traced_memory()[0] / open_windows
    finally:
        tracemalloc.stop()


def _timed(work: Callable[[], int]) -> tuple[float, int]:
    gc.collect()
    began = process_time()
    result = work()
    return process_time() - began, result


def measure(elements: Sequence[Element], keys: int) -> Iterator[Figure]:
    """Measure the ratio to the bare loop and the bytes of an open window, for each workload."""
    for name, windows in WORKLOADS.items():
        speed = measure_speed(windows, elements)
        detail = f"{speed.per_second:,.0f} elements a second, {speed.results:,} results"
        yield Figure(f"row operator, {name}, of a bare loop", speed.times_bare, "x", detail=detail)
        yield Figure(f"row operator, {name}, an open window", bytes_per_open_window(windows, keys), "bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    elements = elements_of_a_day(options.elements, options.keys)
    # Freezing the input keeps the garbage collector from visiting it during the loops.
    gc.freeze()
    print(f"{len(elements):,} elements, {options.keys:,} keys")
    tell(measure(elements, options.keys), options.json)


if __name__ == "__main__":
    main()
