"""The scope of a check: the rows that were added since the last check that passed, and the windows around them.

All rows are in scope if there is no valid proof for the older ones: in the first check, after rows were removed (by a
restore, an erasure, or running an interval again), when the code has changed, or when the log does not reach back far
enough.

A check covers all windows that became final since the last check that passed, however many epochs ago that was. After a
failed check, the next one covers the same windows again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.expectations.commits import Followed, follow
from tidegate.expectations.ledger import Taken
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition import late, rejects, results, state
from tidegate.pipelines.definition.columns import TIMESTAMP
from tidegate.pipelines.definition.epochs import FINAL_THROUGH, has_ended
from tidegate.pipelines.definition.window_shape import window_shape
from tidegate.pipelines.ledger.manifest import is_on
from tidegate.pipelines.ledger.snapshots.head import require_snapshot
from tidegate.pipelines.ledger.snapshots.published import PinnedEpoch, pin_epoch
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PipelineTables
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis, from_millis, to_millis
from tidegate.windowing.timestamps import epoch_millis

_FIRST, _LAST = to_millis(datetime.min), to_millis(datetime.max)
_TAKES_AWAY = ("restore", "forget", "prune", "change")


@dataclass(frozen=True)
class Scope:
    """An epoch, and the range of rows to check in its tables.

    Args:
        pinned: the epoch.
        since: the newest earlier epoch whose check passed; None if there is none.
        proof: proof of the check that this one continues from; None if all rows are checked.
        looks_from: end of the oldest windows to check, int64 epoch milliseconds, or None for all.
        new_epochs: rows of table `epochs` to compare with the tables.
        lines: epochs whose rows the tables have, and whether each led to the newest snapshot.
        files: files of each table, with their faults.
        unreadable: files of each published table that can't be read; the check continues without their rows.
    """

    pinned: PinnedEpoch
    since: int | None
    proof: Proof | None
    looks_from: Millis | None
    new_epochs: pa.Table
    lines: pd.DataFrame
    files: pd.DataFrame
    unreadable: dict[str, frozenset[str]]

    def files_of(self, table: str) -> list[dict[str, Any]]:
        """Return the files of a published table that can be read."""
        return _readable(self.pinned, table, self.unreadable)

    @property
    def new_rows(self) -> pc.Expression:
        """Return the filter for current rows that no check has seen."""
        current = self.pinned.current
        return current if self.proof is None else current & (pc.field("epoch") > self.proof.epoch)

    @property
    def of_windows(self) -> pc.Expression | None:
        """Return the filter for rows of new windows and of windows near them, or None for all."""
        if self.proof is None:
            return None
        chosen = pc.field("epoch") > self.proof.epoch
        if self.looks_from is not None:
            moment = pa.scalar(from_millis(self.looks_from)).cast(TIMESTAMP)
            chosen = chosen | (pc.field("window_end") >= moment) | pc.is_null(pc.field("window_end"))
        return chosen


def scope_of(tables: PipelineTables, pipeline: Pipeline, epoch: int | None, everything: bool = False) -> Scope:
    """Return the scope of a check as of an epoch; the arguments and errors are those of `pin_epoch`.

    `everything` ignores earlier checks: all windows are new, and every file is read.
    """
    pinned = pin_epoch(tables, epoch)
    # This is read after the tables were opened, so it includes every epoch whose rows they have.
    newest = require_snapshot(tables).manifest.line
    since = None if everything else since_of(tables, pinned)
    proof = Proof.parse(quality.proof_of(tables, since))
    followed = {
        table: follow(
            tables,
            table,
            pinned.snapshot.handle if table == state.NAME else pinned.handles[table],
            None if proof is None else proof.versions.get(table),
            read_all=everything,
        )
        for table in ALL
    }
    unreadable = {table: followed[table].unreadable for table in (results.NAME, late.NAME, rejects.NAME)}
    if proof is not None and not _continues(proof, pinned, followed):
        proof = None
    shape = window_shape(pipeline, pinned.snapshot.manifest.stagger_offset)
    numbers, start = _new_rows(tables, pinned, proof, unreadable)
    looks_from = None
    if proof is not None and shape is not None:
        final_then = proof.watermark - max(proof.lateness, shape.lateness)
        looks_from = final_then if start is None else min(final_then, start)
        if looks_from < _FIRST:
            # Before the first watermark no window was final.
            proof, looks_from = None, None
            numbers, start = _new_rows(tables, pinned, None, unreadable)
        elif looks_from > _LAST:
            looks_from = None
    epochs = pinned.epochs
    new = epochs if proof is None else epochs.filter(pc.greater(epochs["epoch"], proof.epoch))
    lines = [
        (table, number, is_on(pinned.snapshot.manifest.line, number) or is_on(newest, number))
        for table, numbers_of_table in numbers.items()
        for number in numbers_of_table
    ]
    files = [file for table in followed.values() for file in table.files]
    return Scope(
        pinned,
        since,
        proof,
        looks_from,
        new,
        pd.DataFrame(lines, columns=["table", "epoch", "is_on_line"]),
        pd.DataFrame(files, columns=["table", "file", "fault", "by"]),
        unreadable,
    )


def _continues(proof: Proof, pinned: PinnedEpoch, followed: dict[str, Followed]) -> bool:
    """Return True if the rows since a check can be distinguished from those before, so that its proof can be used."""
    manifest = pinned.snapshot.manifest
    kinds = pinned.epochs.filter(pc.greater(pinned.epochs["epoch"], proof.epoch))["kind"].to_pylist()
    return (
        proof.fingerprint == manifest.fingerprint
        and all(table.since is not None for table in followed.values())
        and not any(followed[table].takes_away for table in (results.NAME, rejects.NAME))
        and not any(kind in _TAKES_AWAY for kind in kinds)
    )


def may_be_new(file: dict[str, object], proof: Proof | None) -> bool:
    """Return True if a file may hold rows that no check has seen."""
    newest = file.get("max.epoch")
    return proof is None or not isinstance(newest, int) or newest > proof.epoch


def _readable(pinned: PinnedEpoch, table: str, unreadable: dict[str, frozenset[str]]) -> list[dict[str, Any]]:
    return [file for file in active_files(pinned.handles[table]) if file["path"] not in unreadable[table]]


def _new_rows(
    tables: PipelineTables, pinned: PinnedEpoch, proof: Proof | None, unreadable: dict[str, frozenset[str]]
) -> tuple[dict[str, list[int]], Millis | None]:
    """Return, by table, the epochs of rows that no check has seen, and the start of the oldest window among them.

    They include epochs after the pinned one, whose rows may already be in the tables.
    """
    epochs: dict[str, list[int]] = {}
    start: Millis | None = None
    for table in (results.NAME, late.NAME, rejects.NAME):
        handle = pinned.handles[table]
        schema = arrow_schema(handle)
        names = [file["path"] for file in _readable(pinned, table, unreadable) if may_be_new(file, proof)]
        has_bounds = table == results.NAME and results.has_panes(schema)
        where = ~pc.field("stale")
        if proof is not None:
            where &= pc.field("epoch") > proof.epoch
        columns = ["epoch", "window_start"] if has_bounds else ["epoch"]
        numbers: set[int] = set()
        for batch in tables.warehouse.read_batches(tables.path(table), names, schema, columns, where):
            numbers.update(np.unique(batch["epoch"].to_numpy()).tolist())
            first = pc.min(batch["window_start"]).as_py() if has_bounds else None
            if first is not None:
                start = to_millis(first) if start is None else min(start, to_millis(first))
        epochs[table] = sorted(numbers)
    return epochs, start


@dataclass(frozen=True, slots=True)
class Proof:
    """The tables at a check in which no critical expectation failed.

    Args:
        epoch: the checked epoch.
        versions: version of each table.
        fingerprint: fingerprint of the pipeline's computation.
        watermark: watermark of the epoch, int64 epoch milliseconds.
        lateness: the longest time so far from a window's end until it was final, milliseconds.
        taken, final: numbers of elements that windows accepted, and of those in final windows; None if they can't be
            counted.
    """

    epoch: int
    versions: dict[str, int]
    fingerprint: str
    watermark: Millis
    lateness: Millis
    taken: int | None
    final: int | None

    @property
    def taken_before(self) -> Taken | None:
        """Return the numbers of elements up to the check; None if they can't be counted."""
        return None if self.taken is None or self.final is None else Taken(self.taken, self.final)

    def to_json(self) -> str:
        """Return the proof as JSON, for table `quality`."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | None) -> Proof | None:
        """Read a proof; return None if there is none, or if another version of tidegate wrote it."""
        raw: Any = json.loads(text) if text else None
        if not isinstance(raw, dict) or raw.keys() != {*cls.__slots__}:
            return None
        return cls(**raw)


def since_of(tables: PipelineTables, pinned: PinnedEpoch) -> int | None:
    """Return the newest epoch before the pinned one whose check passed, or None if there is none.

    Epochs that a restore or a re-run replaced are ignored.
    """
    numbers = pinned.epochs["epoch"]
    return quality.newest_passed(tables, numbers.filter(pc.less(numbers, pinned.snapshot.manifest.epoch)).to_pylist())


def fresh_windows(windows: pa.Table, epochs: pa.Table, since: int | None) -> pa.Table:
    """Select the windows that became final after an epoch, or that got a new pane after it."""
    return windows.filter(pa.array(are_fresh(windows, epochs, since)))


def are_fresh(windows: pa.Table, epochs: pa.Table, since: int | None) -> npt.NDArray[np.bool_]:
    """Return a flag for each window that `fresh_windows` selects."""
    if since is None:
        return np.ones(len(windows), np.bool_)
    is_new: npt.NDArray[np.bool_] = windows["epoch"].to_numpy() > since
    if results.has_panes(windows.schema):
        is_new = is_new | ~results.are_final(windows, final_through(epochs, since))
    return is_new


def final_through(epochs: pa.Table, epoch: int) -> Millis:
    """Return the time through which windows were final after an epoch, int64 epoch milliseconds."""
    (row,) = epochs.filter(pc.equal(epochs["epoch"], epoch)).slice(0, 1).to_pylist()
    if row[FINAL_THROUGH] is not None:
        return to_millis(row[FINAL_THROUGH])
    began = pc.min(epochs.filter(epochs["watermark"].is_valid())["epoch"]).as_py()
    return MAX_TIMESTAMP if has_ended(row, began) else MIN_TIMESTAMP


def interval_since(epochs: pa.Table, since: int | None) -> dict[str, int] | None:
    """Return the event-time interval (epoch milliseconds) that was run since an epoch; None for a stream."""
    newer = epochs if since is None else epochs.filter(pc.greater(epochs["epoch"], since))
    starts, ends = (epoch_millis(newer[name]) for name in ("interval_start", "interval_end"))
    run = {"start": pc.min(starts).as_py(), "end": pc.max(ends).as_py()}
    return None if None in run.values() else run
