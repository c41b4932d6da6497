"""Promotion: the results and the state of a branch become the pipeline's, in one epoch on a new timeline.

It is like a restore to the epoch that both share, followed by one epoch with everything that the branch has done since:
rows that the pipeline published after that epoch are removed from its tables, and those of the branch are added, with
the number of the new epoch. Readers of changes see the differences as corrections, as after any restore. The commit is
the fence, and recovery publishes the rest after a crash, as for every epoch. A later restore to one of the pipeline's
own epochs brings its rows back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs, late, rejects, results, state
from tidegate.pipelines.definition.branches import BranchNote
from tidegate.pipelines.definition.columns import with_values
from tidegate.pipelines.definition.counters import KEPT, OF_SHARDS
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import DataFile, Manifest, Publish, Shard, fork_of, is_on, line_with
from tidegate.pipelines.ledger.snapshots.commit import check_files, commit_snapshot, manifest_without_input, remaining
from tidegate.pipelines.ledger.snapshots.head import Snapshot, required
from tidegate.pipelines.ledger.snapshots.line import erasing_epochs
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.snapshots.savepoint import copy_files
from tidegate.pipelines.ledger.tables.files import write_rows
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PUBLISHED, PipelineTables
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema, read_table
from tidegate.windowing.time import Millis

_OF_BRANCH = frozenset({"stream", "clock", "restore"})
"""Kinds of a branch's epochs that a promotion can take over."""

_OF_PIPELINE = frozenset({"stream", "clock", "restore", "reopen", "prune", "promote"})
"""Kinds of the pipeline's epochs that a promotion can replace."""

_OPEN_WINDOWS = "open_windows"


def promote(
    tables: PipelineTables,
    branch: PipelineTables,
    note: BranchNote,
    now: Millis,
    check_leases: Callable[[], None] = lambda: None,
) -> Manifest:
    """Make a branch's results and state the pipeline's. Return the manifest. The caller holds both leases.

    If the newest epoch of the pipeline already is this promotion, nothing changes.

    Raises:
        Refused: the branch has read less than the pipeline, an epoch of the branch can't be taken over, one of the
            pipeline can't be undone, or another driver committed in the meantime.
    """
    # Columns of a file that its table lacks are never read.
    required(tables, recover(tables))
    theirs = required(branch, recover(branch))
    if theirs.manifest.run_id == note.run_id:
        raise Refused(f"{branch.pipeline} has not run an epoch yet: run it before you promote it")
    if state.has_deltas(arrow_schema(theirs.handle)) and not state.has_deltas(arrow_schema(tables.newest(state.NAME))):
        raise Refused(
            f"{branch.pipeline} has state of version {state.VERSION}, but {tables.pipeline} has an older one: run "
            f"`tidegate state upgrade {tables.pipeline}`, then promote again"
        )
    tables.widen({table: arrow_schema(branch.newest(table)) for table in ALL})
    head = required(tables, recover(tables))
    ours, then = head.manifest, theirs.manifest
    if ours.kind == "promote" and ours.run_id == _run_of(then):
        return ours
    shared = _shared(tables, head, then, note)
    epoch_rows = _epoch_rows(branch, then, shared, note)
    _check_epochs(tables, branch, ours, shared, epoch_rows)
    _check_read(tables, branch, ours, then)
    manifest = _manifest(tables, branch, ours, then, note, shared, epoch_rows, now)
    check_files(tables, manifest)
    written, whole = remaining(tables, theirs, f"{state.NAME}-{manifest.epoch:06d}-promote")
    copies = copy_files(
        tables,
        replace(theirs, files=tuple(whole)),
        tables.path(state.NAME),
        f"{state.NAME}-{manifest.epoch:06d}-promoted",
        share=True,
    )
    tables.warehouse.make_durable(tables.path(state.NAME))
    check_leases()
    commit_snapshot(tables, head.handle, manifest, arrow_schema(head.handle), [*written, *copies])
    publish(tables, manifest)
    return manifest


def _run_of(then: Manifest) -> str:
    """Return the run id for promoting a snapshot, by which a second call recognises that the first one succeeded."""
    return hashlib.sha256(f"promote {then.run_id}".encode()).hexdigest()[:32]


def _shared(tables: PipelineTables, head: Snapshot, then: Manifest, note: BranchNote) -> int:
    """Return the newest epoch that the pipeline and the branch share.

    It is the epoch at which the branch began, or an older one after a restore of the branch.
    """
    if str(head.handle.metadata().id) != note.table_id or fork_of(head.manifest.line, note.line) != note.epoch:
        raise Refused(
            f"{tables.pipeline} no longer goes back to epoch {note.epoch}, at which {then.pipeline} began: a restore "
            "went further back, or its tables were recreated. Create another branch"
        )
    return fork_of(then.line, note.line)


def _epoch_rows(branch: PipelineTables, then: Manifest, shared: int, note: BranchNote) -> list[dict[str, Any]]:
    """Return the rows of the branch's table `epochs` after the shared epoch, without the branch's first row."""
    rows = read_table(branch.warehouse, branch.newest(epochs.NAME), where=pc.field("epoch") > shared).to_pylist()
    on_line = {row["epoch"]: row for row in rows if is_on(then.line, row["epoch"])}
    numbers = {number for first, last in then.line for number in range(max(first, shared + 1), last + 1)}
    if lacking := sorted(numbers - on_line.keys()):
        raise Refused(
            f"table epochs of {then.pipeline} no longer has epoch {lacking[0]}, so its counters can't be taken over: "
            "create another branch"
        )
    begins = note.begun if note.begun != note.epoch else 0
    return [row for number, row in sorted(on_line.items()) if number != begins]


def _check_epochs(
    tables: PipelineTables, branch: PipelineTables, ours: Manifest, shared: int, epoch_rows: list[dict[str, Any]]
) -> None:
    """Refuse epochs that did more than read the source."""
    for row in epoch_rows:
        if row["kind"] not in _OF_BRANCH:
            remedy = f"Create another branch, from a newer epoch of {tables.pipeline}, and run it as a stream"
            if row["kind"] != "change":  # A restored branch would read the changed version of the source again.
                remedy = (
                    f"Go back to before it (`tidegate restore {branch.pipeline} {row['parent']}`), run the branch as "
                    f"a stream, then promote it. Or create another branch, and run it as a stream"
                )
            raise Refused(
                f"epoch {row['epoch']} of {branch.pipeline} is of kind {row['kind']!r}, and only a branch that reads "
                f"its source as a stream can be promoted. {remedy}"
            )
    where = pc.field("epoch") > shared
    rows = read_table(tables.warehouse, tables.newest(epochs.NAME), ["epoch", "kind"], where).to_pylist()
    for row in rows:
        if is_on(ours.line, row["epoch"]) and row["kind"] not in _OF_PIPELINE:
            raise Refused(
                f"epoch {row['epoch']} of {tables.pipeline} is of kind {row['kind']!r}, and {branch.pipeline} was "
                "created before it: create another branch, which includes it"
            )


def _check_read(tables: PipelineTables, branch: PipelineTables, ours: Manifest, then: Manifest) -> None:
    """Refuse a branch that has not read as far as the pipeline: its windows would temporarily lack these rows."""
    for table, position in ours.positions.items():
        read = then.position_in(table)
        if (read.version, read.files) < (position.version, position.files):
            raise Refused(
                f"{branch.pipeline} has read version {read.version} of source {table}, but {tables.pipeline} has read "
                f"version {position.version}: first run `tidegate stream {branch.pipeline} --available-now`, then "
                f"promote it"
            )


def _manifest(
    tables: PipelineTables,
    branch: PipelineTables,
    ours: Manifest,
    then: Manifest,
    note: BranchNote,
    shared: int,
    epoch_rows: list[dict[str, Any]],
    now: Millis,
) -> Manifest:
    epoch, timeline = ours.epoch + 1, max(ours.timeline, then.timeline) + 1
    left = range(shared + 1, epoch)
    work = {table: Publish(remove_epochs=tuple(left)) for table in PUBLISHED}
    for table in (results.NAME, late.NAME, rejects.NAME):
        files = tuple(_brought(tables, branch, table, shared, epoch, timeline))
        work[table] = work[table].model_copy(update={"files": files})
    # The epochs that removed rows on a user's request keep their rows in table epochs, which explain what is missing.
    erasures = erasing_epochs(tables)
    work[epochs.NAME] = Publish(remove_epochs=tuple(number for number in left if number not in erasures))
    line = line_with(tuple((first, min(last, shared)) for first, last in note.line if first <= shared), epoch)
    quiet = manifest_without_input(then, "promote", work, now, epoch=epoch, timeline=timeline, line=line)
    counted = {
        each.name: sum(row.get(each.name) or 0 for row in epoch_rows) for each in KEPT if each.name != _OPEN_WINDOWS
    }
    return quiet.model_copy(
        update={
            "pipeline": tables.pipeline,
            "parent": shared,
            "run_id": _run_of(then),
            "counters": {**quiet.counters, **counted},
            "shards": tuple(_counted(shard, epoch_rows) for shard in quiet.shards),
        }
    )


def _counted(shard: Shard, epoch_rows: list[dict[str, Any]]) -> Shard:
    """Return a shard with the epochs' counts for ranges that start in it."""
    ranges = [each for row in epoch_rows for each in row["shards"] or () if shard.first <= each["first"] <= shard.last]
    names = [name for name in OF_SHARDS if name != _OPEN_WINDOWS]
    counted = {name: sum(each.get(name) or 0 for each in ranges) for name in names}
    return shard.model_copy(update={"counters": {**shard.counters, **counted}})


def _brought(
    tables: PipelineTables, branch: PipelineTables, table: str, shared: int, epoch: int, timeline: int
) -> Iterator[DataFile]:
    """Write the branch's rows after the shared epoch into files for the pipeline's table, and yield the files."""
    schema, handle = arrow_schema(tables.newest(table)), branch.newest(table)
    where = (pc.field("epoch") > shared) & ~pc.field("stale")
    for file in active_files(handle):
        if (newest := file.get("max.epoch")) is not None and newest <= shared:
            continue
        rows = branch.warehouse.read_files(branch.path(table), [file["path"]], schema, where=where)
        for name, value in (("epoch", epoch), ("timeline", timeline)):
            rows = with_values(rows, name, pa.repeat(pa.scalar(value, pa.int64()), len(rows)))
        yield from write_rows(tables.warehouse, tables.path(table), f"{table}-{epoch:06d}-promoted", rows)
