"""The protocol of sources: what a pipeline needs from a source of events, and what a new kind of source implements.

A user describes a source (`definition.pipeline.SourceDescription`), and the description opens into a `Source`. The
source numbers its commits by versions, and names the files that each one added. Its `PartReader` is sent to the tasks,
and opens these files as Arrow columns.

    description.open(warehouse) -> Source      the driver: versions, commits, positions, columns
    source.reader(columns) -> PartReader       is sent to the tasks
    reader.open(part) -> OpenPart              a task: row groups as Arrow tables

A new kind of source implements all members of `Source`. It also implements `ChangingSource` if its rows may change,
`SparkSource` if Spark can read it too, and `PartReader` and `OpenPart` unless its files are Parquet
(`parquet_reader.py`). `sources/delta` implements all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.definition.pipeline import Input
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.commits import ChangedFiles, FilePart, SourceCommit, SourceFile
from tidegate.pipelines.sources.rules import Bools
from tidegate.windowing.time import Millis

if TYPE_CHECKING:
    from tidegate.pipelines.storage.warehouse import Warehouse


class MissingSource(Refused):
    """A source does not exist yet. It is raised when the source is opened; `tidegate explain` continues without it."""


class ReplacedSource(Refused):
    """A position belongs to another source, which this one replaced. `Source.check` raises it."""


class ChangeFilesMissing(Refused):
    """Files that a version removed no longer exist, so its changes are unknown. `ChangingSource.changed` raises it."""


class OpenPart(Protocol):
    """An open file of a source: its rows in groups, each of which is read in tables of bounded size.

    The bounds let a run skip groups, and count rows without reading them. A file without statistics returns None for
    bounds and True for `may_be_null`.
    """

    def groups(
        self, timestamp: str | None = None, since: Millis = FIRST_TIME, until: Millis = LAST_TIME
    ) -> Iterator[tuple[int, int]]:
        """Yield the groups that may hold rows of an interval, each as the position of its first row and its number.

        If the file has no timestamp column, any group may hold some. The bounds are int64 epoch milliseconds, the end
        exclusive.
        """

    def rows_of(self, group: int) -> int:
        """Return the number of rows in a group, including deleted rows."""

    def size_of(self, group: int, names: Sequence[str]) -> int:
        """Return the uncompressed size of columns of a group in bytes, or 0 if it is unknown."""

    def kept(self, first: int, group: int) -> Bools | None:
        """Return a flag for each row of a group, False for deleted rows, or None if no row was deleted.

        `first` is the position of the group's first row in the file.
        """

    def bounds(self, group: int, name: str) -> tuple[int, int] | None:
        """Return the smallest and largest value of a TIMESTAMP column, microseconds; None if they are not recorded."""

    def bounds_of_times(self, group: int, name: str) -> list[tuple[int, int]] | None:
        """Return the bounds of each time within a column's values, or None if any bound is not recorded."""

    def may_be_null(self, group: int, name: str) -> bool:
        """Return False if it is recorded that a column of a group has no nulls."""

    def read(self, group: int, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield columns of all rows of a group, in order, in the types that the reader was created with.

        A group of any number of rows needs the memory of one table at a time.
        """


class PartReader(Protocol):
    """Reader of a source's files. It is pickled and sent to the tasks, so it holds no open files and no session."""

    def open(self, part: FilePart) -> AbstractContextManager[OpenPart]:
        """Open a file for the rows of a part.

        Raises:
            Refused: the file is missing, damaged or not the one that was committed; the message names it and the
                remedy.
        """


@dataclass(frozen=True, slots=True)
class SparkTable:
    """A Delta table that Spark reads, because the tasks can't read its files; a plain value.

    Delta skips files by the bounds of `timestamp`, the TIMESTAMP column with the event time. It is None if the event
    time is in another kind of column.
    """

    warehouse: Warehouse
    table: str
    timestamp: str | None = None


@runtime_checkable
class Source(Protocol):
    """A source of events, as it was when it was opened: its versions up to the head.

    Versions are integers, starting at 0. A version either adds files or is maintenance that changes no rows. Committed
    rows must not change: a source whose rows were changed or removed refuses to be read past that version, unless it is
    a `ChangingSource`.

    A position consists of `version` (the last one read completely), `files` (how many files of the next commit have
    been read), `frontier` (the event time that a backfill has reached), and the source's own fields.
    """

    @property
    def path(self) -> str:
        """Path of the source, as shown in messages."""

    @property
    def head(self) -> int:
        """Newest version; -1 if there is none yet."""

    @property
    def identity(self) -> str:
        """A string that identifies this source at its head. It differs for another source at the same place.

        The same source may get another identity later: `check` says whether a position belongs to it.
        """

    @property
    def columns(self) -> str:
        """Columns as the source describes them. A pipeline is bound again when this text changes."""

    @property
    def schema(self) -> pa.Schema:
        """Columns in Arrow types that Delta can store."""

    def now(self) -> Source:
        """Return the source at its newest version. A stream calls it at every poll, so it must be cheap."""

    def of_position(self, version: int) -> Mapping[str, Any]:
        """Return the source's own fields of a position at a version: plain JSON, written into the manifest."""

    def check(self, position: Position) -> None:
        """Check that a position belongs to this source, and that what was read up to it is unchanged.

        Raises:
            Refused: the source was replaced or set back to an older version, or the position has an unknown field.
        """

    def unread(self, after: int, until: int | None = None) -> Iterator[SourceCommit]:
        """Yield the versions after `after` up to `until` (None: the head) that added files, in order.

        Raises:
            Refused: a version removed or changed rows, or it or one of its files no longer exists; raised when it is
                reached.
        """

    def settled(self, version: int) -> int:
        """Return the newest version with the same rows as a version, followed only by maintenance."""

    def time_of(self, version: int) -> Millis:
        """Return the commit time of a version, int64 epoch milliseconds."""

    def active(self, timestamp: str, version: int | None = None, to_read: bool = False) -> list[SourceFile]:
        """Return all files of a version (None: the head), with bounds of the event time if they are recorded.

        Args:
            timestamp: column of the event time; empty if the files have no such column.
            version: the version.
            to_read: True adds the details that the reader needs, if they are expensive.

        Raises:
            Refused: the version can no longer be read.
        """

    def versions_of(self, files: Sequence[SourceFile], until: int, after: int = -1) -> dict[str, int | None]:
        """Return, by path, the version that added each file, or None if it is no longer recorded.

        `after` is returned for all files that are not newer than that version.
        """

    def reader(self, columns: pa.Schema) -> PartReader:
        """Return the reader for the tasks. It reads string and binary key columns as dictionaries."""


@runtime_checkable
class SparkSource(Protocol):
    """A source that Spark can also read. For other sources, files that the tasks can't read are refused."""

    @property
    def unusual(self) -> Mapping[str, str]:
        """Columns that only Spark reads or compares correctly, with the reasons; usually none."""

    def left_to_spark(self) -> str | None:
        """Return the reason why the tasks can't read the files, or None if they can."""

    def check_input(self, part: Input) -> None:
        """Check that comparing bytes is correct for an input's keys and source partitions.

        Raises:
            Refused: Spark compares a column of the key or of the source partitions in another way.
        """

    def spark_reader(self, timestamp: str | None) -> SparkTable:
        """Return the table for Spark to read.

        `timestamp` is its TIMESTAMP column with the event time; None if that is in another kind of column.
        """


@runtime_checkable
class ChangingSource(Protocol):
    """A source that reports what changed between two versions. Changes of other sources are refused.

    `unread` of such a source yields a version that removed or changed rows as a `SourceCommit` with `changes`, or skips
    it if the source is configured to.
    """

    def skipped(self, after: int, until: int) -> int:
        """Return the number of versions after `after` up to `until` that were skipped; usually 0."""

    def changing(self, after: int) -> Iterator[int]:
        """Yield the versions after `after` that removed or changed rows. Their files may no longer exist.

        Raises:
            Refused: a version is no longer recorded.
        """

    def changed(self, after: int, until: int) -> ChangedFiles:
        """Return the files in which two versions differ.

        Raises:
            Refused: a version between them is no longer recorded.
            ChangeFilesMissing: one of the files no longer exists.
        """

    def differing(self, after: int, timestamp: str) -> ChangedFiles:
        """Return the files in which a version and the head differ, with the bounds of their event times.

        Files of the older version may no longer exist: the source has recorded the bounds.

        Raises:
            Refused: a version between them is no longer recorded.
        """


MEMBERS = tuple(sorted(name for name in vars(Source) if not name.startswith("_")))
"""Names of the members that every source has."""
