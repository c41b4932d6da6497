"""Positions in the published tables of a pipeline: what a view shows, and the offset of a stream that reads it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs, results
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, read_snapshot, require_snapshot
from tidegate.pipelines.ledger.snapshots.published import final_through, require_published
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.reading.filters import files_that_may_match
from tidegate.pipelines.observe.reading.places import Files
from tidegate.pipelines.storage.warehouse import active_files
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis

PATIENCE = 30.0
"""Seconds for which a stream waits for an epoch that changes published rows to be published to every table."""

_PAUSE = 0.1
"""Seconds between two polls."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A position in a published table of a pipeline.

    Within a timeline, epochs only add rows. So the rows at an earlier position of the same timeline are those up to its
    epoch. For a position in an earlier timeline, the rows are in the version of the table that the position names.

    Its fields are the offset of a stream that has read everything up to here.

    Args:
        epoch: the newest epoch that every table has; 0 before the first.
        watermark: the time through which windows are final, int64 epoch milliseconds: the watermark up to which the
            published rows are complete, or the clock of windows that end by it.
        timeline: its timeline; a restore, or an interval that is rerun, starts a new one.
        version: a version of the table that has these rows.
        run_id: the run that produced the epoch.
        table_id: Delta's id of the table.
    """

    epoch: int
    watermark: Millis
    timeline: int
    version: int
    run_id: str
    table_id: str

    @classmethod
    def nothing(cls) -> Reached:
        """Return the position before the first epoch."""
        return cls(0, MIN_TIMESTAMP, 0, 0, "", "")

    def shows(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return a flag for each row: whether it is published and not stale, by `epoch` and `stale`."""
        is_stale = np.asarray(rows["stale"].to_numpy(zero_copy_only=False), np.bool_)
        return (np.asarray(rows["epoch"].to_numpy()) <= self.epoch) & ~is_stale

    def shown(self) -> pc.Expression:
        """Return `shows` as an expression."""
        return results.current(self.epoch)

    def finals(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return a flag for each pane: whether its window is final at the watermark."""
        return results.are_final(rows, self.watermark)

    def final(self) -> pc.Expression | None:
        """Return `finals` as an expression, or None after the end of input, when every window is final."""
        return None if self.watermark == MAX_TIMESTAMP else pc.field("final_at") <= as_time(self.watermark)


def reached(tables: PipelineTables, table: str) -> tuple[Reached, Files]:
    """Return how far a table of a pipeline is published, and its files.

    While a restore is being published, the files may have part of its changes.

    Raises:
        Refused: the pipeline has no published epoch, or a table can't be read.
    """
    at, files, _ = _published_state(tables, table)
    return at, files


def settled(tables: PipelineTables, table: str) -> tuple[Reached, Files]:
    """Return what `reached` returns, once no restore or other epoch that changes published rows is being published.

    Raises:
        Refused: such an epoch was not published to all tables in time; its driver died.
    """
    until = time.monotonic() + PATIENCE
    while True:
        at, files, unpublished = _published_state(tables, table)
        if unpublished is None:
            return at, files
        if time.monotonic() >= until:
            raise Refused(
                f"epoch {unpublished} of {tables.pipeline} changes published rows, and is not published to all tables "
                "yet: its driver died or is still running. The next command that drives the pipeline publishes it; "
                "then start the query again"
            )
        time.sleep(_PAUSE)


def _published_state(tables: PipelineTables, table: str) -> tuple[Reached, Files, int | None]:
    """Return how far a table is published, its files, and the epoch that may be partially published, or None."""
    head = require_snapshot(tables)
    snapshot = require_published(tables, head)
    handle = tables.newest(table)
    files = Files.of(tables.warehouse, handle)
    after = require_snapshot(tables)
    manifest = snapshot.manifest
    at = Reached(
        manifest.epoch,
        final_through(snapshot, head),
        manifest.timeline,
        handle.version(),
        manifest.run_id,
        str(handle.metadata().id),
    )
    # Between the two reads of the head, an epoch may have started to change rows, and others may have followed it.
    newest = after.manifest
    only_adds = newest.epoch == at.epoch + 1 and not any(work.rewrites for work in newest.publish.values())
    return at, files, None if newest.epoch == at.epoch or only_adds else newest.epoch


def check_same_history(tables: PipelineTables, given: Reached, now: Reached) -> None:
    """Refuse to continue from a position in tables other than the current ones.

    Raises:
        Refused: the tables were recreated, or restored from a backup older than the position.
    """
    if not given.epoch:
        return
    is_other = given.table_id != now.table_id or given.epoch > now.epoch
    if not is_other:
        runs = rows_of_epochs(tables, "run_id", pc.field("epoch") == given.epoch)
        is_other = bool(runs) and given.run_id not in runs
    if is_other:
        raise Refused(
            f"this query has read epoch {given.epoch} of pipeline {tables.pipeline!r}, which its tables do not have: "
            "they were recreated or restored from a backup, or the checkpoint folder is another query's. "
            f"{NEW_QUERY}"
        )


def rows_of_epochs(tables: PipelineTables, column: str, where: pc.Expression) -> list[Any]:
    """Return a column of the rows of table epochs that satisfy an expression."""
    files = Files.of(tables.warehouse, tables.newest(epochs.NAME))
    names = sorted(files_that_may_match(files.active, files.schema, where))
    values: list[Any] = tables.warehouse.read_files(files.path, names, files.schema, [column], where)[
        column
    ].to_pylist()
    return values


def oldest_epoch(tables: PipelineTables) -> int:
    """Return the oldest epoch in table epochs from the statistics of its files, or 0 if they don't record it."""
    return min((file.get("min.epoch") or 0 for file in active_files(tables.newest(epochs.NAME))), default=0)


def given_up_since(tables: PipelineTables, table: str, epoch: int) -> set[str]:
    """Return the files of a table that restores after an epoch gave up because they were unreadable."""
    given_up: set[str] = set()
    for entry in takewhile(lambda entry: entry.epoch > epoch, list_snapshots(tables)):
        if entry.manifest["kind"] == "restore" and (snapshot := read_snapshot(tables, entry.version)) is not None:
            given_up.update(snapshot.manifest.publish[table].given_up)
    return given_up


NEW_QUERY = "Start the query with a new checkpoint folder and an empty target"
"""The remedy in every error of a stream."""


def as_time(millis: Millis) -> pa.Scalar:
    """Return int64 epoch milliseconds as a TIMESTAMP. A time outside its range becomes the nearest bound."""
    bound = 1 << 62
    return pa.scalar(max(-bound, min(bound, millis * 1000)), pa.timestamp("us", tz="UTC"))
