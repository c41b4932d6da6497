"""Commands as processes: each in a session of its own, with a log file, found again by its handle.

A worker that dies does not take the command with it: a holder of the handle who sees its folder can follow the
log, ask for the exit code, or end the command, from another host too. This module imports nothing of Airflow.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tidegate.pipelines.airflow.environment import without_airflow

_POLL_SECONDS = 0.5
_STALE_SECONDS = 60.0
"""A heartbeat as old as this means that the host is gone; clocks of hosts may differ by less, as for the lease."""
_GRACE_SECONDS = 20.0
"""Time between asking a command to end and ending it by force."""

_ERROR = "tidegate: "
"""Beginning of the line in which a command gives the reason for its end."""
_END_OF_LOG = 64 << 10
_LONGEST_REASON = 2000

RUNNING, SUCCEEDED, FAILED, LOST = "running", "succeeded", "failed", "lost"


@dataclass(frozen=True, slots=True)
class ProcessHandle:
    """The place of a running command.

    Args:
        host: name of its host.
        pid: id of its supervisor's process, and so of its session.
        started: start of that process, in seconds from the operating system; it guards against reused ids.
        folder: folder of its log, result and exit code.
    """

    host: str
    pid: int
    started: float
    folder: str

    @property
    def log(self) -> Path:
        """Return the file of the command's output."""
        return Path(self.folder) / "log.txt"

    @property
    def result(self) -> Path:
        """Return the file of the JSON that the command leaves."""
        return Path(self.folder) / "result.json"

    @property
    def exit_file(self) -> Path:
        """Return the file that holds the exit code once the command has ended."""
        return Path(self.folder) / "exit"

    @property
    def heartbeat(self) -> Path:
        """Return the file that is touched every few seconds: a host that dies writes no exit code."""
        return Path(self.folder) / "alive"

    @property
    def end_request(self) -> Path:
        """Return the file whose existence asks for the end of the command."""
        return Path(self.folder) / "end"

    @property
    def is_here(self) -> bool:
        """Return True if the command runs on this host."""
        return self.host == socket.gethostname()

    def to_dict(self) -> dict[str, str | int | float]:
        """Return the handle as plain values."""
        return asdict(self)


def start(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str | None] | None = None,
    grace: float = _GRACE_SECONDS,
) -> ProcessHandle:
    """Start a command in a session of its own.

    Args:
        command: its arguments; no shell reads them.
        folder: folder for its log, result and exit code; files of an earlier run are removed, but its log is kept.
        environment: variables added to those of this process, of which Airflow's own are left out; one that is None is
            left out too.
        grace: seconds that the command has to end by itself when it is asked to, more than 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in ("exit", "end", "alive", "result.json"):
        (folder / left).unlink(missing_ok=True)
    variables = {**without_airflow(os.environ), **(environment or {}), "PYTHONUNBUFFERED": "1"}
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tidegate.pipelines.airflow.supervisor",
                str(folder.absolute()),
                str(grace),
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in variables.items() if value is not None},
            start_new_session=True,
        )
    return ProcessHandle(
        socket.gethostname(), process.pid, psutil.Process(process.pid).create_time(), str(folder.absolute())
    )


def exit_code(handle: ProcessHandle) -> int | None:
    """Return the exit code; None while there is none."""
    try:
        return int(handle.exit_file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def status(handle: ProcessHandle) -> str:
    """Return `running`, `succeeded`, `failed`, or `lost` for a process that is gone without an exit code."""
    if is_alive(handle):
        return RUNNING
    code = exit_code(handle)
    return LOST if code is None else SUCCEEDED if code == 0 else FAILED


def is_alive(handle: ProcessHandle, clock: Callable[[], float] = time.time) -> bool:
    """Return True if the process is alive; on another host its heartbeat decides.

    Args:
        handle: handle of the process.
        clock: returns the present time, in seconds since 1970.
    """
    if not handle.is_here:
        return exit_code(handle) is None and clock() - _last_beat(handle) < _STALE_SECONDS
    try:
        process = psutil.Process(handle.pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - handle.started) < 1
    except psutil.NoSuchProcess:
        return False


def _last_beat(handle: ProcessHandle) -> float:
    try:
        return handle.heartbeat.stat().st_mtime
    except FileNotFoundError:
        return handle.started


def follow(handle: ProcessHandle, tell: Callable[[str], None]) -> str:
    """Wait for the end of the command, pass each line of its log to `tell`, and return its final status."""
    position = 0
    while True:
        alive = is_alive(handle)
        position = _tell_new_lines(handle.log, position, tell, to_the_end=not alive)
        if not alive:
            return status(handle)
        time.sleep(_POLL_SECONDS)


def reason(handle: ProcessHandle) -> str | None:
    """Return the reason of a command that failed: its error, or else its last line; None for an empty log."""
    with handle.log.open("rb") as log:
        log.seek(max(0, handle.log.stat().st_size - _END_OF_LOG))
        lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if line.startswith(_ERROR)]
    text = " ".join(lines[errors[-1] :]).removeprefix(_ERROR) if errors else "".join(lines[-1:])
    return text[:_LONGEST_REASON] or None


def end(handle: ProcessHandle) -> None:
    """Ask the supervisor to end the command and every process of its session."""
    if not is_alive(handle):
        return
    if handle.is_here:
        # A signal works at once; on another host the supervisor sees the file at its next heartbeat.
        with suppress(ProcessLookupError):
            os.kill(handle.pid, signal.SIGTERM)
    handle.end_request.touch()


def is_ending(handle: ProcessHandle) -> bool:
    """Return True if the end of the command was requested."""
    return handle.end_request.exists()


def stop(handle: ProcessHandle, patience: float = 2 * _GRACE_SECONDS) -> None:
    """End the command, and wait for its end for `patience` seconds at most."""
    if not is_alive(handle):
        return
    end(handle)
    deadline = time.monotonic() + patience
    while is_alive(handle) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def members(handle: ProcessHandle) -> list[psutil.Process]:
    """Return the processes of the command's session, its supervisor among them."""
    processes = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == handle.pid:
                processes.append(process)
        except (ProcessLookupError, PermissionError):
            continue
    return processes


def send_signal(process: psutil.Process, number: int) -> None:
    """Signal a process that may have ended already."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _tell_new_lines(log: Path, position: int, tell: Callable[[str], None], to_the_end: bool) -> int:
    with log.open("rb") as file:
        file.seek(position)
        for line in file:
            if not line.endswith(b"\n") and not to_the_end:
                break
            position += len(line)
            if text := line.decode(errors="replace").rstrip():
                tell(text)
    return position
