"""Calls that maintain tables: vacuum, optimize, and rebuild table `windows`. Starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

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
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import BYTES, COUNT, NUMBER, OBJECT, TEXT, YES_NO, Column, Columns, Table
from tidegate.pipelines.run.work_folder import clean

_SPANS = 10
"""Largest number of epoch ranges to show. Thinning out snapshots leaves a range for each hour."""


@dataclass(frozen=True, slots=True)
class Vacuumed(Facts):
    """Files that were removed, or would be.

    Args:
        dry_run: True if nothing was removed.
        clearing: the files by table, and the epochs whose snapshots can no longer be restored.
    """

    pipeline: str
    dry_run: bool
    clearing: Clearing

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("dry_run", YES_NO),
        Column("size", BYTES, value=lambda answer: answer.clearing.size),
        Column("snapshots", OBJECT, value=lambda answer: answer.clearing.snapshots),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "files": (Column("table", TEXT), Column("files", COUNT), Column("bytes", BYTES))
    }

    def tables(self) -> Iterator[Table]:
        rows = [
            {"table": name, "files": len(files), "bytes": sum(files.values())}
            for name, files in self.clearing.files.items()
        ]
        done = "would be removed" if self.dry_run else "removed"
        yield Table("files", self.holds["files"], rows, f"{self.pipeline}: {self.clearing.size} bytes {done}")

    def remarks(self) -> Iterator[str]:
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
class FilesMerged:
    """The numbers of files of a table before and after its small files were merged."""

    table: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Optimized(Facts):
    """Files that were merged.

    Args:
        files: for each table, the numbers of files before and after.
        never_run: a note if the pipeline has never run; otherwise None.
    """

    pipeline: str
    files: tuple[FilesMerged, ...]
    never_run: str | None = None

    facts: ClassVar[Columns] = (Column("pipeline", TEXT),)
    holds: ClassVar[Mapping[str, Columns]] = {
        "files": (Column("table", TEXT), Column("before", COUNT), Column("after", COUNT))
    }

    def tables(self) -> Iterator[Table]:
        title, is_shown = f"files of {self.pipeline}", self.never_run is None
        yield Table("files", self.holds["files"], self.files, title, is_shown=is_shown)


def optimize(config: Config, pipeline: str) -> Optimized:
    tables = PipelineTables.of(config, pipeline)
    if not tables.exist:
        return Optimized(pipeline, (), str(no_snapshot_yet(tables)))
    with Lease(tables, "optimize", system_clock):
        trusted_head(tables)
        counts = {name: compact(tables, name) for name in tables.with_windows(PUBLISHED)}
    return Optimized(pipeline, tuple(FilesMerged(name, *of_table) for name, of_table in counts.items()))


@dataclass(frozen=True, slots=True)
class WindowsBuilt(Facts):
    """Table `windows` after a rebuild.

    Args:
        path: path of the table.
        epoch: the newest epoch that it includes.
        windows: number of its windows.
    """

    pipeline: str
    path: str
    epoch: int
    windows: int

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("path", TEXT),
        Column("epoch", NUMBER),
        Column("windows", COUNT),
    )
    says: ClassVar[str] = "{path} has {windows} windows, as of epoch {epoch}"


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
