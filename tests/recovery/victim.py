"""A process that runs a backfill and is killed, by a signal that nothing can catch, at a step of its own choice.

Usage: victim.py FOLDER STEP EPOCH: SIGKILL when STEP of the EPOCH-th epoch has been done.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pipelines.backfill import backfill
from pipelines.driver import drive
from tests.conftest import SPARK_SETTINGS
from tests.lake import Lake
from tests.recovery.days import PIPELINE, arriving


def main(folder: str, step: str, epoch: int) -> None:
    lake = Lake(Path(folder))
    seen: list[str] = []

    def tell(done: str) -> None:
        seen.append(done)
        if done == step and seen.count(step) == epoch:
            os.kill(os.getpid(), signal.SIGKILL)

    config = lake.config.model_copy(update={"spark": SPARK_SETTINGS})
    with drive(config, PIPELINE, "victim", tell=tell) as driver:
        list(backfill(driver, arriving(lake)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
