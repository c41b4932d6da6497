"""Publishing, the fourth step of an epoch: the rows that the manifest lists go to results, late, rejects and epochs.

Each table gets one commit. The check for an earlier commit and the commit itself share one handle. After a harmless
conflict (somebody altered the table), it reopens the table, then checks and commits again, so the next epoch never
starts before the previous one is published. Recovery runs the same code: it publishes what the newest manifest lists
and a table lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction

from tidegate.pipelines.definition import epochs, late, rejects, results, windows
from tidegate.pipelines.definition.columns import TIMESTAMP, with_values
from tidegate.pipelines.errors import FilesMissing, Refused
from tidegate.pipelines.failures import in_words
from tidegate.pipelines.ledger.manifest import DataFile, Manifest, Publish
from tidegate.pipelines.ledger.snapshots.foreign_changes import check_unchanged
from tidegate.pipelines.ledger.snapshots.head import snapshots_by_epoch
from tidegate.pipelines.ledger.snapshots.publish_windows import publish_windows
from tidegate.pipelines.ledger.step_log import log_step
from tidegate.pipelines.ledger.tables.commits import Outrun
from tidegate.pipelines.ledger.tables.commits import commit as commit_to
from tidegate.pipelines.ledger.tables.files import add_action, check_written, remove_action, write_rows
from tidegate.pipelines.ledger.tables.keys import are_forgotten, key_columns
from tidegate.pipelines.ledger.tables.late_rows import Deletions, marks_of, read_deleted, with_marks
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, Handles, PipelineTables
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis
from tidegate.windowing.timestamps import timestamps_of

_ATTEMPTS = 10


def publish(tables: PipelineTables, manifest: Manifest) -> None:
    """Publish an epoch to every table. A table that already has the epoch is left unchanged.

    Raises:
        FilesMissing: a file that the manifest lists is missing.
        Refused: the table's commits keep failing, or the manifest has a time that no table can hold.
    """
    for table in PUBLISHED:
        if table == epochs.NAME:
            # Views consider an epoch published when table epochs has it.
            publish_windows(tables, manifest)
        publish_table(tables, manifest, table)


def publish_table(tables: PipelineTables, manifest: Manifest, table: str, handles: Handles | None = None) -> bool:
    """Publish an epoch to one table; return False if the table already has it or gets nothing."""
    if not manifest.goes_to(table):
        log_step("passed over", manifest.epoch, table)
        return False
    handles = handles or Handles()
    for _ in range(_ATTEMPTS):
        handle = handles.open(tables, table)
        if is_published(handle, tables.application, manifest.epoch):
            log_step("has", manifest.epoch, table)
            return False
        # On top of another epoch, the foreign change would go unnoticed.
        check_unchanged(tables, table, handle.version())
        try:
            _commit(tables, manifest, table, handle)
        except Outrun:
            continue
        log_step("published", manifest.epoch, table)
        handles.keep(table, handle)
        return True
    raise Refused(
        f"epoch {manifest.epoch} can't be published to {tables.path(table)}: other commits to that table keep "
        f"interfering. Only tidegate may write to it: stop the other writer. Then run again: publishing continues "
        f"where "
        "it stopped"
    )


def is_published(handle: DeltaTable, application: str, epoch: int) -> bool:
    """Return True if a table has this epoch or a later one, so that nothing is left to publish."""
    published = handle.transaction_version(application)
    return published is not None and published >= epoch


def _commit(tables: PipelineTables, manifest: Manifest, table: str, handle: DeltaTable) -> None:
    work = manifest.publish[table]
    if (wrong := manifest.outside_range) is not None:
        raise Refused(
            f"epoch {manifest.epoch} of {tables.pipeline} can't be published: its {wrong} is outside the years 1 to "
            "9999. A setting or generator of its watermark is wrong: correct the code first",
            _way_back(tables, manifest),
        )
    try:
        check_written(tables.warehouse, tables.path(table), (*work.files, *(each.file for each in work.deleted)))
    except FilesMissing as error:
        raise FilesMissing(
            f"publishing epoch {manifest.epoch} is impossible: {error} Its state is committed, but its results are "
            "lost",
            _way_back(tables, manifest),
        ) from error
    deletions = Deletions(table, read_deleted(tables, table, work.deleted)) if work.deleted else None
    files = _returning(tables, manifest, table, handle, deletions)
    if table == epochs.NAME:
        files += _written(tables, table, epoch_row(manifest, arrow_schema(handle)), manifest.epoch)
    removes, rewritten = _rewritten(tables, manifest, table, handle, deletions)
    commit_to(
        tables.warehouse,
        handle,
        [*(add_action(file) for file in (*files, *rewritten)), *removes],
        {"tidegate": {"timeline": manifest.timeline, "epoch": manifest.epoch, "parent": manifest.parent}},
        transactions=[Transaction(tables.application, manifest.epoch)],
    )


def _way_back(tables: PipelineTables, manifest: Manifest) -> Remedy:
    """Return the remedy after which a run reads again the source rows of an epoch that can't be published."""
    if manifest.parent is not None and manifest.parent in snapshots_by_epoch(tables):
        return Remedy(Act.RESTORE, tables.pipeline, manifest.parent)
    return Remedy(Act.RESTART, tables.pipeline)


def check_removable(tables: PipelineTables, manifest: Manifest) -> None:
    """Read every file that publishing an epoch rewrites: one that can't be read is refused before the commit."""
    for table in PUBLISHED:
        work = manifest.publish[table]
        if not work.rewrites:
            continue
        handle, path = tables.newest(table), tables.path(table)
        touched = list(_touched(table, handle, work))
        for file in touched:
            if _is_deleted_whole(file, work):
                continue
            try:
                tables.warehouse.read_files(path, [file["path"]], arrow_schema(handle))
            except Refused as error:
                reason = in_words(error.__cause__ or error).rstrip(".")
                raise _not_committed(tables, manifest, table, file["path"], reason) from error
        if touched and table == results.NAME and tables.warehouse.exists(tables.path(windows.NAME)):
            # Once files are removed, table windows is selected again from all of the others.
            sizes: dict[str, int | None] = {**tables.warehouse.names(path)}
            others = {
                file["path"]: file["size_bytes"] for file in active_files(handle) if not _is_deleted_whole(file, work)
            }
            sizes |= tables.warehouse.sizes(path, [name for name in others if name not in sizes])
            for name, size in others.items():
                if sizes[name] != size:
                    fault = "it is missing" if sizes[name] is None else f"it has {sizes[name]} bytes, not {size}"
                    raise _not_committed(tables, manifest, table, name, fault)


def _not_committed(tables: PipelineTables, manifest: Manifest, table: str, file: str, reason: str) -> Refused:
    return Refused(
        f"epoch {manifest.epoch} of {tables.pipeline} ({manifest.kind}) has to remove or mark rows, or to select "
        f"windows again, but a file can't be read, so nothing was committed: {file} of table {tables.path(table)}: "
        f"{reason}",
        *tables.remedies(table),
    )


def files_after(
    tables: PipelineTables, manifest: Manifest, table: str, handle: DeltaTable, listed: Sequence[DataFile]
) -> tuple[list[DataFile], list[str]]:
    """Return the files that a table would have after an epoch was published to it, without publishing it.

    Args:
        tables: the tables of a pipeline.
        manifest: the manifest of the epoch.
        table: name of the table.
        handle: the table, opened at the version on which the epoch would be published.
        listed: its active files.

    Returns:
        The files, and the names of those that were written for this; the caller deletes them.
    """
    deleted = manifest.publish[table].deleted
    deletions = Deletions(table, read_deleted(tables, table, deleted)) if deleted else None
    returning = _returning(tables, manifest, table, handle, deletions)
    removes, rewritten = _rewritten(tables, manifest, table, handle, deletions)
    gone, known = {each.path for each in removes}, {file.path for file in (*listed, *manifest.publish[table].files)}
    files = {file.path: file for file in (*listed, *returning, *rewritten) if file.path not in gone}
    return list(files.values()), [name for name in files if name not in known]


def _rewritten(
    tables: PipelineTables, manifest: Manifest, table: str, handle: DeltaTable, deletions: Deletions | None
) -> tuple[list[Any], list[DataFile]]:
    """Return the removals of files with rows to delete, mark as stale or mark as reopened, and their replacements."""
    work, schema, path = manifest.publish[table], arrow_schema(handle), tables.path(table)
    key = key_columns(table, schema, tuple(manifest.schemas.key))
    removes, adds = list[Any](), list[DataFile]()
    listed = set() if work.reopened or work.deleted else {file.path for file in work.files}
    for file in _touched(table, handle, work):
        if file["path"] in listed:
            # This file of the epoch was already published, and is kept.
            continue
        if _is_deleted_whole(file, work):
            removes.append(remove_action(file))
            continue
        rows = tables.warehouse.read_files(path, [file["path"]], schema)
        goes = pc.is_in(rows["epoch"], value_set=pa.array(work.remove_epochs, pa.int64()))
        if work.forgotten and key:
            goes = pc.or_(goes, are_forgotten(rows, key, work.forgotten))
        if deletions is not None:
            goes = pc.or_(goes, pa.array(~deletions.stay(rows)))
        becomes_stale = pc.is_in(rows["epoch"], value_set=pa.array(work.stale_epochs, pa.int64()))
        stale = pc.or_(rows["stale"], becomes_stale)
        changed = with_marks(table, with_values(rows, "stale", stale), key, work)
        is_marked_again = marks_of(table, changed) != marks_of(table, rows)
        if not is_marked_again and not pc.any(pc.or_(goes, becomes_stale)).as_py():
            continue
        removes.append(remove_action(file))
        adds += _written(tables, table, changed.filter(pc.invert(goes)), manifest.epoch)
    return removes, adds


def _returning(
    tables: PipelineTables, manifest: Manifest, table: str, handle: DeltaTable, deletions: Deletions | None
) -> list[DataFile]:
    """Return the files that a manifest lists. Late rows that an epoch of the lineage reopened return as reopened.

    Rows deleted from the source don't return; see `_rewritten`.
    """
    work = manifest.publish[table]
    if not work.reopened and deletions is None:
        return list(work.files)
    schema, path = arrow_schema(handle), tables.path(table)
    key = key_columns(table, schema, tuple(manifest.schemas.key))
    returning = list[DataFile]()
    for file in work.files:
        rows = with_marks(table, tables.warehouse.read_files(path, [file.path], schema), key, work)
        if deletions is not None:
            rows = rows.filter(pa.array(deletions.stay(rows)))
        returning += _written(tables, table, rows, manifest.epoch)
    return returning


def _touched(table: str, handle: DeltaTable, work: Publish) -> Iterator[dict[str, Any]]:
    """Yield the files whose statistics allow rows that change; every file if keys are to be forgotten."""
    # In other tables this is a user's column.
    has_marks = table == late.NAME
    deleted = {epoch for each in work.deleted for epoch, _ in each.by_epoch}
    wanted = {*work.remove_epochs, *work.stale_epochs, *deleted}
    for file in active_files(handle) if work.rewrites else ():
        is_open = has_marks and work.reopened and file.get(f"null_count.{late.REOPENED}") != 0
        goes_anyway = bool(work.forgotten)
        is_marked = has_marks and _may_hold(file, late.REOPENED, wanted)
        if goes_anyway or is_open or is_marked or _may_hold(file, "epoch", wanted):
            yield file


def _is_deleted_whole(file: dict[str, Any], work: Publish) -> bool:
    """Return True if the statistics show that every row of a file is to be deleted. Such a file is not read."""
    first, last = file.get("min.epoch"), file.get("max.epoch")
    if first is None or last is None or not work.remove_epochs:
        return False
    gone = set(work.remove_epochs)
    return all(epoch in gone for epoch in range(first, last + 1))


def _may_hold(file: dict[str, Any], column: str, wanted: Collection[int]) -> bool:
    first, last = file.get(f"min.{column}"), file.get(f"max.{column}")
    if not wanted:
        return False
    if first is None or last is None:
        # Tidegate writes statistics of `reopened` for each file with marked rows, so a file without them has no marks.
        return column == "epoch"
    return bool(first <= max(wanted) and last >= min(wanted))


def _written(tables: PipelineTables, table: str, rows: pa.Table, epoch: int) -> tuple[DataFile, ...]:
    return write_rows(tables.warehouse, tables.path(table), f"{table}-{epoch:06d}", rows)


def _deleted(manifest: Manifest) -> list[dict[str, int]] | None:
    """Return how many rows an epoch removed from tables late and rejects, by the epochs that counted them."""
    if manifest.kind != "change":
        return None
    counted: dict[int, dict[str, int]] = {}
    for table, what in ((late.NAME, "late"), (rejects.NAME, "rejected")):
        for each in manifest.publish[table].deleted:
            for name, pairs in ((what, each.by_epoch), (late.REOPENED, each.by_reopening)):
                for epoch, rows in pairs:
                    counts = counted.setdefault(epoch, {"epoch": epoch, "late": 0, "reopened": 0, "rejected": 0})
                    counts[name] += rows
    return [counted[epoch] for epoch in sorted(counted)] or None


def _moment(time: Millis) -> Millis | None:
    return time if MIN_TIMESTAMP < time < MAX_TIMESTAMP else None


def epoch_row(manifest: Manifest, schema: pa.Schema) -> pa.Table:
    """Return the row that an epoch adds to table epochs."""
    position = next(iter(manifest.positions.values()))
    values: dict[str, Any] = {
        **manifest.counters,
        "timeline": manifest.timeline,
        "epoch": manifest.epoch,
        "parent": manifest.parent,
        "kind": manifest.kind,
        "interval_start": manifest.interval.start if manifest.interval else None,
        "interval_end": manifest.interval.end if manifest.interval else None,
        "source_version": position.version,
        "watermark": _moment(manifest.watermark),
        "watermark_lag_ms": manifest.watermark_lag,
        "processing_time": manifest.processing_time,
        "shards": [{"first": shard.first, "last": shard.last, **shard.counters} for shard in manifest.shards],
        "phases": list(manifest.phases.items()),
        "run_id": manifest.run_id,
        "started_at": manifest.started_at,
        "stale": False,
        epochs.DELETED: _deleted(manifest),
        epochs.SHAPE: None if manifest.shape is None else manifest.shape.model_dump(),
        epochs.FINGERPRINT: manifest.recomputed_by or manifest.fingerprint,
        epochs.FINAL_THROUGH: _moment(manifest.final_through),
    }
    columns = []
    for column in schema:
        if column.type == TIMESTAMP:
            millis = pa.array([values.get(column.name)], pa.int64())
            columns.append(timestamps_of(millis))
        else:
            columns.append(pa.array([values.get(column.name)], column.type))
    return pa.table(columns, schema=schema)
