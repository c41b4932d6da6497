"""The published panes and open windows that the plan of a recompute reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.correct.spans import END, START, islands, spans_of
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.ledger.snapshots.head import Snapshot, state_rows
from tidegate.pipelines.ledger.tables.keys import Key, are_in, are_of_key
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema, path_of, read_table
from tidegate.windowing.aggregates.vectorised import Bools
from tidegate.windowing.columnar.slices import as_windows
from tidegate.windowing.compute import Windows
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.state.rows import SLICE, WINDOW
from tidegate.windowing.time import Millis, to_millis
from tidegate.windowing.timestamps import TIMESTAMP

OF_PANES = ("window_id", "window_start", "window_end", "pane", "op", "final_at", "epoch", "stale")
"""Columns of table results that show which panes were not retracted, and their windows."""


def open_rows(
    tables: PipelineTables,
    key: KeySchema,
    head: Snapshot,
    only: Key | None = None,
    near: NearPanes | None = None,
    groups: pa.Array | None = None,
) -> pa.Table:
    """Return the keys and bounds of open windows: of one key, near some panes, of some key groups, or all of them."""
    # Windows may be near although none of their slices is.
    near_windows = pc.field("namespace") == WINDOW
    if near is not None:
        near_windows = near_windows & near.overlap
    chosen = (near_windows | (pc.field("namespace") == SLICE)) & pc.field("in_flight")
    if groups is not None:
        chosen = chosen & pc.field("key_group").isin(groups)
    # Only sessions record the panes that they have emitted.
    wanted = dict.fromkeys((*key.names, "window_start", "window_end", "emitted"))
    of_slices = ("namespace", "state_window_start", "state_window_end", "event_time_timers")
    stored = arrow_schema(head.handle).names
    columns = [name for name in wanted if name in stored]
    rows = state_rows(tables.warehouse, head, chosen, list(dict.fromkeys((*columns, *of_slices))))
    rows = rows if only is None else rows.filter(are_of_key(rows, key.names, only))
    windows = as_windows(rows, key.names)
    return (windows if near is None else windows.filter(near.overlap)).select(columns)


def open_spans(
    tables: PipelineTables, key: KeySchema, head: Snapshot, only: Key | None = None, near: NearPanes | None = None
) -> pa.Table:
    """Return the open windows as spans."""
    return spans_of(open_rows(tables, key, head, only, near), key.names)


def emitted_spans(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Return the panes that open sessions have emitted, as spans."""
    emitted = rows["emitted"].combine_chunks()
    owners = rows.take(pc.list_parent_indices(emitted))
    panes = pc.list_flatten(emitted)
    bounds = {START: pc.struct_field(panes, "window_start"), END: pc.struct_field(panes, "window_end")}
    return pa.table({**{name: owners[name] for name in key}, **bounds})


def light_panes(tables: PipelineTables, key: KeySchema, only: Key | None) -> pa.Table:
    """Return all rows of table results that are not stale, with the columns that show their windows.

    With `only`, return only the rows of that key.
    """
    rows = read_table(tables.warehouse, tables.newest(results.NAME), [*key.names, *OF_PANES], ~pc.field("stale"))
    return rows if only is None else rows.filter(are_of_key(rows, key.names, only))


def whole_panes(tables: PipelineTables, key: KeySchema, panes: pa.Table, windows: Windows) -> pa.Table:
    """Return, with all columns of table results, the panes that a correction retracts."""
    ids = panes["window_id"].unique()
    # Windows of other keys may have the same ids, but are not retracted.
    chosen = ~pc.field("stale") & pc.field("window_id").isin(ids)
    same_ids = read_table(tables.warehouse, tables.newest(results.NAME), where=chosen)
    rows = to_retract(same_ids.filter(are_in(same_ids, panes, (*key.names, "window_id"))), key.names, windows)
    return rows.filter(are_in(rows, panes, (*key.names, "window_id", "window_start", "window_end")))


def to_retract(rows: pa.Table, key: tuple[str, ...], windows: Windows) -> pa.Table:
    """Return the panes that a correction retracts: the newest of each window, or all if each holds a part."""
    if windows.accumulation is Accumulation.DISCARDING:
        return results.unretracted(rows, key)
    return results.latest(rows, key)


def are_among(spans: pa.Table, others: pa.Table, key: tuple[str, ...]) -> Bools:
    """Return a flag for each span: whether it is also among the other spans."""
    among = are_in(spans, others, (*key, START, END))
    return np.asarray(among.to_numpy(zero_copy_only=False), np.bool_)


def of_keys(rows: pa.Table, owners: pa.Table, key: KeySchema) -> pa.Table:
    """Return the rows whose key occurs among other rows."""
    return rows.filter(are_in(rows, owners, key.names))


@dataclass(frozen=True)
class NearPanes:
    """Rows of table results near recomputed spans, for the keys of `owners`. Retractions are included.

    Files and row groups of other times are not read, so a correction of a few windows does not read the whole table. No
    row's window ends before `first` or begins after `last` (int64 epoch milliseconds).
    """

    tables: PipelineTables
    key: KeySchema
    owners: pa.Table
    first: Millis
    last: Millis

    @classmethod
    def of_windows(cls, tables: PipelineTables, key: KeySchema, wanted: pa.Table) -> NearPanes:
        """Return the rows near windows that don't merge."""
        return cls(tables, key, wanted, *_bounds_of(wanted))

    @classmethod
    def of_sessions(
        cls,
        tables: PipelineTables,
        key: KeySchema,
        touched: pa.Table,
        others: Sequence[pa.Table],
        margin: Millis,
        ahead: Millis = 0,
    ) -> pa.Table:
        """Read the rows near spans, then near the sessions that touch them, and so on.

        `others` are spans of open sessions and of late rows, which may connect published sessions. Sessions up to
        `margin` milliseconds apart may be one. Most reach at most `ahead` beyond the spans, so that the first read
        finds them.
        """
        near = cls(tables, key, touched, *_bounds_of(touched))._wider(margin + ahead)
        while True:
            rows = near.read()
            parts = [touched, *map(near.only, others), near.only(spans_of(rows, key.names))]
            names = touched.column_names
            connected = islands(key, *(part.select(names) for part in parts), margin=margin)
            of_touched = connected.of_span[: len(touched)]
            first = int(connected.starts[of_touched].min(initial=LAST_TIME))
            last = int(connected.ends[of_touched].max(initial=FIRST_TIME))
            if not len(touched) or (near.first <= first - margin and last + margin <= near.last):
                return rows
            near = replace(near, first=min(first, near.first), last=max(last, near.last))._wider(margin + ahead)

    def _wider(self, by: Millis) -> NearPanes:
        return replace(self, first=self.first - by, last=self.last + by)

    def only(self, spans: pa.Table) -> pa.Table:
        """Return the given spans that are near or touch."""
        return spans.filter(pc.and_(pc.less_equal(spans[START], self.last), pc.greater_equal(spans[END], self.first)))

    @property
    def overlap(self) -> pc.Expression:
        """Condition on the bounds of windows that are near or touch."""
        start, end = pc.field("window_start"), pc.field("window_end")
        return (start <= _moment(self.last)) & (end >= _moment(self.first))

    def read(self) -> pa.Table:
        """Return the rows that are not stale, with all columns."""
        chosen = ~pc.field("stale") & self.overlap
        for name, kind in zip(self.key.names, self.key.types, strict=True):
            if _is_compared_by_bytes(kind):
                chosen &= pc.field(name).isin(pc.unique(self.owners[name]).cast(kind))
        handle = self.tables.newest(results.NAME)
        rows = self.tables.warehouse.read_files(
            path_of(handle),
            [file["path"] for file in active_files(handle) if self._may_hold(file)],
            arrow_schema(handle),
            where=chosen,
        )
        return of_keys(rows, self.owners, self.key)

    def _may_hold(self, file: Mapping[str, Any]) -> bool:
        """Return False if the log shows that a file has no window nearby."""
        first, last = file.get("min.window_start"), file.get("max.window_end")
        return (first is None or to_millis(first) <= self.last) and (last is None or to_millis(last) >= self.first)


def _is_compared_by_bytes(kind: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_integer(kind) or kinds.is_string(kind) or kinds.is_binary(kind) or kinds.is_date(kind))


def _bounds_of(spans: pa.Table) -> tuple[Millis, Millis]:
    """Return the smallest start and the largest end of spans, or the end of time if there are none."""
    if not len(spans):
        return LAST_TIME, LAST_TIME
    return pc.min(spans[START]).as_py(), pc.max(spans[END]).as_py()


def _moment(time: Millis) -> pa.Scalar:
    return pa.scalar(max(min(time, LAST_TIME), FIRST_TIME) * 1000, TIMESTAMP)
