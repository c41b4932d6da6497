"""Erasure of a key from the files beside the tables: reports, Data Docs, logs of runs, alarms, and Spark's logs.

Pages and logs show a key in many forms, also as a picture, so all those of the pipeline go: they are about snapshots
that go as well. Alarms, Spark's logs and runs of a user's own DAGs may be about any pipeline, so only lines and files
with the key's text go.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.pipelines.run.work_folder import logs_of_ended_sparks, remove_checkpoints
from tidegate.pipelines.stores.artifacts import (
    ALARMS,
    ArtifactsInFolder,
    artifacts_of,
    docs_folder,
    incidents_name,
    report_name,
)
from tidegate.pipelines.tables.key_texts import KeyTexts, names_key

if TYPE_CHECKING:
    from tidegate.pipelines.config import Config
    from tidegate.pipelines.stores.artifacts import Artifacts

_AT_WORK_SECONDS = 60.0
"""A run at work writes a heartbeat every few seconds."""


@dataclass(frozen=True, slots=True)
class FilesOfRuns:
    """The files of a pipeline's runs beside its tables, as far as this host sees them.

    Args:
        config: the project.
        pipeline: name of the pipeline.
        key: how the key is written.
    """

    config: Config
    pipeline: str
    key: KeyTexts

    def erase(self, only_if_named: bool, now: float | None = None) -> int:
        """Remove what may have the key, and return the number of files.

        Args:
            only_if_named: True removes only files with the text of the key, because the tables never had the key.
            now: seconds since 1970; None takes the present.

        Raises:
            UsageError: the credentials of the artifacts' object store can't be had.
        """
        artifacts = artifacts_of(self.config)
        now = time.time() if now is None else now
        names = [name for name in self._names(artifacts, now) if not only_if_named or self._has(artifacts.read(name))]
        names += [name for name in self._of_own_dags(artifacts, now) if self._has(artifacts.read(name))]
        files = [file for file in self._files(now) if not only_if_named or self._has(file.read_bytes())]
        if (work := self._work) is not None:
            files += [Path(work.address(name)) for name in self._of_own_dags(work, now) if self._has(work.read(name))]
        files += [log for log in logs_of_ended_sparks(self.config.work_folder) if self._has(log.read_bytes())]
        for name in names:
            artifacts.delete(name)
        for file in files:
            file.unlink(missing_ok=True)
        remove_checkpoints(self.config.work_folder, self.pipeline)
        return len(names) + len(files) + self._erase_alarms(artifacts)

    def remove(self, now: float | None = None) -> int:
        """Remove all files that are the pipeline's alone, and return their number; lines about it in journals stay.

        Args:
            now: seconds since 1970; None takes the present.

        Raises:
            UsageError: the credentials of the artifacts' object store can't be had.
        """
        artifacts = artifacts_of(self.config)
        now = time.time() if now is None else now
        names, files = [*self._names(artifacts, now)], [*self._files(now)]
        for name in (*names, incidents_name(self.pipeline)):
            artifacts.delete(name)
        for file in files:
            file.unlink(missing_ok=True)
        remove_checkpoints(self.config.work_folder, self.pipeline)
        return len(names) + len(files)

    def _names(self, artifacts: Artifacts, now: float) -> Iterator[str]:
        """Yield the artifacts of the pipeline, without those of a run at work."""
        yield from artifacts.names(report_name(self.pipeline, 0).rpartition("/")[0])
        yield from artifacts.names(docs_folder(self.pipeline))
        yield from self._of_runs(artifacts, now, lambda pipeline: pipeline == self.pipeline)

    def _of_own_dags(self, artifacts: Artifacts, now: float) -> Iterator[str]:
        """Yield the artifacts of runs in DAGs that a user wrote, whose ids name no pipeline."""
        pipelines = {self.pipeline, *self.config.pipelines}
        yield from self._of_runs(artifacts, now, lambda pipeline: pipeline not in pipelines)

    def _of_runs(self, artifacts: Artifacts, now: float, are_of: Callable[[str], bool]) -> Iterator[str]:
        """Yield the artifacts of runs by the pipeline that their DAG's id names, without those of a run at work."""
        runs: dict[str, dict[str, float]] = {}
        for name, written_at in artifacts.names("runs").items():
            # A pipeline's name may hold `__` itself; the kind that follows it does not.
            if are_of(name.split("/")[1].rpartition("__")[0]):
                runs.setdefault(name.rpartition("/")[0], {})[name] = written_at
        for folder, written in runs.items():
            if f"{folder}/exit" in written or max(written.values()) < now - _AT_WORK_SECONDS:
                yield from written

    def _files(self, now: float) -> Iterator[Path]:
        """Yield the files of the pipeline in this host's work folder that are not among the artifacts."""
        if (work := self._work) is not None:
            yield from (Path(work.address(name)) for name in self._names(work, now))

    @property
    def _work(self) -> ArtifactsInFolder | None:
        """Return this host's work folder; None if it is that of the artifacts."""
        return None if self.config.shares_work else ArtifactsInFolder(self.config.work_folder)

    def _erase_alarms(self, artifacts: Artifacts) -> int:
        """Remove the lines of the journal of alarms that are about the pipeline and have the key's text."""
        gone = 0
        for name in artifacts.journal_files(ALARMS):
            lines = (artifacts.read(name) or b"").splitlines(keepends=True)
            kept = self._without_key(lines)
            gone += len(lines) - len(kept)
            if not kept:
                artifacts.delete(name)
            elif len(kept) < len(lines):
                # Another task may add a line at this moment.
                artifacts.change(name, lambda content: b"".join(self._without_key((content or b"").splitlines(True))))
        return gone

    def _without_key(self, lines: Sequence[bytes]) -> list[bytes]:
        return [line for line in lines if f'"{self.pipeline}"'.encode() not in line or not self._has(line)]

    def _has(self, content: bytes | None) -> bool:
        """Return True if a text has every part of the key, as it is or as HTML writes it."""
        return names_key(html.unescape((content or b"").decode(errors="replace")), self.key)
