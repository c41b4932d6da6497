"""`tidegate why`: why a window has not fired. Starts no JVM."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click
import pyarrow.compute as pc

from pipelines.cli.screen import Screen, span, table, with_screen
from pipelines.driver import system_clock
from pipelines.snapshots.head import require_snapshot
from pipelines.snapshots.manifest import Manifest
from pipelines.snapshots.waiting import PartitionStanding, Waiting, open_windows, partitions
from pipelines.storage import read_table
from pipelines.tables import results
from pipelines.tables.pipeline_tables import PipelineTables
from windowing.compute import IntervalJoin, Windows
from windowing.time import Millis, show_millis

_PARTITIONS = ("source partition", "watermark", "last commit (UTC)", "quiet for", "")


@click.command()
@click.argument("pipeline")
@click.option("--key", multiple=True, help="Only windows of this key; once for each key column, in order.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=10, show_default=True, help="How many windows to show; 0 for all."
)
@with_screen
def why(screen: Screen, pipeline: str, key: tuple[str, ...], limit: int) -> None:
    """Tell why windows of PIPELINE have not fired: what each waits for, and who holds event time back."""
    tables = screen.tables(pipeline)
    snapshot = require_snapshot(tables)
    manifest, now = snapshot.manifest, system_clock()
    names = tuple(manifest.schemas.key)
    if key and len(key) != len(names):
        raise click.BadParameter(f"the key has {len(names)} column(s), {', '.join(names)}", param_hint="--key")
    compute = screen.config().pipeline(pipeline).compute
    lateness = compute.lateness if isinstance(compute, Windows) else 0
    what = "windows" if isinstance(compute, Windows) else "elements" if isinstance(compute, IntervalJoin) else "keys"
    windows = open_windows(tables.warehouse, snapshot, lateness, now, key or None)
    standings = partitions(manifest, now)
    unread = _unread(tables, manifest)
    fired = _last_fired(tables, names, key) if key else None
    shown = windows[:limit] if limit else windows
    facts = [
        ("watermark", show_millis(manifest.watermark)),
        ("processing time", show_millis(manifest.processing_time)),
        *((f"versions of {source} not yet read", count) for source, count in unread.items() if count),
        (f"open {what}", len(windows)),
    ]
    if key:
        facts.append(("last fired", fired or "never"))
    screen.show(
        {
            "pipeline": pipeline,
            "epoch": manifest.epoch,
            "watermark": manifest.watermark,
            "processing_time": manifest.processing_time,
            "unread_versions": unread,
            "partitions": [asdict(standing) for standing in standings],
            "open_windows": len(windows),
            "last_fired": fired,
            "windows": [asdict(window) for window in shown],
        },
        table(f"{pipeline} at epoch {manifest.epoch}", ("", ""), facts),
        *([table("event time", _PARTITIONS, map(_partition, standings))] if standings else []),
        table(
            f"{what} ({len(shown)} of {len(windows)}, those that end first)",
            [*names, *(["window (UTC)", "panes"] if what == "windows" else []), "it waits because"],
            [
                [*window.key.values(), *([_span(window), window.fired] if what == "windows" else []), window.reason]
                for window in shown
            ],
        ),
    )


def _unread(tables: PipelineTables, manifest: Manifest) -> dict[str, int]:
    """How many versions of each source came after what was read."""
    counts = {}
    for source, position in manifest.positions.items():
        path = tables.warehouse.path(source)
        if tables.warehouse.exists(path):
            counts[source] = max(0, tables.warehouse.open(path).version() - position.version)
    return counts


def _last_fired(tables: PipelineTables, names: tuple[str, ...], key: tuple[str, ...]) -> str | None:
    """The window of a key that fired last, for people."""
    rows = read_table(tables.warehouse, tables.open(results.NAME), where=~pc.field("stale"))
    for name, text in zip(names, key, strict=True):
        rows = rows.filter(pc.equal(rows[name].cast("string"), text))
    if not results.has_panes(rows.schema):
        last = pc.max(rows["epoch"]).as_py()
        return None if last is None else f"a result, in epoch {last}"
    for row in rows.sort_by([("epoch", "descending"), ("window_end", "descending")]).slice(0, 1).to_pylist():
        return f"{span(row)}, pane {row['pane']} ({row['timing']}), in epoch {row['epoch']}"
    return None


def _partition(standing: PartitionStanding) -> tuple[Any, ...]:
    role = "idle: nobody waits for it" if standing.idle else "holds the watermark back" if standing.holds else ""
    return (
        standing.name or "(all)",
        show_millis(standing.watermark),
        show_millis(standing.last_commit),
        "-" if standing.quiet is None else _length(standing.quiet),
        role,
    )


def _span(window: Waiting) -> str:
    return "global" if window.start is None else f"{show_millis(window.start)} to {show_millis(window.end)}"


def _length(length: Millis) -> str:
    return str(timedelta(seconds=length // 1000))
