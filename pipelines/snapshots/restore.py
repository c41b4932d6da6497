"""Restore: an older snapshot becomes the head, as an epoch of its own that begins a new timeline.

The state of the older snapshot comes back in the commit; what was published after it goes away when
the restore is published, and the results of a line that was left before come back. A crash in between
is rolled forward like that of any epoch. Epoch numbers grow on: nobody confuses two timelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from deltalake import DeltaTable

from pipelines.epoch.commit import check_files
from pipelines.epoch.publish import epoch_row, publish
from pipelines.errors import FilesMissing, Refused
from pipelines.snapshots.commit import as_data_file, commit_snapshot, remaining
from pipelines.snapshots.head import Snapshot, lineage, list_snapshots, read_snapshot
from pipelines.snapshots.manifest import DataFile, Line, Manifest, Publish, fork_of
from pipelines.snapshots.quiet import quiet_manifest
from pipelines.snapshots.savepoint import copy_files, origin_of
from pipelines.storage import active_files, arrow_schema, path_of
from pipelines.tables import epochs, state
from pipelines.tables.files import write_file
from pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables
from windowing.time import Millis


def restore(tables: PipelineTables, target: Snapshot, now: Millis, keep_stale: bool = False) -> Manifest:
    """Make an older snapshot the head; its manifest. The caller holds the lease.

    A savepoint that was made elsewhere brings its state, not its results: what the tables hold goes
    away, and a pipeline that has no tables yet gets them.

    Args:
        tables: the pipeline's tables.
        target: a retained snapshot, or a savepoint.
        now: the driver's clock, int64 epoch milliseconds.
        keep_stale: whether what was published since stays readable, marked stale, instead of going away.

    Raises:
        Refused: results that belong to the snapshot are gone, or another driver committed meanwhile.
    """
    head = _Head.of(tables)
    if head is not None and head.manifest is not None:
        _publish_head(tables, head.manifest, target.manifest)
    if head is not None and path_of(head.handle) == target.path:
        is_ours = True
    else:
        origin = origin_of(target)
        tables.create(origin.schemas)
        is_ours = origin.table_id == str(tables.open(state.NAME).metadata().id)
    if head is not None and head.manifest is not None and is_ours and head.epoch == target.manifest.epoch:
        return head.manifest
    handle = tables.open(state.NAME) if head is None else head.handle
    _check_columns(tables, handle, target)
    manifest = _manifest(tables, head, target.manifest, is_ours, now, keep_stale)
    check_files(tables, manifest)
    at_head = {file["path"] for file in active_files(handle)}
    written, whole = remaining(tables, target, f"state-{manifest.epoch:06d}-restore")
    target = replace(target, files=tuple(whole))
    files = [as_data_file(file) for file in target.files]
    if target.path == path_of(handle):
        kept = {file.path for file in files if file.path in at_head}
        returning = [file for file in files if file.path not in at_head]
    else:
        kept, returning = set(), copy_files(tables, target, tables.path(state.NAME), f"restored-{manifest.epoch:06d}")
    commit_snapshot(tables, handle, manifest, arrow_schema(handle), [*written, *returning], kept)
    publish(tables, manifest)
    return manifest


@dataclass(frozen=True, slots=True)
class _Head:
    """What a restore needs to know of the snapshot that it takes the place of.

    `manifest` is None where it can't be read: the log tells the rest, and what it had not published goes away.
    """

    manifest: Manifest | None
    epoch: int
    timeline: int
    line: Line
    handle: DeltaTable

    @classmethod
    def of(cls, tables: PipelineTables) -> _Head | None:
        try:
            head = read_snapshot(tables)
        except Refused:
            told = next(iter(list_snapshots(tables)), None)
            if told is None:
                raise
            epoch, timeline = told.manifest["epoch"], told.manifest["timeline"]
            line = tuple((one.manifest["epoch"],) * 2 for one in lineage(tables, epoch))
            return cls(None, epoch, timeline, line[::-1], tables.open(state.NAME))
        if head is None:
            return None
        manifest = head.manifest
        return cls(manifest, manifest.epoch, manifest.timeline, manifest.line, head.handle)


def _publish_head(tables: PipelineTables, head: Manifest, target: Manifest) -> None:
    """Roll forward what a crash left; what can't be is left where the restore goes back to before it."""
    try:
        publish(tables, head)
    except FilesMissing:
        if target.epoch >= head.epoch:
            raise


def _check_columns(tables: PipelineTables, handle: DeltaTable, target: Snapshot) -> None:
    """A column that the table does not have would be written and never be read."""
    if lost := sorted(set(arrow_schema(target.handle).names) - set(arrow_schema(handle).names)):
        raise Refused(
            f"{target.path} has state in columns that {tables.path(state.NAME)} does not have: {', '.join(lost)}. "
            "It was made by other code: restore it into a warehouse of its own"
        )


def _manifest(
    tables: PipelineTables, head: _Head | None, then: Manifest, is_ours: bool, now: Millis, keep_stale: bool
) -> Manifest:
    newest = 0 if head is None else head.epoch
    epoch = max(newest, then.epoch) + 1
    fork = fork_of(head.line, then.line) if is_ours and head is not None else 0
    if is_ours and head is not None and head.manifest is None and not fork:
        raise Refused(
            f"the newest snapshot of {tables.pipeline}, epoch {newest}, can't be read, and the log does not tell where "
            f"epoch {then.epoch} parted from it: restore an epoch that it came from, `tidegate snapshot list "
            f"{tables.pipeline}`"
        )
    since = tuple(range(fork + 1, newest + 1))
    left = _left(tables, then, fork) if is_ours else []
    files = {table: tuple(file for manifest in left for file in manifest.publish[table].files) for table in PUBLISHED}
    files[epochs.NAME] = _epoch_rows(tables, left, epoch)
    return quiet_manifest(
        then,
        "restore",
        epoch,
        max(0 if head is None else head.timeline, then.timeline) + 1,
        (*then.line, (epoch, epoch)),
        {
            table: Publish(
                files=files[table],
                reopened=tuple(one for manifest in left for one in manifest.publish[table].reopened),
                remove_epochs=() if keep_stale else since,
                stale_epochs=since if keep_stale else (),
            )
            for table in PUBLISHED
        },
        now,
    )


def _left(tables: PipelineTables, then: Manifest, fork: int) -> list[Manifest]:
    """The epochs between the fork and the target: their line was left, and what they published with it.

    Raises:
        Refused: one of them is no longer retained, so its results can't come back.
    """
    wanted = [epoch for first, last in then.line for epoch in range(first, last + 1) if epoch > fork]
    versions = {entry.manifest["epoch"]: entry.version for entry in list_snapshots(tables)}
    found = []
    for epoch in wanted:
        if epoch == then.epoch:
            found.append(then)
            continue
        snapshot = read_snapshot(tables, versions[epoch]) if epoch in versions else None
        if snapshot is None:
            raise Refused(
                f"epoch {then.epoch} of {tables.pipeline} is on a line that was left at epoch {fork}, and what epoch "
                f"{epoch} of it published is no longer retained. Restore epoch {fork} or one before it, and run again"
            )
        found.append(snapshot.manifest)
    return found


def _epoch_rows(tables: PipelineTables, left: Sequence[Manifest], epoch: int) -> tuple[DataFile, ...]:
    if not left:
        return ()
    schema = arrow_schema(tables.open(epochs.NAME))
    rows = pa.concat_tables(epoch_row(manifest, schema) for manifest in left)
    file = write_file(tables.warehouse, tables.path(epochs.NAME), f"{epochs.NAME}-{epoch:06d}", rows)
    return () if file is None else (file,)
