"""Supervises one command: sends heartbeats, ends it on request, records its exit code.

The supervisor outlives a task that is ended: Airflow gives a task five seconds, fewer than a command may need. It
asks only the command to end, which then ends its own children (Spark's process, say, after the epoch); processes
that are left after the grace time are ended by force. This module imports nothing of Airflow.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

from tidegate.pipelines.airflow.process import ProcessHandle, is_ending, members, send_signal

_BEAT_SECONDS = 2.0


class Supervisor:
    """Runs one command in its own session.

    Args:
        handle: handle of this process; those who follow the command read and write files in its folder.
        grace: seconds that the command has to end by itself when it is asked to, more than 0.
    """

    def __init__(self, handle: ProcessHandle, grace: float) -> None:
        self._handle = handle
        self._grace = grace
        self._process: subprocess.Popen[bytes] | None = None
        self._is_asked = False
        self._deadline: float | None = None

    def run(self, command: Sequence[str]) -> int:
        """Run the command to its end, and return its exit code."""
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGALRM, self._beat)
        self._process = subprocess.Popen(command)
        # Set after the start of the command, which would inherit it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0.001, _BEAT_SECONDS)
        code = self._process.wait()
        if self._deadline is not None:
            _, left = psutil.wait_procs(self._others(), timeout=max(0.0, self._deadline - time.monotonic()))
            for process in left:
                send_signal(process, signal.SIGKILL)
            # A stream that is asked to end returns 0, but its task has not done its work.
            code = 128 + signal.SIGTERM
        code = 128 - code if code < 0 else code
        part = self._handle.exit_file.with_suffix(".part")
        part.write_text(str(code))
        part.replace(self._handle.exit_file)
        return code

    def _on_terminate(self, number: int, frame: object) -> None:
        self._is_asked = True
        self._end()

    def _beat(self, number: int, frame: object) -> None:
        # Storage that fails now may answer at the next beat.
        with suppress(OSError):
            self._handle.heartbeat.touch()
            self._is_asked = self._is_asked or is_ending(self._handle)
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
        return [process for process in members(self._handle) if process.pid != self._handle.pid]


if __name__ == "__main__":
    this = psutil.Process()
    handle = ProcessHandle(socket.gethostname(), this.pid, this.create_time(), sys.argv[1])
    sys.exit(Supervisor(handle, float(sys.argv[2])).run(sys.argv[3:]))
