"""`tidegate unlock` takes the lease of a pipeline away from a driver that is dead. Starts no JVM."""

from __future__ import annotations

import click

from tidegate.pipelines.cli.screen import Screen, with_screen
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.run.driver import system_clock
from tidegate.pipelines.run.lease import unlock as run


@click.command()
@click.argument("pipeline")
@with_screen
def unlock(screen: Screen, pipeline: str) -> None:
    """Take the lease of PIPELINE away from a driver that is dead, on this host or another.

    A lease runs out by itself, a minute after its driver died; if the clock of its host was ahead, that takes longer,
    and this command helps. A driver that is at work on this host keeps its lease. If a driver elsewhere is alive
    after all, no harm is done: it takes the lease back, or ends with 4 if another driver has it by then.
    """
    taken_from = run(screen.tables(pipeline), system_clock())
    if taken_from is None:
        raise Refused(f"nobody holds the lease of pipeline {pipeline!r}: there is nothing to unlock")
    screen.show(
        {"pipeline": pipeline, "taken_from": taken_from}, f"{pipeline} is free; the lease was held by {taken_from}"
    )
