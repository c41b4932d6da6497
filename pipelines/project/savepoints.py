"""Savepoints: named copies of snapshots, safe from retention and VACUUM. Starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.snapshots.head import Snapshot, no_snapshot_yet
from tidegate.pipelines.ledger.snapshots.recovery import trusted_head
from tidegate.pipelines.ledger.snapshots.savepoint import (
    BrokenSavepoint,
    SavepointEntry,
    broken_savepoints,
    create_savepoint,
    delete_savepoint,
    find_snapshot,
    list_savepoints,
)
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Answer, Grid, Shown
from tidegate.windowing.time import show_millis

_COLUMNS = ("name", "epoch", "timeline", "watermark", "windows", "bytes", "created (UTC)")


@dataclass(frozen=True, slots=True)
class Savepoint(Answer):
    """A savepoint that was created.

    Args:
        entry: name, path, time and size, and the manifest of the copied snapshot.
    """

    entry: SavepointEntry

    def to_dict(self) -> dict[str, Any]:
        return _plain(self.entry)

    def shown(self) -> Iterator[Shown]:
        manifest = self.entry.manifest
        yield f"savepoint {self.entry.name} of {manifest.pipeline}: epoch {manifest.epoch}, in {self.entry.path}"


@dataclass(frozen=True, slots=True)
class Savepoints(Answer):
    """The savepoints of a pipeline, newest first.

    Args:
        savepoints: the savepoints that can be read.
        broken: the savepoints that can't be read.
        never_run: a note if the pipeline has never run; otherwise None.
    """

    pipeline: str
    savepoints: tuple[SavepointEntry, ...]
    broken: tuple[BrokenSavepoint, ...]
    never_run: str | None = None

    def to_dict(self) -> list[dict[str, Any]]:
        return [
            *map(_plain, self.savepoints),
            *({"name": each.name, "broken": each.reason} for each in self.broken),
        ]

    def shown(self) -> Iterator[Shown]:
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
            for entry in self.savepoints
        ]
        yield Grid(f"savepoints of {self.pipeline}", _COLUMNS, rows, _COLUMNS[4:6])
        if self.broken:
            yield Grid("can't be read", ("name", "because"), [(each.name, each.reason) for each in self.broken])


@dataclass(frozen=True, slots=True)
class SavepointDeleted(Answer):
    """A savepoint that was removed.

    Args:
        deleted: name of the savepoint.
    """

    pipeline: str
    deleted: str

    says: ClassVar[str] = "deleted savepoint {deleted} of {pipeline}"


def savepoint_create(
    config: Config, pipeline: str, name: str, target: str, if_missing: bool, keep: int | None = None
) -> Savepoint:
    family, dash, _ = name.rpartition("-")
    if keep is not None and not dash:
        raise UsageError(f"--keep: {name!r} has no dash. Give one such as {name}-20240301, or add --with-tables")
    tables = PipelineTables.of(config, pipeline)
    snapshot = find_snapshot(tables, target)
    entry = _copy_of(tables, name, snapshot) if if_missing else None
    if entry is None:
        # If somebody has rolled back table state, the name would refer to an older snapshot.
        trusted_head(tables)
        entry = create_savepoint(tables, snapshot, name, system_clock())
    if keep is not None:
        # The new savepoint counts as the newest even if its host's clock is behind.
        others = [each.name for each in list_savepoints(tables) if each.name != name]
        for old in [each for each in others if each.rpartition("-")[0] == family][keep - 1 :]:
            delete_savepoint(tables, old)
    return Savepoint(entry)


def savepoint_list(config: Config, pipeline: str) -> Savepoints:
    tables = PipelineTables.of(config, pipeline)
    never_run = None if tables.exist else str(no_snapshot_yet(tables))
    return Savepoints(pipeline, tuple(list_savepoints(tables)), tuple(broken_savepoints(tables)), never_run)


def savepoint_delete(config: Config, pipeline: str, name: str) -> SavepointDeleted:
    delete_savepoint(PipelineTables.of(config, pipeline), name)
    return SavepointDeleted(pipeline, name)


def _copy_of(tables: PipelineTables, name: str, snapshot: Snapshot) -> SavepointEntry | None:
    """Return the savepoint of that name if it is a copy of this snapshot, otherwise None."""
    wanted = name, snapshot.manifest.timeline, snapshot.manifest.epoch
    entries = list_savepoints(tables)
    return next(
        (entry for entry in entries if (entry.name, entry.manifest.timeline, entry.manifest.epoch) == wanted), None
    )


def _plain(entry: SavepointEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "path": entry.path,
        "created_at": entry.created_at,
        "size": entry.size,
        **entry.manifest.short(),
    }
