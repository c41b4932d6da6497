"""The rows of a check: a pipeline's tables as of one epoch, in parts that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.expectations.invariants.tables import COMPUTED_GROUP, COMPUTED_ID
from tidegate.expectations.ledger import (
    ELEMENTS,
    Entry,
    ErasedRows,
    RowCounts,
    frame_of,
    never_emitted,
    snapshot_entries,
    taken_in_all,
)
from tidegate.expectations.scope import Proof, Scope, fresh_windows, interval_since, scope_of
from tidegate.expectations.tables_read import (
    ROWS,
    Slices,
    count_side_tables,
    faults,
    final_windows,
    hashes_of,
    ids_of,
    pass_over,
    slices_of,
    state_batches,
    with_one_id,
)
from tidegate.expectations.unexpected_rows import matches
from tidegate.pipelines import Pipeline
from tidegate.pipelines.ask.contents import checksums
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.epochs import DELETED, FINGERPRINT, SHAPE
from tidegate.pipelines.definition.far_times import as_text
from tidegate.pipelines.definition.recorded import Shape
from tidegate.pipelines.definition.window_shape import WindowShape, window_shape
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.head import Snapshot, list_snapshots, read_snapshot, state_rows
from tidegate.pipelines.ledger.snapshots.savepoint import list_savepoints, read_savepoint
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.keys import are_in
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import arrow_schema
from tidegate.windowing.columnar.hashing import key_groups
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, saturating_add, to_millis


class ShapeSince(NamedTuple):
    """A shape, the first epoch that ran with it, and the watermark before that, int64 epoch milliseconds."""

    epoch: int
    shape: Shape
    watermark: Millis = MIN_TIMESTAMP


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes up to an epoch, oldest first; `newest` is the epoch's shape, completed from the current code.

    The code may change gap, size and lateness. Each epoch records the shape that it ran with; a window that was open
    when the code changed keeps its bounds, so it has the shape of its epoch or of an earlier one.
    """

    since: tuple[ShapeSince, ...]
    newest: WindowShape

    @property
    def lateness(self) -> Millis:
        """Return the longest lateness that any epoch allowed."""
        return max(each.shape.lateness for each in self.since)

    @property
    def grids(self) -> list[list[int]]:
        """Return the first epoch, size, slide and offset of each shape. Size 0 is for windows without a fixed size."""
        return [[epoch, shape.size or 0, shape.slide or 1, shape.offset] for epoch, shape, _ in self.since]

    @property
    def gaps(self) -> list[list[int]]:
        """Return the first epoch and the gap of each shape. The gap is 0 where it depends on the element."""
        return [[epoch, shape.gap or 0] for epoch, shape, _ in self.since]

    @property
    def one_grid(self) -> bool:
        """Return True if all epochs had windows of the same size, slide and offset."""
        return len({(shape.size, shape.slide, shape.offset) for _, shape, _ in self.since}) == 1

    def counts_elements(self, watermark: Millis) -> bool:
        """Return True if every element is in the same number of windows, each of which is either open or final.

        Code with a shorter lateness closes windows before the `final_at` that older code wrote. Under a longer
        lateness, windows that have fired stay open beyond that time until the longer lateness has passed.
        """
        shapes = [self.newest.by(each.shape) for each in self.since]
        waits = [shape.lateness for shape in shapes]
        grown = [each.watermark for before, each in pairwise(self.since) if each.shape.lateness > before.shape.lateness]
        are_closed = all(saturating_add(before, self.newest.lateness) <= watermark for before in grown)
        return len({shape.multiplicity for shape in shapes}) == 1 and waits == sorted(waits) and are_closed


def shapes_of(epochs: pa.Table, present: WindowShape | None) -> Shapes | None:
    """Return the shapes up to an epoch, or None if the pipeline has no windows."""
    if present is None:
        return None
    shapes: list[ShapeSince] = []
    watermark = MIN_TIMESTAMP
    for row in epochs.sort_by("epoch").to_pylist():
        # A reset that came before any rows has no shape.
        if row[SHAPE] is not None and (not shapes or shapes[-1].shape != Shape(**row[SHAPE])):
            shapes.append(ShapeSince(row["epoch"] if shapes else 0, Shape(**row[SHAPE]), watermark))
        watermark = watermark if row["watermark"] is None else to_millis(row["watermark"])
    if not shapes:
        shapes = [ShapeSince(0, present.kept)]
    return Shapes(tuple(shapes), present.by(shapes[-1].shape))


def recomputed_by_other_code(epochs: pa.Table) -> bool:
    """Return True if windows were recomputed by other code than an earlier epoch's, which may have kept other rows."""
    codes = set[str]()
    for row in epochs.sort_by("epoch").to_pylist():
        codes.add(row[FINGERPRINT])
        if row["kind"] in ("change", "reopen") and len(codes) > 1:
            return True
    return False


_NESTED = ["phases", "shards", DELETED, SHAPE]
"""Columns of table epochs that no suite uses."""


@dataclass(frozen=True)
class Pinned:
    """A pipeline's tables as of one epoch: the current rows of that epoch and of earlier ones.

    Args:
        tables: tables of the pipeline.
        scope: the epoch, and the range of rows to check.
        shapes: shapes of the windows; None if the pipeline computes something else.
        since: the newest earlier epoch whose check passed; None if there is none.
        interval: the event-time interval that was run since then, `start` and `end` in epoch milliseconds; None for a
            stream.
        fresh_windows: number of windows that became final since then, or whose result changed.
        slices: rows of table `results` to check, and the rows to compare them with.
        epochs: rows of table `epochs` in the snapshot's lineage.
        lines: epochs whose rows each table has.
        files: files of each table, with their faults.
        differing_windows: windows that are missing from table `windows` or surplus in it; None if there is no such
            table.
        ledger: counters of the epochs with the row counts of the tables.
        restored: checksums of the newest restore, and of the snapshot that it went back to.
        proves: the proof for the next check, if this one passes.
        acknowledged: epoch, condition and reason of each acknowledgement.
    """

    tables: PipelineTables
    scope: Scope
    shapes: Shapes | None
    since: int | None
    interval: dict[str, int] | None
    fresh_windows: int
    slices: Slices
    epochs: pd.DataFrame
    lines: pd.DataFrame
    files: pd.DataFrame
    differing_windows: pd.DataFrame | None
    ledger: pd.DataFrame
    restored: pd.DataFrame
    proves: Proof
    acknowledged: tuple[tuple[int, str, str], ...] = ()

    @property
    def shape(self) -> WindowShape | None:
        """Return the shape of the windows in the epoch, or None if the pipeline computes something else."""
        return None if self.shapes is None else self.shapes.newest

    @property
    def manifest(self) -> Manifest:
        """Return the manifest of the epoch's snapshot."""
        return self.scope.pinned.snapshot.manifest

    @property
    def versions(self) -> dict[str, int]:
        """Return the version at which each table is read."""
        return self.scope.pinned.versions

    @property
    def key(self) -> list[str]:
        """Return the key columns."""
        return list(self.manifest.schemas.key)

    @property
    def time_column(self) -> str:
        """Return the column whose time determines the partition of a final window, or of another result."""
        return results.time_column(self.slices.schema)

    @property
    def fresh(self) -> pd.DataFrame:
        """Return the windows that became final since the last check that passed, one row each, in one part.

        Acknowledged windows are left out until their result changes.
        """
        parts = [
            fresh_windows(
                final_windows(rows, self.manifest),
                self.scope.pinned.epochs,
                self.since,
            )
            for rows in self.slices
        ]
        windows = as_frame(pa.concat_tables(parts), self.key)
        for epoch, where, _ in self.acknowledged:
            if len(windows):
                windows = windows[~(matches(where, windows) & (windows["epoch"] <= epoch))].reset_index(drop=True)
        return windows

    def windows(self) -> Iterator[pd.DataFrame]:
        """Yield the final windows, one row each, in parts; all windows of a key are in one part."""
        for rows in self.slices:
            yield as_frame(final_windows(rows, self.manifest), self.key)

    def panes(self) -> Iterator[pd.DataFrame]:
        """Yield rows of table `results` in parts: all panes of windows with a new pane, and the retractions."""
        for rows in self.slices:
            chosen = rows
            if self.scope.proof is not None and results.has_panes(rows.schema):
                touched = rows.filter(pc.greater(rows["epoch"], self.scope.proof.epoch))["window_id"]
                is_touched = pc.is_in(rows["window_id"], value_set=touched.combine_chunks())
                chosen = rows.filter(pc.or_(is_touched, pc.equal(rows["op"], "-")))
            yield as_frame(_with_ids(chosen, self.manifest), self.key)

    def state(self) -> Iterator[pd.DataFrame]:
        """Yield the rows of the snapshot, in parts."""
        empty = True
        for batch in state_batches(self.tables, self.scope.pinned):
            rows = pa.Table.from_batches([batch])
            groups = key_groups(hashes_of(rows, tuple(self.key)), self.manifest.max_parallelism)
            empty = False
            yield as_frame(rows.append_column(COMPUTED_GROUP, pa.array(groups, pa.int32())), self.key)
        if empty:
            none = arrow_schema(self.scope.pinned.snapshot.handle).empty_table()
            yield as_frame(none.append_column(COMPUTED_GROUP, pa.array([], pa.int32())))


def pin(
    tables: PipelineTables,
    pipeline: Pipeline,
    epoch: int | None = None,
    folder: Path | None = None,
    rows_at_a_time: int = ROWS,
    *,
    everything: bool = False,
) -> Pinned:
    """Collect the rows to check for a pipeline as of an epoch.

    `everything` checks every current window and reads every file, whatever earlier checks found.

    Raises:
        UsageError: there is no snapshot of that epoch.
        Refused: the epoch is not published yet, or was replaced by a later restore or re-run.
    """
    scope = scope_of(tables, pipeline, epoch, everything)
    manifest, epochs = scope.pinned.snapshot.manifest, scope.pinned.epochs
    shapes = shapes_of(epochs, window_shape(pipeline, manifest.stagger_offset))
    shape = None if shapes is None else shapes.newest
    counts = RowCounts(scope.new_epochs, manifest.max_parallelism)
    slices = slices_of(tables, scope, counts, folder, rows_at_a_time)
    count_side_tables(tables, pipeline, scope, counts)
    read = pass_over(tables, scope, shape, slices)
    erased = ErasedRows.of(scope.pinned.erasing)
    before = None if scope.proof is None else scope.proof.taken_before
    entries: list[Entry] = [entry for entry in counts.entries() if not erased.explains(entry)]
    # The number of elements that `forget` removed is unknown, and only one of several windows with equal ids is seen.
    is_counted = not read.share_ids and erased.forgotten is None and (scope.proof is None or before is not None)
    is_counted &= shapes is not None and shapes.counts_elements(manifest.watermark)
    is_counted &= not recomputed_by_other_code(epochs)
    of_snapshot = list(
        snapshot_entries(manifest, scope.new_epochs, shape if is_counted else None, read.contents, before)
    )
    tells = any(entry.what == ELEMENTS for entry in of_snapshot)
    return Pinned(
        tables=tables,
        scope=scope,
        shapes=shapes,
        since=scope.since,
        interval=interval_since(epochs, scope.since),
        fresh_windows=read.fresh,
        slices=slices,
        epochs=as_frame(epochs.drop_columns(_NESTED)),
        lines=scope.lines,
        files=scope.files,
        differing_windows=faults(tables, scope, slices, folder),
        ledger=frame_of([*entries, *of_snapshot]),
        restored=restored(tables, scope.new_epochs),
        acknowledged=tuple(quality.acknowledged(tables)),
        proves=Proof(
            epoch=manifest.epoch,
            versions=scope.pinned.versions,
            fingerprint=manifest.fingerprint,
            watermark=manifest.final_through,
            lateness=read.lateness,
            taken=taken_in_all(scope.new_epochs, before) if tells else None,
            final=read.final + never_emitted(scope.new_epochs) + (0 if before is None else before.final)
            if tells
            else None,
        ),
    )


def _with_ids(rows: pa.Table, manifest: Manifest) -> pa.Table:
    """Add a column with the window ids computed from key and bounds, to compare with the stored ids."""
    if not results.has_panes(rows.schema):
        return rows
    rows = rows.append_column(COMPUTED_ID, pa.array(ids_of(rows, manifest), pa.int64()))
    shared = with_one_id(rows, manifest)
    return rows.filter(pc.invert(are_in(rows, shared, shared.column_names))) if len(shared) else rows


def as_frame(rows: pa.Table, key: Sequence[str] = ()) -> pd.DataFrame:
    """Return rows as a frame in which pandas tells apart the same keys as this code does.

    Pandas compares strings only up to a NUL character, and converts integers with nulls to floats, which are inexact.
    """
    # A time within a struct or a map becomes a Python datetime, which can't exceed the year 9999.
    rows = as_text(rows, only_nested=True)
    frame: pd.DataFrame = rows.to_pandas(date_as_object=False)
    for name in rows.column_names:
        kind = rows.schema.field(name).type
        if name in key and pa.types.is_string(kind) and pc.any(pc.match_substring(rows[name], "\0")).as_py():
            frame[name] = rows[name].to_pandas(types_mapper={kind: pd.StringDtype("pyarrow")}.get)
        elif pa.types.is_int64(kind) and rows[name].null_count and (name in key or not _are_doubles(rows[name])):
            frame[name] = rows[name].to_pandas(types_mapper={kind: pd.Int64Dtype()}.get)
    return frame


def _are_doubles(integers: pa.ChunkedArray) -> bool:
    """Return True if a double holds each of these integers exactly."""
    bounds = pc.min_max(integers).as_py()
    return all(abs(bound or 0) <= 2**53 for bound in bounds.values())


CHECKSUMS = ("key_group", "recorded", "computed")


def restored(tables: PipelineTables, epochs: pa.Table) -> pd.DataFrame:
    """Return a row for each key group, or no rows if there was no restore or its snapshots are no longer retained.

    The newest restore is checked.
    """
    restores = [row for row in epochs.to_pylist() if row["kind"] == "restore"]
    if not restores:
        return pd.DataFrame(columns=list(CHECKSUMS))
    newest = max(restores, key=lambda row: int(row["epoch"]))
    after, before = _of_epoch(tables, newest["epoch"]), _target(tables, newest["parent"])
    if after is None or before is None:
        return pd.DataFrame(columns=list(CHECKSUMS))
    rows_before, rows_after = state_rows(tables.warehouse, before), state_rows(tables.warehouse, after)
    # Columns that are newer than the snapshot, such as that of a new aggregate, hold only nulls, which don't count.
    recorded, computed = checksums(rows_before), checksums(rows_after)
    groups = sorted({*recorded, *computed})
    return pd.DataFrame(
        [(group, recorded.get(group), computed.get(group)) for group in groups], columns=list(CHECKSUMS)
    )


def _of_epoch(tables: PipelineTables, epoch: int) -> Snapshot | None:
    # Several versions may hold the same epoch, for example after a compaction; a restart would read the newest.
    versions = (entry.version for entry in list_snapshots(tables) if entry.epoch == epoch)
    newest = next(versions, None)
    return None if newest is None else read_snapshot(tables, newest)


def _target(tables: PipelineTables, epoch: int) -> Snapshot | None:
    """Return the snapshot that a restore went back to, or a savepoint of it, or None if neither is retained."""
    if (snapshot := _of_epoch(tables, epoch)) is not None:
        return snapshot
    names = [entry.name for entry in list_savepoints(tables) if entry.manifest.epoch == epoch]
    return read_savepoint(tables, names[0]) if names else None
