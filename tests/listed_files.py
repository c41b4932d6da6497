"""A source of another kind, as a user would write it: Parquet files that a list file names.

Each line of the list is a commit, in JSON, with its time and its files, relative to the list's folder:

{"time": 1709251200000, "files": ["day=1/a.parquet", "day=1/b.parquet"]}

A line counts once its end is written. Lines are only ever added, so the number of a line, counted from 0, is its
version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.pipelines.definition.pipeline import TimeUnit
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.base import MissingSource
from tidegate.pipelines.sources.commits import SourceCommit, SourceFile
from tidegate.pipelines.sources.parquet_reader import ParquetReader, Remedies
from tidegate.pipelines.storage.warehouse import Warehouse

_DIGEST = "digest"


@dataclass(frozen=True, slots=True)
class ListedFiles:
    """Parquet files that a list names, as the source of a pipeline.

    Args:
        table: the list file, below the warehouse or by an absolute path.
        timestamp: column of the event time.
        zone: time zone of a wall-clock event time.
        unit: unit of an integer event time.
        not_before: earliest event time of a row.
    """

    table: str
    timestamp: str
    zone: str | None = None
    unit: TimeUnit | None = None
    not_before: datetime | None = None

    def open(self, warehouse: Warehouse) -> OpenList:
        """Open the list with its current lines."""
        return OpenList(warehouse, warehouse.path(self.table))


class OpenList:
    """A list with the lines that it had when it was opened."""

    def __init__(self, warehouse: Warehouse, path: str) -> None:
        self.warehouse = warehouse
        self.path = path
        self._folder, _, self._name = path.rpartition("/")
        if warehouse.sizes(self._folder, [self._name])[self._name] is None:
            raise MissingSource(f"list {path} does not exist: write it, or correct `table` of the pipeline's source")
        filesystem, root = warehouse.filesystem(self._folder)
        with filesystem.open_input_stream(f"{root}/{self._name}" if root else self._name) as stream:
            # A last line without a line end is still being written.
            self._lines = stream.read().decode().split("\n")[:-1]
        self._commits = [self._commit(version, line) for version, line in enumerate(self._lines)]
        files = [file for commit in self._commits for file in commit.files]
        if not files:
            raise MissingSource(f"list {path} names no files yet: write its first line, then run again")
        self.head = len(self._commits) - 1
        self.identity = self._digest(0)
        self.schema = self._schema_of(files[0])
        self.columns = str(self.schema)

    def _commit(self, version: int, line: str) -> SourceCommit:
        try:
            fields = json.loads(line)
            time, names = fields["time"], fields["files"]
            if type(time) is not int or not isinstance(names, list) or not all(type(name) is str for name in names):
                raise TypeError("time must be a whole number, and files a list of names")
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(
                f"list {self.path}, line {version + 1}: {line[:80]!r} is no commit ({type(error).__name__}: {error}). "
                'Write it as {"time": milliseconds, "files": ["a.parquet"]}, and run again; nothing has been read'
            ) from error
        return SourceCommit(version, time, tuple(SourceFile(name, time) for name in names))

    def _schema_of(self, file: SourceFile) -> pa.Schema:
        filesystem, root = self.warehouse.filesystem(self._folder)
        self._check_present(0, [file])
        try:
            schema = pq.read_schema(f"{root}/{file.path}" if root else file.path, filesystem=filesystem)
        except (OSError, pa.ArrowException) as error:
            raise Refused(
                f"list {self.path}: file {file.path} can't be read: {error}. Put the file back as it was, and run again"
            ) from error
        return schema.remove_metadata()

    def _digest(self, version: int) -> str:
        """Return a hash of the lines up to a version."""
        return hashlib.sha256("\n".join(self._lines[: version + 1]).encode()).hexdigest()[:32]

    def now(self) -> OpenList:
        """Return the list with its current lines."""
        return type(self)(self.warehouse, self.path)

    def of_position(self, version: int) -> dict[str, Any]:
        """Return the hash of the lines that were read, which reveals a changed line."""
        return {_DIGEST: self._digest(version)}

    def check(self, position: Position) -> None:
        """Check that the list still has every line that was read, unchanged."""
        remedy = "Put the list back as it was, or start a new pipeline with a backfill of the list as it is now"
        if position.version > self.head:
            raise Refused(
                f"list {self.path} was shortened: it has {self.head + 1} lines, and {position.version + 1} of it were "
                f"read. {remedy}"
            )
        if position.own.keys() != {_DIGEST}:
            raise Refused(f"the position in {self.path} was not taken in a list: it has {dict(position.own)}. {remedy}")
        if position.own[_DIGEST] != self._digest(position.version):
            raise Refused(f"list {self.path}: a line up to {position.version + 1} changed after it was read. {remedy}")

    def unread(self, after: int, until: int | None = None) -> Iterator[SourceCommit]:
        """Yield the lines after a line that name files."""
        for commit in self._commits[after + 1 : (self.head if until is None else until) + 1]:
            self._check_present(commit.version, commit.files)
            if commit.files:
                yield commit

    def _check_present(self, version: int, files: Sequence[SourceFile]) -> None:
        sizes = self.warehouse.sizes(self._folder, [file.path for file in files])
        if gone := [name for name, size in sizes.items() if size is None]:
            raise Refused(
                f"list {self.path}, line {version + 1}: file {gone[0]} is not there. Put it back, and run again; "
                "nothing of the pipeline has changed"
            )

    def settled(self, version: int) -> int:
        """Return the last of the lines without files that follow a line."""
        while version < self.head and not self._commits[version + 1].files:
            version += 1
        return version

    def time_of(self, version: int) -> int:
        """Return the time of a line."""
        return self._commits[version].time

    def active(self, timestamp: str, version: int | None = None, to_read: bool = False) -> list[SourceFile]:
        """Return the files of all lines up to a line."""
        end = (self.head if version is None else version) + 1
        for commit in self._commits[:end]:
            self._check_present(commit.version, commit.files)
        return [file for commit in self._commits[:end] for file in commit.files]

    def versions_of(self, files: Sequence[SourceFile], until: int, after: int = -1) -> dict[str, int | None]:
        """Return the line that names each file."""
        return {file.path: commit.version for commit in self._commits[: until + 1] for file in commit.files}

    def reader(self, columns: pa.Schema) -> ParquetReader:
        """Return the reader for the tasks."""
        gone = "it was there when the list was read. Put it back, and run again; nothing was committed"
        ways_out = Remedies(f"list {self.path}", gone, "Put the file back as it was, and run again")
        return ParquetReader(self.warehouse, self._folder, columns, ways_out)
