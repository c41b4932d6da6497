"""`tidegate backup` copies the tables of a pipeline to another place, and makes lost tables again. Starts no JVM."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

import click

from tidegate.pipelines.backups.backup import (
    Backup,
    create_backup,
    delete_backups,
    find_backup,
    list_backups,
)
from tidegate.pipelines.backups.restored import restore_backup
from tidegate.pipelines.cli.screen import Screen, table, with_screen
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.run.driver import system_clock
from tidegate.pipelines.run.lease import Lease
from tidegate.pipelines.snapshots.head import no_snapshot_yet
from tidegate.pipelines.sources.places import place as place_of
from tidegate.pipelines.storage import Warehouse
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import show_millis

_COLUMNS = ("name", "epoch", "timeline", "watermark", "files", "bytes", "created (UTC)")


@click.group()
def backup() -> None:
    """Copy the tables of a pipeline to another place, and make lost tables again from there."""


@backup.command()
@click.argument("pipeline")
@click.option("--name", help="Name of the backup. Default: the time, such as at-20240301-060000.")
@click.option("--keep", type=click.IntRange(min=1), help="Then remove all backups but so many, the newest ones.")
@with_screen
def create(screen: Screen, pipeline: str, name: str | None, keep: int | None) -> None:
    """Copy all tables of PIPELINE as of its newest published epoch. The pipeline may go on meanwhile.

    The place is `backups` of tidegate.toml. A data file is copied once for all backups there.
    """
    tables, place = _both(screen, pipeline)
    # A pipeline whose name or warehouse is wrong leaves nothing in the place of the backups.
    if not tables.exist:
        raise no_snapshot_yet(tables)
    with Lease(place, "backup", system_clock) as lease:
        now = system_clock()
        copy, copied = create_backup(
            tables, place, name or f"at-{datetime.fromtimestamp(now / 1000, UTC):%Y%m%d-%H%M%S}", now, lease.check
        )
        old = [each.name for each in list_backups(place)[keep:]] if keep else []
        if old:
            lease.check()
            delete_backups(place, old, lease.check)
    screen.show(
        {**asdict(copy), "copied": copied, "deleted": old},
        f"backup {copy.name} of {pipeline}: epoch {copy.epoch}, {copy.size} bytes, {copied} of them copied now, in "
        f"{place.warehouse.path(pipeline)}",
        *([f"removed: {', '.join(old)}"] if old else []),
    )


@backup.command("list")
@click.argument("pipeline")
@with_screen
def list_(screen: Screen, pipeline: str) -> None:
    """List the backups of PIPELINE, the newest first."""
    _, place = _both(screen, pipeline)
    backups = list_backups(place)
    screen.show(
        [asdict(each) for each in backups],
        table(f"backups of {pipeline} in {place.warehouse.uri}", _COLUMNS, map(_row, backups), _COLUMNS[4:6]),
    )


@backup.command()
@click.argument("pipeline")
@click.argument("name")
@with_screen
def restore(screen: Screen, pipeline: str, name: str) -> None:
    """Make the lost tables of PIPELINE again from backup NAME, or from the newest if NAME is latest.

    The pipeline must have no tables. An interrupted restore is continued by the same command.
    """
    tables, place = _both(screen, pipeline)
    chosen = find_backup(place, name)
    with Lease(tables, "backup restore", system_clock):
        copied = restore_backup(tables, place, chosen)
    screen.show(
        {**asdict(chosen), "copied": copied},
        f"{pipeline} is at epoch {chosen.epoch} again, from backup {chosen.name} "
        f"({show_millis(chosen.created_at)} UTC); the next run goes on from there",
    )


@backup.command()
@click.argument("pipeline")
@click.argument("name")
@with_screen
def delete(screen: Screen, pipeline: str, name: str) -> None:
    """Remove backup NAME of PIPELINE, and the files that no other backup has.

    An interrupted removal is continued by the same command.
    """
    _, place = _both(screen, pipeline)
    with Lease(place, "backup delete", system_clock) as lease:
        is_left = name in (*(each.name for each in list_backups(place)), "latest")
        deleted = find_backup(place, name).name if is_left else name
        gone = delete_backups(place, [deleted] if is_left else [], lease.check)
        if not (is_left or gone):
            find_backup(place, name)
    screen.show(
        {"pipeline": pipeline, "deleted": deleted, "files": gone},
        f"backup {deleted} of {pipeline} is deleted, with {gone} files"
        if is_left
        else f"{gone} files that an interrupted command left of backups of {pipeline} are deleted",
    )


def _both(screen: Screen, pipeline: str) -> tuple[PipelineTables, PipelineTables]:
    """Return the pipeline's tables, and the pipeline in the place of its backups."""
    tables, config = screen.tables(pipeline), screen.config()
    if config.backups_uri is None:
        raise UsageError(
            f"`backups` is not set in {config.file}: name a folder or URI on other storage than the warehouse, such as "
            'backups = "s3://other-bucket/backups"'
        )
    if place_of(config.backups_uri).is_relative_to(place_of(config.warehouse_uri)):
        raise UsageError(
            f"backups = {config.backups!r} in {config.file} lies in the warehouse, and would be lost with it: name a "
            "place outside of it"
        )
    return tables, PipelineTables(Warehouse(config.backups_uri, tables.warehouse.options), pipeline)


def _row(backup: Backup) -> tuple[object, ...]:
    return (
        backup.name,
        backup.epoch,
        backup.timeline,
        show_millis(backup.watermark),
        backup.files,
        backup.size,
        show_millis(backup.created_at),
    )
