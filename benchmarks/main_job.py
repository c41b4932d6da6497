"""Measure the main job: a month in daily epochs, a year in monthly ones, each in one process of `tidegate backfill`.

    python -m benchmarks.main_job [--json FILE]

Seconds include the start of the process; the peak resident memory of the driver's Python, its JVM and its workers is
that of the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from benchmarks.figures import Figure, Wanted, tell
from benchmarks.memory import PeakMemory
from tidegate.pipelines.definition.config import FILE_NAME, load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.examples.flights.source import DAYS, load_flights

RUNS = (
    ("a month of aircraft_duty by the day", 90, "aircraft_duty", "2013-02-01", "1d"),
    ("a month of airport_hours by the day", 90, "airport_hours", "2013-02-01", "1d"),
    ("the year of aircraft_duty by the month", 120, "aircraft_duty", "2014-01-01", "1mo"),
)
"""Title, largest allowed seconds, pipeline, end and slice of each run."""
ROOT = Path(__file__).parent.parent


def measure() -> Iterator[Figure]:
    """Measure all three runs, each on tables of its own."""
    for title, allowed, pipeline, end, length in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / FILE_NAME).write_text((ROOT / FILE_NAME).read_text())
            load_flights(warehouse_of(load_config(root / FILE_NAME)).path("flights"), DAYS)
            command = [
                sys.executable,
                "-m",
                "tidegate",
                "backfill",
                pipeline,
                "--start=2013-01-01",
            ]
            began = perf_counter()
            with subprocess.Popen(
                [*command, f"--end={end}", f"--slice={length}", "--json"],
                cwd=root,
                env={**os.environ, "TIDEGATE_CONFIG": str(root / FILE_NAME)},
                stdout=subprocess.PIPE,
                text=True,
            ) as started:
                with PeakMemory(started.pid) as memory:
                    output, _ = started.communicate()
                seconds = perf_counter() - began
        runs = json.loads(output)["runs"]
        each = sum(run["seconds"] for run in runs[1:]) / (len(runs) - 1)
        yield Figure(title, seconds, "s", Wanted("at most", allowed), f"an epoch {each:.2f} s; {memory}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    tell(measure(), parser.parse_args().json)


if __name__ == "__main__":
    main()
