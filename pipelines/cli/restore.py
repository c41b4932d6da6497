"""`tidegate restore`: go back to a snapshot. Starts no JVM."""

from __future__ import annotations

import click

from pipelines.cli.screen import Screen, with_screen
from pipelines.driver import system_clock
from pipelines.lease import Lease
from pipelines.snapshots.find import find_snapshot
from pipelines.snapshots.restore import restore as run
from windowing.time import show_millis


@click.command()
@click.argument("pipeline")
@click.argument("target")
@click.option("--keep-stale", is_flag=True, help="Leave what was published since readable, marked stale.")
@with_screen
def restore(screen: Screen, pipeline: str, target: str, keep_stale: bool) -> None:
    """Make TARGET the newest snapshot of PIPELINE: an epoch's number, or savepoint:NAME.

    What was published after it is removed, in one commit a table. The next run goes on from there, at its
    position in the source. Going back to a line that was left brings its results back.
    """
    tables = screen.tables(pipeline)
    find_snapshot(tables, target)
    with Lease(tables, "restore", system_clock):
        manifest = run(tables, find_snapshot(tables, target), system_clock(), keep_stale)
    if manifest.kind == "restore":
        told = (
            f"{pipeline} stands where epoch {manifest.parent} left it, as epoch {manifest.epoch} on timeline "
            f"{manifest.timeline}; watermark {show_millis(manifest.watermark)}"
        )
    else:
        told = f"epoch {manifest.epoch} is the newest snapshot of {pipeline} already: nothing to do"
    screen.show(manifest.short(), told)
