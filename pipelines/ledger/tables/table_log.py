"""The log of one of tidegate's tables: read its entries, and trim it so that its length depends on what is retained.

A version can be opened if its log has a checkpoint at or before that version, and every entry after the checkpoint. So
the log keeps an entry and a checkpoint for each old version to keep, and nothing in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tidegate.pipelines.definition import windows
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables.pipeline_tables import COPIED, SAVEPOINTS, PipelineTables
from tidegate.pipelines.storage import delta_log
from tidegate.pipelines.storage.warehouse import active_files
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a log: the metadata of a commit, and the paths of the files that it added and removed."""

    version: int
    info: dict[str, Any]
    added: frozenset[str]
    removed: frozenset[str]

    @property
    def time(self) -> Millis | None:
        """Time of the commit, int64 epoch milliseconds; None if the entry has none."""
        time = self.info.get("timestamp")
        return None if time is None else int(time)

    @property
    def snapshot(self) -> dict[str, Any] | None:
        """Short form of the manifest; None if the commit created no snapshot."""
        snapshot = self.info.get("tidegate")
        return snapshot if isinstance(snapshot, dict) else None


@dataclass
class LogMemory:
    """A cache of entries, which never change. A stream keeps it from one maintenance run to the next."""

    entries: dict[tuple[str, int], LogEntry] = field(default_factory=dict)
    files: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)

    def forget(self, table: str, kept: Collection[int]) -> None:
        """Drop the versions of a table that its log no longer has."""
        for memory in (self.entries, self.files):
            for key in [key for key in memory if key[0] == table and key[1] not in kept]:
                del memory[key]


@dataclass(frozen=True)
class TableLog:
    """The log of a table, listed once. Entries in `memory` need not be read again."""

    tables: PipelineTables
    table: str
    memory: LogMemory = field(default_factory=LogMemory)

    @property
    def folder(self) -> str:
        """Path of the log."""
        return f"{self.tables.path(self.table)}/{delta_log.FOLDER}"

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the log files that start with a version."""
        return frozenset(
            name for name in self.tables.warehouse.names(self.folder) if delta_log.version_of(name) is not None
        )

    @cached_property
    def versions(self) -> list[int]:
        """Versions that have an entry, ascending."""
        return delta_log.entry_versions(self.names)

    @property
    def recent(self) -> list[int]:
        """Versions from the last gap up to the newest version, ascending."""
        versions = self.versions
        first = len(versions) - 1
        while first > 0 and versions[first - 1] == versions[first] - 1:
            first -= 1
        return versions[max(first, 0) :]

    def entry(self, version: int) -> LogEntry | None:
        """Return the entry of a version, or None if it has been removed. A damaged entry is refused."""
        key = (self.table, version)
        if key not in self.memory.entries:
            try:
                actions = self.actions(version)
            except FileNotFoundError:
                return None
            added, removed = (frozenset(delta_log.files_in(actions, kind)) for kind in ("add", "remove"))
            self.memory.entries[key] = LogEntry(version, delta_log.commit_info(actions), added, removed)
        return self.memory.entries[key]

    def actions(self, version: int) -> list[delta_log.Action]:
        """Return the actions of a version. A damaged entry is refused; a missing one raises FileNotFoundError."""
        try:
            return self._log.actions(version)
        except ValueError as error:
            raise Refused(
                f"entry {delta_log.entry_name(version)} in the log of table {self.tables.path(self.table)} is "
                f"damaged ({error}). Only tidegate may change it",
                *self.tables.remedies(self.table),
            ) from error

    def version_at(self, moment: Millis, now: Millis) -> int:
        """Return the newest version as of a time, or the oldest version if all are newer.

        A commit with a later time than `now` comes from a clock that was ahead.
        """
        recent = self.recent
        times = []
        for version in recent:
            entry = self.entry(version)
            times.append(now if entry is None or entry.time is None else entry.time)
        oldest = recent[0]
        for version, time in zip(recent[1:], not_ahead(times, now)[1:], strict=True):
            if time > moment:
                break
            oldest = version
        return oldest

    def files_since(self, version: int) -> set[str]:
        """Return every file of a version and of the versions after it, as paths relative to the table."""
        names = {file["path"] for file in active_files(self.tables.open(self.table, version))}
        for after in self.versions:
            if after > version and (entry := self.entry(after)) is not None:
                names |= entry.added
        return names

    def files_at(self, version: int) -> frozenset[str]:
        """Return every file of a version, as paths relative to the table."""
        key = (self.table, version)
        if key not in self.memory.files:
            self.memory.files[key] = frozenset(self._files_at(version))
        return self.memory.files[key]

    def keep(self, versions: Collection[int], since: int) -> None:
        """Keep some versions and all versions from `since` on. Other versions can no longer be opened.

        This writes the checkpoints first and then deletes entries, newest first. So each listed version can be opened
        even if this stops halfway. Nothing that belongs to a kept version is removed: a cleanup that hangs here for
        long must not delete the checkpoint with which a later cleanup keeps that version.
        """
        head, recent = self.versions[-1], set(self.recent)
        if self.versions == [since] and delta_log.checkpoint_name(since) in self.names:
            return
        alone = {version for version in versions if version < since}
        # A version before a gap already has one of tidegate's checkpoints. A checkpoint that Delta wrote may hold
        # tombstones, so it is rewritten.
        for version in sorted({since, head} | (alone & recent)):
            self.write_checkpoint(version)
            # The checkpoint must be durable before entries are removed, or a power loss could leave neither.
            self.tables.warehouse.make_commit_durable(self.tables.path(self.table), version)
        for version in reversed(self.versions):
            if version < since and version not in alone:
                self.tables.warehouse.delete_file(self.folder, delta_log.entry_name(version))
        for name in sorted(self.names):
            version = delta_log.version_of(name) or 0
            if version < since and version not in alone and not delta_log.is_entry(name):
                self.tables.warehouse.delete_file(self.folder, name)
        self.memory.forget(self.table, {*alone, *range(since, head + 1)})

    def write_checkpoint(self, version: int) -> None:
        """Write a checkpoint without tombstones.

        Delta keeps the tombstone of each removed file as long as VACUUM spares the file, which is ten years here, and
        copies all tombstones into every checkpoint. Tidegate does not read them, and for a file without a tombstone,
        VACUUM uses the file's age.
        """
        self.tables.open(self.table, version).create_checkpoint()
        # Anyone opening the table in the meantime reads either the old or the new checkpoint.
        for name, content in self._log.without_tombstones(version).items():
            self.tables.warehouse.replace_file(self.folder, name, content)

    def _files_at(self, version: int) -> Iterable[str]:
        if delta_log.checkpoint_name(version) in self.names:
            return self._log.active_in_checkpoint(version)
        return (file["path"] for file in active_files(self.tables.open(self.table, version)))

    @property
    def _log(self) -> delta_log.DeltaLog:
        return self.tables.warehouse.log(self.tables.path(self.table))


def not_ahead(times: Sequence[Millis], now: Millis) -> list[Millis]:
    """Return the times of commits, in commit order, with future times corrected.

    A host whose clock was ahead dates its commits in the future. Such a commit counts as no newer than the commit after
    it, or than `now` if it is the newest. Otherwise a single one would keep everything before it for years.
    """
    latest = now
    settled = []
    for time in reversed(times):
        latest = time if time <= now else latest
        settled.append(latest)
    return settled[::-1]


def leave_newest(tables: PipelineTables, table: str, since: int, listed: Iterable[str]) -> None:
    """Remove the versions of a table before the given one, and all files and folders that no later version needs.

    Args:
        tables: tables of the pipeline.
        table: name of the table, or path of a savepoint, whose copied tables are kept.
        since: the version.
        listed: the files in the folder before a commit, after which nobody can commit any of them.
    """
    path, log = tables.path(table), TableLog(tables, table)
    # A query of Spark that starts again lists the versions of its last batch once more, so table windows keeps its log
    # entries, which name no keys. Their files are removed.
    if table != windows.NAME:
        # Log entries are removed before files, so each listed version stays readable if this stops halfway.
        log.keep((), since)
    kept = {delta_log.FOLDER, *((COPIED,) if table.rpartition("/")[0] == SAVEPOINTS else ())}
    needed = log.files_since(since)
    for name in sorted(set(listed) - needed):
        tables.warehouse.delete_file(path, name)
    for folder in tables.warehouse.folders(path):
        if folder not in kept:
            tables.warehouse.delete_folder(f"{path}/{folder}")
    # The rest of the log's folder was not written by `keep`, whose checkpoints are single files.
    for name in tables.warehouse.names(log.folder):
        if delta_log.version_of(name) is None and name != delta_log.LAST_CHECKPOINT:
            tables.warehouse.delete_file(log.folder, name)
    for folder in tables.warehouse.folders(log.folder):
        tables.warehouse.delete_folder(f"{log.folder}/{folder}")


def has_leftovers(tables: PipelineTables, table: str) -> bool:
    """Return True if a table's folder contains anything other than data files and a log."""
    path = tables.path(table)
    return any(not name.endswith(".parquet") for name in tables.warehouse.names(path)) or any(
        folder != delta_log.FOLDER for folder in tables.warehouse.folders(path)
    )
