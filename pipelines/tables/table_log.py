"""The log of one of our tables: its entries, and how it is cut so that it depends on what is retained.

A version can be opened if its log has a checkpoint at it or before it, and every entry from there on. So old
versions that stay are kept as an entry and a checkpoint of their own, with nothing between two of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from pyarrow import fs

from tidegate.pipelines.delta_log import (
    FOLDER,
    LAST_CHECKPOINT,
    Action,
    DeltaLog,
    checkpoint_name,
    commit_info,
    entry_name,
    entry_versions,
    files_in,
    is_entry,
    version_of,
)
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.storage import active_files
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis

_SPARSE = 1000
"""A checkpoint at every such version stays: opening a version between two of them reads so many entries at most."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One version, as its entry tells.

    Args:
        version: of the table.
        info: what the commit tells of itself.
        added: paths of the files that it added.
        removed: paths of the files that it removed.
    """

    version: int
    info: dict[str, Any]
    added: frozenset[str]
    removed: frozenset[str]

    @property
    def time(self) -> Millis | None:
        """When it was committed, int64 epoch milliseconds; None where the entry does not tell."""
        time = self.info.get("timestamp")
        return None if time is None else int(time)

    @property
    def snapshot(self) -> dict[str, Any] | None:
        """The short form of the manifest, if a snapshot was committed."""
        snapshot = self.info.get("tidegate")
        return snapshot if isinstance(snapshot, dict) else None


@dataclass
class LogMemory:
    """What was read of versions before; it never changes. A stream keeps it from one upkeep to the next.

    Args:
        entries: by table and version.
        files: paths of all files of a version, by table and version.
    """

    entries: dict[tuple[str, int], LogEntry] = field(default_factory=dict)
    files: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)

    def forget(self, table: str, kept: Collection[int]) -> None:
        """Drop the versions that a table's log does not have any more."""
        for known in (self.entries, self.files):
            for key in [key for key in known if key[0] == table and key[1] not in kept]:
                del known[key]


@dataclass(frozen=True)
class TableLog:
    """The log of a table, listed once.

    Args:
        tables: of the pipeline.
        table: name of the table.
        memory: entries that need not be read again.
    """

    tables: PipelineTables
    table: str
    memory: LogMemory = field(default_factory=LogMemory)

    @property
    def folder(self) -> str:
        """Path of the log."""
        return f"{self.tables.path(self.table)}/{FOLDER}"

    @cached_property
    def names(self) -> frozenset[str]:
        """Files of the log that are named for a version."""
        return frozenset(name for name in self.tables.warehouse.names(self.folder) if version_of(name) is not None)

    @cached_property
    def versions(self) -> list[int]:
        """Versions with an entry, ascending."""
        return entry_versions(self.names)

    @property
    def recent(self) -> list[int]:
        """The versions that follow each other without a gap up to the newest, ascending."""
        versions = self.versions
        first = len(versions) - 1
        while first > 0 and versions[first - 1] == versions[first] - 1:
            first -= 1
        return versions[max(first, 0) :]

    def entry(self, version: int) -> LogEntry | None:
        """The entry of a version; None if somebody removed it meanwhile.

        Raises:
            Refused: it is damaged.
        """
        key = (self.table, version)
        if key not in self.memory.entries:
            actions = self._actions(version)
            if actions is None:
                return None
            added, removed = (frozenset(files_in(actions, kind)) for kind in ("add", "remove"))
            self.memory.entries[key] = LogEntry(version, commit_info(actions), added, removed)
        return self.memory.entries[key]

    def version_at(self, moment: Millis) -> int:
        """The version that was the newest at a moment, int64 epoch milliseconds; the oldest if all are younger."""
        recent = self.recent
        oldest = recent[0]
        for version in recent[1:]:
            entry = self.entry(version)
            if entry is None or entry.time is None or entry.time > moment:
                break
            oldest = version
        return oldest

    def files_since(self, version: int) -> set[str]:
        """Every file of a version and of those after it. Paths are relative to the table."""
        names = {file["path"] for file in active_files(self.tables.open(self.table, version))}
        for after in self.versions:
            if after > version and (entry := self.entry(after)) is not None:
                names |= entry.added
        return names

    def files_at(self, version: int) -> frozenset[str]:
        """Every file of a version. Paths are relative to the table."""
        key = (self.table, version)
        if key not in self.memory.files:
            self.memory.files[key] = frozenset(self._files_at(version))
        return self.memory.files[key]

    def keep(self, versions: Collection[int], since: int) -> None:
        """Leave some versions, and all from `since` on; every other one can't be opened any more.

        Checkpoints come first, then the entries go, the newest first: whenever this ends, what is listed can be opened.

        Args:
            versions: older ones that stay.
            since: the first version from which on all stay.
        """
        head, recent = self.versions[-1], set(self.recent)
        if self.versions == [since] and checkpoint_name(since) in self.names:
            return
        alone = {version for version in versions if version < since}
        # One that stands alone already has a checkpoint of ours. One that Delta wrote may hold tombstones.
        for version in sorted({since, head} | (alone & recent)):
            self.write_checkpoint(version)
            # Entries that go must not be all that a power loss would have left.
            self.tables.warehouse.make_commit_durable(self.tables.path(self.table), version)
        for version in reversed(self.versions):
            if version < since and version not in alone:
                self.tables.warehouse.delete_file(self.folder, entry_name(version))
        needed = {checkpoint_name(version) for version in (*alone, since, head)}
        for name in sorted(self.names - needed):
            is_step = (named := version_of(name) or 0) > since and named % _SPARSE == 0
            if not (is_entry(name) or named > head or is_step):
                self.tables.warehouse.delete_file(self.folder, name)
        self.memory.forget(self.table, {*alone, *range(since, head + 1)})

    def write_checkpoint(self, version: int) -> None:
        """Write a checkpoint without tombstones.

        Delta keeps the tombstone of each file that was ever removed for as long as VACUUM may spare the file, which is
        ten years here, and copies all of them into every checkpoint. Nothing of ours reads them, and VACUUM
        spares a file without a tombstone by its age.
        """
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        self.tables.open(self.table, version).create_checkpoint()
        name = checkpoint_name(version)
        if self.tables.warehouse.sizes(self.folder, [name])[name] is None:
            # With Delta's second form of checkpoints it has another name, and stays as it is.
            return
        log = self._log
        rows = log.checkpoint(version)
        is_tombstone = pc.is_valid(pc.struct_field(rows["remove"].combine_chunks(), "path"))
        if not pc.any(is_tombstone).as_py():
            return
        kept = rows.filter(pc.invert(is_tombstone))
        filesystem, target = log.filesystem, log.path(name)
        if isinstance(filesystem, fs.LocalFileSystem):
            # Whoever opens the table meanwhile finds the one or the other.
            pq.write_table(kept, f"{target}.tmp", filesystem=filesystem)
            size = filesystem.get_file_info(f"{target}.tmp").size
            self.tables.warehouse.make_durable(self.folder, [f"{name}.tmp"], folder=False)
            filesystem.move(f"{target}.tmp", target)
        else:
            pq.write_table(kept, target, filesystem=filesystem)
            size = filesystem.get_file_info(target).size
        self._describe(version, len(kept), int(size))

    def _describe(self, version: int, rows: int, size: int) -> None:
        """Put the size of the newest checkpoint where Delta notes it."""
        log = self._log
        filesystem, target = log.filesystem, log.path(LAST_CHECKPOINT)
        noted = json.loads(log.read(LAST_CHECKPOINT))
        if noted.get("version") != version:
            return
        with filesystem.open_output_stream(f"{target}.tmp" if log.root else target) as out:
            out.write(json.dumps({**noted, "size": rows, "sizeInBytes": size}).encode())
        if log.root:
            filesystem.move(f"{target}.tmp", target)

    def _files_at(self, version: int) -> Iterator[str]:
        if checkpoint_name(version) not in self.names:
            yield from (file["path"] for file in active_files(self.tables.open(self.table, version)))
            return
        import pyarrow.compute as pc

        added = self._log.checkpoint(version, ["add"])["add"].combine_chunks()
        yield from map(unquote, pc.struct_field(added, "path").drop_null().to_pylist())

    @property
    def _log(self) -> DeltaLog:
        return self.tables.warehouse.log(self.tables.path(self.table))

    def _actions(self, version: int) -> list[Action] | None:
        try:
            return self._log.actions(version)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise Refused(
                f"entry {entry_name(version)} in the log of table {self.tables.path(self.table)} is damaged ({error}). "
                "Only tidegate may change it"
            ) from error


def shorten_log(tables: PipelineTables, table: str, oldest: int) -> None:
    """Let the log of a table begin with a version: a checkpoint there, and no entry before it."""
    log = TableLog(tables, table)
    if any(version < oldest for version in log.versions):
        log.keep((), oldest)
