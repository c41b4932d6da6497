"""A process that runs a pipeline and is killed, by a signal that can't be caught, at a step of its own choice.

Usage: victim.py FOLDER RUN STEP EPOCH DELAY CLOCK: RUN is stream, or change (a stream that corrects); SIGKILL comes
DELAY milliseconds after STEP of the EPOCH-th epoch has been done. CLOCK is the driver's, in epoch milliseconds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conftest import SPARK_SETTINGS
from tests.lake import Clock, Lake
from tests.pipelines.correct.lakes import HOURS
from tests.recovery import arrivals
from tests.recovery.killing import killing_after
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.run.drive import drive
from tidegate.pipelines.run.stream import Stream


def main(folder: str, run: str, step: str, epoch: int, delay: int, clock: int) -> None:
    lake = Lake(Path(folder), Clock(clock))
    tell = killing_after(step, epoch, delay)
    config = lake.config.model_copy(update={"spark": SPARK_SETTINGS})
    pipeline = {"stream": arrivals.PIPELINE, "change": HOURS}[run]
    with drive(config, pipeline, "victim", clock=lake.clock, tell=tell) as driver:
        driver.windows = WindowsTable()
        Stream(driver, lambda manifest: None, arrivals.FILE_BY_FILE).run_available()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7]))
