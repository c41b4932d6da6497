"""Published panes and open windows of a pipeline, as plans of corrections look at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.manifest import Reopening
from tidegate.pipelines.reopen.stretches import END, START, spans_of
from tidegate.pipelines.snapshots.contents import state_rows
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.storage import Warehouse, read_table
from tidegate.pipelines.tables import results
from tidegate.pipelines.tables.key_groups import key_hashes
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.aggregates.vectorised import Bools
from tidegate.windowing.columnar.key_codes import encode_keys
from tidegate.windowing.compute import Windows
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.state.rows import WINDOW
from tidegate.windowing.time import Millis
from tidegate.windowing.timestamps import TIMESTAMP, epoch_millis

OF_PANES = ("window_id", "window_start", "window_end", "pane", "op", "final_at", "epoch", "stale")
"""Columns of table results from which the panes that were not retracted, and their windows, follow."""

UNTIL = "__until"
"""Column of windows that may come again: the watermark from which on they don't, int64 epoch milliseconds."""


def open_rows(
    tables: PipelineTables,
    key: KeySchema,
    head: Snapshot,
    reopening: Reopening,
    near: NearPanes | None = None,
    groups: pa.Array | None = None,
) -> pa.Table:
    """Return the state rows of open windows.

    Args:
        tables: the pipeline's tables.
        key: the key columns.
        head: the snapshot.
        reopening: names one key, or all.
        near: panes near which the windows lie; None for all windows.
        groups: key groups of the windows; None for all.
    """
    chosen = (pc.field("namespace") == WINDOW) & pc.field("in_flight")
    if near is not None:
        chosen = chosen & near.overlap
    if groups is not None:
        chosen = chosen & pc.field("key_group").isin(groups)
    rows = state_rows(tables.warehouse, head, chosen)
    return rows if reopening.key is None else rows.filter(pc.equal(key_hashes(rows, key.names), reopening.key))


def open_spans(
    tables: PipelineTables, key: KeySchema, head: Snapshot, reopening: Reopening, near: NearPanes | None = None
) -> pa.Table:
    """Return the open windows as spans."""
    return spans_of(open_rows(tables, key, head, reopening, near), key.names)


def emitted_spans(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Return the panes that open sessions have emitted, as spans."""
    emitted = rows["emitted"].combine_chunks()
    owners = rows.take(pc.list_parent_indices(emitted))
    panes = pc.list_flatten(emitted)
    bounds = {START: pc.struct_field(panes, "window_start"), END: pc.struct_field(panes, "window_end")}
    return pa.table({**{name: owners[name] for name in key}, **bounds})


def to_retract(rows: pa.Table, key: tuple[str, ...], windows: Windows) -> pa.Table:
    """Return the panes that a correction retracts: the newest of each window, or all if each holds a part."""
    if windows.accumulation is Accumulation.DISCARDING:
        return results.unretracted(rows, key)
    return results.latest(rows, key)


def are_in(spans: pa.Table, others: pa.Table, key: tuple[str, ...]) -> Bools:
    """Return True for each span that is among others."""
    names = (*key, START, END)
    schema = KeySchema(names, tuple(spans.schema.field(name).type for name in names))
    codes = encode_keys(schema, *(({name: part[name] for name in names}, len(part)) for part in (spans, others))).codes
    return np.isin(codes[0], codes[1])


@dataclass(frozen=True)
class NearPanes:
    """Rows of table results near spans that are computed again, also retractions.

    Row groups of other times are not read, so a correction of a few windows does not read the whole table.

    Args:
        warehouse: the warehouse of the table.
        handle: the table.
        first: time before which no window of a row ends, int64 epoch milliseconds.
        last: time after which no window of a row begins.
    """

    warehouse: Warehouse
    handle: DeltaTable
    first: Millis
    last: Millis

    @classmethod
    def of_windows(cls, warehouse: Warehouse, handle: DeltaTable, wanted: pa.Table) -> NearPanes:
        """Return the rows near windows that don't merge."""
        first, last = _bounds_of([wanted])
        return cls(warehouse, handle, first, last)

    @classmethod
    def of_sessions(
        cls,
        warehouse: Warehouse,
        handle: DeltaTable,
        touched: pa.Table,
        others: Sequence[pa.Table],
        columns: Sequence[str],
        margin: Millis,
    ) -> NearPanes:
        """Return the rows near spans, near sessions that touch these, and so on.

        Args:
            warehouse: the warehouse of the table.
            handle: the table.
            touched: the spans.
            others: spans of open sessions and of late rows, which may connect published sessions.
            columns: the key columns.
            margin: largest distance of sessions that may be one, milliseconds.
        """
        first, last = _bounds_of([touched])
        while True:
            near = cls(warehouse, handle, first - margin, last + margin)
            parts = [touched, *map(near.only, others), near.only(spans_of(near.read(columns), tuple(columns)))]
            bounds = _bounds_of(parts)
            if bounds == (first, last):
                return near
            first, last = bounds

    def only(self, spans: pa.Table) -> pa.Table:
        """Return those of some spans that lie near, or touch."""
        return spans.filter(pc.and_(pc.less_equal(spans[START], self.last), pc.greater_equal(spans[END], self.first)))

    @property
    def overlap(self) -> pc.Expression:
        """Condition on the bounds of windows that lie near, or touch."""
        start, end = pc.field("window_start"), pc.field("window_end")
        return (start <= _moment(self.last)) & (end >= _moment(self.first))

    def read(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.Table:
        """Return columns of the rows that are not stale: those of panes and some others, or all columns for None."""
        chosen = ~pc.field("stale") & self.overlap
        names = None if columns is None else [*columns, *OF_PANES]
        return read_table(self.warehouse, self.handle, names, chosen if where is None else chosen & where)


def _bounds_of(parts: Sequence[pa.Table]) -> tuple[Millis, Millis]:
    """Return the smallest start and the largest end of spans; the end of time for none, near which no window is."""
    full = [part for part in parts if len(part)]
    starts, ends = [pc.min(part[START]).as_py() for part in full], [pc.max(part[END]).as_py() for part in full]
    return min(starts, default=LAST_TIME), max(ends, default=LAST_TIME)


def _moment(time: Millis) -> pa.Scalar:
    """Return a time as a TIMESTAMP, or the nearest one that there is."""
    return pa.scalar(max(min(time, LAST_TIME), FIRST_TIME) * 1000, TIMESTAMP)


def newest_panes(published: pa.Table, key: KeySchema, wanted: pa.Table) -> dict[int, int]:
    """Return the number of the newest pane of each window of some keys, by window id; also of retracted windows.

    A window that was retracted may come again, and its next pane must be newer than the retraction.

    Args:
        published: rows of table results, also retractions; stale rows are left out.
        key: the key columns.
        wanted: spans of the keys.
    """
    parts = [({name: part[name] for name in key.names}, len(part)) for part in (published, wanted)]
    of_panes, of_spans = encode_keys(key, *parts).codes
    rows = published.filter(pa.array(np.isin(of_panes, of_spans)))
    newest = rows.select(["window_id", "pane"]).group_by("window_id").aggregate([("pane", "max")])
    return dict(zip(newest["window_id"].to_pylist(), newest["pane_max"].to_pylist(), strict=True))


def may_come_again(
    published: pa.Table, key: KeySchema, wanted: pa.Table, windows: Windows, watermark: Millis
) -> pa.Table:
    """Return key, id and end of lateness of published sessions of some keys that late elements may bring back.

    Windows that don't merge need it not: such a window stays in the state without its elements.

    Args:
        published: rows of table results, also retractions; stale rows are left out.
        key: the key columns.
        wanted: spans of the keys.
        windows: the windows with their lateness.
        watermark: the watermark, int64 epoch milliseconds.
    """
    if not (windows.assigner.merges and windows.lateness):
        published = published.slice(0, 0)
    ends = pc.add(epoch_millis(published["window_end"]), windows.lateness - 1)
    rows = published.select([*key.names, "window_id"]).append_column(UNTIL, ends)
    rows = rows.filter(pc.greater(ends, watermark))
    parts = [({name: part[name] for name in key.names}, len(part)) for part in (rows, wanted)]
    of_panes, of_spans = encode_keys(key, *parts).codes
    rows = rows.filter(pa.array(np.isin(of_panes, of_spans), pa.bool_()))
    last = rows.group_by([*key.names, "window_id"], use_threads=False).aggregate([(UNTIL, "max")])
    return last.rename_columns([*key.names, "window_id", UNTIL])
