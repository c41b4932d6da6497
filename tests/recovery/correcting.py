"""Drivers that correct a changed source and are killed, by a signal that can't be caught, each in its own process.

Usage: correcting.py TASKS, where TASKS is a JSON list of `Task`. This process imports what they need, and forks one for
each task in turn, so a kill costs no imports. It prints the exit codes, as `subprocess` has them. No JVM runs.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from subprocess import run as run_process

from tests.lake import DAY0, LOCAL, Clock, Lake
from tests.pipelines.correct.pipelines import HOUR, PIPELINES
from tests.recovery.killing import killing_after
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.intervals import cut
from tidegate.pipelines.run.stream import Stream

ROOT = Path(__file__).parents[2]
HOURS_BEFORE = 3
"""Hours that a backfill has run before its source changes."""


@dataclass(frozen=True)
class Task:
    """A run that is killed.

    Args:
        folder: folder of the lake.
        name: name of the pipeline.
        run: stream or backfill.
        clock: the driver's clock, int64 epoch milliseconds.
        step: step of an epoch after which the process is killed.
        epoch: number of the epoch in this run, from 1 on.
        delay: milliseconds between the step and the kill.
    """

    folder: str
    name: str
    run: str
    clock: int
    step: str
    epoch: int
    delay: int = 0


def pipeline_of(name: str) -> Pipeline:
    return replace(PIPELINES[name], parallelism=2)


def work(lake: Lake, name: str, run: str, tell: Callable[[str], None] = lambda step: None) -> None:
    """Read what is there: as a stream, or with the next interval of a backfill."""
    with lake.driver(LOCAL, pipeline_of(name), tell) as driver:
        driver.windows = WindowsTable()
        if run == "stream":
            Stream(driver, lambda manifest: None).run_available()
        else:
            start = DAY0 + HOURS_BEFORE * HOUR
            list(backfill(driver, cut(start, start + timedelta(hours=1), None)))


def killed(*tasks: Task) -> list[int]:
    """Run tasks in separate processes, and return their exit codes: that of SIGKILL, or 0 if a process ended before."""
    command = [sys.executable, "-m", "tests.recovery.correcting", json.dumps([asdict(task) for task in tasks])]
    ended = run_process(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    codes: list[int] = json.loads(ended.stdout)
    return codes


def main(tasks: str) -> None:
    codes = []
    for task in (Task(**fields) for fields in json.loads(tasks)):
        # Arrow and Delta have not run in this process yet, so there are no threads that the fork would lose.
        if child := os.fork():
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            continue
        code = 1
        try:
            tell = killing_after(task.step, task.epoch, task.delay)
            work(Lake(Path(task.folder), Clock(task.clock)), task.name, task.run, tell)
            code = 0
        except BaseException:  # The traceback is all that a forked process can leave.
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    print(json.dumps(codes))


if __name__ == "__main__":
    main(sys.argv[1])
