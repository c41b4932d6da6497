"""Commits of a source, the files that they added, and the parts of a slice: the rows to read from each file."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A data file of the source.

    Args:
        path: name of the file in its source; in Delta, the path relative to the table. Base names may repeat.
        written: time of writing, int64 epoch milliseconds; the same in every later listing. Rows' times are checked
            against it if the commit that added them is unknown.
        newest: largest event time in the file, int64 epoch milliseconds; None if it is not recorded.
        oldest: smallest event time; None if it is not recorded.
        rows: number of rows, without those deleted since it was written; None if it is not recorded.
        stored: number of rows in the file, including deleted rows; None if it is not recorded.
        details: facts that only the source's own reader needs, such as partition values. They are sent to the tasks.
        size: bytes of the file; None if it is not recorded.
    """

    path: str
    written: Millis
    newest: Millis | None = None
    oldest: Millis | None = None
    rows: int | None = None
    stored: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict, compare=False)
    size: int | None = None


@dataclass(frozen=True, slots=True)
class SourceCommit:
    """A version of the source that added data.

    Args:
        version: number of the version; numbers increase, with gaps for versions without data.
        time: commit time, int64 epoch milliseconds; it may go back between versions.
        files: the files that it added.
        changes: True if it removed or changed rows, so that it is read as a comparison of versions (`ChangedFiles`).
    """

    version: int
    time: Millis
    files: tuple[SourceFile, ...]
    changes: bool = False


@dataclass(frozen=True, slots=True)
class ChangedFiles:
    """The files in which two versions of a source differ, or files of a change feed. Both sides may have equal rows."""

    deleted: tuple[SourceFile, ...]
    added: tuple[SourceFile, ...]
    by_feed: bool = False

    @property
    def size(self) -> float:
        """Bytes of the files; infinite if the size of a file is not recorded."""
        return sum(math.inf if file.size is None else file.size for file in (*self.deleted, *self.added))


@dataclass(frozen=True, slots=True)
class FilePart:
    """The rows of a file with an event time in `[since, until)`.

    Args:
        path: path of the file, as its source names it.
        rows: number of rows in the whole file, including deleted rows; None if the source does not record it.
        commit: index of the source commit within the epoch.
        committed: time that the rows' times are checked against, int64 epoch milliseconds.
        since: int64 epoch milliseconds.
        until: int64 epoch milliseconds, exclusive.
        details: as in `SourceFile`.
        input: number of the input that has the file.
        version: a version of the source in which the file has these rows.
        live: number of rows without deleted rows; None if the source does not record it.
        again: positions of rows that are rejected again because they are in table rejects, ascending.
    """

    path: str
    rows: int | None
    commit: int
    committed: Millis
    since: Millis = FIRST_TIME
    until: Millis = LAST_TIME
    details: Mapping[str, Any] = field(default_factory=dict)
    input: int = 0
    version: int = 0
    live: int | None = None
    again: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        file: SourceFile,
        commit: int,
        committed: Millis,
        since: Millis = FIRST_TIME,
        until: Millis = LAST_TIME,
        *,
        input: int = 0,  # noqa: A002 - the parameter has the name of the field
        version: int = 0,
    ) -> FilePart:
        """Return the rows of a file, with the details that its reader needs."""
        return cls(file.path, file.stored, commit, committed, since, until, file.details, input, version, file.rows)


class Timed(Protocol):
    """A value with a commit time."""

    @property
    def time(self) -> Millis:
        """Commit time in the log, int64 epoch milliseconds."""


Commit = TypeVar("Commit", bound=Timed)


def in_order(logs: Sequence[Iterable[Commit]]) -> Iterator[tuple[int, Commit]]:
    """Yield commits with the numbers of their inputs, in reading order: by commit time, then by input number.

    At most one commit ahead is read in each input. Commits of one source are in the order of their versions. If a
    commit time decreases, the latest earlier time is used instead. So the order depends only on the logs, not on where
    epochs end.

        left     1 @ 10:00            2 @ 10:02   3 @ 10:01
        right             1 @ 10:01   2 @ 10:02
        taken    left 1, right 1, left 2, left 3, right 2
    """
    streams = [_placed(number, commits) for number, commits in enumerate(logs)]
    for _, number, commit in heapq.merge(*streams, key=lambda placed: placed[:2]):
        yield number, commit


def _placed(number: int, commits: Iterable[Commit]) -> Iterator[tuple[Millis, int, Commit]]:
    newest = 0
    for commit in commits:
        newest = max(newest, commit.time)
        yield newest, number, commit
