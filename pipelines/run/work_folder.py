"""Cleaning of the work folder: old files of runs are removed. No later run needs them.

They are logs of Spark's processes, folders of runs that Airflow started, and run reports. The pages of checks are
not cleaned here: each check removes old pages itself.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tidegate.windowing.time import Millis

DAY: Millis = 86_400_000
_HOUR: Millis = 3_600_000

_log = logging.getLogger(__name__)


def clean_work(folder: Path, days: int, now: Millis) -> int:
    """Remove files that nothing was written to for some days, and return their number.

    A run at work writes a heartbeat every few seconds, Spark's log stays as long as its process, and the newest report
    of each pipeline stays.

    Args:
        folder: the work folder.
        days: age of the files to remove; 0 removes nothing.
        now: the present time, int64 epoch milliseconds.
    """
    if not days:
        return 0
    oldest = (now - days * DAY) / 1000
    gone = 0
    for group in _groups(folder):
        # Another command may clean up at the same moment.
        with suppress(FileNotFoundError):
            if all(file.stat().st_mtime < oldest for file in group):
                for file in group:
                    file.unlink()
                    gone += 1
    for root in (folder / "runs", folder / "reports"):
        for parent, _, _ in os.walk(root, topdown=False):
            if Path(parent) != root:
                with suppress(OSError):
                    # Fails for a folder with files, which stays.
                    Path(parent).rmdir()
    return gone


@dataclass(slots=True)
class HourlyCleaning:
    """The cleaning of the work folder by a run that lasts for months.

    Args:
        folder: the work folder.
        days: age of the files to remove; 0 removes nothing.
    """

    folder: Path
    days: int
    _next: Millis = field(default=0, init=False)

    def clean_if_due(self, now: Millis) -> int:
        """Clean at the first call and then once an hour, and return the number of files that were removed.

        Args:
            now: the present time, int64 epoch milliseconds.
        """
        if now < self._next:
            return 0
        self._next = now + _HOUR
        try:
            return clean_work(self.folder, self.days, now)
        except OSError as error:
            # No epoch needs the cleaning.
            _log.warning("old files in %s can't be removed: %s. The stream tries again in an hour", self.folder, error)
            return 0


def remove_checkpoints(folder: Path, pipeline: str) -> None:
    """Remove the checkpoints of Spark that killed streams of older versions left. The caller holds the lease.

    Args:
        folder: the work folder.
        pipeline: name of the pipeline; the checkpoints of others stay.
    """
    root = folder / "checkpoints"
    for left in root.glob(f"{pipeline}-*"):
        if left.name.rpartition("-")[0] == pipeline:
            shutil.rmtree(left, ignore_errors=True)
    with suppress(OSError):
        # Fails if it does not exist, or if a checkpoint of another pipeline is in it.
        root.rmdir()


def _groups(folder: Path) -> Iterator[list[Path]]:
    """Yield groups of files that are removed together or not at all."""
    for log in (folder / "logs").glob("spark-*.log"):
        if not _is_alive(log.stem.removeprefix("spark-")):
            yield [log]
    for parent, _, names in os.walk(folder / "runs"):
        if names:
            yield [Path(parent, name) for name in names]
    for reports in (folder / "reports").glob("*"):
        # Links lead to the newest report, so it is never too old. A number has six digits or more.
        by_epoch = sorted(reports.glob("epoch-*.html"), key=lambda report: (len(report.name), report.name))
        yield from ([report] for report in by_epoch[:-1])


def _is_alive(process: str) -> bool:
    """Return True if a process of this host has the number in the log's name."""
    return process.isdigit() and psutil.pid_exists(int(process))
