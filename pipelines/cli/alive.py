"""`tidegate alive` says if the stream of a pipeline on this host lives: for probes. Starts no JVM, opens no table."""

from __future__ import annotations

import time

import click

from tidegate.pipelines.cli.screen import Screen, with_screen
from tidegate.pipelines.run.host import Heartbeat


@click.command()
@click.argument("pipeline")
@click.option(
    "--within",
    type=click.FloatRange(min=0, min_open=True),
    default=3600,
    show_default=True,
    help="Most seconds since its last heartbeat; an epoch's computation gives none.",
)
@with_screen
def alive(screen: Screen, pipeline: str, within: float) -> None:
    """End with 0 if a stream of PIPELINE is at work on this host, with 1 if not. A stream that waits for data lives.

    The heartbeat is a file in the work folder, so the stream may run in another container with the same folder
    only if both see the same processes.
    """
    config = screen.config()
    config.entry(pipeline)
    age = Heartbeat.of(config.work_folder, pipeline).check(within, time.time())
    screen.show({"pipeline": pipeline, "age": round(age, 3)}, f"the stream of {pipeline} lives: {age:.0f} s ago")
