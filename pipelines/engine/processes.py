"""Processes of the local engine: a pool that runs calls, and what a project keeps of it between two runs.

Starting a pool takes seconds of processor time, because each process imports the libraries. So a run leaves its pool to
the next run of the same pipeline in the same `Project`. No two pipelines share processes, and a pool is replaced if the
import path, the environment or a module has changed since it started, because its processes would run the old code.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tidegate.pipelines.errors import TidegateError

if TYPE_CHECKING:
    import pyarrow as pa
    from loky import ProcessPoolExecutor

_MEMORY = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
    "LOKY_MAX_MEMORY_LEAK_SIZE": str(1 << 50),
}
"""Environment of the processes: Arrow and NumPy share one allocator, which keeps up to 512 MiB of freed memory. By
default, loky considers 300 MB a leak, warns, and replaces the process."""

_LOOKS_EVERY = 1.0
"""Seconds between two checks that the driver is alive. The system's parent-death signal would come as soon as the
creating thread ends.
"""
_IDLE_SECONDS = 300
"""Seconds after which a process without work ends. The pool starts it again for the next call."""


class Pool:
    """Processes that run calls.

    Args:
        processes: their number.
    """

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.began = _Surroundings.now()
        self._executors = [_executor(processes)]
        weakref.finalize(self, _abandon, self._executors, os.getpid()).atexit = False
        _POOLS.add(self)

    def run(self, calls: Sequence[Callable[[], list[pa.RecordBatch]]]) -> list[pa.RecordBatch]:
        """Run calls, and return the batches of all.

        If a process ends from outside, all are replaced, and the calls run once more. A call may therefore run twice;
        nothing that the first one wrote is used.

        Raises:
            TidegateError: a process was ended from outside, the second time, too.
        """
        from loky.process_executor import BrokenProcessPool

        try:
            return self._run(calls)
        except BrokenProcessPool:
            self.close()
            self._executors.append(_executor(self.processes))
        try:
            return self._run(calls)
        except BrokenProcessPool as error:
            raise TidegateError(
                "a process of the local engine ended while it ran a task, twice: it was killed, or the system ran out "
                "of memory. Nothing of the epoch was committed: run again, with smaller epochs if memory is short"
            ) from error

    def _run(self, calls: Sequence[Callable[[], list[pa.RecordBatch]]]) -> list[pa.RecordBatch]:
        (executor,) = self._executors
        futures = [executor.submit(call) for call in calls]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = next((error for future in done if (error := future.exception()) is not None), None)
        if failed is not None:
            raise failed
        return [batch for future in futures for batch in future.result()]

    def close(self) -> None:
        """End the processes, including those that are running a call."""
        while self._executors:
            self._executors.pop().shutdown(wait=True, kill_workers=True)


class Processes:
    """The pool that the runs of a project leave to the next run. A run that finds none starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: tuple[str, Pool, int] | None = None

    def take(self, pipeline: str, processes: int) -> Pool | None:
        """Return the pool that an earlier run of a pipeline left, or None. It now belongs to the caller."""
        with self._lock:
            left, self._idle = self._idle, None
        # The threads of a pool don't exist in a process that was forked from the one that started it.
        if left is None or left[2] != os.getpid():
            return None
        name, pool, _ = left
        if name == pipeline and pool.processes == processes and pool.began.is_unchanged():
            return pool
        pool.close()
        return None

    def leave(self, pipeline: str, pool: Pool) -> None:
        """Keep a pool without running calls for the next run of a pipeline, instead of the one that is kept now."""
        with self._lock:
            left, self._idle = self._idle, (pipeline, pool, os.getpid())
        if left is not None and left[2] == os.getpid():
            left[1].close()

    def close(self) -> None:
        """End the processes that no run is using."""
        with self._lock:
            left, self._idle = self._idle, None
        if left is not None and left[2] == os.getpid():
            left[1].close()


@dataclass(frozen=True)
class _Surroundings:
    """What processes take over from the driver when they start.

    Args:
        path: the import path.
        environment: the environment variables.
        loaded: by name, what each loaded module was loaded from. Loading a module again creates a new value.
    """

    path: tuple[str, ...]
    environment: Mapping[str, str]
    loaded: Mapping[str, Any]

    @classmethod
    def now(cls) -> _Surroundings:
        return cls(tuple(sys.path), dict(os.environ), _loaded())

    def is_unchanged(self) -> bool:
        loaded = _loaded()
        return (
            self.path == tuple(sys.path)
            and self.environment == dict(os.environ)
            and all(loaded.get(name, spec) is spec for name, spec in self.loaded.items())
        )


def _loaded() -> dict[str, Any]:
    # Reading an attribute of a module that is loaded on first use would load it, and some objects only claim to be one.
    return {
        name: object.__getattribute__(module, "__dict__").get("__spec__")
        for name, module in [*sys.modules.items()]
        if issubclass(type(module), ModuleType)
    }


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _abandon(executors: list[ProcessPoolExecutor], driver: int) -> None:
    """End the processes of a pool that nobody holds any longer, without waiting: any thread may collect garbage."""
    while executors and os.getpid() == driver:
        executors.pop().shutdown(wait=False, kill_workers=True)


def _executor(processes: int) -> ProcessPoolExecutor:
    from loky import ProcessPoolExecutor

    return ProcessPoolExecutor(
        max_workers=processes,
        initializer=_begin,
        initargs=(os.getpid(), list(sys.path)),
        env=_MEMORY,
        timeout=_IDLE_SECONDS,
    )


def _begin(driver: int, path: list[str]) -> None:
    """Prepare a worker: give it the driver's import path, make it end with the driver, and make it ignore Ctrl-C."""
    sys.path[:] = path
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()


def _end_with(driver: int) -> None:
    while os.getppid() == driver:
        time.sleep(_LOOKS_EVERY)
    os._exit(1)
