"""Commands as processes: each in its own session, with a log file, and found again by its handle.

The command survives its worker: anyone with the handle can follow the log, ask for the exit code, or end the command,
even from another host, which sees the run's folder on a shared disk or its copy among the artifacts. This module
imports nothing from Airflow.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tidegate.pipelines.airflow.run_files import LOG, CopyOfRun, FolderOfRun, RunFiles, RunState
from tidegate.pipelines.ledger.host import this_host
from tidegate.pipelines.storage.shared_folder import APPEND

if TYPE_CHECKING:
    from tidegate.pipelines.storage.artifacts import Artifacts

_POLL_SECONDS = 0.5
STALE_SECONDS = 60.0
"""Age at which a heartbeat means that the host is dead. As for the lease, the clocks of hosts must differ by less."""
_GRACE_SECONDS = 20.0
"""Time between asking a command to end and killing it."""

_ERROR = "tidegate: "
"""Prefix of the line in which a command gives the reason for its end."""
_END_OF_LOG = 64 << 10
_LONGEST_REASON = 2000

SUPERVISOR = "tidegate.pipelines.airflow.supervisor"
"""Module that `start` runs; its first argument is the run's folder."""

_OF_AIRFLOW = "AIRFLOW"
_NAMES_OF_THE_RUN = "AIRFLOW_CTX_"
"""Prefix of the variables that name the DAG, the task and the run. Logs of pipeline code may mention these."""

RUNNING, SUCCEEDED, FAILED, LOST = "running", "succeeded", "failed", "lost"


@dataclass(frozen=True, slots=True)
class ProcessHandle:
    """Identifies a running command.

    Args:
        host: name of its host.
        pid: process id of its supervisor, which is also the session id.
        started: start time of that process in seconds, from the operating system; it guards against reused ids.
        folder: folder of its log, result and exit code, on its host.
        place: folder of their copy among the artifacts; None if other hosts see `folder` itself.
    """

    host: str
    pid: int
    started: float
    folder: str
    place: str | None = None

    @property
    def log(self) -> Path:
        """Return the file of the command's output."""
        return FolderOfRun(Path(self.folder)).log

    @property
    def is_here(self) -> bool:
        """Return True if the command runs on this host."""
        return self.host == this_host()

    def to_dict(self) -> dict[str, str | int | float]:
        """Return the handle as plain values. Older versions don't know `place`, so it is left out if it is None."""
        return {name: value for name, value in asdict(self).items() if name != "place" or value is not None}


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a command, seen from this host.

    Args:
        artifacts: artifacts of the project; needed on other hosts if the handle has a place among them.
        is_driver: returns True if the run's command, as the files describe it, holds the lease of its pipeline.
    """

    handle: ProcessHandle
    artifacts: Artifacts | None = None
    is_driver: Callable[[RunState], bool] = lambda state: False
    clock: Callable[[], float] = time.time
    pause: Callable[[float], object] = time.sleep

    @property
    def files(self) -> RunFiles:
        """Return the run's files: the folder itself on the run's host or on a shared disk, otherwise the copy."""
        folder, place = FolderOfRun(Path(self.handle.folder)), self.handle.place
        if place is None or self.artifacts is None or (self.handle.is_here and folder.folder.exists()):
            return folder
        return CopyOfRun(self.artifacts, place)

    def exit_code(self) -> int | None:
        """Return the exit code, or None if there is none yet."""
        return self.files.state().exit_code

    def status(self) -> str:
        """Return `running`, `succeeded`, `failed`, or `lost` for a process that disappeared without an exit code."""
        if self.is_alive():
            return RUNNING
        code = self.exit_code()
        return LOST if code is None else SUCCEEDED if code == 0 else FAILED

    def is_alive(self) -> bool:
        """Return True if the process is alive. On another host, the heartbeat decides, and then the lease."""
        if not self.handle.is_here:
            state = self.files.state()
            return state.exit_code is None and (self._is_beating(state) or self.is_driver(state))
        try:
            process = psutil.Process(self.handle.pid)
            # The clock may have been set since then, which changes the start time that psutil computes.
            same = abs(process.create_time() - self.handle.started) < 1 or is_supervisor(self.handle)
            return process.status() != psutil.STATUS_ZOMBIE and same
        except psutil.NoSuchProcess:
            return False

    def is_supervised(self) -> bool:
        """Return True if the supervisor, which ends the command on request, is alive."""
        return self.is_alive() if self.handle.is_here else self._is_beating(self.files.state())

    def _is_beating(self, state: RunState) -> bool:
        beat = self.handle.started if state.beat_at is None else state.beat_at
        return self.clock() - beat < STALE_SECONDS

    def follow(self, tell: Callable[[str], None]) -> str:
        """Wait for the command to end, pass each line of its log to `tell`, and return its final status."""
        position = 0
        while True:
            alive = self.is_alive()
            position = self._log_new_lines(position, tell, to_the_end=not alive)
            if not alive:
                return self.status()
            self.pause(self.files.pause)

    def reason(self) -> str | None:
        """Return the reason of a command that failed: its error, or its last line, or None for an empty log."""
        files = self.files
        position, content = max(0, files.state().log_size - _END_OF_LOG), b""
        while part := files.read_log(position + len(content)):
            content += part
        lines = [line.strip() for line in content.decode(errors="replace").splitlines() if line.strip()]
        errors = [number for number, line in enumerate(lines) if line.startswith(_ERROR)]
        text = " ".join(lines[errors[-1] :]).removeprefix(_ERROR) if errors else "".join(lines[-1:])
        return text[:_LONGEST_REASON] or None

    def end(self) -> None:
        """Ask the supervisor to end the command and every process of its session."""
        if not self.is_alive():
            return
        if self.handle.is_here:
            # A signal works immediately; on another host the supervisor sees the file at its next heartbeat.
            with suppress(ProcessLookupError):
                os.kill(self.handle.pid, signal.SIGTERM)
        self.files.request_end()

    def is_ending(self) -> bool:
        """Return True if the end of the command was requested."""
        return self.files.is_ending()

    def stop(self, patience: float = 2 * _GRACE_SECONDS) -> None:
        """End the command, and wait for its end for at most `patience` seconds."""
        if not self.is_alive():
            return
        self.end()
        deadline = time.monotonic() + patience
        while self.is_alive() and time.monotonic() < deadline:
            self.pause(_POLL_SECONDS)

    def _log_new_lines(self, position: int, tell: Callable[[str], None], to_the_end: bool) -> int:
        files, rest = self.files, b""
        size = files.state().log_size
        while position + len(rest) < size and (part := files.read_log(position + len(rest))):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                position += len(line) + 1
                _tell(line, tell)
        if to_the_end:
            position += len(rest)
            _tell(rest, tell)
        return position


def _tell(line: bytes, tell: Callable[[str], None]) -> None:
    if text := line.decode(errors="replace").rstrip():
        tell(text)


def start(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str | None] | None = None,
    grace: float = _GRACE_SECONDS,
    copy: CopyOfRun | None = None,
) -> ProcessHandle:
    """Start a command in its own session.

    Args:
        command: its arguments, which no shell parses.
        folder: folder for its log, result and exit code; files of an earlier run are removed, except its log.
        environment: variables added to those of this process, without Airflow's own; a value of None removes a
            variable. With `copy`, TIDEGATE_CONFIG must name the project.
        grace: seconds for the command to end when asked to, more than 0.
        copy: the copy of these files that other hosts see; None if they see the folder itself.
    """
    files = FolderOfRun(folder.absolute())
    with suppress(FileNotFoundError):
        files.clear()
    if copy is not None:
        # The supervisor would remove a request that arrives before it has started.
        copy.clear()
    variables = {**without_airflow(os.environ), **(environment or {}), "PYTHONUNBUFFERED": "1"}
    with files.open(LOG, APPEND) as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                SUPERVISOR,
                str(folder.absolute()),
                str(grace),
                "" if copy is None else copy.place,
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in variables.items() if value is not None},
            start_new_session=True,
        )
    started = psutil.Process(process.pid).create_time()
    place = None if copy is None else copy.place
    return ProcessHandle(this_host(), process.pid, started, str(folder.absolute()), place)


def is_supervisor(handle: ProcessHandle) -> bool:
    """Return True if the process of a handle, which must be on this host, is a supervisor of the handle's folder."""
    try:
        words = psutil.Process(handle.pid).cmdline()
    except psutil.Error:
        return False
    return words[1:4] == ["-m", SUPERVISOR, handle.folder]


def members(handle: ProcessHandle) -> list[psutil.Process]:
    """Return the processes of the command's session, including its supervisor."""
    processes = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == handle.pid:
                processes.append(process)
        except (ProcessLookupError, PermissionError):
            continue
    return processes


def send_signal(process: psutil.Process, number: int) -> None:
    """Signal a process that may already have ended."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def without_airflow(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables without Airflow's own, except for the names of the DAG, the task and the run.

    Airflow's processes have the Fernet key, the address of its database with the password, the keys that sign its
    tokens, and connections in variables that begin with AIRFLOW. A command needs none of them.
    docs/operations/security.md says what this does and does not protect against.
    """
    return {name: value for name, value in variables.items() if not _is_airflows(name)}


def _is_airflows(name: str) -> bool:
    # Airflow's own scripts begin some names with underscores.
    return name.lstrip("_").upper().startswith(_OF_AIRFLOW) and not name.startswith(_NAMES_OF_THE_RUN)
