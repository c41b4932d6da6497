"""The only function that commits to tidegate's tables: exactly on top of the version of a handle, or not at all.

Two rules keep a process that hung until its lease expired from doing harm, no matter when it hangs. To commit, a
process first opens the table, then reads and writes, and then commits exactly on top of that version. To delete files,
a process first lists them, then commits to the table, and deletes nothing that the table lists after that. So an
uncommitted file that a cleanup deletes was written for a version that can no longer be committed to.
docs/decisions/fence-and-lease.md goes through the cases.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.storage.delta_log import Action, commit_info
from tidegate.pipelines.storage.warehouse import Warehouse, path_of

COMMIT = "tidegate_commit"
"""Metadata field of all commits of tidegate: the commit's id, and the number of actions that follow."""

_COUNTED = ("add", "remove", "txn")
_ENDS_WITH_COLUMNS = ("ADD COLUMN", "RESTORE")
"""Operations of deltalake whose entries end with the columns of the table."""

_CREATES = "CREATE TABLE"


class Outrun(Refused):
    """Somebody else committed to the table after the handle was opened."""


def commit(
    warehouse: Warehouse,
    handle: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    metadata: Mapping[str, Any],
    schema: Schema | None = None,
    transactions: Sequence[Transaction] = (),
) -> None:
    """Commit to a table on top of the version of a handle, and make the commit durable.

    The handle was opened before anything was read or written for this commit. A commit without actions is only a fence.

    Raises:
        Outrun: somebody else committed since the handle was opened. Nothing was changed.
    """
    noted = {**metadata, COMMIT: {"actions": len(actions) + len(transactions)}}

    def write(properties: CommitProperties, hooks: PostCommitHookProperties) -> None:
        handle.create_write_transaction(
            list(actions),
            "append",
            handle.schema() if schema is None else schema,
            commit_properties=properties,
            post_commithook_properties=hooks,
        )

    commit_by(write, warehouse, handle, noted, transactions)


def commit_by(
    operation: Callable[[CommitProperties, PostCommitHookProperties], object],
    warehouse: Warehouse,
    handle: DeltaTable,
    metadata: Mapping[str, Any],
    transactions: Sequence[Transaction] = (),
) -> None:
    """Commit as `commit` does, but with one of deltalake's operations on a handle. The errors are the same."""
    # The operation may move the handle.
    path, version, id_ = path_of(handle), handle.version() + 1, uuid.uuid4().hex
    properties = CommitProperties(
        custom_metadata={
            **metadata,
            COMMIT: {**metadata.get(COMMIT, {}), "id": id_, "transactions": len(transactions)},
        },
        max_commit_retries=0,
        app_transactions=list(transactions) or None,
    )
    try:
        operation(properties, PostCommitHookProperties(cleanup_expired_logs=False))
    except (DeltaError, OSError) as error:
        # A store may execute a commit whose response is lost; the repeated request is then refused because the entry
        # exists. After a commit, deltalake may fail to write a checkpoint, which a later commit writes.
        if warehouse.open(path).version() < version:
            raise
        if _id_of(warehouse, path, version) != id_:
            raise Outrun(
                f"another process committed to {path} after version {version - 1} was read; only tidegate may write "
                f"there. Nothing was changed: try again"
            ) from error
    warehouse.make_commit_durable(path, version)


def create(
    warehouse: Warehouse, path: str, schema: Schema, files: Sequence[AddAction], metadata: Mapping[str, Any], name: str
) -> None:
    """Create a table with its files, in one commit; raise Outrun if it already exists."""
    id_ = uuid.uuid4().hex
    try:
        create_table_with_add_actions(
            path,
            schema,
            list(files),
            name=name,
            storage_options=warehouse.options_of(path),
            commit_properties=CommitProperties(
                custom_metadata={**metadata, COMMIT: {"actions": len(files), "id": id_}}, max_commit_retries=0
            ),
        )
    except (DeltaError, OSError) as error:
        if not warehouse.exists(path):
            raise
        if _id_of(warehouse, path, 0) != id_:
            raise Outrun(f"another process created {path} at the same time") from error
    warehouse.make_commit_durable(path, 0)


def is_whole(actions: Sequence[Action]) -> bool:
    """Return True if a log entry has all actions of its commit, as far as its metadata shows."""
    info = commit_info(actions)
    present = [kind for action in actions for kind in _COUNTED if kind in action]
    noted = info.get(COMMIT, {})
    has_columns = any("metaData" in action for action in actions)
    if info.get("operation") == _CREATES and not has_columns:
        return False
    if info.get("operation") in _ENDS_WITH_COLUMNS:
        return has_columns and present.count("txn") >= noted.get("transactions", 0)
    return "actions" not in noted or len(present) == noted["actions"]


def _id_of(warehouse: Warehouse, path: str, version: int) -> object:
    """Return the id of the commit that created a version, or None if it has none or a cleanup removed its entry."""
    try:
        return id_in(commit_info(warehouse.log(path).actions(version)))
    except (FileNotFoundError, ValueError):
        return None


def id_in(info: Mapping[str, Any]) -> str | None:
    """Return the id in the metadata of a commit; None if it has none."""
    noted = info.get(COMMIT)
    return noted.get("id") if isinstance(noted, dict) else None
