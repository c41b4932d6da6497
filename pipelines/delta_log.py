"""The log of a Delta table as files: their names, and the one reader of entries and checkpoints.

Whoever asks says what a missing or damaged entry means to him.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

FOLDER = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
"""File in which Delta notes the newest checkpoint."""

Action: TypeAlias = dict[str, Any]
"""One line of an entry: `add`, `remove`, `commitInfo`, ... and what belongs to it."""

_ENTRY, _CHECKPOINT = ".json", ".checkpoint"
_DIGITS = 20


def entry_name(version: int) -> str:
    """Name of the entry of a version."""
    return f"{version:0{_DIGITS}d}{_ENTRY}"


def checkpoint_name(version: int) -> str:
    """Name of a checkpoint in one file."""
    return f"{version:0{_DIGITS}d}{_CHECKPOINT}.parquet"


def version_of(name: str) -> int | None:
    """The version that a file of the log is named for; None where it is for none."""
    return int(name[:_DIGITS]) if name[:_DIGITS].isdigit() else None


def is_entry(name: str) -> bool:
    """Whether a file of the log is an entry."""
    return version_of(name) is not None and name[_DIGITS:] == _ENTRY


def entry_versions(names: Iterable[str]) -> list[int]:
    """The versions with an entry, ascending."""
    return sorted(int(name[:_DIGITS]) for name in names if is_entry(name))


def checkpoint_versions(names: Iterable[str]) -> list[int]:
    """The versions with a checkpoint of any form, ascending."""
    return sorted({version for name in names if (version := version_of(name)) is not None and _CHECKPOINT in name})


def actions_in(entry: bytes) -> list[Action]:
    """Return the actions of an entry.

    Raises:
        ValueError: it is damaged.
    """
    return [json.loads(line) for line in entry.splitlines() if line.strip()]


def commit_info(actions: Iterable[Action]) -> Action:
    """What a commit tells of itself; empty where it does not."""
    info: Action = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    return info


def files_in(actions: Iterable[Action], kind: str) -> dict[str, Action]:
    """The files that a commit added or removed, by their paths as a file system has them.

    Args:
        actions: of the commit.
        kind: `add` or `remove`.
    """
    return {unquote(action[kind]["path"]): action[kind] for action in actions if kind in action}


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """The log of one table.

    Args:
        filesystem: that the log is in.
        root: of the log's folder within it; empty where the file system is just that folder.
    """

    filesystem: fs.FileSystem
    root: str

    def info(self, version: int) -> tuple[int, int] | None:
        """Size of a version's entry, and when it was written in nanoseconds; None where there is none."""
        info = self.filesystem.get_file_info(self.path(entry_name(version)))
        return (int(info.size), int(info.mtime_ns or 0)) if info.type == fs.FileType.File else None

    def read(self, name: str) -> bytes:
        """Return what a file of the log holds.

        Raises:
            FileNotFoundError: there is none of this name.
        """
        with self.filesystem.open_input_stream(self.path(name)) as stream:
            content: bytes = stream.read()
            return content

    def actions(self, version: int) -> list[Action]:
        """Return the actions of a version.

        Raises:
            FileNotFoundError: its entry is gone.
            ValueError: its entry is damaged.
        """
        return actions_in(self.read(entry_name(version)))

    def checkpoint(self, version: int, columns: list[str] | None = None) -> pa.Table:
        """Return the rows of a checkpoint in one file.

        Args:
            version: of the checkpoint.
            columns: kinds of actions; None for all.
        """
        # Commands that read entries alone should not wait for this import.
        import pyarrow.parquet as pq

        with self.filesystem.open_input_file(self.path(checkpoint_name(version))) as file:
            return pq.ParquetFile(file).read(columns)

    def path(self, name: str) -> str:
        """Path of a file of the log within the file system."""
        return f"{self.root}/{name}" if self.root else name
