"""The log of a source: the files that each version added, and the commit times.

OPTIMIZE changes no data, so it is ignored. If a version removes data, the run stops and names the version, unless the
source says `changes="ignore"`, which skips the whole version, or `changes="correct"`, which compares it with the
previous version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from tidegate.pipelines.definition.names import count_of
from tidegate.pipelines.definition.pipeline import Input
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.failures import in_words
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.sources.base import ChangeFilesMissing, ReplacedSource, SparkTable
from tidegate.pipelines.sources.commits import ChangedFiles, SourceCommit, SourceFile
from tidegate.pipelines.sources.delta.changes import (
    Changes,
    added_file,
    changes_data,
    commit_time,
    refusal_of,
    removes_data,
)
from tidegate.pipelines.sources.delta.opening import OPENING, open_table, why_closed
from tidegate.pipelines.sources.delta.reader import AS_IT_IS_NOW, DETAILS, DeltaReader
from tidegate.pipelines.sources.delta.table_facts import TABLE_ID, TableFacts, details_of, unusual_columns
from tidegate.pipelines.storage.ahead import ahead
from tidegate.pipelines.storage.delta_log import FOLDER, Action, entry_versions
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.time import Millis

_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
"""Start of an absolute path, or of a URI with a scheme."""

_DELETION_VECTORS = "deletionVectors"


class SourceLog:
    """The log of a source table; it is the `Source` for Delta. `reader` and `changes` are those of `DeltaSource`.

    Raises:
        MissingSource: there is no table.
        Refused: the table can't be opened.
    """

    def __init__(self, warehouse: Warehouse, path: str, reader: str = "auto", changes: str = "refuse") -> None:
        self.warehouse = warehouse
        self.path = path
        self._reader = reader
        self._changes = changes
        self._log = warehouse.log(path)
        self._table: DeltaTable | None = None
        self._newest_read: SourceCommit | None = None
        table = open_table(warehouse, path)
        self._table, self._facts, self.head = table, TableFacts.of(table), table.version()
        self._newest_entry = self._log.info(self.head)

    def now(self) -> SourceLog:
        """Return the log at its newest version.

        Delta lists all files when it opens a table, and a source has many. So this reads only the entries since the
        last version, and reopens the table only if one of them changed its columns or properties.
        """
        head = self._followed()
        if head is None:
            return SourceLog(self.warehouse, self.path, self._reader, self._changes)
        log = copy(self)
        log.head = head
        if head != self.head:
            log._table, log._newest_entry = None, self._log.info(head)
        return log

    def _followed(self) -> int | None:
        """Return the newest version, reading entry by entry, or None if the table has to be reopened."""
        if self._newest_entry is None or self._log.info(self.head) != self._newest_entry:
            return None
        # Most polls of a stream find no new version.
        if self._log.info(self.head + 1) is None:
            return self.head
        for version, actions in self._log.entries(count(self.head + 1)):
            try:
                if any("metaData" in action or "protocol" in action for action in actions()):
                    return None
            except FileNotFoundError:
                return version - 1
            except ValueError:
                return None
        return None

    @property
    def identity(self) -> str:
        return self._facts.identity

    @property
    def columns(self) -> str:
        return self._facts.columns

    @property
    def schema(self) -> pa.Schema:
        return self._facts.schema

    @property
    def unusual(self) -> dict[str, str]:
        return unusual_columns(self.columns)

    def of_position(self, version: int) -> dict[str, Any]:
        return {TABLE_ID: self.identity}

    def check_input(self, part: Input) -> None:
        self._facts.check_input(part, self.path)

    def left_to_spark(self) -> str | None:
        return "the source says reader='spark'" if self._reader == "spark" else self._facts.left_to_spark()

    def reader(self, columns: pa.Schema) -> DeltaReader:
        return self._facts.reader(self.warehouse, self.path, columns)

    def spark_reader(self, timestamp: str | None) -> SparkTable:
        return SparkTable(self.warehouse, self.path, timestamp)

    def _at_head(self) -> DeltaTable:
        """Return the table at the head, opened with its files."""
        if self._table is None:
            self._table = self._at(self.head)
        return self._table

    def _at(self, version: int) -> DeltaTable:
        try:
            return self.warehouse.open(self.path, version)
        except OPENING as error:
            if self._log.has(version):
                raise Refused(
                    f"source table {self.path} can't be opened at version {version}: "
                    f"{why_closed(self.warehouse, self.path, error, version)}"
                ) from error
            has_newer = {*range(version + 1, self.head + 1)} <= {*self._logged()}
            raise Refused(
                f"source table {self.path} can no longer be read at version {version} ({in_words(error)}): its log was "
                f"cleaned up{', but newer versions still exist' if has_newer else ''}",
                Remedy(Act.READ_ON if has_newer else Act.NEW_NAME),
            ) from error

    def check(self, position: Position) -> None:
        if unknown := sorted(position.own.keys() - {TABLE_ID}):
            raise Refused(
                f"the position in source table {self.path} has a field that this tidegate does not know, {unknown[0]}: "
                "install the version that wrote it or a newer one, or restore an earlier snapshot"
            )
        self._check_same_table(position.version, position.own.get(TABLE_ID) or self.identity)
        # `files` counts the first files of a later version. If another version took its place, as many of its files
        # would be lost.
        newest = position.version + (position.files > 0)
        if newest > self.head:
            part = "into" if position.files else "up to"
            raise Refused(
                f"source table {self.path} is at version {self.head}, but it was read {part} version {newest}: it was "
                "set back to an older state. Restore the newer one, or start a new pipeline with a backfill"
            )

    def _check_same_table(self, version: int, table_id: str) -> None:
        """Check that the table id of a position is in this log, at the position's version or later.

        A table may get another id while its log continues: deltalake's MERGE with `merge_schema` and `REPLACE TABLE`
        give it one. A position has the id that the head had when it was made, so its version may have an older one.
        The log of a table that was created again never has the recorded id.
        """
        if table_id == self.identity:
            return
        at_version = self._id_at(version)
        if table_id == at_version or any(table_id == later for later in self._ids_after(version)):
            return
        ways = (Remedy(Act.RESET_SOURCE), Remedy(Act.NEW_NAME))
        if at_version is None and 0 <= version <= self.head:
            raise ReplacedSource(
                f"source table {self.path} may have been replaced: its id ({self.identity}) differs from that of the "
                f"table that was read up to version {version} ({table_id}), and its log can no longer be read at that "
                "version, so it is unknown whether the log is the same. Put the log entries and checkpoints up to "
                f"version {version} back from a copy, and run again",
                *ways,
            )
        raise ReplacedSource(
            f"source table {self.path} was replaced: its id ({self.identity}) differs from that of the table that was "
            f"read up to version {version} ({table_id}). Restore the old table, or continue without it",
            *ways,
        )

    def _id_at(self, version: int) -> str | None:
        """Return the id of the table at a version, or None if the log can't tell."""
        try:
            return str(self._log.metadata(version, [*self.warehouse.names(f"{self.path}/{FOLDER}")])["id"])
        except (FileNotFoundError, ValueError, KeyError, pa.ArrowException):
            return None

    def _ids_after(self, version: int) -> Iterator[str]:
        """Yield the ids that the table got after a version, except in entries that can't be read."""
        for _, actions in self._log.entries(range(version + 1, self.head + 1)):
            with suppress(FileNotFoundError, ValueError):
                yield from (str(each["metaData"].get("id")) for each in actions() if "metaData" in each)

    def unread(self, after: int, until: int | None = None) -> Iterator[SourceCommit]:
        versions = range(after + 1, (self.head if until is None else until) + 1)
        calls = (partial(self._commit_of, version) for version in versions)
        for read in ahead(calls, weigh=_number_of_files, at_once=self._log.at_once):
            if (commit := read()) is not None:
                self._newest_read = commit
                yield commit

    def _commit_of(self, version: int) -> SourceCommit | None:
        """Return a version as a commit whose files are present, or None if it has no data or is skipped."""
        if self._newest_read is not None and self._newest_read.version == version:
            # A large commit takes several epochs, and the reader finds out if a file is gone by then.
            return self._newest_read
        actions = self._actions(version)
        if not actions:
            # Writers always describe their commit. deltalake treats an empty entry as a commit without rows.
            raise _unreadable_entry(self.path, version, ValueError("it is empty"))
        if self._is_passed_over(actions):
            return None
        if removes_data(actions) and self._changes != "correct":
            raise refusal_of(self.path, version, actions)
        files = tuple(
            added_file(self._path_of(add["path"]), add, add["modificationTime"])
            for action in actions
            if (add := action.get("add")) and add.get("dataChange", True)
        )
        if not files and not removes_data(actions):
            return None
        self._check_present(
            version, files, f"they were compacted and vacuumed before this pipeline read them. {AS_IT_IS_NOW}"
        )
        return SourceCommit(version, commit_time(actions), files, removes_data(actions))

    def changing(self, after: int) -> Iterator[int]:
        entries = self._entries(range(after + 1, self.head + 1))
        return (version for version, actions in entries if removes_data(actions()))

    def changed(self, after: int, until: int) -> ChangedFiles:
        changed = self._changes_of(after, until).cheapest(partial(self.warehouse.sizes, self.path))
        way_on = (
            f"a VACUUM removed them before this pipeline compared the versions {after} and {until}. Start a new "
            "pipeline with a backfill of the table as it is now; or skip this and all later changes, with "
            "changes='ignore' in the pipeline's DeltaSource"
        )
        for version, files in ((after, changed.deleted), (until, changed.added)):
            self._check_present(version, tuple(files), way_on, ChangeFilesMissing)
        return changed

    def differing(self, after: int, timestamp: str) -> ChangedFiles:
        changed, name = self._changes_of(after, self.head).files(), self._facts.stored_name(timestamp)
        return ChangedFiles(
            self._bounded(changed.deleted, self._at(after), name), self._bounded(changed.added, self._at_head(), name)
        )

    def _bounded(self, files: Sequence[SourceFile], table: DeltaTable, name: str) -> tuple[SourceFile, ...]:
        """Return files with the bounds of a column of times that a version of the table records."""
        listed = pa.table(table.get_add_actions(flatten=True))
        paths = [self._path_of(path) for path in listed["path"].to_pylist()]
        oldest, newest = (
            dict(zip(paths, _recorded_millis(listed, f"{bound}.{name}"), strict=True)) for bound in ("min", "max")
        )
        return tuple(replace(file, oldest=oldest.get(file.path), newest=newest.get(file.path)) for file in files)

    def _changes_of(self, after: int, until: int) -> Changes:
        commits = [actions() for _, actions in self._entries(range(after + 1, until + 1))]
        return Changes(commits, self._path_of, lambda: self._adds(after))

    def settled(self, version: int) -> int:
        """Return the newest version that differs only by maintenance (OPTIMIZE, VACUUM, ALTER), with the same rows.

        A position at the returned version depends neither on earlier log entries nor on files that were compacted.
        """
        for following, actions in self._entries(range(version + 1, self.head + 1)):
            try:
                if any(changes_data(action) for action in actions()):
                    break
            except Refused:
                break
            version = following
        return version

    def time_of(self, version: int) -> Millis:
        return commit_time(self._actions(version))

    def active(self, timestamp: str, version: int | None = None, to_read: bool = False) -> list[SourceFile]:
        is_head = version is None or version == self.head
        table = self._at_head() if is_head else self._at(version or 0)
        listed = pa.table(table.get_add_actions(flatten=True))
        paths = [self._path_of(path) for path in listed["path"].to_pylist()]
        if not is_head:
            self._check_present(
                table.version(),
                tuple(SourceFile(path, 0) for path in paths),
                "they were compacted and vacuumed since it was read",
                Refused,
                Remedy(Act.READ_ON),
            )
        # deltalake's list of files does not include the number of rows that a deletion vector removes.
        is_whole = _DELETION_VECTORS not in (table.protocol().reader_features or ())
        has_details = not is_whole or bool(table.metadata().partition_columns)
        adds = self._adds(table.version()) if to_read and has_details else {}
        columns = (
            paths,
            listed["modification_time"].cast(pa.int64()).to_pylist(),
            _recorded_millis(listed, f"max.{self._facts.stored_name(timestamp)}"),
            _recorded_millis(listed, f"min.{self._facts.stored_name(timestamp)}"),
            listed["num_records"].to_pylist() if "num_records" in listed.column_names else [None] * len(listed),
            listed["size_bytes"].to_pylist(),
        )
        files = [
            SourceFile(
                path,
                written,
                newest=newest,
                oldest=oldest,
                rows=rows if is_whole else None,
                stored=rows,
                details=details_of(adds[path]) if adds else {},
                size=size,
            )
            for path, written, newest, oldest, rows, size in zip(*columns, strict=True)
        ]
        return [self._facts.bounded(file, timestamp) for file in files]

    def _adds(self, version: int) -> dict[str, Action]:
        """Return the newest add action of each file by path, up to a version."""
        try:
            adds = self._log.added(version, [*self.warehouse.names(f"{self.path}/{FOLDER}")], DETAILS)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise Refused(
                f"source table {self.path}: partition values and deletion vectors of version {version} can't be read "
                f"from its log: {in_words(error)}. If Spark can read the table, give the pipeline's DeltaSource "
                "reader='spark'"
            ) from error
        return {unquote(path): add for path, add in adds.items()}

    def versions_of(self, files: Sequence[SourceFile], until: int, after: int = -1) -> dict[str, int | None]:
        """Return, by path, the version that added each file, or None if the log no longer records it.

        A file that a compaction or an UPDATE wrote has rows of several versions, so its version is None. Entries are
        read from the newest backwards until all files are found. `after` is returned for all files that are not newer
        than that version.
        """
        wanted = {file.path for file in files}
        added_by: dict[str, int | None] = dict.fromkeys(wanted)
        logged = [version for version in self._logged() if after < version <= until]
        for version, read in self._entries(reversed(logged) if wanted else ()):
            try:
                actions = read()
            except Refused:
                # The entry was cleaned up after the log was listed.
                continue
            is_compaction, has_older = any("remove" in action for action in actions), removes_data(actions)
            for add in (action["add"] for action in actions if "add" in action):
                path, adds_rows = self._path_of(add["path"]), add.get("dataChange", True)
                if path in wanted and (adds_rows or is_compaction):
                    wanted.discard(path)
                    added_by[path] = version if adds_rows and not has_older else None
            if not wanted:
                break
        if after >= 0 and len(logged) == until - after:
            added_by |= dict.fromkeys(wanted, after)
        return added_by

    def _logged(self) -> list[int]:
        """Return the versions with an entry in the log, ascending."""
        return entry_versions(self.warehouse.names(f"{self.path}/{FOLDER}"))

    def _path_of(self, path: str) -> str:
        """Return the path of a file in the file system, relative to the table. The log has it as a URI.

        Raises:
            Refused: the file is outside the table's folder, as in a shallow clone.
        """
        if _ELSEWHERE.match(path):
            raise Refused(
                f"source table {self.path} has files outside its folder ({unquote(path)}), as a shallow clone has: "
                "they disappear when the original table is vacuumed. Use the original table as the source, or copy the "
                "rows into a separate table (CREATE TABLE ... AS SELECT)"
            )
        return unquote(path)

    def skipped(self, after: int, until: int) -> int:
        if self._changes != "ignore":
            return 0
        logged = [version for version in self._logged() if after < version <= until]
        return sum(self._is_passed_over(actions()) for _, actions in self._entries(logged))

    def _is_passed_over(self, actions: list[Action]) -> bool:
        return self._changes == "ignore" and removes_data(actions)

    def _check_present(
        self, version: int, files: tuple[SourceFile, ...], why: str, kind: type[Refused] = Refused, *remedies: Remedy
    ) -> None:
        sizes = self.warehouse.sizes(self.path, [file.path for file in files])
        if gone := [path for path, size in sizes.items() if size is None]:
            raise kind(
                f"source table {self.path}: version {version} lacks {count_of(len(gone), 'file')} ({gone[0]}): {why}",
                *remedies,
            )

    def _actions(self, version: int) -> list[Action]:
        try:
            return self._log.actions(version)
        except (FileNotFoundError, ValueError) as error:
            raise _unreadable_entry(self.path, version, error) from error

    def _entries(self, versions: Iterable[int]) -> Iterator[tuple[int, Callable[[], list[Action]]]]:
        """Return each version with a function that returns its actions, or refuses a damaged entry."""
        return self._log.entries(versions, self._actions)


def _recorded_millis(files: pa.Table, name: str) -> list[Millis | None]:
    """Return a bound of times from the statistics of files, rounded down, or None where it is not recorded.

    Python's datetime can't hold every time of Delta, so these values are never converted to one. A column `a.b` and a
    field `b` of a struct `a` have the same name here, so the bounds of neither are used.
    """
    if files.column_names.count(name) != 1 or not pa.types.is_timestamp(files.schema.field(name).type):
        return [None] * len(files)
    zone = files.schema.field(name).type.tz
    micros = files[name].cast(pa.timestamp("us", tz=zone)).cast(pa.int64()).to_pylist()
    return [None if value is None else int(value) // 1000 for value in micros]


def _number_of_files(commit: SourceCommit | None) -> int:
    return 1 if commit is None else 1 + len(commit.files)


def _unreadable_entry(path: str, version: int, error: FileNotFoundError | ValueError) -> Refused:
    """Return the error for a log entry that is missing or damaged."""
    if isinstance(error, FileNotFoundError):
        return Refused(
            f"source table {path}: the log entry of version {version} no longer exists (cleaned up, or the table was "
            "replaced), so the rows that it added are unknown. Start a new pipeline with a backfill of the table as it "
            "is now"
        )
    return Refused(
        f"source table {path}: the log entry of version {version} is damaged ({error}). Restore the entry from a copy, "
        "and run again; nothing in the pipeline has changed"
    )
