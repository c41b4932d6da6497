"""Measure the growth of an epoch's cost in a stream of very many epochs, without a JVM.

    python -m benchmarks.growth [--epochs 20000] [--json FILE]

Each epoch reads a commit of a few rows, and maintenance runs as in a stream. The last third of the epochs is compared
with the middle one. Seconds are wall-clock time; calls and bytes do not depend on other work of the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from benchmarks.figures import Figure, Wanted, tell
from tests.recovery.growth import Cost, growth, mean_of, run_epochs
from tidegate.pipelines.ledger.snapshots.retention import Retention
from tidegate.pipelines.run.stream import Maintenance

WANTED = Wanted("at most", 1.1)
RETENTION = Retention(snapshots=10, age=timedelta(days=7), readers=timedelta(minutes=3))
"""Retention that keeps versions of published tables for minutes only, so that the run soon reaches a steady state."""

_PARTS = 10


def figures(costs: list[Cost]) -> list[Figure]:
    """Return the ratio of the last third of the epochs to the middle one, for each kind of cost."""
    third = len(costs) // 3
    middle, last = mean_of(costs[third : 2 * third]), mean_of(costs[2 * third : 3 * third])
    return [
        Figure(
            f"last third vs. the middle: {name}",
            growth_factor,
            "x",
            None if name == "seconds" else WANTED,
            f"middle third {getattr(middle, name):,.3f}, last third {getattr(last, name):,.3f} an epoch",
        )
        for name, growth_factor in growth(costs).items()
    ]


def main() -> int:
    """Measure and print; return 1 if a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20_000)
    parser.add_argument("--json", type=Path, help="file for the figures, one a line")
    parser.add_argument("--costs", type=Path, help="file for the cost of each epoch, one a line, written as they come")
    options = parser.parse_args()

    def keep(cost: Cost) -> None:
        if options.costs is not None:
            with options.costs.open("a") as file:
                file.write(json.dumps(asdict(cost)) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        costs = run_epochs(Path(folder), options.epochs, Maintenance(RETENTION), on_epoch=keep)
    part = max(len(costs) // _PARTS, 1)
    for first in range(0, len(costs), part):
        shown = {name: f"{value:,.3f}" for name, value in asdict(mean_of(costs[first : first + part])).items()}
        print(f"epochs from {first + 1}: {shown}")
    measured = figures(costs)
    tell(measured, options.json)
    return int(not all(figure.is_reached for figure in measured))


if __name__ == "__main__":
    sys.exit(main())
