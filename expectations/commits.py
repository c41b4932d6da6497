"""The commits of a pipeline's tables: each file is one that a commit of ours left, and holds what it was written with.

Files are followed through the log since a version that a check vouches for. A commit of somebody else that only put
rows into other files, as OPTIMIZE does, is taken over once its rows are compared; what any other one added or removed
stands out until the table is as it was, however that came about.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tidegate.pipelines.delta_log import Action, commit_info, files_in
from tidegate.pipelines.storage import active_files
from tidegate.pipelines.tables import state
from tidegate.pipelines.tables.checksum import add_up, checksum_of
from tidegate.pipelines.tables.compaction import COMPACTION
from tidegate.pipelines.tables.files import CHECKSUM, epoch_of
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.tables.set_back import PUT_BACK
from tidegate.pipelines.tables.table_log import TableLog

UNKNOWN, LOST, CHANGED, REWRITTEN = "unknown", "lost", "changed", "rewritten"
"""Faults of a file: nobody of ours added it; it was removed; its rows are others; somebody else wrote it anew."""

_MARKS = ("tidegate", "tidegate_fence", COMPACTION)


class FollowedFile(NamedTuple):
    """A file of a table, and what is wrong with it: nothing, or one of the faults."""

    table: str
    file: str
    fault: str
    by: str


@dataclass(frozen=True)
class Followed:
    """What became of a table's files.

    Args:
        since: the version that they were followed from; None where that was the beginning of the log.
        takes_away: whether a commit of ours removed rows or changed them.
        files: those that the table has now, and those that it should have.
    """

    since: int | None
    takes_away: bool
    files: tuple[FollowedFile, ...]


def follow(tables: PipelineTables, table: str, handle: DeltaTable, since: int | None) -> Followed:
    """Follow the files of a table through its log.

    Args:
        tables: the pipeline's tables.
        table: its name.
        handle: the table as it is looked at.
        since: a version whose files are right; None where there is none.
    """
    # Older snapshots that were kept stand alone: between them the log has gaps.
    logged = TableLog(tables, table).recent
    oldest = logged[0] if logged else handle.version()
    if since is not None and not oldest <= since <= handle.version():
        since = None
    trail = _Trail(tables, table)
    # A snapshot that stands alone lies before what follows without a gap.
    first = min(oldest, handle.version()) if since is None else since
    if since is not None or oldest > 0:
        # Of what lies before the log nothing is known but that it is there.
        earlier = handle if first == handle.version() else tables.warehouse.open(tables.path(table), first)
        trail.expected = {file["path"]: {"num_records": file["num_records"]} for file in active_files(earlier)}
        trail.begun, trail.present = {*trail.expected}, {*trail.expected}
        first += 1
    log = tables.warehouse.log(tables.path(table))
    for version in range(first, handle.version() + 1):
        trail.take(version, log.actions(version))
    return Followed(since, trail.takes_away, tuple(trail.compared_with(handle)))


@dataclass
class _Trail:
    """The files that a table should have, while its log is read."""

    tables: PipelineTables
    table: str
    expected: dict[str, dict[str, Any]] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    takes_away: bool = False
    rewritten: list[FollowedFile] = field(default_factory=list)
    stands_for: dict[str, list[str]] = field(default_factory=dict)
    blamed: dict[str, str] = field(default_factory=dict)
    new: set[str] = field(default_factory=set)
    present: set[str] = field(default_factory=set)
    lost_at: dict[int, set[str]] = field(default_factory=dict)
    """By epoch of each snapshot, the files that it should have had."""

    def take(self, version: int, actions: list[Action]) -> None:
        """Take over what a commit did."""
        self._take(version, actions)
        self.present -= files_in(actions, "remove").keys()
        self.present |= files_in(actions, "add").keys()
        if isinstance(told := commit_info(actions).get("tidegate"), dict):
            if self.table == state.NAME:
                self._take_snapshot(told)
            else:
                self._take_published(told)

    def _take_published(self, told: dict[str, Any]) -> None:
        """A new timeline takes away what came after its parent: of that nothing is missing any more."""
        parent = told.get("parent") or 0
        if parent == told["epoch"] - 1:
            return
        for path in self.expected.keys() - self.present:
            written = epoch_of(path)
            if written is not None and parent < written < told["epoch"]:
                del self.expected[path]

    def _take_snapshot(self, snapshot: dict[str, Any]) -> None:
        """A restore goes back to a snapshot as it was: of what was lost since nothing is missing any more."""
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
        if PUT_BACK in commit_info(actions):
            self._put_back(adds, removes)
            return
        moves = not any(action.get("dataChange", True) for action in (*adds.values(), *removes.values()))
        are_expected = removes.keys() <= self.expected.keys()
        if not self._is_ours(actions, adds, moves):
            by = _author(version, actions)
            if not (moves and are_expected and self._hold_the_same(removes, adds)):
                self.blamed |= dict.fromkeys((*adds, *removes), by)
                return
            self.rewritten += [FollowedFile(self.table, path, REWRITTEN, by) for path in adds]
        elif moves and not are_expected:
            # A compaction of ours took in rows of somebody else: they don't become ours by that.
            known = [path for path in removes if path in self.expected]
            self.stands_for |= dict.fromkeys(adds, known)
            blame = next((self.blamed[path] for path in removes if path in self.blamed), "")
            self.blamed |= dict.fromkeys((*adds, *known), blame)
            return
        elif removes and not moves:
            self.takes_away = True
        for path in removes:
            for gone in (path, *self.stands_for.pop(path, ())):
                self.expected.pop(gone, None)
        self.expected |= adds
        self.new |= adds.keys()

    def _put_back(self, adds: dict[str, dict[str, Any]], removes: dict[str, Any]) -> None:
        """Expect what a table has again, as far as it was ever expected: compactions may have come in between."""
        self.takes_away = True
        for path in removes:
            self.expected.pop(path, None)
        for path in adds.keys() & (self.begun | self.new):
            self.expected.setdefault(path, adds[path])

    def compared_with(self, handle: DeltaTable) -> Iterator[FollowedFile]:
        """Every file that the table has or should have."""
        there = {file["path"] for file in active_files(handle)}
        for path in sorted(there | self.expected.keys()):
            if path not in self.expected:
                yield FollowedFile(self.table, path, UNKNOWN, self.blamed.get(path, ""))
            elif path not in there:
                yield FollowedFile(self.table, path, LOST, self.blamed.get(path, ""))
            else:
                is_right = path not in self.new or self._is_whole(path, self.expected[path])
                yield FollowedFile(self.table, path, "" if is_right else CHANGED, "")
        yield from (file for file in self.rewritten if file.file in there)

    def _is_ours(self, actions: list[Action], adds: dict[str, Any], moves: bool) -> bool:
        told = commit_info(actions)
        if any(mark in told for mark in _MARKS):
            return True
        if any(action["txn"]["appId"] == self.tables.application for action in actions if "txn" in action):
            return True
        # Compactions said nothing of themselves once.
        return moves and bool(adds) and all(path.startswith(f"{self.table}-compacted-") for path in adds)

    def _hold_the_same(self, removed: Iterable[str], added: dict[str, dict[str, Any]]) -> bool:
        before = {path: self.expected[path] for path in removed}
        if _rows(before.values()) != _rows(added.values()):
            return False
        try:
            sums = [[self._checksum(path, action) for path, action in side.items()] for side in (before, added)]
        except OSError:
            # Cleaned away meanwhile: the numbers of their rows are all that is left of them.
            return True
        return add_up(sums[0]) == add_up(sums[1])

    def _checksum(self, path: str, action: dict[str, Any]) -> int:
        recorded = _recorded(action)
        return recorded if recorded is not None else self._read_checksum(path)

    def _is_whole(self, path: str, action: dict[str, Any]) -> bool:
        recorded = _recorded(action)
        try:
            return recorded is None or recorded == self._read_checksum(path)
        except (OSError, pa.ArrowException):
            return False

    def _read_checksum(self, name: str) -> int:
        filesystem, root = self.tables.warehouse.filesystem(self.tables.path(self.table))
        with (
            filesystem.open_input_file(f"{root}/{name}" if root else name) as opened,
            pq.ParquetFile(opened, page_checksum_verification=True) as file,
        ):
            batches = file.iter_batches(batch_size=65_536)
            return add_up([checksum_of(batch) for batch in batches])


def _recorded(action: dict[str, Any]) -> int | None:
    text = json.loads(action.get("stats") or "{}").get(CHECKSUM)
    return None if text is None else int(text, 16)


def _rows(actions: Iterable[dict[str, Any]]) -> int:
    counts = [
        action.get("num_records") or json.loads(action.get("stats") or "{}").get("numRecords") for action in actions
    ]
    return -1 if None in counts else sum(counts)


def _author(version: int, actions: list[Action]) -> str:
    told = commit_info(actions)
    moment = datetime.fromtimestamp(int(told.get("timestamp", 0)) / 1000, UTC)
    return (
        f"{told.get('operation', 'a commit')} by {told.get('engineInfo', 'somebody')}, version {version}, "
        f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    )
