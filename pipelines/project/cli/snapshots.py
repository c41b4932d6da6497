"""Commands about snapshots, savepoints and the position in the source. They start no JVM."""

from __future__ import annotations

from typing import Any

import click

from tidegate.pipelines.observe.report.answer import Answer
from tidegate.pipelines.project.cli.screen import Screen, command, engine_option, rows_option


@click.group()
def snapshot() -> None:
    """List, inspect, compare and check snapshots."""


@command("list", group=snapshot)
def list_snapshots(screen: Screen, pipeline: str) -> Answer:
    """List the snapshots of PIPELINE, newest first.

    Those that are marked "yes" under "restorable" can be restored. A snapshot of an abandoned lineage can't be restored
    once snapshots between it and the fork were removed, because they list its results.
    """
    return screen.project().snapshot_list(pipeline)


@command(group=snapshot)
@click.argument("target", default="latest")
@rows_option("How many windows to show.")
@click.option("--key-group", type=click.IntRange(min=0), help="Only windows of this key group.")
@click.option("--checksums", is_flag=True, help="Add a checksum of each key group: equal rows have equal checksums.")
def show(screen: Screen, pipeline: str, target: str, **options: Any) -> Answer:
    """Show a snapshot of PIPELINE: manifest, windows with their timers, and counts per key group.

    TARGET is latest, an epoch's number, or savepoint:NAME.
    """
    return screen.project().snapshot_show(pipeline, target, **options)


@command(group=snapshot)
@click.argument("first", metavar="ONE")
@click.argument("second", metavar="[OTHER]", default="latest")
@rows_option("How many of each kind to show; 0 for all.")
def diff(screen: Screen, pipeline: str, first: str, second: str, rows: int) -> Answer:
    """Show the windows and timers that were added, removed or changed between snapshots ONE and OTHER of PIPELINE.

    Each is latest, an epoch's number, or savepoint:NAME.
    """
    return screen.project().snapshot_diff(pipeline, first, second, rows=rows or None)


@command(group=snapshot)
@click.argument("target", default="latest")
@engine_option
def check(screen: Screen, pipeline: str, target: str) -> Answer:
    """Check that the current code of PIPELINE can continue from a snapshot, and show what the next run would migrate.

    If it can't, the command ends with exit code 3 and names each field that differs.

    TARGET is latest (the default), an epoch's number, savepoint:NAME, or none for a start at the beginning of the
    source. The command starts Spark only if the pipeline derives columns whose types only Spark knows.
    """
    return screen.project().snapshot_check(pipeline, target)


_at = click.option("--at", help="Folder or URI of the savepoint; without it, the warehouse.")


@click.group()
def savepoint() -> None:
    """Keep a snapshot under a name, optionally with its tables or in another place, so that nothing removes it."""


@command("create", group=savepoint)
@click.argument("name")
@click.option("--of", default="latest", show_default=True, help="Snapshot to copy: latest, or an epoch.")
@click.option("--if-missing", is_flag=True, help="Change nothing if a savepoint of that name holds the same snapshot.")
@click.option("--tables", is_flag=True, help="Also copy the published tables as of the snapshot.")
@click.option("--to", help="Folder or URI to copy to, instead of the warehouse.")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    help="Afterwards delete all but this many of the newest savepoints whose names equal NAME up to the last dash. The "
    "time is added to a NAME without a dash.",
)
def create_savepoint(screen: Screen, pipeline: str, name: str, **options: Any) -> Answer:
    """Copy a snapshot of PIPELINE under NAME. The pipeline may keep running."""
    return screen.project().savepoint_create(pipeline, name, **options)


@command("list", group=savepoint)
@_at
def list_savepoints(screen: Screen, pipeline: str, at: str | None) -> Answer:
    """List the savepoints of PIPELINE, newest first, and those that can't be read, with the reason."""
    return screen.project().savepoint_list(pipeline, at=at)


@command("delete", group=savepoint)
@click.argument("name")
@_at
def delete_savepoint(screen: Screen, pipeline: str, name: str, at: str | None) -> Answer:
    """Delete savepoint NAME of PIPELINE permanently."""
    return screen.project().savepoint_delete(pipeline, name, at=at)


@command()
@click.argument("other", metavar="OTHER")
@rows_option("How many of the windows that differ to show; 0 for all.")
def compare(screen: Screen, pipeline: str, other: str, rows: int) -> Answer:
    """Show in which windows pipeline OTHER differs from PIPELINE, by how much, and why.

    If one of them was restored from the other, only windows that changed since then are compared.
    """
    return screen.project().compare(pipeline, other, rows=rows or None)


@command()
@click.argument("target", required=False)
@click.option(
    "--keep-stale", is_flag=True, help="Keep results that were published after the snapshot, marked as stale."
)
@click.option(
    "--restart",
    is_flag=True,
    help="Instead of TARGET: remove all tables, so that the next run computes everything again from the source.",
)
@click.option("--dry-run", is_flag=True, help="With --restart: show what would be removed and rebuilt; change nothing.")
@click.option("--from", "source", metavar="OTHER", help="Begin PIPELINE from a snapshot of pipeline OTHER.")
@click.option("--tables", is_flag=True, help="Replace all tables by those of the savepoint.")
@_at
@engine_option
def restore(screen: Screen, pipeline: str, target: str | None, **options: Any) -> Answer:
    """Make TARGET the newest snapshot of PIPELINE: latest, an epoch's number, or savepoint:NAME.

    Results that were published after it are removed, in one commit for each table. The next run continues from this
    snapshot, at its position in the source. A restore to a snapshot of an abandoned lineage brings back the results of
    that lineage.

    If tables are damaged, a savepoint or --restart replaces them. --restart names the tables, epochs and source
    versions before it removes anything, and changes nothing if the source no longer has all the rows that were read.

    With --from, PIPELINE has no epochs yet. It gets a copy of what OTHER had published up to TARGET (by default
    latest), and continues from there with its own code; OTHER does not change.
    """
    return screen.project().restore(pipeline, target, **options)


@click.group()
def source() -> None:
    """Reset the position in the source of a pipeline, after its table was dropped and created again."""


@command(group=source)
@click.option("--keep-results", is_flag=True, help="Keep state and results, and continue from them.")
@click.option(
    "--from",
    "begin",
    type=click.Choice(["beginning", "now"]),
    help="For a stream: read the new table from its first commit, or only later commits. Default: beginning.",
)
@click.option("--force", is_flag=True, help="Reset even if the table has not been replaced.")
@click.option("--dry-run", is_flag=True, help="Show the new position; change nothing.")
def reset(screen: Screen, pipeline: str, **options: Any) -> Answer:
    """Let PIPELINE continue with a source table that was dropped and created again.

    State, watermark and results are kept; only the position in the source changes. Tidegate does not compare
    the new rows with the old ones. A stream reads the new table from its first commit: rows behind the watermark are
    late, and rows of open windows that were read before count twice. With `--from now`, all rows that the table has
    now count as read. For a backfill, rows before the end of its newest interval count as read.
    """
    return screen.project().source_reset(pipeline, **options)
