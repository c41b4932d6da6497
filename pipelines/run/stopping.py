"""The holder of a pipeline's lease, seen from another process: whether it is running, and how to stop it.

It may be on another host. Importing this module loads no table libraries, and nothing here starts a JVM.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from tidegate.pipelines.definition.config import Config, load_config
from tidegate.pipelines.errors import LeaseHeld

_POLL_SECONDS = 1.0


def stop_driver(
    config: Config | str | Path, pipeline: str, patience: float, tell: Callable[[str], None] = lambda text: None
) -> str | None:
    """Ask the running driver to stop, wait for its end, and return its description, or None if no driver is running.

    Args:
        config: the project, or its tidegate.toml.
        pipeline: a name in it.
        patience: seconds to wait for its current epoch.
        tell: called with a line that names the driver.

    Raises:
        LeaseHeld: the driver did not end in time.
    """
    from tidegate.pipelines.ledger.host import system_clock
    from tidegate.pipelines.ledger.lease import read_lease, request_stop
    from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables

    project = config if isinstance(config, Config) else load_config(Path(config))
    tables = PipelineTables.of(project, pipeline)
    stopped = request_stop(tables, system_clock())
    if stopped is None:
        return None
    tell(f"asked {stopped.driver} to stop after its current epoch")
    deadline = time.monotonic() + patience
    while (row := read_lease(tables)) is not None and row.run == stopped.run and row.is_alive(system_clock()):
        if time.monotonic() > deadline:
            raise LeaseHeld(
                f"{stopped.driver} was asked to stop, but its epoch did not end within {patience:.0f} s: ask "
                "again with a larger --patience"
            )
        time.sleep(_POLL_SECONDS)
    return str(stopped)


class StopRequest:
    """A stop request, which a signal handler may make at any time, even while this thread waits for it.

    `threading.Event` can't be used: its `set` waits for a lock that an interrupted `wait` of the same thread may hold.
    """

    def __init__(self) -> None:
        self._is_made = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def make(self) -> None:
        """Make the request, and end any `wait`."""
        self._is_made = True
        self._wake.put(None)

    def is_made(self) -> bool:
        """Return True once the request has been made."""
        return self._is_made

    def wait(self, seconds: float) -> None:
        """Wait for the request, at most the given number of seconds."""
        if not self._is_made:
            with suppress(Empty):
                self._wake.get(timeout=seconds)
