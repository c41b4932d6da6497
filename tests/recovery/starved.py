"""`tidegate stream` in a separate process whose JVM runs out of memory in its second epoch.

Usage: starved.py TIDEGATE_TOML
"""

from __future__ import annotations

import sys

from tests.recovery.arrivals import PIPELINE
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.project import cli

_BLOCK = 100_000_000


def main(config: str) -> int:
    run = Driver.run

    def greedy(self: Driver, plan: EpochPlan) -> Manifest:
        jvm = self.engine.session._jvm  # type: ignore[attr-defined]
        held = jvm.java.util.ArrayList()
        while plan.epoch == 2:
            held.add(jvm.java.nio.ByteBuffer.allocate(_BLOCK))
        return run(self, plan)

    Driver.run = greedy  # type: ignore[method-assign]
    return cli.run(["stream", PIPELINE.name, "--available-now", "--max-files-per-epoch", "1", "--config", config])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
