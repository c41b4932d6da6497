"""A command as a process of its own: in its own session, with a log file, found again by its handle.

A worker that dies does not take the command with it: whoever has the handle can follow the log, ask
for the exit code, or end the whole process group. Imports nothing of Airflow.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 20.0

RUNNING, SUCCEEDED, FAILED, LOST = "running", "succeeded", "failed", "lost"


@dataclass(frozen=True, slots=True)
class ProcessHandle:
    """Where a command runs. `started`: seconds, as the system tells them; it guards against reused ids."""

    host: str
    pid: int
    started: float
    folder: str

    @property
    def log(self) -> Path:
        """What the command prints."""
        return Path(self.folder) / "log.txt"

    @property
    def result(self) -> Path:
        """The JSON that the command leaves."""
        return Path(self.folder) / "result.json"

    @property
    def exit_file(self) -> Path:
        """Holds the exit code once the command has ended."""
        return Path(self.folder) / "exit"

    def to_dict(self) -> dict[str, str | int | float]:
        """The handle as plain values."""
        return asdict(self)


def start(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> ProcessHandle:
    """Start a command in a session of its own.

    Args:
        command: its arguments; no shell reads them.
        folder: new folder for its log, result and exit code.
        environment: on top of this process's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.airflow.process", str(folder / "exit"), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    return ProcessHandle(
        socket.gethostname(), process.pid, psutil.Process(process.pid).create_time(), str(folder.absolute())
    )


def exit_code(handle: ProcessHandle) -> int | None:
    """The exit code, or None while there is none."""
    try:
        return int(handle.exit_file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def status(handle: ProcessHandle) -> str:
    """`running`, `succeeded`, `failed`, or `lost`: gone without an exit code."""
    if is_alive(handle):
        return RUNNING
    code = exit_code(handle)
    return LOST if code is None else SUCCEEDED if code == 0 else FAILED


def is_alive(handle: ProcessHandle) -> bool:
    """Whether the process is there; of another host only its files tell."""
    if handle.host != socket.gethostname():
        return exit_code(handle) is None
    try:
        process = psutil.Process(handle.pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - handle.started) < 1
    except psutil.NoSuchProcess:
        return False


def follow(handle: ProcessHandle, tell: Callable[[str], None]) -> str:
    """Wait for the end, telling each line of the log; the status then."""
    position = 0
    while True:
        alive = is_alive(handle)
        position = _tell_new_lines(handle.log, position, tell, to_the_end=not alive)
        if not alive:
            return status(handle)
        time.sleep(_POLL_SECONDS)


def stop(handle: ProcessHandle, grace: float = _GRACE_SECONDS) -> None:
    """End the command and every process of its session: kindly, then by force."""
    if handle.host != socket.gethostname() or not is_alive(handle):
        return
    group = members(handle)
    for process in group:
        send_signal(process, signal.SIGTERM)
    _, left = psutil.wait_procs(group, timeout=grace)
    for process in left:
        send_signal(process, signal.SIGKILL)
    psutil.wait_procs(left, timeout=grace)


def members(handle: ProcessHandle) -> list[psutil.Process]:
    """The processes of the command's session."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == handle.pid:
                found.append(process)
        except (ProcessLookupError, PermissionError):
            continue
    return found


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


def _supervise(exit_file: str, command: Sequence[str]) -> int:
    """Run the command and leave its exit code, whoever started this process."""
    process = subprocess.Popen(command)
    was_ended = False

    def end(number: int, frame: object) -> None:
        nonlocal was_ended
        was_ended = True
        process.send_signal(number)

    # The command decides how it ends; this process only waits and writes down how.
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = process.wait()
    # A stream that is told to end does so with 0, and still has not done what its task is there for.
    code = 128 + signal.SIGTERM if was_ended else 128 - code if code < 0 else code
    part = Path(f"{exit_file}.part")
    part.write_text(str(code))
    part.replace(exit_file)
    return code


if __name__ == "__main__":
    sys.exit(_supervise(sys.argv[1], sys.argv[2:]))
