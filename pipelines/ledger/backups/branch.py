"""Branches: the tables of a pipeline under the name of a branch, created while a driver may be running, and removed.

A branch lists the data files of the pipeline's tables as its own: each is hard-linked into the branch's folder if the
file system can do that, or copied within an object store. So a cleanup of one never removes a file that the other
needs. As in a rename, the logs are copied with the branch's name in them. The note in the folder is written last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidegate.pipelines.definition import state
from tidegate.pipelines.definition.branches import BranchNote, read_note, remove_note, write_note
from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.pipelines.ledger.backups.cut import CutMoved, cut_now, make_tables
from tidegate.pipelines.ledger.backups.renamed import remove_tables, with_name
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import LEASE, PipelineTables
from tidegate.windowing.time import Millis

_TRIES = 5
"""Number of attempts to take a consistent cut while cleanups remove files."""


def make_branch(
    tables: PipelineTables,
    branch: PipelineTables,
    target: str,
    settings: Mapping[str, Millis],
    now: Millis,
    check_lease: Callable[[], None] = lambda: None,
) -> BranchNote:
    """Create a branch, and return its note. The caller holds the lease of the branch; the pipeline may be running.

    The remains of an interrupted call are removed first. The branch starts from `target`: `latest`, an epoch, or
    `savepoint:NAME`.

    Raises:
        UsageError: there is no such snapshot.
        Refused: the tables can't be copied.
        TidegateError: cleanups removed parts of every cut.
    """
    begins_at = find_snapshot(tables, target).manifest
    _copy(tables, branch, check_lease)
    head = find_snapshot(branch, "latest").manifest
    if target == "latest":
        begins_at = head
    elif (head.epoch, head.run_id) != (begins_at.epoch, begins_at.run_id):
        check_lease()
        head = restore(branch, find_snapshot(branch, target), now)
    table_id = str(branch.open(state.NAME).metadata().id)
    note = BranchNote(dict(settings), begins_at.epoch, head.run_id, begins_at.line, head.epoch, table_id, now)
    check_lease()
    write_note(branch.warehouse, branch.pipeline, note)
    return note


def _copy(tables: PipelineTables, branch: PipelineTables, check_lease: Callable[[], None]) -> None:
    for _ in range(_TRIES):
        remove_tables(branch, check_lease)
        try:
            cut = cut_now(tables)
            cuts = [with_name(tables, branch, table, check_lease) for table in cut.tables]
            make_tables(branch, cuts, tables.path, check_lease, share=True)
            if cut.is_whole(tables):
                return
        except CutMoved:
            continue
        except Refused as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
    raise TidegateError(
        f"cleanups of {tables.pipeline} removed files while they were listed, {_TRIES} times: no branch was created. "
        "Run the command again"
    )


def remove_branch(branch: PipelineTables, check_lease: Callable[[], None] = lambda: None) -> None:
    """Remove a branch except its lease, which the caller holds. An interrupted call can be repeated."""
    remove_note(branch.warehouse, branch.pipeline)
    remove_tables(branch, check_lease)


def remove_folder(branch: PipelineTables) -> None:
    """Remove the folder of a removed branch, with its lease, which nobody holds."""
    if read_note(branch.warehouse, branch.pipeline) is None and not branch.exist:
        branch.warehouse.delete_folder(branch.path(LEASE))
        branch.warehouse.delete_folder(branch.warehouse.path(branch.pipeline))
