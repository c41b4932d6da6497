"""`tidegate restore`: go back to a snapshot. Starts no JVM, unless a lost table has columns that Spark derives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidegate.pipelines.cli.screen import Screen, with_screen
from tidegate.pipelines.run.driver import system_clock
from tidegate.pipelines.run.lease import Lease
from tidegate.pipelines.snapshots.find import find_snapshot
from tidegate.pipelines.snapshots.put_back import put_back
from tidegate.pipelines.snapshots.restore import restore as run
from tidegate.pipelines.tables.damaged_log import set_aside_damaged
from tidegate.windowing.time import show_millis

if TYPE_CHECKING:
    import pyarrow as pa


@click.command()
@click.argument("pipeline")
@click.argument("target")
@click.option("--keep-stale", is_flag=True, help="Leave what was published since readable, marked stale.")
@click.option(
    "--give-up-results",
    is_flag=True,
    help="Go on without published rows that can't be had any more: of damaged files, of lost tables, of left lines.",
)
@with_screen
def restore(screen: Screen, pipeline: str, target: str, keep_stale: bool, give_up_results: bool) -> None:
    """Make TARGET the newest snapshot of PIPELINE: latest, an epoch's number, or savepoint:NAME.

    What was published after it is removed, in one commit a table. The next run goes on from there, at its
    position in the source. Going back to a line that was left brings its results back. Damaged entries of a
    table's log are set aside first; what they held is published again, as far as snapshots tell. A table that
    somebody set back with Delta's RESTORE gets its files again.
    """
    tables = screen.tables(pipeline)
    given_up: list[str] = []

    def schemas() -> dict[str, pa.Schema]:
        from tidegate.pipelines.definition.load import load_pipeline
        from tidegate.pipelines.sources.bind import bind_to_source

        config = screen.config()
        return bind_to_source(config, load_pipeline(config, pipeline)).table_schemas

    if not tables.exist:
        # Where there is nothing, nothing should be made for the lease of a command that can only fail.
        find_snapshot(tables, target)
    with Lease(tables, "restore", system_clock):
        set_aside = [*set_aside_damaged(tables), *put_back(tables, give_up_results)]
        manifest = run(
            tables,
            find_snapshot(tables, target),
            system_clock(),
            keep_stale,
            given_up.append if give_up_results else None,
            schemas,
        )
    if manifest.kind == "restore" and manifest.parent is not None:
        told = (
            f"{pipeline} stands where epoch {manifest.parent} left it, as epoch {manifest.epoch} on timeline "
            f"{manifest.timeline}; watermark {show_millis(manifest.watermark)}"
        )
    else:
        told = f"epoch {manifest.epoch} is the newest snapshot of {pipeline} already: nothing to do"
    lost = [f"given up: {text}" for text in given_up]
    screen.show({**manifest.short(), "given_up": given_up, "set_aside": set_aside}, *set_aside, told, *lost)
