"""A check of the files of a pipeline's tables: each was added by a commit of tidegate, and its rows are unchanged.

Files are followed through the log, from a version that an earlier check found correct. A foreign commit that only moved
rows to other files, as OPTIMIZE does, is accepted after its rows are compared; files that any other foreign commit
added or removed are faults until the table is as it was before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tidegate.pipelines.definition import state
from tidegate.pipelines.ledger.tables.checksum import add_up, checksum_of
from tidegate.pipelines.ledger.tables.compaction import COMPACTION
from tidegate.pipelines.ledger.tables.damaged_footers import damaged_footers
from tidegate.pipelines.ledger.tables.files import CHECKSUM, epoch_of
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.ledger.tables.table_log import TableLog
from tidegate.pipelines.storage.delta_log import Action, commit_info, files_in, statistics_in
from tidegate.pipelines.storage.warehouse import active_files
from tidegate.windowing.time import show_millis

UNKNOWN, LOST, CHANGED, UNREADABLE, REWRITTEN = "unknown", "lost", "changed", "unreadable", "rewritten"
"""Faults of a file: added or removed by another program, rows changed, missing or damaged, rewritten by another."""

_MARKS = ("tidegate", "tidegate_fence", COMPACTION)


class FollowedFile(NamedTuple):
    """A file of a table with its fault, which is empty for a correct file."""

    table: str
    file: str
    fault: str
    by: str


@dataclass(frozen=True)
class Followed:
    """The result of following a table's files. `takes_away` is True if a commit of tidegate removed or changed rows."""

    since: int | None
    takes_away: bool
    files: tuple[FollowedFile, ...]

    @property
    def unreadable(self) -> frozenset[str]:
        """Return the files that can't be read."""
        return frozenset(file.file for file in self.files if file.fault == UNREADABLE)


def follow(
    tables: PipelineTables, table: str, handle: DeltaTable, since: int | None, read_all: bool = False
) -> Followed:
    """Follow the files of a table through its log.

    `since` is a version whose files are correct. Without `read_all`, only the files added since then are read. The
    others only have to be in a listing of the folder.
    """
    # Between older retained snapshots the log has gaps; only the recent entries are contiguous.
    log = TableLog(tables, table)
    oldest = log.recent[0] if log.versions else handle.version()
    if since is not None and not oldest <= since <= handle.version():
        since = None
    trail = _Trail(tables, table)
    # The checked version may be such an older snapshot, from before the recent entries.
    first = min(oldest, handle.version()) if since is None else since
    if since is not None or oldest > 0:
        # The origin of files from before the log is unknown, so they are assumed to be correct.
        earlier = handle if first == handle.version() else tables.open(table, first)
        trail.expected = {file["path"]: {"num_records": file["num_records"]} for file in active_files(earlier)}
        trail.begun, trail.present = {*trail.expected}, {*trail.expected}
        first += 1
    for version in range(first, handle.version() + 1):
        trail.take(version, log.actions(version))
    return Followed(since, trail.takes_away, tuple(trail.compared_with(handle, read_all, since is not None)))


@dataclass
class _Trail:
    """The files that a table should have, computed while reading its log."""

    tables: PipelineTables
    table: str
    expected: dict[str, dict[str, Any]] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    takes_away: bool = False
    rewritten: list[FollowedFile] = field(default_factory=list)
    stands_for: dict[str, list[str]] = field(default_factory=dict)
    blamed: dict[str, str] = field(default_factory=dict)
    new: dict[str, int] = field(default_factory=dict)
    """The version in which tidegate added each file."""
    present: set[str] = field(default_factory=set)
    same: list[dict[str, dict[str, Any]]] = field(default_factory=list)
    """Sets of files that held the same rows before commits that only moved them; cleared when rows change."""
    lost_at: dict[int, set[str]] = field(default_factory=dict)
    """Missing files of each snapshot, by its epoch."""

    def take(self, version: int, actions: list[Action]) -> None:
        """Apply a commit."""
        self._take(version, actions)
        adds, removes, info = files_in(actions, "add"), files_in(actions, "remove"), commit_info(actions)
        self.present = (self.present - removes.keys()) | adds.keys()
        # A RESTORE may undo an OPTIMIZE.
        self.expected = next((files for files in self.same if files.keys() == self.present), self.expected)
        if isinstance(manifest := info.get("tidegate"), dict):
            if self.table == state.NAME:
                self._take_snapshot(manifest)
            else:
                self._take_published(manifest)

    def _take_published(self, manifest: dict[str, Any]) -> None:
        """Apply a published epoch. A new timeline removes rows from after its parent, so their files may disappear."""
        parent = manifest["parent"] or 0
        if parent == manifest["epoch"] - 1:
            return
        for path in self.expected.keys() - self.present:
            written = epoch_of(path)
            if written is not None and parent < written < manifest["epoch"]:
                del self.expected[path]

    def _take_snapshot(self, snapshot: dict[str, Any]) -> None:
        """Apply a snapshot: after a restore, only files that were already missing from its target may be missing."""
        lost = self.expected.keys() - self.present
        if snapshot["kind"] == "restore":
            lost_then = self.lost_at.get(snapshot["parent"], set())
            for path in lost - lost_then:
                del self.expected[path]
            lost &= lost_then
        self.lost_at[snapshot["epoch"]] = lost

    def _take(self, version: int, actions: list[Action]) -> None:
        adds, removes = files_in(actions, "add"), files_in(actions, "remove")
        if not adds and not removes:
            return
        moves = not any(action.get("dataChange", True) for action in (*adds.values(), *removes.values()))
        are_expected = removes.keys() <= self.expected.keys()
        if not self._is_ours(actions):
            by = _author(version, actions)
            if not (are_expected and self._hold_the_same(removes, adds, moves)):
                self.blamed |= dict.fromkeys((*adds, *removes), by)
                return
            # A RESTORE that undoes an OPTIMIZE restores tidegate's files.
            foreign = adds.keys() - self.begun - self.new.keys()
            self.rewritten += [FollowedFile(self.table, path, REWRITTEN, by) for path in sorted(foreign)]
        elif moves and not are_expected:
            # A compaction by tidegate merged foreign rows into its file, which does not make them correct.
            replaced = [path for path in removes if path in self.expected]
            self.stands_for |= dict.fromkeys(adds, replaced)
            blame = next((self.blamed[path] for path in removes if path in self.blamed), "")
            self.blamed |= dict.fromkeys((*adds, *replaced), blame)
            return
        elif removes and not moves:
            self.takes_away = True
        if moves:
            self.same.append({**self.expected})
        elif self._is_ours(actions):
            self.same.clear()
        for path in removes:
            for gone in (path, *self.stands_for.pop(path, ())):
                self.expected.pop(gone, None)
        self.expected |= adds
        self.new |= dict.fromkeys(adds, version)

    def compared_with(self, handle: DeltaTable, read_all: bool, proven: bool) -> Iterator[FollowedFile]:
        """Yield every file that the table has or should have."""
        active = {file["path"]: file for file in active_files(handle)}
        # One listing finds a missing file, however many files the table has.
        sizes = self.tables.warehouse.names(self.tables.path(self.table))
        # Without a proof, no earlier check has compared the files that the log no longer shows being added.
        damaged = damaged_footers(self.tables, self.table, handle, None if read_all or not proven else self.new)
        for path in sorted(active.keys() | self.expected.keys()):
            if path not in self.expected:
                yield FollowedFile(self.table, path, UNKNOWN, self.blamed.get(path, ""))
            elif path not in active:
                yield FollowedFile(self.table, path, LOST, self.blamed.get(path, ""))
            elif path in damaged:
                yield FollowedFile(self.table, path, UNREADABLE, "its footer is damaged")
            else:
                yield self._with_fault(active[path], sizes, read=read_all or path in self.new)
        yield from (file for file in self.rewritten if file.file in active)

    def _is_ours(self, actions: list[Action]) -> bool:
        info = commit_info(actions)
        if any(mark in info for mark in _MARKS):
            return True
        return any(action["txn"]["appId"] == self.tables.application for action in actions if "txn" in action)

    def _hold_the_same(self, removed: Iterable[str], added: dict[str, dict[str, Any]], moves: bool) -> bool:
        """Return True if a foreign commit added the rows that it removed; `moves`: it claims to change no row."""
        before = {path: self.expected[path] for path in removed}
        if _rows(before.values()) != _rows(added.values()):
            return False
        try:
            sums = [[self._checksum(path, action) for path, action in side.items()] for side in (before, added)]
        except (OSError, pa.ArrowException, UnicodeDecodeError):
            # A cleanup removed the old files, so only the row counts can be compared.
            return moves
        return add_up(sums[0]) == add_up(sums[1])

    def _checksum(self, path: str, action: dict[str, Any]) -> int:
        recorded = _recorded(action)
        return self._read_checksum(path) if recorded is None else recorded

    def _with_fault(self, file: dict[str, Any], sizes: dict[str, int], read: bool) -> FollowedFile:
        path, size = file["path"], file["size_bytes"]
        if path not in sizes:
            return FollowedFile(self.table, path, UNREADABLE, "the file is missing")
        is_as_long = sizes[path] == size
        fault = by = ""
        if read or not is_as_long:
            recorded = _recorded(self.expected[path])
            try:
                # Pages have their own checksums, so reading finds damage even in a file whose commit recorded none.
                checksum = self._read_checksum(path)
                fault = "" if recorded == checksum or (recorded is None and is_as_long) else CHANGED
            except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
                fault, by = UNREADABLE, str(error)
        return FollowedFile(self.table, path, fault, by)

    def _read_checksum(self, name: str) -> int:
        with (
            self.tables.warehouse.open_file(self.tables.path(self.table), name) as opened,
            pq.ParquetFile(opened, page_checksum_verification=True) as file,
        ):
            return add_up([checksum_of(batch) for batch in file.iter_batches(batch_size=65_536)])


def _recorded(action: dict[str, Any]) -> int | None:
    """Return the recorded checksum of a file."""
    text = statistics_in(action).get(CHECKSUM)
    return None if text is None else int(text, 16)


def _rows(actions: Iterable[dict[str, Any]]) -> int:
    counts: list[Any] = [action.get("num_records") or statistics_in(action).get("numRecords") for action in actions]
    return -1 if None in counts else sum(counts)


def _author(version: int, actions: list[Action]) -> str:
    info = commit_info(actions)
    return (
        f"{info.get('operation', 'a commit')} by {info.get('engineInfo', 'somebody')}, version {version}, "
        f"{show_millis(info.get('timestamp', 0))}"
    )
