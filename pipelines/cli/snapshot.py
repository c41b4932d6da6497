"""`tidegate snapshot`: look at snapshots. Reads metadata and state rows only; starts no JVM."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from pipelines.cli.screen import Screen, cell, span, table, with_screen
from pipelines.errors import Refused, UsageError
from pipelines.snapshots.head import Snapshot, list_snapshots, read_snapshot
from pipelines.tables.pipeline_tables import PipelineTables
from windowing.time import show_millis

_COUNTS = ("key group", "windows", "event-time timers", "processing-time timers")
_TIMERS = ("event_time_timers", "processing_time_timers")


@click.group()
def snapshot() -> None:
    """List snapshots, and look inside one: manifest, timers, merging windows."""


@snapshot.command("list")
@click.argument("pipeline")
@with_screen
def list_(screen: Screen, pipeline: str) -> None:
    """List the snapshots of PIPELINE, the newest first."""
    entries = list_snapshots(screen.tables(pipeline))
    data = [{"version": entry.version, "committed_at": entry.committed_at, **entry.manifest} for entry in entries]
    rows = [
        (
            entry.version,
            entry.manifest["epoch"],
            entry.manifest["parent"],
            entry.manifest["timeline"],
            entry.manifest["kind"],
            show_millis(entry.manifest["watermark"]),
            show_millis(entry.committed_at),
        )
        for entry in entries
    ]
    columns = ("version", "epoch", "parent", "timeline", "kind", "watermark", "committed (UTC)")
    screen.show(data, table(f"snapshots of {pipeline}", columns, rows, right=columns[:4]))


@snapshot.command("show")
@click.argument("pipeline")
@click.option("--epoch", type=int, help="The snapshot of this epoch; default: the newest.")
@click.option("--rows", type=int, default=20, show_default=True, help="How many windows to show.")
@click.option("--key-group", type=int, help="Only windows of this key group.")
@with_screen
def show(screen: Screen, pipeline: str, epoch: int | None, rows: int, key_group: int | None) -> None:
    """Show a snapshot of PIPELINE: manifest, windows with their timers, and counts per key group."""
    from pipelines.snapshots.contents import key_group_counts, window_rows

    tables = screen.tables(pipeline)
    found = _find(tables, pipeline, epoch)
    manifest = found.manifest
    windows = window_rows(tables, found, key_group)
    groups = key_group_counts(windows)
    facts = [
        ("epoch", f"{manifest.epoch} (parent {manifest.parent}, timeline {manifest.timeline})"),
        ("table version", found.version),
        ("made by", f"{manifest.kind} in {manifest.order} order, tidegate {manifest.library_version}"),
        ("watermark", show_millis(manifest.watermark)),
        ("processing time", show_millis(manifest.processing_time)),
        *(
            (f"position in {source}", f"version {at.version}, event time before {show_millis(at.frontier)}")
            for source, at in manifest.positions.items()
        ),
        ("shards", f"{len(manifest.shards)} over {manifest.max_parallelism} key groups"),
        ("windows", sum(shard.rows for shard in manifest.shards)),
        ("stale intervals", len(manifest.stale)),
        ("fingerprint", manifest.fingerprint),
    ]
    shown = windows.slice(0, rows)
    screen.show(
        {
            "version": found.version,
            "manifest": manifest.model_dump(),
            "windows": shown.to_pylist(),
            "key_groups": groups,
        },
        table(f"snapshot of {pipeline}", ("", ""), facts),
        "",
        _window_table(f"windows ({len(shown)} of {len(windows)})", shown.to_pylist(), tuple(manifest.schemas.key)),
        "",
        table(
            "key groups",
            _COUNTS,
            [tuple(group.values()) for group in groups[:rows]],
            right=_COUNTS,
        ),
    )


def _find(tables: PipelineTables, pipeline: str, epoch: int | None) -> Snapshot:
    version = None
    if epoch is not None:
        known = {entry.manifest["epoch"]: entry.version for entry in list_snapshots(tables)}
        if epoch not in known:
            raise UsageError(f"--epoch {epoch}: {pipeline} has snapshots of epochs {sorted(known)}")
        version = known[epoch]
    found = read_snapshot(tables, version)
    if found is None:
        raise Refused(f"pipeline {pipeline!r} has no snapshot yet: run `tidegate backfill {pipeline}` first")
    return found


def _window_table(title: str, rows: list[dict[str, Any]], key: tuple[str, ...]) -> Table:
    contents = [name for name in (rows[0] if rows else {}) if name.startswith("acc_")]
    names = [*key, "window (UTC)", "timers", *(name.removeprefix("acc_") for name in contents), "panes", "key group"]
    return table(
        title,
        names,
        [
            [
                *(row[name] for name in key),
                span(row),
                ", ".join(show_millis(time) for name in _TIMERS for time in row.get(name) or ()),
                *(cell(row[name]) for name in contents),
                row["pane"],
                row["key_group"],
            ]
            for row in rows
        ],
    )
