"""The work folder: what runs leave there goes when it is old. Nothing in it is needed to go on.

Logs of Spark's processes, the folders of runs that Airflow started and run reports. Checks keep their own pages few.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from tidegate.windowing.time import Millis

DAY: Millis = 86_400_000


def clean_work(folder: Path, days: int, now: Millis) -> int:
    """Remove what nothing was written to for so many days; how many files went.

    A run that is at work writes a sign of life every few seconds, and Spark's log stays as long as its process.

    Args:
        folder: the work folder.
        days: 0 removes nothing.
        now: int64 epoch milliseconds.
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
                    # It goes if it is empty.
                    Path(parent).rmdir()
    return gone


def _groups(folder: Path) -> Iterator[list[Path]]:
    """Files that go together or not at all."""
    for log in (folder / "logs").glob("spark-*.log"):
        if not _is_alive(log.stem.removeprefix("spark-")):
            yield [log]
    for parent, _, names in os.walk(folder / "runs"):
        if names:
            yield [Path(parent, name) for name in names]
    for report in (folder / "reports").glob("*/epoch-*.html"):
        yield [report]


def _is_alive(process: str) -> bool:
    """Whether a process of this host has the number that a log is named for."""
    return process.isdigit() and psutil.pid_exists(int(process))
