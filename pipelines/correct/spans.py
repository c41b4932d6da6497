"""Affected spans of keys, and what is published and open in them.

A span is a single window or a run of connected sessions. Every row that was read is in a published window, in an open
window, or in the window that a late row would have been added to. Sessions among them that touch become one session in
event order. So these windows alone determine which spans of a key have to be read, and an affected span contains whole
sessions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.definition.row_sets import distinct
from tidegate.pipelines.errors import OtherWindows, Refused
from tidegate.pipelines.ledger.snapshots.head import Snapshot, state_rows
from tidegate.pipelines.ledger.tables.keys import Key, are_in, are_of_key
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema, path_of, read_table
from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.columnar.key_codes import KeyCodes, encode_keys
from tidegate.windowing.columnar.slices import as_windows
from tidegate.windowing.compute import Windows
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.state.rows import SLICE, WINDOW
from tidegate.windowing.time import Millis, show_millis, to_millis
from tidegate.windowing.timestamps import TIMESTAMP, epoch_millis

START, END = "\0start", "\0end"
"""Columns of a span in addition to its key columns: int64 epoch milliseconds, the end exclusive.

Key columns may have any name except, in Delta, one with a NUL.
"""


def spans_of(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Return the windows of rows as spans: key columns, start and end. Rows without bounds are left out."""
    bounds = {START: epoch_millis(rows["window_start"]), END: epoch_millis(rows["window_end"])}
    return pa.table({**{name: rows[name] for name in key}, **bounds}).filter(bounds[START].is_valid())


def windows_at(windows: Windows, key: KeySchema, rows: pa.Table, times: Int64s, also: tuple[str, ...] = ()) -> pa.Table:
    """Return each window that rows belong to by their event times. The windows must not merge.

    Windows with different values in the columns `also` count as different.
    """
    assign = windows.assigner.array_assignment
    if assign is None:
        raise IllegalArgument("compute.assigner", windows.assigner, "give an assigner that uses only the event time")
    assigned = assign(times)
    names = [*key.names, *also]
    keys = rows.select(names).take(pa.array(assigned.rows))
    spans = {START: pa.array(assigned.starts, pa.int64()), END: pa.array(assigned.ends, pa.int64())}
    repeated = pa.table({**{name: keys[name] for name in names}, **spans})
    return distinct(repeated)


def have_window(windows: Windows, times: Int64s) -> Bools:
    """Return a flag for each event time: whether it belongs to a window. Sessions have one for every time."""
    flags = np.ones(len(times), np.bool_)
    if (assign := windows.assigner.array_assignment) is not None and not windows.assigner.forms_sessions:
        flags[:] = False
        flags[assign(times).rows] = True
    return flags


@dataclass(frozen=True)
class Islands:
    """Groups of spans of a key that touch; each island is the union of its spans.

    An island has the code of its key, and its bounds (int64 epoch milliseconds). `of_span` has the index of each span's
    island, in the order of the given spans.
    """

    keys: KeyCodes
    codes: Int64s
    starts: Int64s
    ends: Int64s
    of_span: Int64s

    def table(self, which: Bools | None = None) -> pa.Table:
        """Return the islands as spans: all, or those where `which` is True."""
        chosen = np.arange(len(self.codes)) if which is None else np.flatnonzero(which)
        columns = dict(zip(self.keys.schema.names, self.keys.take(self.codes[chosen]), strict=True))
        return pa.table({**columns, START: pa.array(self.starts[chosen]), END: pa.array(self.ends[chosen])})


def islands(key: KeySchema, *parts: pa.Table, margin: int = 0) -> Islands:
    """Group spans that touch: a span joins an earlier one of its key if `start <= end + margin`.

    With a margin of 0, this is the rule by which sessions merge.
    """
    keys = encode_keys(key, *(({name: part[name] for name in key.names}, len(part)) for part in parts))
    codes = np.concatenate(keys.codes)
    starts, ends = (
        np.concatenate([np.asarray(part[name].to_numpy(), np.int64) for part in parts]) for name in (START, END)
    )
    order = np.lexsort((ends, starts, codes))
    code, start, end = codes[order], starts[order], ends[order]
    # This is the running maximum of the ends within each key. Ranks of ends are small enough to combine with the key.
    ranked, rank = np.unique(end, return_inverse=True)
    reached = ranked[np.maximum.accumulate(code * len(ranked) + rank) - code * len(ranked)] if len(ranked) else end
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (code[1:] != code[:-1]) | (start[1:] > reached[:-1] + margin)
    first = np.flatnonzero(begins)
    of_span = np.empty(len(order), np.int64)
    of_span[order] = np.cumsum(begins) - 1
    last = np.maximum.reduceat(end, first) if len(first) else end
    return Islands(keys, code[first], start[first], last, of_span)


def affected_sessions(
    key: KeySchema,
    touched: pa.Table,
    asked: Bools,
    sessions: Sequence[pa.Table],
    may_begin: tuple[int, int],
    margin: int = 0,
) -> tuple[pa.Table, Bools]:
    """Return the spans of whole sessions to recompute, and a flag for each given window: whether it is in one.

    They contain the sessions of the requested windows, and also sessions that should be merged.

    Sessions of a stream may touch without a late row: an element behind the watermark may open a session next to one
    that the watermark has already passed. `touched` are windows of waiting late rows and of changed rows before they
    merge; `asked` flags the windows whose sessions are to be recomputed. `may_begin` bounds the starts of spans that
    were not requested. Sessions up to `margin` milliseconds apart may be one session.
    """
    existing = distinct(pa.concat_tables(sessions).select([*key.names, START, END]))
    connected = islands(key, touched, existing.select(touched.column_names), margin=margin)
    count = len(connected.codes)
    chosen = np.zeros(count, np.bool_)
    chosen[connected.of_span[: len(touched)][asked]] = True
    together = np.bincount(connected.of_span[len(touched) :], minlength=count)
    chosen |= (together > 1) & (connected.starts >= may_begin[0]) & (connected.starts <= may_begin[1])
    return connected.table(chosen), chosen[connected.of_span[: len(touched)]]


def check_shape(
    pipeline: str, windows: Windows, key: KeySchema, wanted: pa.Table, existing: pa.Table, is_change: bool = False
) -> None:
    """Refuse to compute windows whose elements are already in windows of another size.

    Such windows were published or opened before the assigner changed, and their elements would count twice. Sessions
    need no check, because all sessions that touch are retracted.
    """
    foreign = existing.filter(pa.array(~_fit(windows, existing)))
    overlapping = foreign.filter(pa.array(_overlap(key, foreign, wanted)))
    if not len(overlapping):
        return
    (first,) = overlapping.sort_by([(START, "ascending")]).slice(0, 1).to_pylist()
    owner = ", ".join(repr(first[name]) for name in key.names) or "all"
    grid = windows.assigner.window_grid
    since = pc.max(foreign[END]).as_py()
    if grid is not None and grid.windows_of_an_element > 1:
        # Table late names the newest window of a row; its other windows begin up to a size earlier, and the late rows
        # in them are added too.
        reached = wanted.filter(pa.array(_overlap(key, wanted, overlapping)))
        since = max(since + grid.size, pc.max(reached[END]).as_py())
    earlier = (
        f"the window of {owner} from {show_millis(first[START])} to {show_millis(first[END])} was computed before "
        "compute.assigner changed"
    )
    if is_change:
        raise Refused(
            f"rows of pipeline {pipeline!r} changed in its source, and their windows can't be corrected: {earlier}. "
            "Undo the code change until the pipeline has read this version, or skip this and all later changes, with "
            "changes='ignore' in its DeltaSource",
            Remedy(Act.NEW_NAME, pipeline),
        )
    raise OtherWindows(
        f"late rows of pipeline {pipeline!r} belong to windows of the current size, but {earlier}: its elements would "
        "count twice. The rows after it can be reopened; or undo the change",
        Remedy(Act.REOPEN_FROM, pipeline, start=since),
        Remedy(Act.NEW_NAME, pipeline),
        concerns=[(FIRST_TIME, since)],
    )


def _fit(windows: Windows, spans: pa.Table) -> Bools:
    """Return a flag for each span: whether it is a window of the current assigner."""
    assign = windows.assigner.array_assignment
    assert assign is not None
    starts, ends = (np.asarray(spans[name].to_numpy(), np.int64) for name in (START, END))
    assigned = assign(starts)
    same = (assigned.starts == starts[assigned.rows]) & (assigned.ends == ends[assigned.rows])
    fit = np.zeros(len(starts), np.bool_)
    fit[assigned.rows[same]] = True
    return fit


def _overlap(key: KeySchema, spans: pa.Table, others: pa.Table) -> Bools:
    """Return a flag for each span: whether it may share elements, even through others, with another span of its key."""
    parts = [
        part.set_column(part.schema.get_field_index(END), END, pc.subtract(part[END], 1)) for part in (spans, others)
    ]
    connected = islands(key, *parts)
    return np.isin(connected.of_span[: len(spans)], connected.of_span[len(spans) :])


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
