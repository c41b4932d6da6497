"""`tidegate savepoint` keeps named copies of snapshots, safe from retention and VACUUM. Starts no JVM."""

from __future__ import annotations

import click

from tidegate.pipelines.cli.screen import Screen, table, with_screen
from tidegate.pipelines.run.driver import system_clock
from tidegate.pipelines.snapshots.find import find_snapshot
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.snapshots.recovery import trusted_head
from tidegate.pipelines.snapshots.savepoint import (
    SavepointEntry,
    broken_savepoints,
    create_savepoint,
    delete_savepoint,
    list_savepoints,
)
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import show_millis

_COLUMNS = ("name", "epoch", "timeline", "watermark", "windows", "bytes", "created (UTC)")


@click.group()
def savepoint() -> None:
    """Keep a snapshot under a name: it survives retention and can be copied elsewhere."""


@savepoint.command()
@click.argument("pipeline")
@click.argument("name")
@click.option("--of", "target", default="latest", show_default=True, help="Snapshot to copy: latest, or an epoch.")
@click.option("--if-missing", is_flag=True, help="Change nothing if a savepoint of that name holds the same snapshot.")
@with_screen
def create(screen: Screen, pipeline: str, name: str, target: str, if_missing: bool) -> None:
    """Copy a snapshot of PIPELINE under NAME. The pipeline may go on meanwhile."""
    tables = screen.tables(pipeline)
    snapshot = find_snapshot(tables, target)
    entry = _copy_of(tables, name, snapshot) if if_missing else None
    if entry is None:
        # Somebody who set table state back would get an older snapshot under the name.
        trusted_head(tables)
        entry = create_savepoint(tables, snapshot, name, system_clock())
    screen.show(_data(entry), f"savepoint {name} of {pipeline}: epoch {entry.manifest.epoch}, in {entry.path}")


@savepoint.command("list")
@click.argument("pipeline")
@with_screen
def list_(screen: Screen, pipeline: str) -> None:
    """List the savepoints of PIPELINE, the newest first, and those that can't be read with the reason."""
    tables = screen.tables(pipeline)
    screen.tell_if_never_run(tables)
    entries, broken = list_savepoints(tables), broken_savepoints(tables)
    rows = [
        (
            entry.name,
            entry.manifest.epoch,
            entry.manifest.timeline,
            show_millis(entry.manifest.watermark),
            sum(shard.rows for shard in entry.manifest.shards),
            entry.size,
            show_millis(entry.created_at),
        )
        for entry in entries
    ]
    unreadable = [(entry.name, entry.reason) for entry in broken]
    screen.show(
        [*(_data(entry) for entry in entries), *({"name": name, "broken": reason} for name, reason in unreadable)],
        table(f"savepoints of {pipeline}", _COLUMNS, rows, _COLUMNS[4:6]),
        *([table("can't be read", ("name", "because"), unreadable)] if broken else []),
    )


@savepoint.command()
@click.argument("pipeline")
@click.argument("name")
@with_screen
def delete(screen: Screen, pipeline: str, name: str) -> None:
    """Remove savepoint NAME of PIPELINE for good."""
    delete_savepoint(screen.tables(pipeline), name)
    screen.show({"pipeline": pipeline, "deleted": name}, f"savepoint {name} of {pipeline} is deleted")


def _copy_of(tables: PipelineTables, name: str, snapshot: Snapshot) -> SavepointEntry | None:
    """Return the savepoint of that name if it is a copy of this snapshot, else None."""
    wanted = name, snapshot.manifest.timeline, snapshot.manifest.epoch
    entries = list_savepoints(tables)
    return next(
        (entry for entry in entries if (entry.name, entry.manifest.timeline, entry.manifest.epoch) == wanted), None
    )


def _data(entry: SavepointEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "path": entry.path,
        "created_at": entry.created_at,
        "size": entry.size,
        **entry.manifest.short(),
    }
