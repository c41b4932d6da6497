"""The log of a Delta table as files: their names, and the one reader of entries and checkpoints.

The functions raise plain errors for missing or damaged entries; each caller decides what they mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import tee
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from tidegate.pipelines.failures import in_words, may_be_intact
from tidegate.pipelines.storage.ahead import AT_ONCE, ahead

FOLDER = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
"""File in which Delta records the newest checkpoint."""

Action: TypeAlias = dict[str, Any]
"""One line of an entry: the kind of action (`add`, `remove`, `commitInfo`, ...) and its fields."""

_ENTRY, _CHECKPOINT = ".json", ".checkpoint"
SIDECARS = "_sidecars"
"""Folder of the files that a checkpoint of version 2 refers to."""
_DIGITS = 20
_PART = re.compile(r"\.checkpoint\.(\d{10})\.(\d{10})\.parquet")
_WITH_ID = re.compile(r"\.checkpoint\.[0-9a-fA-F-]{36}\.(?:parquet|json)")


def entry_name(version: int) -> str:
    """Return the file name of a version's entry."""
    return f"{version:0{_DIGITS}d}{_ENTRY}"


def checkpoint_name(version: int) -> str:
    """Return the file name of a single-file checkpoint."""
    return f"{version:0{_DIGITS}d}{_CHECKPOINT}.parquet"


def version_of(name: str) -> int | None:
    """Return the version in the name of a log file, or None if the name has none."""
    return int(name[:_DIGITS]) if name[:_DIGITS].isdigit() else None


def is_entry(name: str) -> bool:
    """Return True if a file name of the log names an entry."""
    return version_of(name) is not None and name[_DIGITS:] == _ENTRY


def entry_versions(names: Iterable[str]) -> list[int]:
    """Return the versions with an entry, ascending."""
    return sorted(int(name[:_DIGITS]) for name in names if is_entry(name))


def checkpoint_versions(names: Iterable[str]) -> list[int]:
    """Return the versions with a checkpoint in any format, ascending."""
    return sorted({version for name in names if (version := version_of(name)) is not None and _CHECKPOINT in name})


def checkpoint_files(names: Iterable[str], version: int) -> list[str]:
    """Return the files of one complete checkpoint of a version, in any format; an empty list if there is none."""
    of_version = sorted(name for name in names if version_of(name) == version and _CHECKPOINT in name)
    if checkpoint_name(version) in of_version:
        return [checkpoint_name(version)]
    if with_id := [name for name in of_version if _WITH_ID.fullmatch(name[_DIGITS:])]:
        return with_id[:1]
    parts = [(name, match) for name in of_version if (match := _PART.fullmatch(name[_DIGITS:]))]
    for count in {int(match[2]) for _, match in parts}:
        of_count = [name for name, match in parts if int(match[2]) == count]
        if len(of_count) == count:
            return of_count
    return []


def _newest_checkpoint(names: Collection[str], version: int) -> tuple[int, list[str]]:
    """Return the version and the files of the newest complete checkpoint up to a version, or -1 and no files."""
    for older in reversed(checkpoint_versions(names)):
        if older <= version and (files := checkpoint_files(names, older)):
            return older, files
    return -1, []


def actions_in(entry: bytes) -> list[Action]:
    """Return the actions of an entry.

    Raises:
        ValueError: it is damaged.
    """
    # From bytes, Python's reader would accept other encodings than Delta's.
    actions = [json.loads(line.decode()) for line in entry.splitlines() if line.strip()]
    if not all(isinstance(action, dict) for action in actions):
        raise ValueError("a line is not a JSON object")
    return actions


def commit_info(actions: Iterable[Action]) -> Action:
    """Return a commit's own description (`commitInfo`), or an empty dict if it has none."""
    info: Action = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    return info


def files_in(actions: Iterable[Action], kind: str) -> dict[str, Action]:
    """Return the files that a commit added or removed, by their paths in the file system.

    Args:
        actions: actions of the commit.
        kind: `add` or `remove`.
    """
    return {unquote(action[kind]["path"]): action[kind] for action in actions if kind in action}


def statistics_in(add: Action) -> Action:
    """Return the statistics of an add action, or an empty dict if it has none, or none that can be read."""
    with suppress(ValueError):
        statistics = json.loads(add.get("stats") or "{}")
        return statistics if isinstance(statistics, dict) else {}
    return {}


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """The log of one table.

    Args:
        filesystem: file system of the log.
        root: path of the log's folder within it.
    """

    filesystem: fs.FileSystem
    root: str

    def info(self, version: int) -> tuple[int, int] | None:
        """Return the size and write time (nanoseconds) of a version's entry, or None if there is no entry."""
        info = self.filesystem.get_file_info(f"{self.root}/{entry_name(version)}")
        return (int(info.size), int(info.mtime_ns or 0)) if info.type == fs.FileType.File else None

    def read(self, name: str) -> bytes:
        """Return the content of a file of the log.

        Raises:
            FileNotFoundError: there is no such file.
        """
        with self.filesystem.open_input_stream(f"{self.root}/{name}") as stream:
            content: bytes = stream.read()
            return content

    def actions(self, version: int) -> list[Action]:
        """Return the actions of a version.

        Raises:
            FileNotFoundError: its entry is missing.
            ValueError: its entry is damaged.
        """
        return actions_in(self.read(entry_name(version)))

    def entries(
        self, versions: Iterable[int], read: Callable[[int], list[Action]] | None = None
    ) -> Iterator[tuple[int, Callable[[], list[Action]]]]:
        """Yield each version with a function that returns its actions, or raises the error of `read`.

        Entries are read ahead, because a store takes long to answer each request. `read` returns the actions of a
        version; None stands for `actions`.
        """
        asked, to_read = tee(versions)
        calls = (partial(read or self.actions, version) for version in to_read)
        yield from zip(asked, ahead(calls, weigh=len, at_once=self.at_once), strict=False)

    @property
    def at_once(self) -> int:
        """Number of entries to read at the same time: one from a local disk, which answers before a thread starts."""
        return 1 if isinstance(self.filesystem, fs.LocalFileSystem) else AT_ONCE

    def active_in_checkpoint(self, version: int) -> list[str]:
        """Return the files of a version that has a single-file checkpoint, by their paths in the file system."""
        # Commands that read only entries should not wait for this import.
        import pyarrow.compute as pc

        added = self._parquet(checkpoint_name(version), ["add"])["add"].combine_chunks()
        return [unquote(path) for path in pc.struct_field(added, "path").drop_null().to_pylist()]

    def without_tombstones(self, version: int) -> dict[str, pa.Buffer]:
        """Return the new content of the files to replace, by name in order, so that a checkpoint has no tombstones.

        These are the checkpoint and, if it is the newest, `_last_checkpoint` with its size. There is none if the
        checkpoint has no tombstones, or if it is in Delta's second format (v2Checkpoint), which has another file name.
        """
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        name = checkpoint_name(version)
        if self.filesystem.get_file_info(f"{self.root}/{name}").type != fs.FileType.File:
            return {}
        rows = self._parquet(name, None)
        is_tombstone = pc.is_valid(pc.struct_field(rows["remove"].combine_chunks(), "path"))
        if not pc.any(is_tombstone).as_py():
            return {}
        kept, content = rows.filter(pc.invert(is_tombstone)), pa.BufferOutputStream()
        pq.write_table(kept, content)
        replaced = {name: content.getvalue()}
        # If a process ends between writing the checkpoint and this file, deltalake never writes it for this version.
        with suppress(FileNotFoundError):
            newest = json.loads(self.read(LAST_CHECKPOINT))
            if newest.get("version") == version:
                text = json.dumps({**newest, "size": len(kept), "sizeInBytes": replaced[name].size})
                replaced[LAST_CHECKPOINT] = pa.py_buffer(text.encode())
        return replaced

    def _parquet(self, name: str, columns: list[str] | None) -> pa.Table:
        # Commands that read only entries should not wait for this import.
        import pyarrow.parquet as pq

        with self.filesystem.open_input_file(f"{self.root}/{name}") as file:
            return pq.ParquetFile(file).read(columns)

    def added(self, version: int, names: Sequence[str], fields: Sequence[str]) -> dict[str, Action]:
        """Return the newest add action of each path up to a version, including files that were removed since.

        Args:
            version: the version.
            names: files of the log.
            fields: fields of add actions to read from a checkpoint, in addition to the path.

        Raises:
            FileNotFoundError: an entry after the newest checkpoint is missing.
            ValueError: an entry or a checkpoint is damaged.
        """
        newest, files = _newest_checkpoint(names, version)
        adds: dict[str, Action] = {}
        for file in files:
            adds |= {add["path"]: add for add in self._added_in(file, fields)}
        for _, actions in self.entries(range(newest + 1, version + 1)):
            adds |= {action["add"]["path"]: action["add"] for action in actions() if "add" in action}
        return adds

    def metadata(self, version: int, names: Sequence[str]) -> Action:
        """Return the metadata of a table at a version: its id, columns, partition columns and properties.

        Args:
            version: the version.
            names: files of the log.

        Raises:
            FileNotFoundError: the log no longer has that version.
            ValueError: an entry or the checkpoint is damaged.
        """
        newest, files = _newest_checkpoint(names, version)
        for entry in range(version, newest, -1):
            for action in self.actions(entry):
                if "metaData" in action:
                    metadata: Action = action["metaData"]
                    return metadata
        for file in files:
            if file.endswith(_ENTRY):
                rows = actions_in(self.read(file))
            else:
                rows = self._parquet(file, ["metaData"]).to_pylist(maps_as_pydicts="strict")
            if found := [row["metaData"] for row in rows if row.get("metaData")]:
                return dict(found[0])
        raise FileNotFoundError(f"the log has no metadata for version {version}")

    def has(self, version: int) -> bool:
        """Return True if the log has a checkpoint and all entries that a version needs."""
        infos = self.filesystem.get_file_info(fs.FileSelector(self.root, allow_not_found=True))
        names = {info.base_name for info in infos}
        newest, _ = _newest_checkpoint(names, version)
        return newest == version or names >= {entry_name(each) for each in range(newest + 1, version + 1)}

    def check(self, version: int | None = None) -> None:
        """Read everything that a version (None: the newest) needs. This takes long for a large table.

        Raises:
            FileNotFoundError: an entry or a checkpoint is missing; the message names it.
            ValueError: a file is damaged; the message names it.
        """
        infos = self.filesystem.get_file_info(fs.FileSelector(self.root, allow_not_found=True))
        names = [info.base_name for info in infos]
        last = max([*entry_versions(names), *checkpoint_versions(names)], default=-1) if version is None else version
        newest, files = _newest_checkpoint(names, last)
        rows = list[Action]()
        for name in [*files, *(entry_name(each) for each in range(newest + 1, last + 1))]:
            try:
                rows += self._rows_of(name)
            except FileNotFoundError as error:
                raise FileNotFoundError(f"{name} is missing from its log") from error
            except (ValueError, pa.ArrowException, OSError) as error:
                if may_be_intact(error):
                    raise
                raise ValueError(f"{name} in its log is damaged ({in_words(error)})") from error
        if LAST_CHECKPOINT in names and newest < 0:
            raise FileNotFoundError(f"its log lacks the checkpoint that {LAST_CHECKPOINT} names")
        for kind in ("protocol", "metaData"):
            if not any(row.get(kind) for row in rows):
                raise FileNotFoundError(f"its log lacks the entry with the first {kind}")
        for row in rows:
            try:
                json.loads((row.get("metaData") or {}).get("schemaString") or "{}")
            except ValueError as error:
                raise ValueError(f"the columns in its log are damaged ({error})") from error

    def _rows_of(self, name: str) -> list[Action]:
        """Return the actions of an entry or of a file of a checkpoint, with those of the sidecars that it refers to."""
        if name.endswith(_ENTRY):
            rows = actions_in(self.read(name))
        else:
            rows = self._parquet(name, None).to_pylist(maps_as_pydicts="strict")
        sidecars = [row["sidecar"]["path"].rpartition("/")[2] for row in rows if row.get("sidecar")]
        return rows + [row for sidecar in sidecars for row in self._rows_of(f"{SIDECARS}/{sidecar}")]

    def _added_in(self, name: str, fields: Sequence[str]) -> Iterator[Action]:
        """Yield the add actions of a file of a checkpoint, and of the sidecars that it refers to."""
        if name.endswith(_ENTRY):
            rows = actions_in(self.read(name))
        else:
            columns = ["sidecar.path", *(f"add.{field}" for field in ("path", *fields))]
            rows = self._parquet(name, columns).to_pylist(maps_as_pydicts="strict")
        for row in rows:
            if row.get("add"):
                yield row["add"]
            if row.get("sidecar"):
                yield from self._added_in(f"{SIDECARS}/{row['sidecar']['path'].rpartition('/')[2]}", fields)
