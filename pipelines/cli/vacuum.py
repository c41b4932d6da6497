"""`tidegate vacuum` and `tidegate optimize`: keep the tables small. Start no JVM."""

from __future__ import annotations

from datetime import timedelta

import click

from pipelines.cli.screen import Screen, table, with_screen
from pipelines.driver import system_clock
from pipelines.lease import Lease
from pipelines.snapshots.find import find_snapshot
from pipelines.snapshots.retention import Retention
from pipelines.snapshots.retention import vacuum as run
from pipelines.tables.compaction import compact
from pipelines.tables.pipeline_tables import PUBLISHED


@click.command()
@click.argument("pipeline")
@click.option("--snapshots", type=int, help="Keep so many of the newest. Default: retain_snapshots of tidegate.toml.")
@click.option("--days", type=int, help="And all that are not older. Default: retain_days of tidegate.toml.")
@click.option("--dry-run", is_flag=True, help="Tell what would go; change nothing.")
@with_screen
def vacuum(screen: Screen, pipeline: str, snapshots: int | None, days: int | None, dry_run: bool) -> None:
    """Remove files of PIPELINE that no retained snapshot, published row or unpublished epoch needs.

    Savepoints are never touched. What `tidegate snapshot list` shows afterwards can be restored.
    """
    tables = screen.tables(pipeline)
    entry = screen.config().entry(pipeline)
    retention = Retention(
        entry.retain_snapshots if snapshots is None else snapshots,
        timedelta(days=entry.retain_days if days is None else days),
    )
    if dry_run:
        clearing = run(tables, retention, system_clock(), dry_run=True)
    else:
        find_snapshot(tables, "latest")
        with Lease(tables, "vacuum", system_clock):
            clearing = run(tables, retention, system_clock())
    rows = [(name, len(files), sum(files.values())) for name, files in clearing.files.items()]
    verb = "would go" if dry_run else "gone"
    screen.show(
        {
            "pipeline": pipeline,
            "dry_run": dry_run,
            "snapshots": clearing.snapshots,
            "files": {name: len(files) for name, files in clearing.files.items()},
            "size": clearing.size,
        },
        table(f"{pipeline}: {clearing.size} bytes {verb}", ("table", "files", "bytes"), rows, ("files", "bytes")),
        f"snapshots that can no longer be restored: {', '.join(map(str, clearing.snapshots)) or 'none'}",
    )


@click.command()
@click.argument("pipeline")
@with_screen
def optimize(screen: Screen, pipeline: str) -> None:
    """Put the small files of PIPELINE's tables together. No row changes; `vacuum` removes the old files later."""
    tables = screen.tables(pipeline)
    if not tables.exist:
        screen.show({"pipeline": pipeline, "files": {}}, f"{pipeline} has no tables yet")
        return
    with Lease(tables, "optimize", system_clock):
        counts = {name: compact(tables, name) for name in PUBLISHED}
    rows = [(name, before, after) for name, (before, after) in counts.items()]
    screen.show(
        {"pipeline": pipeline, "files": {name: {"before": b, "after": a} for name, (b, a) in counts.items()}},
        table(f"files of {pipeline}", ("table", "before", "after"), rows, ("before", "after")),
    )
