"""This host, its clock and processes, and the heartbeat of a stream: a file that shows that its loop is still running.

Leases and runs of commands identify a process by its host and by the seconds from the host's boot to its start. A
Kubernetes probe, or any other process monitor, reads the heartbeat with `tidegate driver alive`. The loop gives a
heartbeat every second while there is nothing to read, and at each step of an epoch. The lease does not show this,
because a separate thread renews it. Importing this module loads no table libraries.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.pipelines.storage.shared_folder import SharedFolder

_FIRST_NAMESPACE = "pid:[4026531836]"
"""The namespace of process ids of a Linux host, outside of containers (PROC_PID_INIT_INO)."""


def system_clock() -> int:
    """Return the current time, int64 epoch milliseconds."""
    return time.time_ns() // 1_000_000


def this_host() -> str:
    """Return the name of this host; in a container, with its process-id namespace.

    Containers may share a host name, and a process id from another namespace is meaningless here.
    """
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        # Systems other than Linux have a single namespace.
        return socket.gethostname()
    return socket.gethostname() if namespace == _FIRST_NAMESPACE else f"{socket.gethostname()} {namespace}"


def after_boot(process: psutil.Process) -> float:
    """Return the seconds from the boot of this host to the start of a process.

    They don't change when the clock is set. psutil's start time of a process does, because it is relative to the boot
    time, which the system derives from the clock.
    """
    return process.create_time() - psutil.boot_time()


def is_running(number: int, started: float) -> bool:
    """Return True if a process on this host is running. Process ids are reused, so its start time is compared too.

    The start is in seconds since the host's boot.
    """
    try:
        process = psutil.Process(number)
        # A zombie has ended, but its parent has not yet reaped it.
        return abs(after_boot(process) - started) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


_FOLDER = "alive"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The heartbeat of a pipeline's stream: a file whose modification time is the time of the last heartbeat.

    Args:
        work: the work folder of the project.
        pipeline: name of the pipeline.
    """

    work: Path
    pipeline: str

    @property
    def file(self) -> Path:
        """Return the file in the work folder."""
        return self.work / self._name

    @property
    def _name(self) -> str:
        return f"{_FOLDER}/{self.pipeline}"

    def begin(self) -> None:
        """Record this process in the file. The caller holds the lease."""
        process = psutil.Process()
        giver = {"process": process.pid, "after_boot": after_boot(process)}
        # If it can't be written, the probe reports that; the stream itself does not need it.
        with suppress(OSError, Refused):
            SharedFolder(self.work).write(self._name, json.dumps(giver).encode())

    def give(self) -> None:
        """Record that the loop is still running."""
        with suppress(OSError, Refused):
            if SharedFolder(self.work).status(self._name) is None:
                # Somebody removed the work folder.
                self.begin()
            SharedFolder(self.work).touch(self._name)

    def check(self, within: float, now: float) -> float:
        """Return the seconds since the last heartbeat; `now` is in seconds since 1970.

        A missing heartbeat, or an older one than allowed, raises TidegateError.
        """
        try:
            dated = SharedFolder(self.work).dated(self._name)
            if dated is None:
                raise FileNotFoundError
            age = now - dated[1]
            giver = json.loads(dated[0])
            process = int(giver["process"])
            still_runs = is_running(process, giver["after_boot"])
        except FileNotFoundError:
            raise TidegateError(
                f"no stream of {self.pipeline} has started on this host: {self.file} does not exist. A stream writes "
                f"it once it has the lease and its engine has started"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or "it is damaged"
            raise TidegateError(
                f"the heartbeat of {self.pipeline} can't be read: {self.file}: {reason}. The next start of the stream "
                "rewrites it"
            ) from error
        if not still_runs:
            raise TidegateError(
                f"the stream of {self.pipeline} on this host, process {process}, has ended; its last heartbeat is "
                f"{age:.0f} s old"
            )
        if age > within:
            raise TidegateError(
                f"the stream of {self.pipeline}, process {process}, gave its last heartbeat {age:.0f} s ago: it "
                f"hangs, or a step of its epoch takes longer than --within ({within:.0f} s)"
            )
        return max(age, 0.0)
