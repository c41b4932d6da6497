"""Snapshots in table `state`: the newest one, an older one, and the line they form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Manifest
from tidegate.pipelines.storage import Warehouse, active_files, arrow_schema, path_of
from tidegate.pipelines.tables import state
from tidegate.pipelines.tables.pipeline_tables import ALL, PipelineTables
from tidegate.pipelines.tables.table_log import TableLog

PUBLISHED_BY = "tidegate_published"
"""Metadata of a state commit: what `PublishedBy` says."""

_COMMITS_OF_OTHERS = 5
"""Commits to table state after its newest snapshot that are looked past: the fence of a vacuum, mostly."""

_CHANGED = "Only tidegate may change it: restore the table from before that change"


class OtherPipeline(Refused):
    """A table of state rows that a pipeline of another name made."""


@dataclass(frozen=True)
class Snapshot:
    """One version of table `state` and the manifest in it.

    Args:
        manifest: what the epoch recorded.
        version: of the table.
        handle: the table at that version.
        files: the state files, without that of the manifest, as deltalake lists them.
        manifest_files: the file (or, after a compaction by somebody else, files) with the manifest row.
    """

    manifest: Manifest
    version: int
    handle: DeltaTable
    files: tuple[dict[str, Any], ...]
    manifest_files: tuple[dict[str, Any], ...]

    @property
    def path(self) -> str:
        """Where the table is: table `state`, or a savepoint."""
        return path_of(self.handle)


def read_snapshot(tables: PipelineTables, version: int | None = None) -> Snapshot | None:
    """The snapshot at the head of table `state`, or at a version; None if there is none yet.

    Raises:
        Refused: the table holds no readable manifest although it holds state, or is of another pipeline.
    """
    if not tables.exist:
        return None
    snapshot = snapshot_in(tables.warehouse, tables.path(state.NAME), tables.open(state.NAME, version))
    if snapshot is not None and snapshot.manifest.pipeline != tables.pipeline:
        raise OtherPipeline(
            f"table {snapshot.path} is of pipeline {snapshot.manifest.pipeline!r}, not of {tables.pipeline!r}: was its "
            f"folder renamed? State goes on in the pipeline that made it: give the folder, or the pipeline, the name "
            f"{snapshot.manifest.pipeline!r} again, or backfill {tables.pipeline!r} in a folder of its own"
        )
    return snapshot


@dataclass(frozen=True, slots=True)
class PublishedBy:
    """The newest epoch that each published table holds, 0 for none: before an epoch is published, and after it."""

    before: dict[str, int]
    after: dict[str, int]


def published_by(handle: DeltaTable) -> PublishedBy | None:
    """What the published tables hold by the newest snapshot in a handle; None where an older tidegate committed it."""
    for commit in handle.history(_COMMITS_OF_OTHERS):
        if isinstance(commit.get("tidegate"), dict):
            return _published_by(commit)
    return None


def _published_by(commit: dict[str, Any]) -> PublishedBy | None:
    told = commit.get(PUBLISHED_BY)
    return PublishedBy(told["before"], told["after"]) if isinstance(told, dict) else None


def is_newest(snapshot: Snapshot, tables: PipelineTables) -> bool:
    """Whether nobody has committed to table `state` since a snapshot was read from it."""
    return tables.warehouse.log(tables.path(state.NAME)).info(snapshot.version + 1) is None


def require_snapshot(tables: PipelineTables, version: int | None = None) -> Snapshot:
    """The snapshot at the head of table `state`, or at a version, for what can do nothing without one.

    Raises:
        Refused: there is none yet.
    """
    return required(tables, read_snapshot(tables, version))


def required(tables: PipelineTables, snapshot: Snapshot | None) -> Snapshot:
    """A snapshot, for what can do nothing without one.

    Raises:
        Refused: there is none yet.
    """
    if snapshot is None:
        raise no_snapshot_yet(tables)
    return snapshot


def newest_epochs(tables: PipelineTables, names: Sequence[str] = ALL) -> dict[str, int]:
    """The newest epoch that was committed to each table, 0 before the first; tables that are gone are left out."""
    return {
        name: tables.open(name).transaction_version(tables.application) or 0
        for name in names
        if tables.warehouse.exists(tables.path(name))
    }


def no_snapshot_yet(tables: PipelineTables) -> Refused:
    """The error for what can do nothing without a snapshot."""
    name = tables.pipeline
    return Refused(
        f"pipeline {name!r} has no snapshot yet: first run `tidegate backfill {name}` with --start and --end, or "
        f"`tidegate stream {name} --available-now`"
    )


def snapshot_in(warehouse: Warehouse, path: str, handle: DeltaTable) -> Snapshot | None:
    """The snapshot that a table of state rows holds at the version it was opened at; None if it is empty.

    Raises:
        Refused: it holds state rows and no manifest, or several.
    """
    files = active_files(handle)
    own = [file for file in files if file["min.key_group"] == state.MANIFEST_KEY_GROUP]
    if not own:
        if files:
            raise Refused(f"table {path} at version {handle.version()} has state but no manifest. {_CHANGED}")
        return None
    rows = warehouse.read_files(
        path,
        [file["path"] for file in own],
        arrow_schema(handle),
        ["manifest"],
        pc.field("key_group") == state.MANIFEST_KEY_GROUP,
    )
    if len(rows) != 1:
        raise Refused(f"table {path} at version {handle.version()} has {len(rows)} manifests, not one. {_CHANGED}")
    shared = [file for file in own if file["max.key_group"] != state.MANIFEST_KEY_GROUP]
    return Snapshot(
        Manifest.parse(rows["manifest"][0].as_py()),
        handle.version(),
        handle,
        tuple(file for file in files if file not in own or file in shared),
        tuple(own),
    )


@dataclass(frozen=True)
class SnapshotEntry:
    """What the log tells of a snapshot without opening it; `published_by` as the function of that name gives it."""

    version: int
    committed_at: int
    manifest: dict[str, Any]
    published_by: PublishedBy | None = None

    @property
    def epoch(self) -> int:
        """Number of the epoch that made it."""
        return int(self.manifest["epoch"])


def list_snapshots(tables: PipelineTables, newest: int | None = None) -> list[SnapshotEntry]:
    """The snapshots in the log, the newest first. Reads only the log, and starts no JVM.

    Args:
        tables: the pipeline's tables.
        newest: how many of the newest are wanted; None lists all. The rest of the log is not read.

    Raises:
        Refused: an entry of the log is damaged.
    """
    return list(islice(snapshots_of(TableLog(tables, state.NAME)), newest)) if tables.exist else []


def snapshots_of(log: TableLog) -> Iterator[SnapshotEntry]:
    """The snapshots in a log of table `state`, the newest first.

    Delta's own history would count versions down without a gap, and a log has gaps where snapshots were thinned out.
    """
    for version in reversed(log.versions):
        entry = log.entry(version)
        if entry is not None and entry.snapshot is not None:
            yield SnapshotEntry(version, entry.time or 0, entry.snapshot, _published_by(entry.info))


def lineage(tables: PipelineTables, epoch: int | None) -> Iterator[SnapshotEntry]:
    """The snapshots that an epoch came from, its own first, back over restores."""
    entries = {entry.manifest["epoch"]: entry for entry in list_snapshots(tables)}
    while epoch is not None and epoch in entries:
        yield entries[epoch]
        epoch = entries[epoch].manifest["parent"]
