"""`tidegate source reset` lets a pipeline go on with a source that was made anew. Starts no JVM."""

from __future__ import annotations

import click

from tidegate.pipelines.cli.screen import Screen, with_screen
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.run.driver import system_clock
from tidegate.pipelines.run.lease import Lease
from tidegate.pipelines.run.reset_source import Begin, NewPosition, new_positions, reset_source
from tidegate.pipelines.snapshots.head import require_snapshot, required
from tidegate.pipelines.snapshots.recovery import recover
from tidegate.pipelines.storage import warehouse_of
from tidegate.pipelines.tables.pipeline_tables import PipelineTables


@click.group()
def source() -> None:
    """The source of a pipeline, if its table was dropped and created again."""


@source.command()
@click.argument("pipeline")
@click.option("--keep-results", is_flag=True, help="Keep state and results, and go on after them.")
@click.option(
    "--from",
    "begin",
    type=click.Choice(["beginning", "now"]),
    help="Of a stream: read the new table from its first commit, or only what comes after now. Default: beginning.",
)
@click.option("--force", is_flag=True, help="Also if the table is the one that was read.")
@click.option("--dry-run", is_flag=True, help="Show the new position; change nothing.")
@with_screen
def reset(screen: Screen, pipeline: str, keep_results: bool, begin: Begin | None, force: bool, dry_run: bool) -> None:
    """Let PIPELINE go on with a source table that was dropped and created again.

    State, watermark and results stay as they are; only the position in the source changes. Tidegate does not compare
    the new rows with the old ones. A stream reads the new table from its first commit: rows behind the watermark are
    late, and rows of open windows that were read before count twice. With `--from now`, the rows that the table has
    now count as read. A backfill takes the rows before the end of its newest interval as read.
    """
    from tidegate.pipelines.definition.load import load_pipeline

    if not keep_results:
        raise UsageError(
            f"say --keep-results: state and results of {pipeline} stay, and rows of the new table behind its watermark "
            f"are late. To compute everything again instead, run `tidegate stream {pipeline} --restore none`, or the "
            "first interval of a backfill with --again --and-following"
        )
    config = screen.config()
    value = load_pipeline(config, pipeline)
    tables = PipelineTables(warehouse_of(config), pipeline)
    require_snapshot(tables)
    if dry_run:
        positions = new_positions(tables, value, require_snapshot(tables), begin, force)
        _show(screen, pipeline, positions, None, "would be reset")
        return
    with Lease(tables, "source reset", system_clock) as lease:
        head = required(tables, recover(tables))
        positions = new_positions(tables, value, head, begin, force)
        lease.check()
        epoch = reset_source(tables, head, positions, system_clock()).epoch if positions else None
    _show(screen, pipeline, positions, epoch, f"reset by epoch {epoch}")


def _show(screen: Screen, pipeline: str, positions: list[NewPosition], epoch: int | None, done: str) -> None:
    shown = [
        {"source": item.table, "before": item.before.model_dump(), "after": item.after.model_dump()}
        for item in positions
    ]
    lines = [f"{pipeline}: {done}; {item}" for item in positions] or [f"{pipeline}: its source is reset already"]
    screen.show({"pipeline": pipeline, "epoch": epoch, "positions": shown}, *lines)
