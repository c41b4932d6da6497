"""A function that ends the driver of a pipeline after its present epoch, on this host or another, without a JVM.

Importing this module loads no library for tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tidegate.pipelines.config import load_config
from tidegate.pipelines.errors import LeaseHeld

_POLL_SECONDS = 1.0


def stop_driver(
    config_file: str | Path, pipeline: str, patience: float, tell: Callable[[str], None] = lambda text: None
) -> str | None:
    """Ask the driver at work to stop, wait for its end, and return its description; None if no driver is at work.

    Args:
        config_file: tidegate.toml.
        pipeline: a name in it.
        patience: seconds to wait for its present epoch.
        tell: called with a line that names the driver.

    Raises:
        LeaseHeld: the driver did not end in time.
    """
    from tidegate.pipelines.run.driver import system_clock
    from tidegate.pipelines.run.lease import read_lease, request_stop
    from tidegate.pipelines.storage import warehouse_of
    from tidegate.pipelines.tables.pipeline_tables import PipelineTables

    config = load_config(Path(config_file))
    config.entry(pipeline)
    tables = PipelineTables(warehouse_of(config), pipeline)
    stopped = request_stop(tables, system_clock())
    if stopped is None:
        return None
    tell(f"asked {stopped.driver} to stop after its present epoch")
    deadline = time.monotonic() + patience
    while (row := read_lease(tables)) is not None and row.run == stopped.run and row.is_alive(system_clock()):
        if time.monotonic() > deadline:
            raise LeaseHeld(
                f"{stopped.driver} was asked to stop, but its epoch did not end within {patience:.0f} s: ask "
                "again with a larger --patience"
            )
        time.sleep(_POLL_SECONDS)
    return str(stopped)
