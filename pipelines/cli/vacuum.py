"""`tidegate vacuum` and `tidegate optimize` keep the tables small. They start no JVM."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tidegate.pipelines.cli.screen import Screen, table, with_screen
from tidegate.pipelines.run.driver import system_clock
from tidegate.pipelines.run.lease import Lease
from tidegate.pipelines.run.work_folder import clean
from tidegate.pipelines.snapshots.find import find_snapshot
from tidegate.pipelines.snapshots.recovery import trusted_head
from tidegate.pipelines.snapshots.retained import Retention
from tidegate.pipelines.snapshots.retention import vacuum as run
from tidegate.pipelines.tables.compaction import compact
from tidegate.pipelines.tables.pipeline_tables import PUBLISHED

_SPANS = 10
"""The largest number of epoch ranges shown; thinning out snapshots makes a range for each hour."""


@click.command()
@click.argument("pipeline")
@click.option(
    "--snapshots", type=int, help="Number of newest snapshots to keep. Default: retain_snapshots of tidegate.toml."
)
@click.option("--days", type=int, help="Keep younger snapshots too; of a stream one an hour. Default: retain_days.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
@with_screen
def vacuum(screen: Screen, pipeline: str, snapshots: int | None, days: int | None, dry_run: bool) -> None:
    """Remove files of PIPELINE that no retained snapshot, published row or unpublished epoch needs.

    Old logs, runs and reports go too. Savepoints are never touched. The snapshots that `tidegate snapshot
    list` shows afterwards can be restored.
    """
    tables = screen.tables(pipeline)
    retention = Retention.of(screen.config().entry(pipeline), snapshots, days)
    if dry_run:
        clearing = run(tables, retention, system_clock(), dry_run=True)
    else:
        find_snapshot(tables, "latest")
        with Lease(tables, "vacuum", system_clock) as lease:
            clearing = run(tables, retention, system_clock(), check_lease=lease.check)
        clean(screen.config(), system_clock())
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
        f"snapshots that can no longer be restored: {spans(clearing.snapshots)}",
    )


def spans(epochs: Sequence[int]) -> str:
    """Describe numbers of epochs: their count, and their ranges, such as `4 (1 to 3, 7)`."""
    spans: list[list[int]] = []
    for epoch in sorted(epochs):
        if spans and spans[-1][1] == epoch - 1:
            spans[-1][1] = epoch
        else:
            spans.append([epoch, epoch])
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    more = [f"and {len(shown) - _SPANS} more such runs"] if len(shown) > _SPANS else []
    return f"{len(epochs)} ({', '.join([*shown[:_SPANS], *more])})" if shown else "none"


@click.command()
@click.argument("pipeline")
@with_screen
def optimize(screen: Screen, pipeline: str) -> None:
    """Merge the small files of PIPELINE's tables. No row changes; `vacuum` removes the old files later."""
    tables = screen.tables(pipeline)
    if not tables.exist:
        screen.tell_if_never_run(tables)
        screen.show({"pipeline": pipeline, "files": {}})
        return
    with Lease(tables, "optimize", system_clock):
        trusted_head(tables)
        counts = {name: compact(tables, name) for name in PUBLISHED}
    rows = [(name, before, after) for name, (before, after) in counts.items()]
    screen.show(
        {"pipeline": pipeline, "files": {name: {"before": b, "after": a} for name, (b, a) in counts.items()}},
        table(f"files of {pipeline}", ("table", "before", "after"), rows, ("before", "after")),
    )
