"""The published tables as of a snapshot: the rows that a restore to it would leave.

The pipeline may be running: an epoch is committed to table `state` before it is published, so each table is read at its
last version without a later epoch. Data files never change. A cleanup may remove some of them in the meantime; then
everything is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.pipelines.ledger.snapshots.head import Snapshot, require_snapshot
from tidegate.pipelines.ledger.snapshots.publish import files_after
from tidegate.pipelines.ledger.snapshots.published import require_published
from tidegate.pipelines.ledger.snapshots.published_head import Head
from tidegate.pipelines.ledger.snapshots.recovery import trusted_head
from tidegate.pipelines.ledger.snapshots.restore import planned_restore
from tidegate.pipelines.ledger.snapshots.table_copies import TableContent, data_files
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.windowing.time import Millis

_TRIES = 5
"""Number of attempts while cleanups remove files, or epochs are published."""

_Made = TypeVar("_Made")


class TablesMoved(TidegateError):
    """Something changed while it was being read, so a later try may succeed."""


def with_contents(
    tables: PipelineTables, target: Snapshot, now: Millis, use: Callable[[Mapping[str, TableContent]], _Made]
) -> _Made:
    """Call a function with the contents of the published tables as of a snapshot, and return its result.

    Raises:
        Refused: the snapshot is not published yet, or published rows are missing.
        TidegateError: cleanups or epochs changed the tables during each attempt.
    """
    # If somebody has rolled back or damaged a table, the copy would lack rows.
    trusted_head(tables)
    for _ in range(_TRIES):
        contents: dict[str, TableContent] = {}
        try:
            contents = _contents(tables, target, now)
            return use(contents)
        except TablesMoved:
            continue
        except Refused as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        finally:
            for content in contents.values():
                for name in content.written:
                    tables.warehouse.delete_file(content.folder, name)
    raise TidegateError(
        f"the tables of {tables.pipeline} changed while they were being copied, {_TRIES} times: nothing was created. "
        "Run the command again"
    )


def _contents(tables: PipelineTables, target: Snapshot, now: Millis) -> dict[str, TableContent]:
    newest, then = require_published(tables, require_snapshot(tables)).manifest, target.manifest
    handles = {table: tables.open(table, _version_with(tables, table, newest.epoch)) for table in PUBLISHED}
    if (newest.epoch, newest.run_id) == (then.epoch, then.run_id):
        contents = {
            table: TableContent(tables.path(table), handle.schema(), data_files(tables.warehouse, handle))
            for table, handle in handles.items()
        }
    else:
        head = Head.of(tables)
        if head is None or head.epoch != newest.epoch:
            if then.epoch > newest.epoch:
                raise Refused(
                    f"epoch {then.epoch} of {tables.pipeline} is not published yet: run the command again when the "
                    "pipeline has published it, or name an older snapshot"
                )
            raise TablesMoved(f"epoch {newest.epoch} of {tables.pipeline} is no longer the newest")
        manifest = planned_restore(tables, head, target, now)
        contents = {}
        for table, handle in handles.items():
            files, written = files_after(tables, manifest, table, handle, data_files(tables.warehouse, handle))
            contents[table] = TableContent(tables.path(table), handle.schema(), tuple(files), tuple(written))
    for content in contents.values():
        _check_present(tables, content)
    return contents


def _check_present(tables: PipelineTables, content: TableContent) -> None:
    """Refuse to copy a table with a missing file: the copy could displace a complete one."""
    present, links = tables.warehouse.names(content.folder), tables.warehouse.links(content.folder)
    for file in content.files:
        if file.path in links:
            raise Refused(f"file {file.path} of table {content.folder} is a symbolic link: put the file itself there")
        if present.get(file.path) != file.size:
            size = present.get(file.path)
            fault = "is missing" if size is None else f"has {size} bytes, not {file.size}"
            raise Refused(
                f"file {file.path} of table {content.folder} {fault}: a copy of the table would be incomplete. Put the "
                "file back, restore a savepoint, or copy a snapshot from before these rows"
            )


def _version_with(tables: PipelineTables, table: str, epoch: int) -> int:
    """Return the last version of a published table before the first epoch that is later than this one."""
    log, last = tables.warehouse.log(tables.path(table)), tables.newest(table).version()
    for version in range(last, -1, -1):
        try:
            transactions = [action["txn"] for action in log.actions(version) if "txn" in action]
        except FileNotFoundError:
            break
        epochs = [each["version"] for each in transactions if each["appId"] == tables.application]
        if epochs and max(epochs) <= epoch:
            break
        if epochs:
            last = version - 1
    return last
