"""The peak resident memory of every process of a run, by its role."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType

import psutil

_PAUSE = 0.25
_MIB = 2**20


class PeakMemory(threading.Thread):
    """Watches a process and its children while it is entered.

    Args:
        pid: id of the process; this one by default.
    """

    def __init__(self, pid: int | None = None) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(os.getpid() if pid is None else pid)
        self._peaks: dict[tuple[str, int], int] = {}
        self._ended = threading.Event()

    def __enter__(self) -> PeakMemory:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.look()
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Look four times a second until it is exited."""
        while not self._ended.wait(_PAUSE):
            self.look()

    def look(self) -> None:
        """Note the present memory of every process."""
        for member in self._members():
            # A process may end between two looks.
            try:
                key = (role(member, self._process), member.pid)
                self._peaks[key] = max(self._peaks.get(key, 0), member.memory_info().rss)
            except psutil.NoSuchProcess:
                continue

    def by_role(self) -> dict[str, list[int]]:
        """Return the peak MiB of each process, largest first, by role: driver, JVM, worker."""
        peaks: dict[str, list[int]] = defaultdict(list)
        for (role, _), peak in sorted(self._peaks.items(), key=lambda item: -item[1]):
            peaks[role].append(peak // _MIB)
        return dict(peaks)

    def __str__(self) -> str:
        return ", ".join(
            f"{role} {' and '.join(f'{peak:,}' for peak in peaks)} MiB" for role, peaks in self.by_role().items()
        )

    def _members(self) -> list[psutil.Process]:
        try:
            return [self._process, *self._process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def role(member: psutil.Process, root: psutil.Process) -> str:
    """Return the role of a process of a run: driver, JVM, worker, or its name."""
    if member.pid == root.pid:
        return "driver"
    if member.name() == "java":
        return "JVM"
    return "worker" if any("pyspark" in part for part in member.cmdline()) else member.name()


def forget_peak() -> None:
    """Set the largest memory of this process, as the system counts it, to the present one."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_of(process: int | None = None) -> int:
    """Return the largest memory of a process as the system counts it, bytes; of this one by default."""
    lines = Path(f"/proc/{'self' if process is None else process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
