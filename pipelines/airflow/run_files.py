"""The files of one run of a command: its log, result, exit code, heartbeat, and the request to end it.

On the host of the run, they are in a folder. Other hosts see copies among the artifacts, which the run's supervisor
keeps up to date. An object can't be appended to, so the log is copied in parts of equal size, and only the last part is
rewritten. This module imports nothing from Airflow.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from tidegate.pipelines.storage.shared_folder import READ, SharedFolder

if TYPE_CHECKING:
    from tidegate.pipelines.storage.artifacts import Artifacts

PART = 256 << 10
"""Size of a part of the copied log in bytes."""

_LONGEST = 240
"""Longest folder name in bytes that is used unchanged; file systems allow 255."""
_SHOWN = 40

STATE, RESULT, DRIVEN = "state.json", "result.json", "driven.json"
"""Files that the supervisor copies. The state file is also a heartbeat."""
LOG, EXIT, BEAT = "log.txt", "exit", "alive"
"""Files in the folder of a run: the output of the command, its exit code once it has ended, and a file that is touched
every few seconds, because a host that dies writes no exit code.
"""
_END, _FOLLOWER = "end", "follower"

_DEPTH = 4
"""Depth of a run's folder: DAG, run, task and attempt."""


def name_of_task(dag_id: str, run_id: str, task_id: str) -> str:
    """Return the folder of a task's runs: one folder for each DAG, run and task.

    Users who start a run choose its id, so no part of the name may lead to another folder.
    """
    return "/".join(map(_folder_name, (dag_id, run_id, task_id)))


def _folder_name(text: str) -> str:
    plain = re.sub(r"[^\w.~=@ -]", "_", text)
    # Airflow's own ids contain `:` and `+`, and stay readable. Any other text gets a hash, so that no two runs share a
    # folder.
    is_usual = (
        plain == text.replace(":", "_").replace("+", "_") and plain.strip(". ") and len(plain.encode()) <= _LONGEST
    )
    return plain if is_usual else f"{plain[:_SHOWN].strip('. ')}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a run at one point in time, from its files.

    Args:
        exit_code: None until there is one.
        beat_at: the last heartbeat, in seconds since 1970; None before the first.
        log_size: size of the log in bytes.
        about: fields that the supervisor wrote; empty in the run's own folder.
    """

    exit_code: int | None
    beat_at: float | None
    log_size: int
    about: Mapping[str, Any]


class RunFiles(Protocol):
    """The files of a run, in its folder or among the artifacts."""

    @property
    def pause(self) -> float:
        """Return the seconds between two polls."""

    @property
    def log_address(self) -> str:
        """Return the path or URI of the log, for messages."""

    def state(self) -> RunState:
        """Return the state of the run."""

    def read_log(self, position: int) -> bytes:
        """Return a part of the log from a position in bytes, or nothing at its end."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file, or replace it."""

    def result(self) -> str | None:
        """Return the JSON that the command wrote, or None if there is none yet."""
        content = self.read(RESULT)
        return None if content is None else content.decode()

    def driven(self) -> str | None:
        """Return the JSON with the time for which the command held the lease, or None if it never did."""
        content = self.read(DRIVEN)
        return None if content is None else content.decode()

    def request_end(self) -> None:
        """Ask the supervisor to end the command."""
        self.write(_END, b"")

    def is_ending(self) -> bool:
        """Return True if somebody asked the supervisor to end the command."""
        return self.read(_END) is not None

    def claim(self, number: int) -> None:
        """Record that attempt `number` of the task follows the run."""
        self.write(_FOLLOWER, str(number).encode())

    def claimed_by(self) -> int:
        """Return the number of the newest attempt that follows the run, or 0 if only the run's own attempt does."""
        return int(self.read(_FOLLOWER) or 0)


@dataclass(frozen=True, slots=True)
class FolderOfRun(RunFiles):
    """The files of a run in its own folder."""

    folder: Path

    @property
    def pause(self) -> float:
        return 0.5

    @property
    def log_address(self) -> str:
        return str(self.log)

    @property
    def log(self) -> Path:
        """Return the file of the command's output."""
        return self.folder / LOG

    def state(self) -> RunState:
        try:
            code = int(self.read(EXIT) or b"")
        except ValueError:
            code = None
        beat, log = (self._files.status(self._below(name)) for name in (BEAT, LOG))
        return RunState(code, None if beat is None else beat.st_mtime, 0 if log is None else log.st_size, {})

    def read_log(self, position: int) -> bytes:
        with self.open(LOG) as log:
            log.seek(position)
            return log.read(PART)

    def read(self, name: str) -> bytes | None:
        return self._files.read(self._below(name))

    def write(self, name: str, content: bytes) -> None:
        self._files.write(self._below(name), content)

    def open(self, name: str, how: int = READ) -> BinaryIO:
        """Open a file of the run, as `SharedFolder.open` does."""
        return self._files.open(self._below(name), how)

    def beat(self) -> None:
        """Record that the host of the run is alive."""
        self._files.touch(self._below(BEAT))

    def clear(self) -> None:
        """Remove the files of an earlier run, except its log."""
        for left in (EXIT, _END, BEAT, RESULT, _FOLLOWER, DRIVEN):
            self._files.remove(self._below(left))

    @property
    def _files(self) -> SharedFolder:
        """Return the folder of all runs. Links in its path are followed; links below it are refused."""
        return SharedFolder(self.folder.parents[_DEPTH - 1] if len(self.folder.parts) > _DEPTH else self.folder)

    def _below(self, name: str) -> str:
        return (self.folder / name).relative_to(self._files.root).as_posix()


@dataclass(frozen=True, slots=True)
class CopyOfRun(RunFiles):
    """The files of a run among the artifacts of the project. `place` is their folder."""

    artifacts: Artifacts
    place: str

    @property
    def pause(self) -> float:
        return 5.0

    @property
    def log_address(self) -> str:
        return self.artifacts.address(self._part(0))

    def state(self) -> RunState:
        dated = self.artifacts.dated(f"{self.place}/{STATE}")
        if dated is None:
            return RunState(None, None, 0, {})
        about, written_at = json.loads(dated[0]), dated[1]
        return RunState(about["exit_code"], written_at, about["log_size"], about)

    def read_log(self, position: int) -> bytes:
        content = self.artifacts.read(self._part(position // PART))
        return b"" if content is None else content[position % PART :]

    def copy_log(self, run: FolderOfRun, copied: int) -> int:
        """Copy the part of a run's log after `copied` bytes, and return the new size of the copy."""
        size = run.state().log_size
        with run.open(LOG) as file:
            for number in range(copied // PART, -(-size // PART)) if size > copied else ():
                file.seek(number * PART)
                self.artifacts.write(self._part(number), file.read(min(PART, size - number * PART)))
        return max(size, copied)

    def read(self, name: str) -> bytes | None:
        return self.artifacts.read(f"{self.place}/{name}")

    def write(self, name: str, content: bytes) -> None:
        self.artifacts.write(f"{self.place}/{name}", content)

    def is_ending(self) -> bool:
        # Requesting the time alone is cheaper than reading, and every heartbeat does it.
        return self.artifacts.written_at(f"{self.place}/{_END}") is not None

    def clear(self) -> None:
        """Remove the files of an earlier run, except its log, which the copy of the new log replaces."""
        for name in (STATE, _END, RESULT, _FOLLOWER, DRIVEN):
            self.artifacts.delete(f"{self.place}/{name}")

    def _part(self, number: int) -> str:
        return f"{self.place}/log-{number:06d}.txt"


def copies_below(artifacts: Artifacts, folder: str) -> list[CopyOfRun]:
    """Return the runs below a folder of the artifacts, the one with the newest heartbeat first."""
    names = artifacts.names(folder)
    states = sorted((at, name) for name, at in names.items() if name.endswith(f"/{STATE}"))
    return [CopyOfRun(artifacts, name.removesuffix(f"/{STATE}")) for _, name in reversed(states)]
