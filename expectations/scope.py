"""Which rows a check looks at: what came since the last one that passed, and the windows around it.

All rows are looked at where nothing vouches for the older ones: at the first check, after rows were taken away (by a
restore, an erasure, an interval run again), when the code has changed, and when the log does not tell what came since.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.expectations.commits import Followed, follow
from tidegate.expectations.fresh import since_of
from tidegate.expectations.proof import Proof
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.window_shape import window_shape
from tidegate.pipelines.manifest import is_on
from tidegate.pipelines.snapshots.head import require_snapshot
from tidegate.pipelines.snapshots.pinned import PinnedEpoch, pin_epoch
from tidegate.pipelines.storage import active_files, arrow_schema
from tidegate.pipelines.tables import late, quality, rejects, results, state
from tidegate.pipelines.tables.pipeline_tables import ALL, PipelineTables
from tidegate.windowing.time import Millis, to_millis

_FIRST, _LAST = to_millis(datetime.min), to_millis(datetime.max)
_TAKES_AWAY = ("restore", "forget", "prune")


@dataclass(frozen=True)
class Scope:
    """An epoch, and what is looked at of its tables.

    Args:
        pinned: the epoch.
        since: the newest epoch before it whose check passed; None if there is none.
        proof: of the check that this one goes on from; None where all rows are looked at.
        looks_from: end of the oldest windows that are looked at, int64 epoch milliseconds; None for all.
        new_epochs: rows of table epochs that are held against the tables.
        lines: epochs that the tables have rows of, and whether they led to the newest snapshot.
        files: of each table.
    """

    pinned: PinnedEpoch
    since: int | None
    proof: Proof | None
    looks_from: Millis | None
    new_epochs: pa.Table
    lines: pd.DataFrame
    files: pd.DataFrame

    @property
    def new_rows(self) -> pc.Expression:
        """The rows that count and that no check has seen."""
        current = self.pinned.current
        return current if self.proof is None else current & (pc.field("epoch") > self.proof.epoch)


def scope_of(own: PipelineTables, pipeline: Pipeline, epoch: int | None) -> Scope:
    """What to look at as of an epoch. Arguments and errors as `pin_epoch`."""
    pinned = pin_epoch(own, epoch)
    # Read after the tables were opened: an epoch whose rows are in them is committed.
    newest = require_snapshot(own).manifest.line
    since = since_of(own, pinned)
    proof = Proof.parse(quality.proof_of(own, since))
    followed = {
        table: follow(
            own,
            table,
            pinned.snapshot.handle if table == state.NAME else pinned.handles[table],
            None if proof is None else proof.versions.get(table),
        )
        for table in ALL
    }
    if proof is not None and not _goes_on(proof, pinned, followed):
        proof = None
    shape = window_shape(pipeline, pinned.snapshot.manifest.stagger_offset)
    numbers, start = _new_rows(own, pinned, proof)
    looks_from = None
    if proof is not None and shape is not None:
        final_then = proof.watermark - max(proof.lateness, shape.lateness)
        looks_from = final_then if start is None else min(final_then, start)
        if looks_from < _FIRST:
            # Before the first watermark no window was final.
            proof, looks_from = None, None
            numbers, start = _new_rows(own, pinned, None)
        elif looks_from > _LAST:
            looks_from = None
    made = pinned.epochs
    new = made if proof is None else made.filter(pc.greater(made["epoch"], proof.epoch))
    lines = [
        (table, number, is_on(pinned.snapshot.manifest.line, number) or is_on(newest, number))
        for table, found in numbers.items()
        for number in found
    ]
    files = [file for one in followed.values() for file in one.files]
    return Scope(
        pinned,
        since,
        proof,
        looks_from,
        new,
        pd.DataFrame(lines, columns=["table", "epoch", "is_on_line"]),
        pd.DataFrame(files, columns=["table", "file", "fault", "by"]),
    )


def _goes_on(proof: Proof, pinned: PinnedEpoch, followed: dict[str, Followed]) -> bool:
    """Whether what came since a check can be told from what was there."""
    manifest = pinned.snapshot.manifest
    kinds = pinned.epochs.filter(pc.greater(pinned.epochs["epoch"], proof.epoch))["kind"].to_pylist()
    return (
        proof.fingerprint == manifest.fingerprint
        and all(one.since is not None for one in followed.values())
        and not any(followed[table].takes_away for table in (results.NAME, rejects.NAME))
        and not any(kind in _TAKES_AWAY for kind in kinds)
    )


def may_be_new(file: dict[str, object], proof: Proof | None) -> bool:
    """Whether a file may hold rows that no check has seen."""
    newest = file.get("max.epoch")
    return proof is None or not isinstance(newest, int) or newest > proof.epoch


def _new_rows(
    own: PipelineTables, pinned: PinnedEpoch, proof: Proof | None
) -> tuple[dict[str, list[int]], Millis | None]:
    """Epochs of rows that no check has seen, by table, and where the oldest window of one begins.

    Rows that an epoch after the pinned one put there are among them: it may have been any.
    """
    found: dict[str, list[int]] = {}
    start: Millis | None = None
    for table in (results.NAME, late.NAME, rejects.NAME):
        handle = pinned.handles[table]
        schema = arrow_schema(handle)
        names = [file["path"] for file in active_files(handle) if may_be_new(file, proof)]
        has_bounds = table == results.NAME and results.has_panes(schema)
        where = ~pc.field("stale")
        if proof is not None:
            where &= pc.field("epoch") > proof.epoch
        columns = ["epoch", "window_start"] if has_bounds else ["epoch"]
        numbers: set[int] = set()
        for batch in own.warehouse.read_batches(own.path(table), names, schema, columns, where):
            numbers.update(np.unique(batch["epoch"].to_numpy()).tolist())
            first = pc.min(batch["window_start"]).as_py() if has_bounds else None
            if first is not None:
                start = to_millis(first) if start is None else min(start, to_millis(first))
        found[table] = sorted(numbers)
    return found, start
