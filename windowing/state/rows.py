"""State rows: the state of an operator, one row for each key and namespace, in typed columns.

A snapshot is a table of these rows. Any engine can read it, and after a restore at another parallelism, each subtask
takes the rows of its key groups. Columns may be added, but never renamed or retyped
(docs/decisions/state-format.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from operator import itemgetter
from typing import Any

import pyarrow as pa

from tidegate.windowing.declared import checker, fitting
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.panes import EmittedPane, Timing
from tidegate.windowing.time import Millis
from tidegate.windowing.timestamps import MILLISECONDS, epoch_millis
from tidegate.windowing.windows import GLOBAL_WINDOW, TimeWindow, Window, start_and_end

TIME = MILLISECONDS

WINDOW = "window"
"""Namespace of windows. Null bounds stand for the global window."""
SLICE = "slice"
"""Namespace of window slices: parts of open windows that overlap (windowing/columnar/slices.py)."""
DISCARDED = "discarded"
"""Namespace of contents that were discarded in discarding mode and that a retraction may restore."""
KEY = "key"
"""Namespace of state that belongs to a key alone: keyed process functions, and state over all windows."""
REST = "rest_"
"""Prefix that, before the name of a contents column, names the column of its remainders. Null means no remainder."""
BUCKET = "bucket"
"""Namespace of an interval join's buffers; `window_start` is the elements' timestamp."""

ELEMENTS, REDUCED = "elements", "reduced"
"""Contents columns of windows that keep all elements, and of windows that reduce them to one."""

KEPT_WHOLE = (ELEMENTS, REDUCED, "left", "right")
"""Contents columns whose values are elements with all columns of a source; the last two are those of joins."""

HELD = "held"
"""Contents column with the times of elements that wait for the watermark. Their other columns start with `held_`."""


_OF_SOME = frozenset({"emitted", "trigger_state", "user_state", "unseen_elements"})
"""Columns that exist only in the state of some configurations."""


@dataclass(slots=True)
class StateRow:
    """State of one key and namespace.

    `contents` has a value for each contents column, or is None if the window has no contents. `state_window` identifies
    the window: it is the window at its first firing, and before that the window itself. It is None for a window that is
    no longer in flight but still has timers.
    """

    key: Any
    namespace: str
    window: Window | None = None
    state_window: Window | None = None
    side: str | None = None
    event_time_timers: list[Millis] = field(default_factory=list)
    processing_time_timers: list[Millis] = field(default_factory=list)
    contents: Sequence[Any] | None = None
    missing: list[str] | None = None
    pane: int = 0
    late_firing: str | None = None
    emitted: list[EmittedPane] | None = None
    trigger_state: dict[str, Any] | None = None
    user_state: dict[str, Any] | None = None
    unseen: int = 0


@dataclass(frozen=True)
class StateSchema:
    """Columns of an operator's state rows. A type of None is inferred from the values.

    Args:
        key: names and types of the key columns.
        contents: name and type of each contents column.
        result: type of a result if panes may have to be retracted, else None.
        trigger_state: name and type of each state that the trigger declares.
        user_state: name and type of each state that user functions declare.
        namespace: kind of the rows: time_window, global_window, key or bucket.
        counts_unseen: True if rows count the elements of their windows that no pane has shown yet.
    """

    key: KeySchema
    contents: tuple[tuple[str, pa.DataType | None], ...] = ()
    result: pa.DataType | None = None
    trigger_state: tuple[tuple[str, pa.DataType], ...] = ()
    user_state: tuple[tuple[str, pa.DataType], ...] = ()
    namespace: str = "time_window"
    counts_unseen: bool = False

    @cached_property
    def columns(self) -> pa.Schema:
        """Names and types of the columns of the rows."""
        return self.to_table([], 1).schema

    def to_table(self, rows: Iterable[StateRow], max_parallelism: int) -> pa.Table:
        """Return rows as a table, sorted by key group."""
        keyed = [(self.key.key_group_of(row.key, max_parallelism), row) for row in rows]
        keyed.sort(key=itemgetter(0))
        ordered = [row for _, row in keyed]
        columns: dict[str, pa.Array] = {"key_group": pa.array([group for group, _ in keyed], pa.int32())}
        columns |= self._key_columns(ordered)
        columns["namespace"] = pa.array([row.namespace for row in ordered], pa.string())
        columns["side"] = pa.array([row.side for row in ordered], pa.string())
        columns |= _bounds("window", [row.window for row in ordered])
        columns |= _bounds("state_window", [row.state_window for row in ordered])
        columns["in_flight"] = pa.array([row.state_window is not None for row in ordered], pa.bool_())
        columns["event_time_timers"] = _timers(row.event_time_timers for row in ordered)
        columns["processing_time_timers"] = _timers(row.processing_time_timers for row in ordered)
        columns |= self._contents_columns([row.contents for row in ordered])
        columns["missing"] = pa.array([row.missing for row in ordered], pa.list_(pa.string()))
        columns["pane"] = pa.array([row.pane for row in ordered], pa.int32())
        columns["late_firing"] = pa.array([row.late_firing for row in ordered], pa.string())
        columns |= self._columns_of_some(ordered)
        return pa.table(columns)

    def from_table(self, table: pa.Table) -> Iterator[StateRow]:
        """Yield the rows of a table."""
        # A key may have the name of a state column of another configuration.
        lacks = {name: None for name in self.key.names if name in _OF_SOME}
        for prefix in ("window", "state_window"):
            for bound in ("start", "end"):
                index = table.schema.get_field_index(f"{prefix}_{bound}")
                table = table.set_column(index, f"{prefix}_{bound}", epoch_millis(table.column(index)))
        for batch in table.to_batches(max_chunksize=65536):
            for raw in batch.to_pylist(maps_as_pydicts="strict"):
                key = self.key.key_of([raw[name] for name in self.key.names])
                raw.update(lacks)
                yield StateRow(
                    key=key,
                    namespace=raw["namespace"],
                    side=raw["side"],
                    window=None if raw["namespace"] == KEY else _window(raw, "window"),
                    state_window=_window(raw, "state_window") if raw["in_flight"] else None,
                    event_time_timers=raw["event_time_timers"] or [],
                    processing_time_timers=raw["processing_time_timers"] or [],
                    contents=[_as_declared(raw[name], kind) for name, kind in self.contents] if raw["filled"] else None,
                    missing=raw["missing"],
                    pane=raw["pane"],
                    late_firing=raw["late_firing"],
                    emitted=_panes(raw.get("emitted")),
                    trigger_state=_cell(raw.get("trigger_state"), self.trigger_state),
                    user_state=_cell(raw.get("user_state"), self.user_state),
                    unseen=raw.get("unseen_elements") or 0,
                )

    def _key_columns(self, rows: Sequence[StateRow]) -> dict[str, pa.Array]:
        keys = [self.key.columns_of(row.key) for row in rows]
        named = enumerate(zip(self.key.names, self.key.types, strict=True))
        return {name: pa.array([key[i] for key in keys], kind) for i, (name, kind) in named}

    def _contents_columns(self, contents: Sequence[Sequence[Any] | None]) -> dict[str, pa.Array]:
        columns = {"filled": pa.array([values is not None for values in contents], pa.bool_())}
        for i, (name, kind) in enumerate(self.contents):
            columns[name] = pa.array([None if values is None else values[i] for values in contents], kind)
        return columns

    def _columns_of_some(self, rows: Sequence[StateRow]) -> dict[str, pa.Array]:
        """Return the columns that only the state of some configurations has."""
        columns = {}
        if self.result is not None or any(row.emitted for row in rows):
            columns["emitted"] = self._emitted([row.emitted for row in rows])
        # A struct without fields can't be stored, so the table has these columns only if states are declared.
        if self.trigger_state:
            columns["trigger_state"] = _cells([row.trigger_state for row in rows], self.trigger_state)
        if self.user_state:
            columns["user_state"] = _cells([row.user_state for row in rows], self.user_state)
        if self.counts_unseen:
            columns["unseen_elements"] = pa.array([row.unseen for row in rows], pa.int64())
        return columns

    def _emitted(self, panes: list[list[EmittedPane] | None]) -> pa.Array:
        raw = [
            None
            if not emitted
            else [
                {
                    "state_window_start": start_and_end(pane.identity)[0],
                    "state_window_end": start_and_end(pane.identity)[1],
                    "window_start": start_and_end(pane.window)[0],
                    "window_end": start_and_end(pane.window)[1],
                    "pane": pane.pane,
                    "timing": pane.timing.value,
                    "value": pane.value,
                }
                for pane in emitted
            ]
            for emitted in panes
        ]
        result = self.result
        if result is None:
            values = [pane["value"] for emitted in raw if emitted for pane in emitted]
            result = pa.array(values).type
        return pa.array(raw, emitted_type(result))


def emitted_type(result: pa.DataType) -> pa.DataType:
    """Return the type of the column that holds the panes that may have to be retracted."""
    bounds = ("state_window_start", "state_window_end", "window_start", "window_end")
    return pa.list_(
        pa.struct(
            [(name, pa.int64()) for name in bounds] + [("pane", pa.int32()), ("timing", pa.string()), ("value", result)]
        )
    )


def _bounds(prefix: str, windows: Sequence[Window | None]) -> dict[str, pa.Array]:
    """Return the columns with the starts and ends of windows."""
    bounds = [start_and_end(window) for window in windows]
    return {
        f"{prefix}_{name}": pa.array([bound[i] for bound in bounds], pa.int64()).cast(TIME)
        for i, name in enumerate(("start", "end"))
    }


def _window(raw: dict[str, Any], prefix: str) -> Window:
    start, end = raw[f"{prefix}_start"], raw[f"{prefix}_end"]
    return GLOBAL_WINDOW if start is None else TimeWindow(start, end)


def _timers(timers: Iterable[list[Millis]]) -> pa.Array:
    return pa.array([sorted(times) or None for times in timers], pa.list_(pa.int64()))


def _panes(raw: list[dict[str, Any]] | None) -> list[EmittedPane] | None:
    if not raw:
        return None
    return [
        EmittedPane(
            _window(pane, "state_window"), _window(pane, "window"), pane["pane"], Timing(pane["timing"]), pane["value"]
        )
        for pane in raw
    ]


def _cells(cells: list[dict[str, Any] | None], declared: Sequence[tuple[str, pa.DataType]]) -> pa.Array:
    # User code may have modified a list, dict or struct after storing it.
    nested = [(name, checker(kind, f"state {name!r}", None)) for name, kind in declared if pa.types.is_nested(kind)]
    if nested:
        cells = [cell and {**cell, **{name: fit(cell.get(name)) for name, fit in nested}} for cell in cells]
    return pa.array([cell or None for cell in cells], pa.struct(list(declared)))


def _cell(raw: dict[str, Any] | None, declared: Sequence[tuple[str, pa.DataType]]) -> dict[str, Any] | None:
    """Return the declared states of a cell that are not empty. States that the code no longer declares are left out."""
    if raw is None:
        return None
    return {name: _as_declared(raw[name], kind) for name, kind in declared if raw.get(name) is not None} or None


def _as_declared(value: Any, kind: pa.DataType | None) -> Any:
    """Return a value from a table with its timestamps in their declared zones. The table keeps them in UTC."""
    return fitting(value, kind, "value") if kind is not None and _has_zone(kind) else value


@cache
def _has_zone(kind: pa.DataType) -> bool:
    """Return True if a type holds timestamps that Arrow or Delta would return from a snapshot as another value."""
    if kind.num_fields:
        return any(_has_zone(kind.field(index).type) for index in range(kind.num_fields))
    return pa.types.is_timestamp(kind) and (kind.unit == "ns" or kind.tz not in (None, "UTC"))
