"""Commands about snapshots, savepoints, backups and the position in the source. They start no JVM."""

from __future__ import annotations

from typing import Any

import click

from tidegate.pipelines.project.cli.screen import Screen, engine_option, rows_option, with_screen


@click.group()
def snapshot() -> None:
    """List snapshots, and inspect one: manifest, timers, merging windows."""


@snapshot.command("list")
@click.argument("pipeline")
@with_screen
def list_snapshots(screen: Screen, pipeline: str) -> None:
    """List the snapshots of PIPELINE, newest first.

    Each can be restored. If only some of its results are retained, because its lineage was abandoned and snapshots in
    between were removed, `tidegate restore` asks for --give-up-results.
    """
    screen.show_answer(screen.project().snapshot_list(pipeline))


@snapshot.command()
@click.argument("pipeline")
@click.argument("target", default="latest")
@rows_option("How many windows to show.")
@click.option("--key-group", type=click.IntRange(min=0), help="Only windows of this key group.")
@click.option("--checksums", is_flag=True, help="Add a checksum of each key group: equal rows have equal checksums.")
@with_screen
def show(screen: Screen, pipeline: str, target: str, **options: Any) -> None:
    """Show a snapshot of PIPELINE: manifest, windows with their timers, and counts per key group.

    TARGET is latest (the default), an epoch's number, or savepoint:NAME.
    """
    screen.show_answer(screen.project().snapshot_show(pipeline, target, **options))


@snapshot.command()
@click.argument("pipeline")
@click.argument("first", metavar="ONE")
@click.argument("second", metavar="[OTHER]", default="latest")
@rows_option("How many of each kind to show; 0 for all.")
@with_screen
def diff(screen: Screen, pipeline: str, first: str, second: str, rows: int) -> None:
    """Show the windows and timers that were added, removed or changed between snapshots ONE and OTHER of PIPELINE.

    Each is latest, an epoch's number, or savepoint:NAME.
    """
    screen.show_answer(screen.project().snapshot_diff(pipeline, first, second, rows=rows or None))


@snapshot.command()
@click.argument("pipeline")
@click.argument("target", default="latest")
@engine_option
@with_screen
def check(screen: Screen, pipeline: str, target: str) -> None:
    """Check that the current code of PIPELINE can continue from a snapshot, and show what the next run would migrate.

    If it can't, the command ends with 3 and names each field that differs.

    TARGET is latest (the default), an epoch's number, savepoint:NAME, or none for a start at the beginning of the
    source. Starts Spark only if the pipeline derives columns whose types only Spark knows.
    """
    screen.show_answer(screen.project().snapshot_check(pipeline, target))


_with_tables = click.option(
    "--with-tables", is_flag=True, help="For savepoints with all tables, in the place that `backups` names."
)
_from = click.option("--from", "place", help="With --with-tables: folder or URI of the copies, instead of `backups`.")
_keep = click.option("--keep", type=click.IntRange(min=1), help="Then remove all but this many of the newest copies.")


@click.group()
def savepoint() -> None:
    """Keep a snapshot under a name, optionally with all tables, so that retention does not remove it."""


@savepoint.command("create")
@click.argument("pipeline")
@click.argument("name")
@click.option("--of", default="latest", show_default=True, help="Snapshot to copy: latest, or an epoch.")
@click.option("--if-missing", is_flag=True, help="Change nothing if a savepoint of that name holds the same snapshot.")
@_with_tables
@click.option("--to", "place", help="With --with-tables: folder or URI to copy to, instead of `backups`.")
@_keep
@with_screen
def create_savepoint(screen: Screen, pipeline: str, name: str, **options: Any) -> None:
    """Copy a snapshot of PIPELINE under NAME. The pipeline may keep running."""
    screen.show_answer(screen.project().savepoint_create(pipeline, name, **options))


@savepoint.command("list")
@click.argument("pipeline")
@_with_tables
@_from
@with_screen
def list_savepoints(screen: Screen, pipeline: str, with_tables: bool, place: str | None) -> None:
    """List the savepoints of PIPELINE, newest first, and those that can't be read, with the reason."""
    screen.show_answer(screen.project().savepoint_list(pipeline, with_tables=with_tables, place=place))


@savepoint.command("delete")
@click.argument("pipeline")
@click.argument("name")
@_with_tables
@_from
@with_screen
def delete_savepoint(screen: Screen, pipeline: str, name: str, with_tables: bool, place: str | None) -> None:
    """Delete savepoint NAME of PIPELINE permanently."""
    screen.show_answer(screen.project().savepoint_delete(pipeline, name, with_tables=with_tables, place=place))


@click.command()
@click.argument("pipeline")
@click.argument("name", required=False)
@click.option(
    "--set",
    "settings",
    metavar="SETTING=LENGTH",
    multiple=True,
    help="A changed setting: allowed_lateness, out_of_orderness, idleness, gap or max_ahead. May be repeated.",
)
@click.option("--of", default="latest", show_default=True, help="Snapshot to begin from: latest, or as for restore.")
@click.option("--delete", is_flag=True, help="Remove branch NAME permanently.")
@with_screen
def branch(screen: Screen, pipeline: str, name: str | None, settings: tuple[str, ...], of: str, delete: bool) -> None:
    """Make branch NAME of PIPELINE, with other settings on the same source; without NAME, list the branches.

    The published results of PIPELINE don't change, and it may keep running. The branch uses the same data files. Every
    command takes the branch as PIPELINE@NAME.
    """
    changed = dict(_setting_of(text) for text in settings)
    screen.show_answer(screen.project().branch(pipeline, name, settings=changed, of=of, delete=delete))


@click.command()
@click.argument("pipeline")
@click.argument("branch")
@rows_option("How many of the windows that differ to show; 0 for all.")
@with_screen
def compare(screen: Screen, pipeline: str, branch: str, rows: int) -> None:
    """Show the windows in which BRANCH differs from PIPELINE since it began, by how much and why."""
    screen.show_answer(screen.project().compare(pipeline, branch, rows=rows or None))


@click.command()
@click.argument("pipeline")
@click.argument("branch")
@with_screen
def promote(screen: Screen, pipeline: str, branch: str) -> None:
    """Make the results and the state of BRANCH those of PIPELINE, in one epoch.

    Windows that differ are corrected. The code of PIPELINE must already have the settings of the branch; neither may be
    running.
    """
    screen.show_answer(screen.project().promote(pipeline, branch))


def _setting_of(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.BadParameter(f"{text!r}: write it as allowed_lateness=2h", param_hint="--set")
    return name.strip(), value.strip()


@click.command()
@click.argument("pipeline")
@click.argument("target")
@click.option(
    "--keep-stale", is_flag=True, help="Keep results that were published after the snapshot, marked as stale."
)
@click.option(
    "--give-up-results",
    is_flag=True,
    help="Continue without published rows that are lost: rows of damaged files, lost tables or abandoned timelines.",
)
@_with_tables
@_from
@engine_option
@with_screen
def restore(screen: Screen, pipeline: str, target: str, **options: Any) -> None:
    """Make TARGET the newest snapshot of PIPELINE: latest, an epoch's number, or savepoint:NAME.

    Results that were published after it are removed, in one commit for each table. The next run continues from this
    snapshot, at its position in the source. A restore to an abandoned lineage brings back its results. Damaged entries
    of a table's log are set aside first, and their content is republished as far as snapshots list it. The files of
    a published table that another writer changed are restored.
    """
    screen.show_answer(screen.project().restore(pipeline, target, **options))


@click.group()
def backup() -> None:
    """Copy the tables of a pipeline to another place, and recreate lost tables from there."""


@backup.command("create")
@click.argument("pipeline")
@click.option("--name", help="Name of the backup. Default: the time, such as at-20240301-060000.")
@_keep
@with_screen
def create_backup(screen: Screen, pipeline: str, name: str | None, keep: int | None) -> None:
    """Copy all tables of PIPELINE as of its newest published epoch. The pipeline may keep running.

    The place is `backups` in tidegate.toml. A data file is copied once for all backups there.
    """
    screen.show_answer(screen.project().backup_create(pipeline, name=name, keep=keep))


@backup.command("list")
@click.argument("pipeline")
@with_screen
def list_backups(screen: Screen, pipeline: str) -> None:
    """List the backups of PIPELINE, newest first."""
    screen.show_answer(screen.project().backup_list(pipeline))


@backup.command("restore")
@click.argument("pipeline")
@click.argument("name")
@with_screen
def restore_backup(screen: Screen, pipeline: str, name: str) -> None:
    """Recreate the lost tables of PIPELINE from backup NAME, or from the newest one if NAME is latest.

    The pipeline must have no tables. Run the same command again to continue an interrupted restore.
    """
    screen.show_answer(screen.project().backup_restore(pipeline, name))


@backup.command("delete")
@click.argument("pipeline")
@click.argument("name")
@with_screen
def delete_backup(screen: Screen, pipeline: str, name: str) -> None:
    """Remove backup NAME of PIPELINE, and the files that no other backup has.

    Run the same command again to continue an interrupted removal.
    """
    screen.show_answer(screen.project().backup_delete(pipeline, name))


@click.group()
def source() -> None:
    """The source of a pipeline, after its table was dropped and created again."""


@source.command()
@click.argument("pipeline")
@click.option("--keep-results", is_flag=True, help="Keep state and results, and continue from them.")
@click.option(
    "--from",
    "begin",
    type=click.Choice(["beginning", "now"]),
    help="For a stream: read the new table from its first commit, or only what comes after now. Default: beginning.",
)
@click.option("--force", is_flag=True, help="Reset even if the table has not been replaced.")
@click.option("--dry-run", is_flag=True, help="Show the new position; change nothing.")
@with_screen
def reset(screen: Screen, pipeline: str, **options: Any) -> None:
    """Let PIPELINE continue with a source table that was dropped and created again.

    State, watermark and results are kept; only the position in the source changes. Tidegate does not compare
    the new rows with the old ones. A stream reads the new table from its first commit: rows behind the watermark are
    late, and rows of open windows that were read before count twice. With `--from now`, all rows that the table has
    now count as read. For a backfill, rows before the end of its newest interval count as read.
    """
    screen.show_answer(screen.project().source_reset(pipeline, **options))
