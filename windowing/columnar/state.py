"""Windows in flight as arrays, and the state rows that they come from and go to (format version 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.columnar.contents import ColumnarContents, Contents
from tidegate.windowing.columnar.hashing import key_groups
from tidegate.windowing.columnar.key_codes import KeyCodes
from tidegate.windowing.epochs.arrays import ParallelArrays
from tidegate.windowing.state.rows import DISCARDED, REST, TIME, WINDOW, StateSchema
from tidegate.windowing.time import MAX_TIMESTAMP
from tidegate.windowing.timestamps import epoch_millis, in_schema

Int32s = npt.NDArray[np.int32]

_FEW = 50_000
"""Number of rows up to which sorting is faster than concatenating slices of each group."""

FIRE, FIRE_AND_PURGE = "fire", "fire_and_purge"


@dataclass(frozen=True, kw_only=True)
class InFlight(ParallelArrays):
    """Windows in flight, with the number of their next pane and their accumulators.

    `filled` is true if the window has contents, `pending` if a late firing waits for the end of its commit. Unchanged
    rows are copied from `rows`, the state rows without key group and key.
    """

    codes: Int64s
    starts: Int64s
    ends: Int64s
    panes: Int64s
    filled: Bools
    pending: Bools
    contents: Contents
    rows: pa.Table


@dataclass(frozen=True)
class CodedRows:
    """State rows without key group and key, and the code of each row's key.

    `places` are the indices of the selected rows in ascending order; None selects all rows.
    """

    codes: Int64s
    rows: pa.Table
    places: Int64s | None = None


class StateArrays:
    """Reads the state rows of a computation into arrays, and writes them from arrays."""

    def __init__(self, schema: StateSchema, contents: ColumnarContents, max_parallelism: int) -> None:
        self.schema = schema
        self._contents = contents
        self._max_parallelism = max_parallelism
        self.columns = schema.columns
        key_columns = {"key_group", *schema.key.names}
        self.rest = pa.schema([field for field in self.columns if field.name not in key_columns])

    def rest_of(self, table: pa.Table) -> pa.Table:
        """Return state rows in the types of the format, without key group and key."""
        return in_schema(table, self.rest).combine_chunks()

    def whole(self, table: pa.Table) -> pa.Table:
        """Return state rows in the types of the format, with all columns."""
        return in_schema(table, self.columns)

    def read(self, codes: Int64s, rest: pa.Table, namespaces: Sequence[str] = (WINDOW,)) -> tuple[InFlight, Bools]:
        """Return rows of these namespaces as arrays, and a flag for each: whether only the row operator can read it."""
        starts, ends = millis_of(rest, "window_start"), millis_of(rest, "window_end")
        windows = InFlight(
            codes=codes,
            starts=starts,
            ends=ends,
            panes=_array(rest, "pane").to_numpy().astype(np.int64),
            filled=_array(rest, "filled").to_numpy(zero_copy_only=False),
            pending=_array(rest, "late_firing").is_valid().to_numpy(zero_copy_only=False),
            contents=self._contents.of_columns([_array(rest, name) for name, _ in self.schema.contents]),
            rows=rest,
        )
        return windows, ~is_plain(rest, namespaces).to_numpy()

    def rows(
        self,
        starts: Int64s,
        ends: Int64s,
        identities: tuple[Int64s, Int64s],
        timers: pa.Array,
        contents: Contents,
        filled: Bools,
        panes: Int64s,
        late_firing: pa.Array,
        emitted: pa.Array | None,
        trigger_state: pa.Array | None = None,
        namespace: str = WINDOW,
    ) -> pa.Table:
        """Return the state rows of windows or slices, without key group and key."""
        rows = len(starts)
        by_name: dict[str, pa.Array] = {
            "namespace": pa.repeat(pa.scalar(namespace), rows),
            "window_start": _times(starts),
            "window_end": _times(ends),
            "state_window_start": _times(identities[0]),
            "state_window_end": _times(identities[1]),
            "in_flight": pa.repeat(pa.scalar(True), rows),
            "event_time_timers": timers,
            "filled": pa.array(filled),
            "pane": pa.array(panes.astype(np.int32)),
            "late_firing": late_firing,
        }
        if emitted is not None:
            by_name["emitted"] = emitted
        if trigger_state is not None:
            by_name["trigger_state"] = trigger_state
        for (name, _), array in zip(self.schema.contents, self._contents.columns(contents), strict=True):
            by_name[name] = array if filled.all() else _null_where(~filled, array)
        return in_schema(pa.table(by_name), self.rest)

    def discarded(self, starts: Int64s, ends: Int64s, contents: Contents) -> pa.Table:
        """Return the state rows of contents that a firing discarded and a retraction may restore."""
        rows = len(starts)
        by_name: dict[str, pa.Array] = {
            "namespace": pa.repeat(pa.scalar(DISCARDED), rows),
            "window_start": _times(starts),
            "window_end": _times(ends),
            "in_flight": pa.repeat(pa.scalar(False), rows),
            "filled": pa.repeat(pa.scalar(True), rows),
            "pane": pa.repeat(pa.scalar(0, pa.int32()), rows),
        }
        columns = zip(self.schema.contents, self._contents.columns(contents), strict=True)
        by_name |= {name: array for (name, _), array in columns}
        return in_schema(pa.table(by_name), self.rest)

    def table(self, parts: Sequence[CodedRows], keys: KeyCodes, others: Sequence[pa.Table]) -> pa.Table:
        """Return state rows with key group and key, sorted by key group.

        `parts` come from the kernel; `others` are idle rows, and those of the row operator.
        """
        groups_of_keys = key_groups(keys.hashes, self._max_parallelism)
        runs = [self._sorted(part, groups_of_keys, keys) for part in parts if len(part.codes)]
        runs += [self._by_group(rows) for rows in others if len(rows)]
        if not runs:
            return self.columns.empty_table()
        if len(runs) == 1:
            return runs[0][1]
        if sum(len(table) for _, table in runs) <= _FEW:
            order = np.argsort(np.concatenate([groups for groups, _ in runs]), kind="stable")
            return pa.concat_tables([table for _, table in runs]).take(pa.array(order))
        # Each part is sorted by group, so concatenating slices of groups is enough; rows need not be copied one by one.
        bounds = [np.searchsorted(groups, np.arange(self._max_parallelism + 1)) for groups, _ in runs]
        slices = [
            table.slice(bound[group], bound[group + 1] - bound[group])
            for group in range(self._max_parallelism)
            for (_, table), bound in zip(runs, bounds, strict=True)
            if bound[group] < bound[group + 1]
        ]
        return pa.concat_tables(slices)

    def _by_group(self, rows: pa.Table) -> tuple[Int32s, pa.Table]:
        """Return the group of each row, and all columns of the state rows, sorted by key group."""
        if (np.diff(rows["key_group"].to_numpy()) < 0).any():
            rows = rows.sort_by("key_group")
        return rows["key_group"].to_numpy(), self.whole(rows)

    def _sorted(self, part: CodedRows, groups_of_keys: Int32s, keys: KeyCodes) -> tuple[Int32s, pa.Table]:
        """Return the group of each row, and the rows of a part sorted by key group, with key group and key."""
        groups, codes, places = groups_of_keys[part.codes], part.codes, part.places
        rows = part.rows
        if (np.diff(groups) < 0).any():
            order = np.argsort(groups, kind="stable")
            groups, codes = groups[order], codes[order]
            rows = rows.take(pa.array(order if places is None else places[order]))
        elif places is not None and len(places) < len(rows):
            rows = _take_rising(rows, places)
        columns = {"key_group": pa.array(groups, pa.int32())}
        columns |= dict(zip(keys.schema.names, keys.take(codes), strict=True))
        table = pa.table(
            [columns[field.name] if field.name in columns else rows[field.name] for field in self.columns],
            schema=self.columns,
        )
        return groups, table


def _take_rising(rows: pa.Table, places: Int64s) -> pa.Table:
    """Return the rows at these ascending indices. If most rows are taken, a mask is faster than indices."""
    if len(places) < len(rows) // 2:
        return rows.take(pa.array(places))
    kept = np.zeros(len(rows), np.bool_)
    kept[places] = True
    return where(rows, kept)


def where(rows: pa.Table, kept: Bools) -> pa.Table:
    """Return the rows that are kept. An all-null column, which is common in state, is rebuilt instead of copied."""
    mask, count = pa.array(kept), int(np.count_nonzero(kept))
    return pa.table(
        [
            pa.nulls(count, column.type) if column.null_count == len(rows) else column.filter(mask)
            for column in rows.columns
        ],
        schema=rows.schema,
    )


def is_plain(rows: pa.Table, namespaces: Sequence[str] = (WINDOW,)) -> pa.ChunkedArray:
    """Return a flag for each state row: whether it is in flight, in one of the namespaces, and readable as arrays."""
    plain = pc.and_(pc.is_in(rows["namespace"], value_set=pa.array(namespaces)), rows["in_flight"])
    for name in ("window_start", "state_window_start"):
        plain = pc.and_(plain, rows[name].is_valid())
    wrapped = [
        field.name for field in rows.schema if field.name.startswith(f"{REST}acc") and pa.types.is_integer(field.type)
    ]
    for name in ("missing", "processing_time_timers", "side", *wrapped):
        plain = pc.and_(plain, rows[name].is_null())
    return plain.fill_null(False)


def timer_lists(*timers: tuple[Int64s, Bools]) -> pa.Array:
    """Return a list of times for each row, in ascending order; null if none of the row's flags is set."""
    # Most states have the same timers in each row.
    timers = tuple((times, present) for times, present in timers if present.any()) or timers[:1]
    values = np.column_stack([times for times, _ in timers])
    if all(present.all() for _, present in timers):
        offsets = np.arange(len(values) + 1, dtype=np.int32) * np.int32(len(timers))
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.reshape(-1)))
    are_present = np.column_stack([present for _, present in timers])
    sizes = are_present.sum(axis=1, dtype=np.int32)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[are_present]), mask=pa.array(sizes == 0))


def are_lists_equal(lists: pa.ChunkedArray, others: pa.Array) -> Bools:
    """Return a flag for each row: whether both lists of times are equal. Null equals an empty list."""
    of_lists, of_others = (_sizes(part) for part in (lists, others))
    equal: Bools = of_lists == of_others
    if not equal.all():
        lists, others = lists.filter(pa.array(equal)), others.filter(pa.array(equal))
    differ = pc.list_flatten(lists).to_numpy() != pc.list_flatten(others).to_numpy()
    equal[np.repeat(np.flatnonzero(equal), of_lists[equal])[differ]] = False
    return equal


def _sizes(lists: pa.ChunkedArray | pa.Array) -> Int32s:
    return np.asarray(pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False))


def next_firings(rows: pa.Table) -> Int64s:
    """Return the time of each window's next early firing, or the end of time if its state has none."""
    state = rows["trigger_state"].combine_chunks()
    (following,) = state.flatten() if isinstance(state, pa.StructArray) else state.chunk(0).flatten()
    return np.asarray(following.fill_null(MAX_TIMESTAMP).to_numpy(zero_copy_only=False))


def _array_of(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


def _array(table: pa.Table, name: str) -> pa.Array:
    return _array_of(table.column(name))


def millis_of(table: pa.Table, name: str) -> Int64s:
    """Return a column of times as int64 epoch milliseconds; 0 for null."""
    return np.asarray(epoch_millis(_array(table, name)).fill_null(0).to_numpy(zero_copy_only=False))


def _times(millis: Int64s) -> pa.Array:
    return pa.array(millis, pa.int64()).cast(TIME)


def _null_where(missing: Bools, array: pa.Array) -> pa.Array:
    rows = np.arange(len(array))
    return array.take(pa.array(rows, mask=missing))
