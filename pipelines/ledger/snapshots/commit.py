"""The commit of an epoch: the only code that changes table state, and the fence between drivers.

Every kind of epoch is committed by `commit_epoch`: it makes the manifest from the stages of the epoch, checks its times
and files, and replaces the snapshot at the head of table state. The commit uses the handle that the epoch was planned
with, and does not retry. So if two drivers start from one snapshot, the second one fails here, before it publishes
anything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema, Transaction

from tidegate.pipelines.definition import state
from tidegate.pipelines.errors import FilesMissing, Refused
from tidegate.pipelines.ledger.manifest import DataFile, Kind, Manifest, Shard
from tidegate.pipelines.ledger.snapshots.head import PUBLISHED_BY, Snapshot, newest_epochs, published_by
from tidegate.pipelines.ledger.snapshots.publish import check_removable
from tidegate.pipelines.ledger.snapshots.stages import NewEpoch, manifest_of
from tidegate.pipelines.ledger.step_log import log_step
from tidegate.pipelines.ledger.tables.commits import Outrun
from tidegate.pipelines.ledger.tables.commits import commit as commit_to
from tidegate.pipelines.ledger.tables.files import add_action, check_written, copied, remove_action, write_rows
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema


@dataclass(frozen=True, slots=True)
class StateFiles:
    """The state files of a new snapshot.

    Args:
        added: files that the commit adds to table state.
        kept: paths of the files at the head of table state that stay; all others are removed.
    """

    added: Sequence[DataFile]
    kept: Collection[str] = ()

    @classmethod
    def without_shards(
        cls, tables: PipelineTables, head: Snapshot, epoch: int, kind: Kind, replaced: Sequence[Shard] = ()
    ) -> StateFiles:
        """Return the files of the head without those of replaced shards, whose new files are to be added."""
        added, whole = remaining(tables, head, f"{state.NAME}-{epoch:06d}-{kind}", replaced)
        return cls(added, {file["path"] for file in whole})

    @classmethod
    def of_older(cls, handle: DeltaTable, files: Sequence[dict[str, Any]], written: Sequence[DataFile]) -> StateFiles:
        """Return written files and those of an older snapshot: files that are at the head stay, others return."""
        at_head = {file["path"] for file in active_files(handle)}
        returning = [copied(file, file["path"]) for file in files if file["path"] not in at_head]
        return cls([*written, *returning], {file["path"] for file in files if file["path"] in at_head})

    def with_files(self, written: Sequence[DataFile]) -> StateFiles:
        """Return these files and others that were written."""
        return StateFiles([*self.added, *written], self.kept)


def commit_epoch(
    tables: PipelineTables, handle: DeltaTable, new: NewEpoch, files: StateFiles, schema: pa.Schema | None = None
) -> Manifest:
    """Commit an epoch, and return its manifest. It is published afterwards.

    Args:
        tables: the tables of the pipeline.
        handle: table state, opened before anything was read or written for the epoch.
        new: the epoch.
        files: the state after the epoch.
        schema: the columns of table state; None for those of the handle.

    Raises:
        Refused: somebody committed since the handle was opened, a file of the epoch is missing, or a time of the
            manifest is outside the years that tables can hold.
    """
    manifest = manifest_of(new)
    if (wrong := manifest.outside_range) is not None:
        raise Refused(
            f"epoch {new.epoch} of {tables.pipeline} was not committed: its {wrong} is outside the years 1 to 9999. "
            "Correct the clock that dates the source's commits, or this machine's"
        )
    check_files(tables, manifest)
    columns = arrow_schema(handle) if schema is None else schema
    commit_snapshot(tables, handle, manifest, columns, files.added, files.kept)
    return manifest


def commit_snapshot(
    tables: PipelineTables,
    handle: DeltaTable,
    manifest: Manifest,
    schema: pa.Schema,
    added: Sequence[DataFile],
    kept: Collection[str] = (),
) -> None:
    """Replace the snapshot at the head of table state.

    The manifest becomes a row in a separate file. A restore adds files of older versions again. Files that are not
    `kept` are removed.

    Raises:
        Refused: somebody committed since the handle was opened, an added file is missing, or a file that publishing
            has to rewrite can't be read.
    """
    check_removable(tables, manifest)
    text = state.manifest_row(manifest.model_dump_json(), schema)
    row = write_rows(tables.warehouse, tables.path(state.NAME), f"manifest-{manifest.epoch:06d}", text)
    files = [*added, *row]
    check_before_commit(tables, state.NAME, files, manifest.epoch)
    removes = [remove_action(file) for file in active_files(handle) if file["path"] not in kept]
    try:
        # It is made durable before publishing: readers must not see the results of a commit that a power loss can undo.
        commit_to(
            tables.warehouse,
            handle,
            [*(add_action(file) for file in files), *removes],
            {"tidegate": manifest.short(), PUBLISHED_BY: _published_by(tables, handle, manifest)},
            Schema.from_arrow(schema),
            [Transaction(tables.application, manifest.epoch)],
        )
    except Outrun as error:
        log_step("refused", manifest.epoch)
        raise outrun(tables, manifest.epoch, f"version {handle.version()}") from error
    log_step("committed", manifest.epoch)


def _published_by(tables: PipelineTables, handle: DeltaTable, manifest: Manifest) -> dict[str, dict[str, int]]:
    """Return the newest epoch of each published table before and after this epoch is published."""
    previous = published_by(tables.warehouse, handle)
    before = previous.after if previous is not None else newest_epochs(tables, PUBLISHED)
    return {
        "before": before,
        "after": {**before, **{name: manifest.epoch for name in before if manifest.goes_to(name)}},
    }


def remaining(
    tables: PipelineTables, snapshot: Snapshot, prefix: str, replaced: Sequence[Shard] = ()
) -> tuple[list[DataFile], list[dict[str, Any]]]:
    """Return the state that remains when some shards are replaced: new files and unchanged files.

    A file is rewritten only if somebody else compacted the table, so that remaining rows share it with the manifest or
    with replaced rows. The names of new files start with `prefix`; they are written to table state.
    """
    with_manifest = {file["path"] for file in snapshot.manifest_files}
    mixed, whole = [], []
    for file in snapshot.files:
        low, high = file["min.key_group"], file["max.key_group"]
        overlaps = any(low <= shard.last and high >= shard.first for shard in replaced)
        if file["path"] not in with_manifest and not overlaps:
            whole.append(file)
        elif not any(shard.first <= low and high <= shard.last for shard in replaced):
            mixed.append(file["path"])
    rows = tables.warehouse.read_files(snapshot.path, mixed, arrow_schema(snapshot.handle))
    group = rows["key_group"]
    gone = pc.equal(group, state.MANIFEST_KEY_GROUP)
    for shard in replaced:
        gone = pc.or_(gone, pc.and_(pc.greater_equal(group, shard.first), pc.less_equal(group, shard.last)))
    return [*write_rows(tables.warehouse, tables.path(state.NAME), prefix, rows.filter(pc.invert(gone)))], whole


def check_files(tables: PipelineTables, manifest: Manifest) -> None:
    """Refuse a manifest that lists a file which is missing or has a different size."""
    for table, work in manifest.publish.items():
        check_before_commit(tables, table, (*work.files, *(each.file for each in work.deleted)), manifest.epoch)


def check_before_commit(tables: PipelineTables, table: str, files: Sequence[DataFile], epoch: int) -> None:
    """Refuse files that are missing or have a different size, before anything of an epoch is committed."""
    try:
        check_written(tables.warehouse, tables.path(table), files)
    except FilesMissing as error:
        raise FilesMissing(
            f"epoch {epoch} of {tables.pipeline}: {error} The epoch was not committed; run it again"
        ) from error


def outrun(tables: PipelineTables, epoch: int, planned_at: str) -> Refused:
    """Return the error for a driver that was overtaken by another one between plan and commit."""
    return Refused(
        f"epoch {epoch} of {tables.pipeline}: another driver committed to table state after this epoch was planned at "
        f"{planned_at}. The epoch was not committed; run it again when the other driver has ended"
    )
