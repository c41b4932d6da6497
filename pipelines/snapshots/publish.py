"""Step 4 of an epoch: results, late, rejects and epochs get what the manifest lists, one commit each.

Check and commit share one handle. On a harmless conflict (somebody altered the table) it is opened
anew, the transaction looked at again, and the commit tried again: the next epoch never starts
unpublished. Recovery is the same code: publish what the newest manifest lists and a table lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError

from tidegate.pipelines.errors import FilesMissing, Refused
from tidegate.pipelines.manifest import DataFile, Manifest, Publish
from tidegate.pipelines.snapshots.head import list_snapshots
from tidegate.pipelines.storage import active_files, arrow_schema
from tidegate.pipelines.tables import epochs, late, rejects, results
from tidegate.pipelines.tables.columns import TIMESTAMP
from tidegate.pipelines.tables.files import add_action, check_written, remove_action, write_file
from tidegate.pipelines.tables.key_groups import key_hashes
from tidegate.pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.tables.set_back import check_not_set_back
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from tidegate.windowing.timestamps import timestamps_of

_ATTEMPTS = 10

GIVE_UP = "--give-up-results"
"""The option of `tidegate restore` with which published rows that can't be had are given up."""


def publish(tables: PipelineTables, manifest: Manifest) -> None:
    """Publish an epoch to every table; what is published already is left as it is.

    Raises:
        FilesMissing: a file that the manifest lists is gone. Refused: the table's commits keep failing.
    """
    for table in PUBLISHED:
        publish_table(tables, manifest, table)


def publish_table(tables: PipelineTables, manifest: Manifest, table: str) -> bool:
    """Publish an epoch to one table; whether there was anything to do."""
    work = manifest.publish[table]
    if not manifest.goes_to(table):
        return False
    for _ in range(_ATTEMPTS):
        handle = tables.open(table)
        if is_published(handle, tables.application, manifest.epoch):
            return False
        # On top of it nobody would see a RESTORE any more.
        check_not_set_back(tables, table, handle.version())
        try:
            _commit(tables, manifest, table, handle, work)
        except CommitFailedError:
            continue
        return True
    raise Refused(
        f"epoch {manifest.epoch} can't be published to {tables.path(table)}: its commits keep meeting others. Stop "
        "whatever writes to that table; only tidegate may. Then run again: publishing goes on where it stopped"
    )


def is_published(handle: DeltaTable, application: str, epoch: int) -> bool:
    """Whether a table holds an epoch, or one after it: then there is nothing left to do for anybody."""
    published = handle.transaction_version(application)
    return published is not None and published >= epoch


def _commit(tables: PipelineTables, manifest: Manifest, table: str, handle: DeltaTable, work: Publish) -> None:
    try:
        check_written(tables.warehouse, tables.path(table), work.files)
    except FilesMissing as error:
        raise FilesMissing(
            f"publishing epoch {manifest.epoch} is impossible: {error} Its state is committed and its results are "
            f"lost: {_way_back(tables, manifest)}, and run again"
        ) from error
    files = _returning(tables, manifest, table, handle, work)
    if table == epochs.NAME:
        files.append(_write(tables, table, epoch_row(manifest, arrow_schema(handle)), manifest.epoch))
    removes, rewritten = _rewritten(tables, manifest, table, handle, work)
    handle.create_write_transaction(
        [*(add_action(file) for file in (*files, *rewritten)), *removes],
        "append",
        handle.schema(),
        commit_properties=CommitProperties(
            custom_metadata={
                "tidegate": {"timeline": manifest.timeline, "epoch": manifest.epoch, "parent": manifest.parent}
            },
            max_commit_retries=0,
            app_transactions=[Transaction(tables.application, manifest.epoch)],
        ),
        post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
    )
    # A commit that tries again opens the table again: this one came right after the version of its handle.
    tables.warehouse.make_commit_durable(tables.path(table), handle.version() + 1)


def _way_back(tables: PipelineTables, manifest: Manifest) -> str:
    """The command after which the source rows of an epoch that can't be published are read again."""
    if manifest.parent is None:
        return f"remove the folder {tables.warehouse.path(tables.pipeline)}"
    if manifest.parent in {entry.manifest["epoch"] for entry in list_snapshots(tables)}:
        return f"`tidegate restore {tables.pipeline} {manifest.parent}`"
    return f"`tidegate restore {tables.pipeline} {manifest.epoch} {GIVE_UP}`"


def check_removable(tables: PipelineTables, manifest: Manifest) -> None:
    """Read every file that publishing an epoch rewrites, while nothing of the epoch is committed.

    Raises:
        Refused: one of them can't be read: the epoch could never be published.
    """
    for table in PUBLISHED:
        work = manifest.publish[table]
        if not (work.remove_epochs or work.stale_epochs or work.forget_keys or work.reopened):
            continue
        handle, path = tables.open(table), tables.path(table)
        for file in _touched(handle, work):
            if _goes_whole(file, work):
                continue
            try:
                tables.warehouse.read_files(path, [file["path"]], arrow_schema(handle))
            except Refused as error:
                reason = str(error.__cause__).strip().partition("\n")[0].rstrip(".")
                raise Refused(
                    f"epoch {manifest.epoch} of {tables.pipeline} ({manifest.kind}) has to remove or to mark rows of a "
                    f"file that can't be read, so nothing was committed: {file['path']} of table {path}: {reason}. Put "
                    f"it back, or give its rows up, `tidegate restore {tables.pipeline} latest {GIVE_UP}`; run again"
                ) from error


def _rewritten(
    tables: PipelineTables, manifest: Manifest, table: str, handle: DeltaTable, work: Publish
) -> tuple[list[Any], list[DataFile]]:
    """Files with rows that go away, become stale or are reopened, and what comes in their place."""
    schema, path = arrow_schema(handle), tables.path(table)
    key = key_columns(table, schema, tuple(manifest.schemas.key))
    removes, adds = [], []
    listed = set() if work.reopened else {file.path for file in work.files}
    for file in _touched(handle, work):
        if file["path"] in listed:
            # A part of the epoch was published before, and stays.
            continue
        if _goes_whole(file, work):
            removes.append(remove_action(file))
            continue
        rows = tables.warehouse.read_files(path, [file["path"]], schema)
        goes = pc.is_in(rows["epoch"], value_set=pa.array(work.remove_epochs, pa.int64()))
        if work.forget_keys and key:
            forgotten = pc.is_in(key_hashes(rows, key), value_set=pa.array(work.forget_keys, pa.int64()))
            goes = pc.or_(goes, forgotten)
        becomes_stale = pc.is_in(rows["epoch"], value_set=pa.array(work.stale_epochs, pa.int64()))
        stale = pc.or_(rows["stale"], becomes_stale)
        changed = rows.set_column(rows.schema.get_field_index("stale"), schema.field("stale"), stale)
        changed = late.with_marks(changed, key, work)
        if not pc.any(pc.or_(goes, becomes_stale)).as_py() and late.marks_of(changed) == late.marks_of(rows):
            continue
        changed = changed.filter(pc.invert(goes))
        removes.append(remove_action(file))
        if len(changed):
            adds.append(_write(tables, table, changed, manifest.epoch))
    return removes, adds


def _returning(
    tables: PipelineTables, manifest: Manifest, table: str, handle: DeltaTable, work: Publish
) -> list[DataFile]:
    """The files that a manifest lists; late rows that a line had reopened come back as such."""
    if not work.reopened:
        return list(work.files)
    schema, path = arrow_schema(handle), tables.path(table)
    key = key_columns(table, schema, tuple(manifest.schemas.key))
    marked = [late.with_marks(tables.warehouse.read_files(path, [file.path], schema), key, work) for file in work.files]
    return [_write(tables, table, rows, manifest.epoch) for rows in marked]


def _touched(handle: DeltaTable, work: Publish) -> Iterator[dict[str, Any]]:
    """Files that may hold rows of these epochs, by their statistics; all where keys are to be forgotten."""
    wanted = {*work.remove_epochs, *work.stale_epochs}
    for file in active_files(handle) if wanted or work.forget_keys or work.reopened or work.given_up else ():
        is_open = work.reopened and file.get("null_count.reopened") != 0
        goes_anyway = work.forget_keys or file["path"] in work.given_up
        if goes_anyway or is_open or _may_hold(file, "epoch", wanted) or _may_hold(file, "reopened", wanted):
            yield file


def _goes_whole(file: dict[str, Any], work: Publish) -> bool:
    """Whether every row of a file goes away, by its statistics: then it need not be read, nor be readable."""
    if file["path"] in work.given_up:
        return True
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
        # Where late rows are marked, the file is described.
        return column == "epoch"
    return bool(first <= max(wanted) and last >= min(wanted))


def key_columns(table: str, schema: pa.Schema, key: tuple[str, ...]) -> tuple[str, ...]:
    """What a published table calls the key columns; nothing where it has no keys."""
    if table == epochs.NAME:
        return ()
    if table == results.NAME:
        return key
    ours = {field.name.casefold() for field in (late.TRAILING if table == late.NAME else rejects.TRAILING)}
    named = tuple(f"input_{name}" if name.casefold() in ours else name for name in key)
    return named if set(named) <= set(schema.names) else ()


def _write(tables: PipelineTables, table: str, rows: pa.Table, epoch: int) -> DataFile:
    file = write_file(tables.warehouse, tables.path(table), f"{table}-{epoch:06d}", rows)
    if file is None:
        raise Refused(f"nothing to write to table {table}")
    return file


def epoch_row(manifest: Manifest, schema: pa.Schema) -> pa.Table:
    """The row of table epochs that an epoch leaves."""
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
        "watermark": manifest.watermark if MIN_TIMESTAMP < manifest.watermark < MAX_TIMESTAMP else None,
        "watermark_lag_ms": manifest.watermark_lag,
        "processing_time": manifest.processing_time,
        "shards": [{"first": shard.first, "last": shard.last, **shard.counters} for shard in manifest.shards],
        "phases": list(manifest.phases.items()),
        "run_id": manifest.run_id,
        "started_at": manifest.started_at,
        "stale": False,
    }
    columns = []
    for field in schema:
        if field.type == TIMESTAMP:
            millis = pa.array([values.get(field.name)], pa.int64())
            columns.append(timestamps_of(millis))
        else:
            columns.append(pa.array([values.get(field.name)], field.type))
    return pa.table(columns, schema=schema)
