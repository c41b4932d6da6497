"""The main job's sizes: a month in daily epochs, a year in monthly ones, each in one process of `tidegate backfill`.

    python -m benchmarks.main_job

Prints seconds (the process's start included), seconds an epoch, and the peak resident memory of the driver's
JVM and of Python, all of one run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from time import perf_counter

import psutil

from pipelines.config import FILE_NAME, load_config
from pipelines.flights.source import DAYS, load_flights
from pipelines.storage import warehouse_of

RUNS = (
    ("a month of aircraft_duty by the day", 90, "aircraft_duty", "2013-02-01", "1d"),
    ("a month of airport_hours by the day", 90, "airport_hours", "2013-02-01", "1d"),
    ("the year of aircraft_duty by the month", 120, "aircraft_duty", "2014-01-01", "1mo"),
)
ROOT = Path(__file__).parent.parent


class Memory(threading.Thread):
    """Watches a process and its children: the largest resident memory of each program, in bytes."""

    def __init__(self, process: psutil.Process) -> None:
        super().__init__(daemon=True)
        self.peak: dict[str, int] = {}
        self._process, self._ended = process, threading.Event()

    def run(self) -> None:
        """Look twice a second until told to end."""
        while not self._ended.wait(0.5):
            try:
                members = [self._process, *self._process.children(recursive=True)]
                for member in members:
                    name = member.name()
                    self.peak[name] = max(self.peak.get(name, 0), member.memory_info().rss)
            except psutil.NoSuchProcess:
                continue

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        self.join()


def main() -> None:
    """Run all three, each on tables of its own."""
    print(f"{'':40} {'seconds':>8} {'allowed':>8} {'an epoch':>9}  peak memory")
    for title, allowed, pipeline, end, length in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / FILE_NAME).write_text((ROOT / FILE_NAME).read_text())
            load_flights(warehouse_of(load_config(root / FILE_NAME)).path("flights"), DAYS)
            command = [sys.executable, "-m", "pipelines.cli", "backfill", pipeline, "--start=2013-01-01"]
            began = perf_counter()
            started = subprocess.Popen(
                [*command, f"--end={end}", f"--slice={length}", "--json"],
                cwd=root,
                env={**os.environ, "TIDEGATE_CONFIG": str(root / FILE_NAME)},
                stdout=subprocess.PIPE,
                text=True,
            )
            memory = Memory(psutil.Process(started.pid))
            memory.start()
            told, _ = started.communicate()
            seconds = perf_counter() - began
            memory.end()
        runs = json.loads(told)["runs"]
        peaks = ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in sorted(memory.peak.items()))
        each = sum(run["seconds"] for run in runs[1:]) / (len(runs) - 1)
        print(f"{title:40} {seconds:8.1f} {allowed:8} {each:9.2f}  {peaks}", flush=True)


if __name__ == "__main__":
    main()
