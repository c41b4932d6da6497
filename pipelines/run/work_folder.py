"""Cleaning of the work folder and of the artifacts: old files of runs are removed. No later run needs them.

They are logs of Spark's processes, folders of runs that Airflow started, and run reports. The pages of checks are
not cleaned here: each check removes old pages itself.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tidegate.pipelines.errors import StoreFailed
from tidegate.windowing.time import Millis

if TYPE_CHECKING:
    from tidegate.pipelines.stores.artifacts import Artifacts

DAY: Millis = 86_400_000

_CLEANED = "cleaned"
"""File of the artifacts that is written at each cleaning of them."""


def clean_work(folder: Path, days: int, now: Millis) -> int:
    """Remove files that nothing was written to for some days, and return their number.

    A run at work writes a heartbeat every few seconds, and Spark's log stays as long as its process.

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


def clean_artifacts(artifacts: Artifacts, days: int, now: Millis) -> int:
    """Remove copies of runs, and reports, as `clean_work` does, and return the number of files.

    It lists them all, which takes requests, so it does so once a day for all hosts together.

    Args:
        artifacts: artifacts of the project.
        days: age of the files to remove; 0 removes nothing.
        now: the present time, int64 epoch milliseconds.
    """
    if not days:
        return 0
    oldest = (now - days * DAY) / 1000
    gone = 0
    # A store that fails, or lets nothing be removed, must not end the command.
    with suppress(StoreFailed, OSError):
        cleaned_at = artifacts.written_at(_CLEANED)
        if cleaned_at is not None and now / 1000 - cleaned_at < DAY / 1000:
            return 0
        artifacts.write(_CLEANED, b"")
        groups: dict[str, dict[str, float]] = {}
        for name, at in artifacts.names("runs").items():
            groups.setdefault(name.rpartition("/")[0], {})[name] = at
        groups |= {name: {name: at} for name, at in artifacts.names("reports").items()}
        for group in groups.values():
            if max(group.values()) < oldest:
                for name in group:
                    artifacts.delete(name)
                    gone += 1
    return gone


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
    for report in (folder / "reports").glob("*/epoch-*.html"):
        yield [report]


def _is_alive(process: str) -> bool:
    """Return True if a process of this host has the number in the log's name."""
    return process.isdigit() and psutil.pid_exists(int(process))
