"""Calls that maintain tables: vacuum, optimize, and rebuild table `windows`. Starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.pipelines.definition import windows
from tidegate.pipelines.definition.binding import check_windows, no_windows
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.head import no_snapshot_yet, required
from tidegate.pipelines.ledger.snapshots.publish_windows import build_windows, drop_unreadable
from tidegate.pipelines.ledger.snapshots.recovery import recover, trusted_head
from tidegate.pipelines.ledger.snapshots.retention import Clearing, Retention
from tidegate.pipelines.ledger.snapshots.retention import vacuum as run
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.observe.report.answer import Answer, Grid, Shown
from tidegate.pipelines.run.work_folder import clean

_SPANS = 10
"""Largest number of epoch ranges to show. Thinning out snapshots leaves a range for each hour."""


@dataclass(frozen=True, slots=True)
class Vacuumed(Answer):
    """Files that were removed, or would be.

    Args:
        dry_run: True if nothing was removed.
        clearing: the files by table, and the epochs whose snapshots can no longer be restored.
    """

    pipeline: str
    dry_run: bool
    clearing: Clearing

    def to_dict(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "dry_run": self.dry_run,
            "snapshots": self.clearing.snapshots,
            "files": {name: len(files) for name, files in self.clearing.files.items()},
            "size": self.clearing.size,
        }

    def shown(self) -> Iterator[Shown]:
        rows = [(name, len(files), sum(files.values())) for name, files in self.clearing.files.items()]
        title = f"{self.pipeline}: {self.clearing.size} bytes {'would be removed' if self.dry_run else 'removed'}"
        yield Grid(title, ("table", "files", "bytes"), rows, ("files", "bytes"))
        yield f"snapshots that can no longer be restored: {spans(self.clearing.snapshots)}"


def vacuum(config: Config, pipeline: str, snapshots: int | None, days: int | None, dry_run: bool) -> Vacuumed:
    tables = PipelineTables.of(config, pipeline)
    retention = Retention.of(config.entry(pipeline), snapshots, days)
    if dry_run:
        return Vacuumed(pipeline, dry_run, run(tables, retention, system_clock(), dry_run=True))
    find_snapshot(tables, "latest")
    with Lease(tables, "vacuum", system_clock) as lease:
        clearing = run(tables, retention, system_clock(), check_lease=lease.check)
    clean(config, system_clock())
    return Vacuumed(pipeline, dry_run, clearing)


def spans(epochs: Sequence[int]) -> str:
    """Describe epoch numbers by their count and ranges, such as `4 (1 to 3, 7)`."""
    spans: list[list[int]] = []
    for epoch in sorted(epochs):
        if spans and spans[-1][1] == epoch - 1:
            spans[-1][1] = epoch
        else:
            spans.append([epoch, epoch])
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    more = [f"and {len(shown) - _SPANS} more such runs"] if len(shown) > _SPANS else []
    return f"{len(epochs)} ({', '.join([*shown[:_SPANS], *more])})" if shown else "none"


@dataclass(frozen=True, slots=True)
class Optimized(Answer):
    """Files that were merged.

    Args:
        files: by table, the numbers of files before and after.
        never_run: a note if the pipeline has never run; otherwise None.
    """

    pipeline: str
    files: dict[str, tuple[int, int]]
    never_run: str | None = None

    def to_dict(self) -> dict[str, Any]:
        files = {name: {"before": before, "after": after} for name, (before, after) in self.files.items()}
        return {"pipeline": self.pipeline, "files": files}

    def shown(self) -> Iterator[Shown]:
        if self.never_run is not None:
            return
        rows = [(name, before, after) for name, (before, after) in self.files.items()]
        yield Grid(f"files of {self.pipeline}", ("table", "before", "after"), rows, ("before", "after"))


def optimize(config: Config, pipeline: str) -> Optimized:
    tables = PipelineTables.of(config, pipeline)
    if not tables.exist:
        return Optimized(pipeline, {}, str(no_snapshot_yet(tables)))
    with Lease(tables, "optimize", system_clock):
        trusted_head(tables)
        return Optimized(pipeline, {name: compact(tables, name) for name in tables.with_windows(PUBLISHED)})


@dataclass(frozen=True, slots=True)
class WindowsBuilt(Answer):
    """Table `windows` after a rebuild.

    Args:
        table: path of the table.
        epoch: the newest epoch that it includes.
        windows: number of its windows.
    """

    pipeline: str
    table: str
    epoch: int
    windows: int

    for_people = ("table",)
    says: ClassVar[str] = "{table} has {windows} windows, as of epoch {epoch}"


def rebuild_windows(config: Config, pipeline: str) -> WindowsBuilt:
    wanted, value = config.entry(pipeline).windows, load_pipeline(config, pipeline)
    if (reason := no_windows(value.compute)) is not None:
        raise UsageError(f"pipeline {pipeline!r} has {reason}")
    if not wanted.enabled:
        raise UsageError(f"pipelines.{pipeline}.windows.enabled = False: set it to true, then run the command again")
    check_windows(value, wanted)
    tables = PipelineTables.of(config, pipeline)
    if not tables.exist:
        raise no_snapshot_yet(tables)
    with Lease(tables, "windows build", system_clock):
        drop_unreadable(tables)
        manifest = required(tables, recover(tables)).manifest
        count = build_windows(tables, manifest, wanted)
    return WindowsBuilt(pipeline, tables.path(windows.NAME), manifest.epoch, count)
