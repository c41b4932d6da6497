"""The name of this host, by which leases and runs of commands say where a process is, and the age of its processes.

Importing this module loads no library for tables.
"""

from __future__ import annotations

import os
import socket

import psutil

_FIRST_NAMESPACE = "pid:[4026531836]"
"""The namespace of process ids of a Linux host, outside of containers (PROC_PID_INIT_INO)."""


def this_host() -> str:
    """Return the name of this host; in a container, with its namespace of process ids.

    Containers may share the name of their host, and a process id of another namespace has no meaning here.
    """
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        # Other systems than Linux have a single namespace.
        return socket.gethostname()
    return socket.gethostname() if namespace == _FIRST_NAMESPACE else f"{socket.gethostname()} {namespace}"


def after_boot(process: psutil.Process) -> float:
    """Return the seconds from the boot of this host to the start of a process.

    They stay when the clock is set. psutil's own start of a process moves then, because it is counted from the time of
    the boot, which the system takes from the clock.
    """
    return process.create_time() - psutil.boot_time()
