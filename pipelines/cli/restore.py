"""`tidegate restore` goes back to a snapshot. Starts no JVM, unless a lost table has columns that Spark derives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidegate.pipelines.cli.screen import Screen, with_screen
from tidegate.pipelines.run.driver import system_clock
from tidegate.pipelines.run.lease import Lease
from tidegate.pipelines.snapshots.find import SAVEPOINT, find_snapshot
from tidegate.pipelines.snapshots.put_back import put_back
from tidegate.pipelines.snapshots.restore import restore as run
from tidegate.pipelines.tables.damaged_log import set_aside_damaged
from tidegate.windowing.time import show_millis

if TYPE_CHECKING:
    import pyarrow as pa


@click.command()
@click.argument("pipeline")
@click.argument("target")
@click.option(
    "--keep-stale", is_flag=True, help="Keep results that were published after the snapshot readable, marked stale."
)
@click.option(
    "--give-up-results",
    is_flag=True,
    help="Go on without published rows that are lost: rows of damaged files, of lost tables, of abandoned timelines.",
)
@with_screen
def restore(screen: Screen, pipeline: str, target: str, keep_stale: bool, give_up_results: bool) -> None:
    """Make TARGET the newest snapshot of PIPELINE: latest, an epoch's number, or savepoint:NAME.

    Results that were published after it are removed, in one commit a table. The next run continues from there, at
    its position in the source. Going back to a line that was left brings its results back. Damaged entries of a
    table's log are set aside first; their content is published again, as far as snapshots list it. A table that
    somebody set back with Delta's RESTORE gets its files again.
    """
    tables = screen.tables(pipeline)
    given_up: list[str] = []

    def schemas() -> dict[str, pa.Schema]:
        from tidegate.pipelines.definition.load import load_pipeline
        from tidegate.pipelines.epoch.open_input import bind_to_source

        config = screen.config()
        return bind_to_source(config, load_pipeline(config, pipeline)).table_schemas

    if not tables.exist:
        # Without tables the command can only fail, and it should fail before it makes a table for its lease.
        find_snapshot(tables, target)
    with Lease(tables, "restore", system_clock) as lease:
        set_aside = set_aside_damaged(tables, lease.check)
        snapshot = find_snapshot(tables, target)
        # A savepoint may be another pipeline's, with numbers of its own.
        needed = None if target.startswith(SAVEPOINT) else snapshot.manifest.epoch
        set_aside = [*set_aside, *put_back(tables, give_up_results, needed)]
        manifest = run(
            tables,
            snapshot,
            system_clock(),
            keep_stale,
            given_up.append if give_up_results else None,
            schemas,
        )
    if manifest.kind == "restore" and manifest.parent is not None:
        message = (
            f"{pipeline} is back at the snapshot of epoch {manifest.parent}, now epoch {manifest.epoch} on timeline "
            f"{manifest.timeline}; watermark {show_millis(manifest.watermark)}"
        )
    else:
        message = f"epoch {manifest.epoch} is already the newest snapshot of {pipeline}: nothing to do"
    lost = [f"given up: {text}" for text in given_up]
    screen.show({**manifest.short(), "given_up": given_up, "set_aside": set_aside}, *set_aside, message, *lost)
