"""The processes of the local engine: each runs one call after another, and ends when the driver does."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait

import pyarrow as pa

from tidegate.pipelines.errors import TidegateError

_MEMORY = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
    "LOKY_MAX_MEMORY_LEAK_SIZE": str(1 << 50),
}
"""Environment of the processes: Arrow and NumPy share one allocator, which keeps up to 512 MiB of freed memory. By
default, loky considers 300 MB a leak, warns, and replaces the process."""

_LOOKS_EVERY = 1.0
"""Seconds between two checks that the driver is alive. The system's parent-death signal would already come when the
creating thread ends."""


class Pool:
    """Processes that run calls.

    Args:
        processes: their number.
    """

    def __init__(self, processes: int) -> None:
        from loky import ProcessPoolExecutor

        self._executor = ProcessPoolExecutor(
            max_workers=processes, initializer=_begin, initargs=(os.getpid(), list(sys.path)), env=_MEMORY
        )

    def run(self, calls: Sequence[Callable[[], list[pa.RecordBatch]]]) -> list[pa.RecordBatch]:
        """Run calls, and return the batches of all.

        Raises:
            TidegateError: a process was ended from outside.
        """
        from loky.process_executor import BrokenProcessPool

        try:
            futures = [self._executor.submit(call) for call in calls]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failed = next((error for future in done if (error := future.exception()) is not None), None)
            if failed is not None:
                raise failed
            return [batch for future in futures for batch in future.result()]
        except BrokenProcessPool as error:
            raise TidegateError(
                "a process of the local engine ended while it ran a task: it was killed, or the system ran out of "
                "memory. Nothing of the epoch was committed: run again, with smaller epochs if memory is short"
            ) from error

    def close(self) -> None:
        """End the processes, including those that are running a call."""
        self._executor.shutdown(wait=True, kill_workers=True)


def _begin(driver: int, path: list[str]) -> None:
    """Prepare a worker: give it the driver's import path, let it end with the driver, and ignore Ctrl-C."""
    sys.path[:] = path
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()


def _end_with(driver: int) -> None:
    while os.getppid() == driver:
        time.sleep(_LOOKS_EVERY)
    os._exit(1)
