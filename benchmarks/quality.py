"""Measure the quality run of a month of flights: all suites of both examples and their run reports.

    python -m benchmarks.quality

The month is run by the day first; then `tidegate quality check --report` is measured in a process of its own.
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
from typing import Any

from benchmarks.figures import Figure, Wanted, tell
from tidegate.pipelines.definition.config import FILE_NAME, load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.examples.flights.source import load_flights

DAYS = 31
LIMIT_SECONDS = 60.0
PIPELINES = ("aircraft_duty", "airport_hours")
ROOT = Path(__file__).parent.parent


def quality_run(project: Path, pipeline: str) -> Figure:
    """Measure the newest epoch's quality run with its report, the start of its process included."""
    began = perf_counter()
    answer = _tidegate(project, "quality", "check", pipeline, "--report")
    seconds = perf_counter() - began
    return Figure(
        f"quality run of a month, {pipeline}",
        seconds,
        "s",
        Wanted("at most", LIMIT_SECONDS),
        f"{len(answer['checks'])} expectations, {answer['quality']}",
    )


def measure() -> Iterator[Figure]:
    """Run a month by the day for both examples, and measure the check of each."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / FILE_NAME).write_text((ROOT / FILE_NAME).read_text())
        load_flights(warehouse_of(load_config(project / FILE_NAME)).path("flights"), DAYS)
        for pipeline in PIPELINES:
            _tidegate(project, "backfill", pipeline, "--start=2013-01-01", "--end=2013-02-01", "--slice=1d")
            yield quality_run(project, pipeline)


def _tidegate(project: Path, *arguments: str) -> dict[str, Any]:
    """Run a command on a project, and return its JSON."""
    ran = subprocess.run(
        [sys.executable, "-m", "tidegate", *arguments, "--json"],
        cwd=project,
        env={**os.environ, "TIDEGATE_CONFIG": str(project / FILE_NAME)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    tell(measure(), parser.parse_args().json)


if __name__ == "__main__":
    main()
