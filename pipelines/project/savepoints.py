"""Savepoints, which are named copies of snapshots, safe from retention and VACUUM; and backups, which copy all tables.

A backup is in another location, and can recreate lost tables. Starts no JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.backups.backup import (
    LATEST,
    Backup,
    create_backup,
    delete_backups,
    find_backup,
    list_backups,
    restore_backup,
)
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
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
from tidegate.pipelines.observe.report.answer import Answer, Grid, Shown, as_plain
from tidegate.pipelines.sources.open_source import place as place_of
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.time import show_millis

_OF_SAVEPOINTS = ("name", "epoch", "timeline", "watermark", "windows", "bytes", "created (UTC)")


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
        yield Grid(f"savepoints of {self.pipeline}", _OF_SAVEPOINTS, rows, _OF_SAVEPOINTS[4:6])
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


_OF_BACKUPS = ("name", "epoch", "timeline", "watermark", "files", "bytes", "created (UTC)")


@dataclass(frozen=True, slots=True)
class BackupCreated(Answer):
    """A backup that was created.

    Args:
        backup: the backup.
        copied: number of bytes that were copied; the other files are already in older backups.
        deleted: names of the backups that were removed.
        path: path or URI of the backup.
    """

    backup: Backup
    copied: int
    deleted: tuple[str, ...]
    path: str

    def to_dict(self) -> dict[str, Any]:
        return {**as_plain(self.backup), "copied": self.copied, "deleted": list(self.deleted)}

    def shown(self) -> Iterator[Shown]:
        backup = self.backup
        yield (
            f"backup {backup.name} of {backup.pipeline}: epoch {backup.epoch}, {backup.size} bytes, {self.copied} of "
            f"them copied now, in {self.path}"
        )
        if self.deleted:
            yield f"removed: {', '.join(self.deleted)}"


@dataclass(frozen=True, slots=True)
class Backups(Answer):
    """The backups of a pipeline, newest first.

    Args:
        place: folder or URI of all backups.
        backups: the backups.
        never_run: a note if there is no backup and the pipeline has never run; otherwise None.
    """

    pipeline: str
    place: str
    backups: tuple[Backup, ...]
    never_run: str | None = None

    def to_dict(self) -> list[dict[str, Any]]:
        return [as_plain(each) for each in self.backups]

    def shown(self) -> Iterator[Shown]:
        rows = [
            (
                each.name,
                each.epoch,
                each.timeline,
                show_millis(each.watermark),
                each.files,
                each.size,
                show_millis(each.created_at),
            )
            for each in self.backups
        ]
        yield Grid(f"backups of {self.pipeline} in {self.place}", _OF_BACKUPS, rows, _OF_BACKUPS[4:6])


@dataclass(frozen=True, slots=True)
class BackupRestored(Answer):
    """Tables that were recreated.

    Args:
        backup: the backup that they were restored from.
        copied: number of bytes that were copied.
    """

    backup: Backup
    copied: int

    def to_dict(self) -> dict[str, Any]:
        return {**as_plain(self.backup), "copied": self.copied}

    def shown(self) -> Iterator[Shown]:
        backup = self.backup
        yield (
            f"{backup.pipeline} is at epoch {backup.epoch} again, from backup {backup.name} "
            f"({show_millis(backup.created_at)} UTC); the next run continues from there"
        )


@dataclass(frozen=True, slots=True)
class BackupDeleted(Answer):
    """A backup that was removed.

    Args:
        deleted: name of the backup.
        files: number of files that were removed.
        is_rest: True if there were only leftovers of an interrupted removal.
    """

    pipeline: str
    deleted: str
    files: int
    is_rest: bool
    for_people = ("is_rest",)

    def shown(self) -> Iterator[Shown]:
        if self.is_rest:
            yield f"deleted {self.files} files that an interrupted command left from backups of {self.pipeline}"
        else:
            yield f"deleted backup {self.deleted} of {self.pipeline}, with {self.files} files"


def backup_create(
    config: Config, pipeline: str, name: str | None, keep: int | None, place_uri: str | None = None
) -> BackupCreated:
    tables, place = _tables_and_place(config, pipeline, place_uri)
    # If the pipeline's name or the warehouse is wrong, nothing must be left in the backup location.
    if not tables.exist:
        raise no_snapshot_yet(tables)
    with Lease(place, "backup", system_clock) as lease:
        now = system_clock()
        name = name or f"at-{datetime.fromtimestamp(now / 1000, UTC):%Y%m%d-%H%M%S}"
        backup, copied = create_backup(tables, place, name, now, lease.check)
        old = [each.name for each in list_backups(place)[keep:]] if keep else []
        if old:
            lease.check()
            delete_backups(place, old, lease.check_in_table)
    return BackupCreated(backup, copied, tuple(old), place.warehouse.path(pipeline))


def backup_list(config: Config, pipeline: str, place_uri: str | None = None) -> Backups:
    tables, place = _tables_and_place(config, pipeline, place_uri)
    backups = tuple(list_backups(place))
    never_run = None if backups or tables.exist else str(no_snapshot_yet(tables))
    return Backups(pipeline, place.warehouse.uri, backups, never_run)


def backup_restore(config: Config, pipeline: str, name: str, place_uri: str | None = None) -> BackupRestored:
    tables, place = _tables_and_place(config, pipeline, place_uri)
    backup = find_backup(place, name)
    with Lease(tables, "backup restore", system_clock):
        copied = restore_backup(tables, place, backup)
    return BackupRestored(backup, copied)


def backup_delete(config: Config, pipeline: str, name: str, place_uri: str | None = None) -> BackupDeleted:
    _, place = _tables_and_place(config, pipeline, place_uri)
    with Lease(place, "backup delete", system_clock) as lease:
        is_left = name in (*(each.name for each in list_backups(place)), LATEST)
        deleted = find_backup(place, name).name if is_left else name
        files = delete_backups(place, [deleted] if is_left else [], lease.check_in_table)
        if not (is_left or files):
            find_backup(place, name)
    return BackupDeleted(pipeline, deleted, files, not is_left)


def backups_of(config: Config, pipeline: str) -> tuple[str, ...]:
    """Return the names of the backups of a pipeline, or none if the project has no backup location."""
    if config.backups_uri is None:
        return ()
    place = PipelineTables(Warehouse(config.backups_uri, warehouse_of(config).options), pipeline)
    return tuple(backup.name for backup in list_backups(place))


def _tables_and_place(config: Config, pipeline: str, place_uri: str | None) -> tuple[PipelineTables, PipelineTables]:
    """Return the pipeline's tables, and its folder in the backup location."""
    tables = PipelineTables.of(config, pipeline)
    if place_uri is not None:
        config = config.model_copy(update={"backups": place_uri})
    if config.backups_uri is None:
        raise UsageError(
            f"`backups` is not set in {config.file}: name a folder or URI on different storage from the warehouse, "
            'such as backups = "s3://other-bucket/backups"'
        )
    if place_of(config.backups_uri).is_relative_to(place_of(config.warehouse_uri)):
        named = f"backups = {config.backups!r} in {config.file}" if place_uri is None else repr(place_uri)
        raise UsageError(f"{named} is inside the warehouse, and would be lost with it: name a place outside it")
    return tables, PipelineTables(Warehouse(config.backups_uri, warehouse_of(config).options), pipeline)
