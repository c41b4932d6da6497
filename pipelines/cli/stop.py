"""`tidegate stop` ends the driver of a pipeline between two epochs, on this host or another. Starts no JVM."""

from __future__ import annotations

import click

from tidegate.pipelines.cli.screen import Screen, with_screen
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.run.stopping import stop_driver


@click.command()
@click.argument("pipeline")
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=600,
    show_default=True,
    help="Seconds to wait for its present epoch.",
)
@with_screen
def stop(screen: Screen, pipeline: str, patience: float) -> None:
    """Ask the driver of PIPELINE to end after its present epoch, and wait until it has."""
    stopped = stop_driver(screen.config().file, pipeline, patience, screen.tell)
    if stopped is None:
        raise Refused(f"no driver is at work on pipeline {pipeline!r}")
    screen.show({"pipeline": pipeline, "stopped": stopped}, f"{pipeline} is stopped")
