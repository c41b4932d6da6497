"""Supervise one command: send heartbeats, end the command on request, record its exit code.

The supervisor outlives a task that is ended: Airflow gives a task five seconds, less than a command may need. The
supervisor only asks the command to end, and the command then ends its own children (such as Spark's process, after the
epoch); processes that remain after the grace period are killed. This module imports nothing from Airflow.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tidegate.pipelines.airflow.process import ProcessHandle, members, send_signal
from tidegate.pipelines.airflow.run_files import DRIVEN, EXIT, RESULT, STATE, CopyOfRun, FolderOfRun
from tidegate.pipelines.errors import Refused, TidegateError, UsageError
from tidegate.pipelines.ledger.host import this_host
from tidegate.pipelines.storage.credentials import masked

_BEAT_SECONDS = 2.0

BEAT_SECONDS = 10.0
"""Time between two copies, which serve as heartbeats. Each takes one or two writes and a read of the store."""

CopyRun = Callable[["Supervisor", psutil.Process], "Copying | None"]
"""Function that creates the copier of a run's files once its command has started. None if other hosts see the files
themselves.
"""


class Supervisor:
    """Runs one command in its own session; followers read and write files in the folder of the handle."""

    def __init__(
        self, handle: ProcessHandle, grace: float, copying_of: CopyRun = lambda supervisor, command: None
    ) -> None:
        self.handle = handle
        self.files = FolderOfRun(Path(handle.folder))
        self._grace = grace
        self._copying_of = copying_of
        self._process: subprocess.Popen[bytes] | None = None
        self._is_asked = False
        self._deadline: float | None = None

    def run(self, command: Sequence[str]) -> int:
        """Run the command to completion, and return its exit code."""
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGALRM, self._beat)
        self._process = subprocess.Popen(command)
        # This is set only after the start of the command, because the command would inherit it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0.001, _BEAT_SECONDS)
        # The child is not reaped before `wait`, so its process exists even if it has ended.
        copying = self._copying_of(self, psutil.Process(self._process.pid))
        if copying is not None:
            copying.start()
        code = self._process.wait()
        if self._deadline is not None:
            _, left = psutil.wait_procs(self._others(), timeout=max(0.0, self._deadline - time.monotonic()))
            for process in left:
                send_signal(process, signal.SIGKILL)
            # A stream that was asked to end returns 0, although its task is not complete.
            code = 128 + signal.SIGTERM
        code = 128 - code if code < 0 else code
        self.files.write(EXIT, str(code).encode())
        if copying is not None:
            copying.close(code)
        return code

    def ask(self) -> None:
        """Ask this process to end its command. Any thread may call this."""
        os.kill(os.getpid(), signal.SIGTERM)

    def _on_terminate(self, number: int, frame: object) -> None:
        self._is_asked = True
        self._end()

    def _beat(self, number: int, frame: object) -> None:
        # If writing fails, the next heartbeat tries again.
        with suppress(OSError, Refused):
            self.files.beat()
            self._is_asked = self._is_asked or self.files.is_ending()
        if self._is_asked:
            self._end()

    def _end(self) -> None:
        if self._process is None:
            return
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace
            self._process.terminate()
            signal.setitimer(signal.ITIMER_REAL, self._grace, _BEAT_SECONDS)
        elif time.monotonic() >= self._deadline:
            for process in self._others():
                send_signal(process, signal.SIGKILL)

    def _others(self) -> list[psutil.Process]:
        return [process for process in members(self.handle) if process.pid != self.handle.pid]


@dataclass
class Copying:
    """Keeps the copy of a run's files up to date.

    Args:
        about: what other hosts need to know about the run: its handle, and process id and start of its command.
        on_end: called if somebody requested the end of the command.
        tell: called with the error each time that the store begins to fail.
    """

    files: FolderOfRun
    copy: CopyOfRun
    about: Mapping[str, Any]
    on_end: Callable[[], None]
    tell: Callable[[str], None] = print
    _copied: int = field(default=0, init=False)
    _fails: bool = field(default=False, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def start(self) -> None:
        """Copy in the background until `close`."""
        self._thread = threading.Thread(target=self._copy_until_ended, name="copying", daemon=True)
        self._thread.start()

    def beat(self, exit_code: int | None = None) -> None:
        """Copy new output of the log, write a heartbeat, and check whether somebody requested the end of the command.

        If the store fails, the next heartbeat tries again. `exit_code` is that of a command that has ended.
        """
        try:
            self._copied = self.copy.copy_log(self.files, self._copied)
            # These are written before the exit code, which signals the end of the run to other hosts.
            for name in (RESULT, DRIVEN) if exit_code is not None else ():
                if (content := self.files.read(name)) is not None:
                    self.copy.write(name, content)
            state = {**self.about, "log_size": self._copied, "exit_code": exit_code}
            self.copy.write(STATE, json.dumps(state).encode())
            if exit_code is None and self.copy.is_ending():
                self.on_end()
            self._fails = False
        except (TidegateError, OSError) as error:
            if not self._fails:
                self.tell(masked(f"other hosts can't follow this run: {error}"))
            self._fails = True

    def close(self, exit_code: int) -> None:
        """Copy the remaining files, and the exit code of the command."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.beat(exit_code)

    def _copy_until_ended(self) -> None:
        self.beat()
        while not self._ended.wait(BEAT_SECONDS):
            self.beat()


def copy_among_artifacts(supervisor: Supervisor, command: psutil.Process) -> Copying | None:
    """Return the copier of a run's files to the artifacts of the project that TIDEGATE_CONFIG names."""
    handle = supervisor.handle
    if not handle.place:
        return None
    # Most projects have no copies, and a supervisor should start quickly.
    from tidegate.pipelines.definition.config import load_config
    from tidegate.pipelines.definition.config.opened import artifacts_of

    try:
        copy = CopyOfRun(artifacts_of(load_config()), handle.place)
    except UsageError as error:
        print(f"other hosts can't follow this run: {error}", flush=True)
        return None
    about = {"handle": handle.to_dict(), "process": command.pid, "process_started": command.create_time()}
    return Copying(supervisor.files, copy, about, supervisor.ask)


if __name__ == "__main__":
    this = psutil.Process()
    handle = ProcessHandle(this_host(), this.pid, this.create_time(), sys.argv[1], sys.argv[3] or None)
    sys.exit(Supervisor(handle, float(sys.argv[2]), copy_among_artifacts).run(sys.argv[4:]))
