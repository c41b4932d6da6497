"""Files of runs other than tables: remove old ones, and those that may show a forgotten key.

They are logs of Spark's processes, alarms, and run reports. No later run needs them. The pages of checks are not
cleaned up here: each check removes old pages itself. Pages show keys in many forms, even in images, so forgetting a key
removes all those of its pipeline. Alarms and Spark's logs may be about any pipeline, so only lines and files with the
key's text are removed.
"""

from __future__ import annotations

import html
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tidegate.pipelines.definition.config.opened import artifacts_of
from tidegate.pipelines.engine.base import remove_abandoned
from tidegate.pipelines.errors import Refused, StoreFailed, TidegateError
from tidegate.pipelines.ledger.tables.keys import KeyTexts, names_key
from tidegate.pipelines.storage.artifacts import ALARMS, ArtifactsInFolder, docs_folder, report_name
from tidegate.pipelines.storage.credentials import masked
from tidegate.pipelines.storage.shared_folder import SharedFolder
from tidegate.windowing.time import Millis

if TYPE_CHECKING:
    from tidegate.pipelines.definition.config import Config
    from tidegate.pipelines.storage.artifacts import Artifacts

DAY: Millis = 86_400_000
_HOUR: Millis = 3_600_000

_log = logging.getLogger(__name__)

_CLEANED = "cleaned"
"""File in the artifacts that each cleanup writes."""


def clean(config: Config, now: Millis) -> int:
    """Remove old files from the work folder of a project and from its artifacts. Return their number.

    Args:
        config: the project.
        now: the current time, int64 epoch milliseconds.

    Raises:
        UsageError: the credentials of the artifacts' object store are not available.
    """
    gone = clean_work(config.work_folder, config.retain_work_days, now)
    if config.shares_work:
        return gone
    return gone + clean_artifacts(artifacts_of(config), config.retain_work_days, now)


def clean_work(folder: Path, days: int, now: Millis) -> int:
    """Remove files that have not been written to for some days, and return how many.

    Spark's log is kept while its process runs, and so is the newest report of each pipeline.

    Args:
        folder: the work folder.
        days: age of the files to remove; 0 removes nothing.
        now: the current time, int64 epoch milliseconds.
    """
    if not days:
        return 0
    oldest = (now - days * DAY) / 1000
    gone = _delete_old(ArtifactsInFolder(folder), oldest)
    files = SharedFolder(folder)
    for log, written_at in logs_of_ended_sparks(folder).items():
        if written_at < oldest:
            files.remove(log)
            gone += 1
    files.remove_empty("reports")
    return gone


def clean_artifacts(artifacts: Artifacts, days: int, now: Millis) -> int:
    """Remove alarms and reports, as `clean_work` does. Return the number of files.

    Listing all artifacts takes many requests, so this runs once a day for all hosts together.

    Args:
        artifacts: artifacts of the project.
        days: age of the files to remove; 0 removes nothing.
        now: the current time, int64 epoch milliseconds.
    """
    if not days:
        return 0
    oldest = (now - days * DAY) / 1000
    gone = 0
    # A store that fails, or refuses deletions, must not end the command.
    with suppress(StoreFailed, OSError):
        cleaned_at = artifacts.written_at(_CLEANED)
        if cleaned_at is not None and now / 1000 - cleaned_at < DAY / 1000:
            return 0
        artifacts.write(_CLEANED, b"")
        gone = _delete_old(artifacts, oldest)
    return gone


def _delete_old(artifacts: Artifacts, oldest: float) -> int:
    """Delete files that are older than a time. Return how many."""
    reports = {name: at for name, at in artifacts.names("reports").items() if name.endswith(".html")}
    newest = _newest_reports(reports)
    files = artifacts.journal_files(ALARMS) | {name: at for name, at in reports.items() if name not in newest}
    old = [name for name, at in files.items() if at < oldest]
    for name in old:
        artifacts.delete(name)
    return len(old)


@dataclass(slots=True)
class HourlyCleaning:
    """Cleans the work folder and the artifacts during a run that lasts for months.

    Args:
        config: the project.
    """

    config: Config
    _next: Millis = field(default=0, init=False)

    def clean_if_due(self, now: Millis) -> int:
        """Clean on the first call and then once an hour, and return how many files were removed.

        Args:
            now: the current time, int64 epoch milliseconds.
        """
        if now < self._next:
            return 0
        self._next = now + _HOUR
        try:
            return clean(self.config, now)
        except (OSError, TidegateError) as error:
            # No epoch depends on the cleanup.
            _log.warning("old files can't be removed: %s. The stream tries again in an hour", masked(str(error)))
            return 0


def remove_leftovers(folder: Path, pipeline: str) -> None:
    """Remove what killed drivers left: exchanged events, and Spark checkpoints of streams of older versions.

    Args:
        folder: the work folder.
        pipeline: name of the pipeline, whose lease the caller holds; checkpoints of other pipelines are kept.
    """
    for place in (folder, None):
        remove_abandoned(place)
    root = folder / "checkpoints"
    if root.is_symlink():
        return
    for left in root.glob(f"{pipeline}-*"):
        if left.name.rpartition("-")[0] == pipeline:
            # `remove` never removes a file that a link leads to.
            shutil.rmtree(left, ignore_errors=True)
    with suppress(OSError):
        # This fails if it does not exist, or contains a checkpoint of another pipeline.
        root.rmdir()


def logs_of_ended_sparks(folder: Path) -> dict[str, float]:
    """Return the logs of ended Spark processes in a work folder, each with the time of its last write."""
    logs = SharedFolder(folder).names("logs")
    return {
        log: at
        for log, at in logs.items()
        if (process := re.fullmatch(r"logs/spark-(.*)\.log", log)) and not _is_alive(process[1])
    }


def _newest_reports(names: Iterable[str]) -> set[str]:
    """Return the newest report of each folder: links point to it, so it is never removed."""
    newest: dict[str, str] = {}
    # Epoch numbers in the names have at least six digits, so shorter names are older.
    for name in sorted(names, key=lambda name: (len(name), name)):
        newest[name.rpartition("/")[0]] = name
    return set(newest.values())


def _is_alive(process: str) -> bool:
    return process.isdigit() and psutil.pid_exists(int(process))


@dataclass(frozen=True, slots=True)
class FilesOfRuns:
    """Files of a pipeline's runs, other than its tables, that this host can see.

    Args:
        config: the project.
        pipeline: name of the pipeline.
        keys: how each of the keys may be written.
    """

    config: Config
    pipeline: str
    keys: Sequence[KeyTexts]

    def erase(self, only_if_named: bool) -> int:
        """Remove whatever may contain one of the keys, and return how many files.

        Args:
            only_if_named: True removes only files with the text of a key, because the tables never had the keys.

        Raises:
            UsageError: the credentials of the artifacts' object store are not available.
        """
        artifacts = artifacts_of(self.config)
        work = ArtifactsInFolder(self.config.work_folder)
        gone = 0
        # The artifacts may be in this host's work folder.
        for files in (artifacts,) if self.config.shares_work else (artifacts, work):
            names = [name for name in self._names(files) if not only_if_named or self._has(files, name)]
            for name in names:
                files.delete(name)
            gone += len(names)
        for log in [log for log in logs_of_ended_sparks(self.config.work_folder) if self._has(work, log)]:
            work.delete(log)
            gone += 1
        remove_leftovers(self.config.work_folder, self.pipeline)
        return gone + self._erase_alarms(artifacts)

    def remove(self) -> int:
        """Remove all files that belong to this pipeline alone, and return how many. Its lines in journals are kept.

        Raises:
            UsageError: the credentials of the artifacts' object store are not available.
        """
        artifacts = artifacts_of(self.config)
        work, gone = ArtifactsInFolder(self.config.work_folder), 0
        for files in (artifacts,) if self.config.shares_work else (artifacts, work):
            names = [*self._names(files)]
            for name in names:
                files.delete(name)
            gone += len(names)
        remove_leftovers(self.config.work_folder, self.pipeline)
        return gone

    def _names(self, artifacts: Artifacts) -> Iterator[str]:
        """Yield the artifacts of the pipeline."""
        yield from artifacts.names(report_name(self.pipeline, 0).rpartition("/")[0])
        yield from artifacts.names(docs_folder(self.pipeline))

    def _erase_alarms(self, artifacts: Artifacts) -> int:
        """Remove the lines of the alarm journal that are about the pipeline and contain a key's text."""
        gone = 0
        for name in artifacts.journal_files(ALARMS):
            lines = (artifacts.read(name) or b"").splitlines(keepends=True)
            kept = self._without_keys(lines)
            gone += len(lines) - len(kept)
            if not kept:
                artifacts.delete(name)
            elif len(kept) < len(lines):
                # Another task may be adding a line at this moment.
                artifacts.change(name, lambda content: b"".join(self._without_keys((content or b"").splitlines(True))))
        return gone

    def _without_keys(self, lines: Sequence[bytes]) -> list[bytes]:
        return [line for line in lines if f'"{self.pipeline}"'.encode() not in line or not self._names_key(line)]

    def _has(self, files: Artifacts, name: str) -> bool:
        """Return True if a file names a key, or if Tidegate may not read it, so that it is unknown."""
        try:
            return self._names_key(files.read(name))
        except Refused:
            return True

    def _names_key(self, content: bytes | None) -> bool:
        """Return True if a text contains every part of one of the keys, as is or escaped for HTML."""
        text = html.unescape((content or b"").decode(errors="replace"))
        return any(names_key(text, key) for key in self.keys)
