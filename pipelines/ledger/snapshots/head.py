"""Snapshots in table `state`: read the newest or an older one, list them, and follow their lineage back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidegate.pipelines.definition import state
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.tables.files import deltas_of, read_state
from tidegate.pipelines.ledger.tables.keys import key_schema
from tidegate.pipelines.ledger.tables.newest import is_moved
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PUBLISHED, PipelineTables
from tidegate.pipelines.ledger.tables.table_log import LogEntry, TableLog
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.delta_log import commit_info
from tidegate.pipelines.storage.warehouse import Warehouse, active_files, arrow_schema, path_of
from tidegate.windowing.keys import KeySchema

PUBLISHED_BY = "tidegate_published"
"""Metadata field of state commits that holds `PublishedBy`."""

FENCE = "tidegate_fence"
"""Metadata field of a commit that changes no rows, and only makes concurrent commits fail. Its value names the cleanup.
"""

KEPT = "tidegate_kept"
"""Metadata field of a fence commit to table state. It holds `Kept`."""


class OtherPipeline(Refused):
    """A table of state rows belongs to a pipeline with another name."""


@dataclass(frozen=True)
class Snapshot:
    """One version of table `state`, and the manifest in it.

    The state files are listed without the file of the manifest row. The manifest row has a file of its own unless
    somebody else compacted the table.
    """

    manifest: Manifest
    version: int
    handle: DeltaTable
    files: tuple[dict[str, Any], ...]
    manifest_files: tuple[dict[str, Any], ...]

    @property
    def path(self) -> str:
        """Path of the table: table `state`, or a savepoint."""
        return path_of(self.handle)

    @property
    def key(self) -> KeySchema:
        """Key columns of the state."""
        return key_schema(arrow_schema(self.handle), tuple(self.manifest.schemas.key))


def read_snapshot(tables: PipelineTables, version: int | None = None) -> Snapshot | None:
    """Return the snapshot at the head of table `state`, or at a version, or None if there is none yet.

    Raises:
        Refused: the table holds state without a readable manifest, or belongs to another pipeline.
    """
    if not tables.exist:
        return None
    snapshot = snapshot_in(
        tables.warehouse, tables.path(state.NAME), tables.open(state.NAME, version), tables.remedies(state.NAME)
    )
    if snapshot is not None and snapshot.manifest.pipeline != tables.pipeline:
        raise OtherPipeline(
            f"table {snapshot.path} belongs to pipeline {snapshot.manifest.pipeline!r}, not to {tables.pipeline!r}: "
            "was its folder renamed? Only the pipeline that produced the state can continue from it: give the folder, "
            "or "
            f"the pipeline, the name {snapshot.manifest.pipeline!r} again, or backfill {tables.pipeline!r} in its own "
            f"folder"
        )
    return snapshot


@dataclass(frozen=True, slots=True)
class PublishedBy:
    """The newest epoch of each published table (0 for none) before and after an epoch is published."""

    before: dict[str, int]
    after: dict[str, int]


def published_by(warehouse: Warehouse, handle: DeltaTable) -> PublishedBy | None:
    """Return the newest epochs of the published tables, as the newest snapshot in a handle records them.

    Return None if there is no snapshot, or if its log entry is damaged and Delta reads a checkpoint instead.
    """
    return _published_by(newest_record(warehouse, handle))


def newest_record(warehouse: Warehouse, handle: DeltaTable) -> dict[str, Any]:
    """Return the metadata of the newest commit, up to a handle's version, that names its epoch, or {} if none does.

    Between that commit and the handle's version, there are only commits without an epoch, such as the fences of
    cleanups. Delta's own history reads all commits, although usually one suffices, and on an object store it is empty
    if the first folder of the path has a colon.
    """
    log = warehouse.log(path_of(handle))
    for version in range(handle.version(), -1, -1):
        try:
            info = commit_info(log.actions(version))
        except (FileNotFoundError, ValueError):
            # A cleanup removed the entry, or it is damaged and Delta reads a checkpoint instead.
            break
        if isinstance(info.get("tidegate"), dict):
            return info
    return {}


def _published_by(commit: dict[str, Any]) -> PublishedBy | None:
    record = commit.get(PUBLISHED_BY)
    return PublishedBy(record["before"], record["after"]) if isinstance(record, dict) else None


def is_newest(snapshot: Snapshot, tables: PipelineTables) -> bool:
    """Return True if nobody has committed to table `state` since this snapshot was read from it."""
    return tables.warehouse.log(tables.path(state.NAME)).info(snapshot.version + 1) is None


def require_snapshot(tables: PipelineTables, version: int | None = None) -> Snapshot:
    """Return the snapshot at the head of table `state`, or at a version; raise Refused if there is none yet."""
    return required(tables, read_snapshot(tables, version))


def required(tables: PipelineTables, snapshot: Snapshot | None) -> Snapshot:
    """Return a snapshot, or raise Refused if it is None because there is none yet."""
    if snapshot is None:
        raise no_snapshot_yet(tables)
    return snapshot


def newest_epochs(tables: PipelineTables, names: Sequence[str] = ALL) -> dict[str, int]:
    """Return the newest epoch committed to each table, 0 before the first. Missing tables are left out."""
    return {
        name: tables.newest(name).transaction_version(tables.application) or 0
        for name in names
        if tables.warehouse.exists(tables.path(name))
    }


def no_snapshot_yet(tables: PipelineTables) -> Refused:
    """Return the error for a caller that needs a snapshot of a pipeline without one."""
    name = tables.pipeline
    left = [table for table in PUBLISHED if tables.warehouse.exists(tables.path(table))]
    if left and not tables.exist:
        return Refused(
            f"table {tables.path(state.NAME)} is gone, and {', '.join(left)} still exist: pipeline {name!r} has run",
            *tables.remedies(state.NAME),
        )
    return Refused(
        f"pipeline {name!r} has no snapshot yet in warehouse {tables.warehouse.uri}. If its tables are in another "
        "place, correct `warehouse` in tidegate.toml",
        Remedy(Act.FIRST_BACKFILL, name),
        Remedy(Act.STREAM, name),
    )


def snapshot_in(warehouse: Warehouse, path: str, handle: DeltaTable, remedies: Sequence[Remedy]) -> Snapshot | None:
    """Return the snapshot in a table of state rows at the handle's version, or None if the table is empty.

    `remedies` are those for a table that others changed.

    Raises:
        Refused: the table holds state rows but no manifest, or several manifests.
    """
    files = active_files(handle)
    manifest_files = [file for file in files if file["min.key_group"] == state.MANIFEST_KEY_GROUP]
    if not manifest_files:
        if files:
            raise Refused(f"table {path} at version {handle.version()} has state but no manifest", *remedies)
        return None
    rows = warehouse.read_files(
        path,
        [file["path"] for file in manifest_files],
        arrow_schema(handle),
        ["manifest"],
        pc.field("key_group") == state.MANIFEST_KEY_GROUP,
    )
    if len(rows) != 1:
        raise Refused(f"table {path} at version {handle.version()} has {len(rows)} manifests, not one", *remedies)
    return _snapshot(Manifest.parse(rows["manifest"][0].as_py()), handle, files, manifest_files)


def state_rows(
    warehouse: Warehouse, snapshot: Snapshot, where: pc.Expression | None = None, columns: list[str] | None = None
) -> pa.Table:
    """Return the state rows of a snapshot or savepoint without its manifest, with all columns or the given ones."""
    names = [file["path"] for file in snapshot.files]
    real = pc.field("key_group") != state.MANIFEST_KEY_GROUP
    chosen = real if where is None else real & where
    deltas = deltas_of(snapshot.files)
    return read_state(warehouse, snapshot.path, names, deltas, arrow_schema(snapshot.handle), columns, chosen)


def following(parent: Snapshot, manifest: Manifest) -> Snapshot | None:
    """Return the snapshot that an epoch of this process created right after another one; None if others have committed.

    Only the entry of that commit is read, whereas `read_snapshot` opens the table. The handle of the parent is moved,
    so the caller must no longer use it.
    """
    handle = parent.handle
    if handle.version() != parent.version or not is_moved(handle):
        return None
    files = active_files(handle)
    ours = [file for file in files if file["min.key_group"] == state.MANIFEST_KEY_GROUP]
    return _snapshot(manifest, handle, files, ours)


def _snapshot(
    manifest: Manifest, handle: DeltaTable, files: list[dict[str, Any]], manifest_files: list[dict[str, Any]]
) -> Snapshot:
    # After a compaction by somebody else, a file may hold both the manifest and state rows.
    shared = [file for file in manifest_files if file["max.key_group"] != state.MANIFEST_KEY_GROUP]
    return Snapshot(
        manifest,
        handle.version(),
        handle,
        tuple(file for file in files if file not in manifest_files or file in shared),
        tuple(manifest_files),
    )


@dataclass(frozen=True)
class SnapshotEntry:
    """A snapshot as listed in the log, without opening the table; `manifest` is the short form in the commit."""

    version: int
    committed_at: int
    manifest: dict[str, Any]
    published_by: PublishedBy | None = None

    @property
    def epoch(self) -> int:
        """Number of the epoch that created the snapshot."""
        return int(self.manifest["epoch"])


def list_snapshots(tables: PipelineTables, newest: int | None = None) -> list[SnapshotEntry]:
    """Return the snapshots in the log, newest first. This reads only the log, and starts no JVM.

    With `newest`, only as much of the log is read as that number needs.
    """
    return list(islice(snapshots_of(TableLog(tables, state.NAME)), newest)) if tables.exist else []


def snapshots_by_epoch(tables: PipelineTables) -> dict[int, SnapshotEntry]:
    """Return the snapshots in the log by their epochs, oldest first."""
    return {entry.epoch: entry for entry in reversed(list_snapshots(tables))}


@dataclass(frozen=True, slots=True)
class Kept:
    """The earlier versions that the newest cleanup kept. That cleanup may hang, and may still remove the others.

    Args:
        snapshots: versions of table state before those of `since`.
        since: by table, the version from which all versions are kept.
    """

    snapshots: frozenset[int] = frozenset()
    since: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def noted_in(cls, entry: LogEntry | None) -> Kept | None:
        """Return what the cleanup that committed an entry kept; None if no cleanup did."""
        record = None if entry is None else entry.info.get(KEPT)
        return None if record is None else cls(frozenset(record["snapshots"]), record["since"])

    def __contains__(self, version: int) -> bool:
        """Return True if a version of table state was kept."""
        return version >= self.since.get(state.NAME, 0) or version in self.snapshots


def kept_of(log: TableLog) -> Kept:
    """Return what the newest cleanup in a log of table `state` kept, or everything if there was no cleanup."""
    noted = (Kept.noted_in(log.entry(version)) for version in reversed(log.recent))
    return next((kept for kept in noted if kept is not None), Kept())


def snapshots_of(log: TableLog) -> Iterator[SnapshotEntry]:
    """Yield the snapshots in a log of table `state` that no cleanup has given up, newest first.

    Delta's own history expects versions without a gap. This log has gaps between snapshots that retention removed.
    """
    kept: Kept | None = None
    for version in reversed(log.versions):
        if kept is not None and version not in kept:
            continue
        entry = log.entry(version)
        kept = kept or Kept.noted_in(entry)
        if entry is not None and entry.snapshot is not None:
            yield SnapshotEntry(version, entry.time or 0, entry.snapshot, _published_by(entry.info))


def lineage(tables: PipelineTables, epoch: int | None) -> Iterator[SnapshotEntry]:
    """Yield the snapshot of an epoch, then the snapshots of its ancestors, newest first, even across restores."""
    entries = snapshots_by_epoch(tables)
    while epoch is not None and epoch in entries:
        yield entries[epoch]
        epoch = entries[epoch].manifest["parent"]
