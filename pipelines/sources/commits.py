"""Commits of a source, and the files that they added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A data file of the source.

    Args:
        path: path in the file system, relative to the table. It identifies the file; base names may repeat.
        written: time of writing, int64 epoch milliseconds; it stays when the log is cleaned up.
        action: add action as JSON; empty for files that are only listed by a snapshot.
        newest: largest event time in the file, int64 epoch milliseconds; None if the log does not record it.
        oldest: smallest event time; None if the log does not record it.
        rows: number of rows without those that a deletion vector removes; None if the log does not record it.
        stored: number of rows in the file, with those that a deletion vector removes; None if it is not recorded.
        add: add action, with partition values and deletion vector; empty if it was not asked for.
        size: bytes of the file; None for files that are only listed by a snapshot.
    """

    path: str
    written: Millis
    action: str = ""
    newest: Millis | None = None
    oldest: Millis | None = None
    rows: int | None = None
    stored: int | None = None
    add: Mapping[str, Any] = field(default_factory=dict, compare=False)
    size: int | None = None


@dataclass(frozen=True, slots=True)
class SourceCommit:
    """A version of the source that added data.

    Args:
        version: version of the table.
        time: commit time in the log, int64 epoch milliseconds; it may go back between versions.
        files: the files that it added.
    """

    version: int
    time: Millis
    files: tuple[SourceFile, ...]
