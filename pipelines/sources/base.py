"""The protocol of sources: all that a pipeline asks of a source of events, and that a new kind of source implements.

A user describes a source (`definition.source.SourceDescription`), and the description opens into a `Source`. The source
numbers its commits by versions, and names the files that each added. Its `PartReader` travels to the tasks, and opens
these files as columns of Arrow.

    description.open(warehouse) -> Source      the driver: versions, commits, positions, columns
    source.reader(columns) -> PartReader       travels to the tasks
    reader.open(part) -> OpenPart              a task: row groups as Arrow tables

`sources/delta` implements it for Delta tables. A source of Parquet files needs no reader of its own (`ParquetReader`).
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
    """A source does not exist yet. A source raises it when it is opened; `tidegate explain` continues without it."""


class ReplacedSource(Refused):
    """A position belongs to another source, which this one replaced. `Source.check` raises it."""


class FileGone(Refused):
    """A file of a source is gone."""


class ChangeGone(Refused):
    """Files that a version removed are gone: its changed rows are unknown. `ChangingSource.changed` raises it."""


class OpenPart(Protocol):
    """A file of a source that is open: its rows in groups, each read as a whole.

    The bounds let a run skip groups, and count rows without reading them. A file without statistics returns None for
    bounds and True for `may_be_null`.
    """

    def groups(
        self, timestamp: str | None = None, since: Millis = FIRST_TIME, until: Millis = LAST_TIME
    ) -> Iterator[tuple[int, int]]:
        """Yield the groups that may hold rows of an interval, each as the place of its first row and its number.

        Args:
            timestamp: column of the event time; None if no column of the file is.
            since: int64 epoch milliseconds.
            until: int64 epoch milliseconds, exclusive.
        """

    def rows_of(self, group: int) -> int:
        """Return the number of rows in a group, with deleted rows."""

    def size_of(self, group: int, names: Sequence[str]) -> int:
        """Return the uncompressed bytes of columns of a group; 0 if they are not known."""

    def kept(self, first: int, group: int) -> Bools | None:
        """Return True for each row of a group that was not deleted; None if none was.

        Args:
            first: place of the group's first row in the file.
            group: number of the group.
        """

    def bounds(self, group: int, name: str) -> tuple[int, int] | None:
        """Return the smallest and largest microseconds of a TIMESTAMP column; None if they are not recorded."""

    def bounds_of_times(self, group: int, name: str) -> list[tuple[int, int]] | None:
        """Return the bounds of each time within a column's values; None if any are not recorded."""

    def may_be_null(self, group: int, name: str) -> bool:
        """Return False if it is recorded that a column of a group has no nulls."""

    def read(self, group: int, names: Sequence[str]) -> pa.Table:
        """Return columns of all rows of a group, in the types that the reader was made with."""


class PartReader(Protocol):
    """Reader of a source's files. It is pickled and sent to the tasks, so it holds no open file and no session."""

    def open(self, part: FilePart) -> AbstractContextManager[OpenPart]:
        """Open a file for the rows of a part.

        Raises:
            Refused: the file is missing, damaged or another one than was committed; the message names it, and the way
                out.
        """


@dataclass(frozen=True, slots=True)
class SparkTable:
    """A Delta table that Spark reads, because the tasks can't read its files; a plain value.

    Args:
        warehouse: the warehouse of the table.
        table: path of the table.
        timestamp: TIMESTAMP column of the table that has the event time; None if another column has it. Delta skips
            files by its bounds.
    """

    warehouse: Warehouse
    table: str
    timestamp: str | None = None


@runtime_checkable
class Source(Protocol):
    """A source of events, as it was when it was opened: its versions up to the head.

    Versions are whole numbers from 0 on. A version may add files, or be maintenance that changes no row. What was
    committed stays: a source whose rows were changed or removed refuses to be read past that version, unless it is a
    `ChangingSource`.

    A position is `version` (read completely), `files` (so many files of the next commit are read already), `frontier`
    (event time up to which a backfill has come), and fields of the source's own.
    """

    @property
    def path(self) -> str:
        """Place of the source, as messages name it."""

    @property
    def head(self) -> int:
        """Newest version; -1 if there is none yet."""

    @property
    def identity(self) -> str:
        """Text that identifies this source: it differs for another source at the same place."""

    @property
    def columns(self) -> str:
        """Columns as the source describes them. A pipeline is bound again when this text changes."""

    @property
    def schema(self) -> pa.Schema:
        """Columns in Arrow's types, in those that Delta can store."""

    def now(self) -> Source:
        """Return the source at its newest version. A stream calls it at every poll, so it must be cheap."""

    def of_position(self, version: int) -> Mapping[str, Any]:
        """Return the source's own fields of a position at a version: plain JSON, written into the manifest."""

    def check(self, position: Position) -> None:
        """Check that a position belongs to this source, and that what was read up to it is still the same.

        Raises:
            Refused: the source was replaced or set back, or the position has a field that it does not know.
        """

    def unread(self, after: int, until: int | None = None) -> Iterator[SourceCommit]:
        """Yield the versions after `after` up to `until` (None: the head) that added files, in order.

        Raises:
            Refused: a version removed or changed rows, or it or one of its files is gone; raised when it is reached.
        """

    def settled(self, version: int) -> int:
        """Return the newest version with the same rows as a version: only maintenance came between."""

    def time_of(self, version: int) -> Millis:
        """Return the commit time of a version, int64 epoch milliseconds."""

    def active(self, timestamp: str, version: int | None = None, to_read: bool = False) -> list[SourceFile]:
        """Return all files of a version (None: the head), with bounds of the event time if they are recorded.

        Args:
            timestamp: column of the event time; empty if no column of the files is.
            version: the version.
            to_read: True adds the details that the reader needs, if they cost time.

        Raises:
            Refused: the version can't be read any more.
        """

    def versions_of(self, files: Sequence[SourceFile], until: int, after: int = -1) -> dict[str, int | None]:
        """Return by path the version that added each file; None if it is no longer recorded.

        Args:
            files: files of a version.
            until: that version.
            after: a version that is returned for all files that are not younger.
        """

    def reader(self, columns: pa.Schema) -> PartReader:
        """Return the reader for the tasks.

        Args:
            columns: all columns in the types to read them in; texts and bytes of a key are dictionaries.
        """


@runtime_checkable
class SparkSource(Protocol):
    """A source that Spark can also read. Optional: of other sources, files that the tasks can't read are refused."""

    @property
    def unusual(self) -> Mapping[str, str]:
        """Columns that only Spark reads or compares correctly, with the reasons; usually none."""

    def left_to_spark(self) -> str | None:
        """Return the reason why the tasks can't read the files; None if they can."""

    def check_input(self, part: Input) -> None:
        """Check that an input compares as Spark does.

        Raises:
            Refused: a column of the key, or of source partitions, is compared in another way than by its bytes.
        """

    def spark_reader(self, timestamp: str | None) -> SparkTable:
        """Return the table for Spark to read.

        Args:
            timestamp: TIMESTAMP column of the source that has the event time; None if another column has it.
        """


@runtime_checkable
class ChangingSource(Protocol):
    """A source that reports what changed between two versions. This is optional: changes of other sources are refused.

    `unread` of such a source yields a version that removed or changed rows as a `SourceCommit` that says `changes`, or
    passes over it if the source says so.
    """

    def skipped(self, after: int, until: int) -> int:
        """Return the number of versions after `after` up to `until` that were skipped; usually 0."""

    def changing(self, after: int) -> Iterator[int]:
        """Yield the versions after `after` that removed or changed rows. Their files may be gone.

        Raises:
            Refused: a version is not recorded any more.
        """

    def changed(self, after: int, until: int) -> ChangedFiles:
        """Return the files in which two versions differ.

        Raises:
            Refused: a version between them is not recorded any more.
            ChangeGone: one of the files is gone.
        """

    def differing(self, after: int, timestamp: str) -> ChangedFiles:
        """Return the files in which a version and the head differ, with the bounds of their event times.

        Files of the older version may be gone: the bounds are those that the source records.

        Raises:
            Refused: a version between them is not recorded any more.
        """


MEMBERS = tuple(sorted(name for name in vars(Source) if not name.startswith("_")))
"""Names that a source has."""
