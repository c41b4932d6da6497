"""Conversion of a window operator's state to state rows, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidegate.windowing.aggregates.bound import AggregateColumns
from tidegate.windowing.compute import Windows
from tidegate.windowing.functions import AggregateFunction
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.merging import MergingWindowSet
from tidegate.windowing.operators.window.cleanup import WindowCell
from tidegate.windowing.operators.window.contents import contents_of
from tidegate.windowing.operators.window.contexts import WindowOperatorState
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state.descriptors import Cell, StateDescriptor, without_expired
from tidegate.windowing.state.rows import (
    DISCARDED,
    ELEMENTS,
    KEY,
    REDUCED,
    REST,
    SLICE,
    WINDOW,
    StateRow,
    StateSchema,
)
from tidegate.windowing.timers import Slot
from tidegate.windowing.windows import TimeWindow, Window

_FIRE, _FIRE_AND_PURGE = "fire", "fire_and_purge"


def state_schema(windows: Windows, key: KeySchema, value_type: pa.DataType | None, panes: PanePolicy) -> StateSchema:
    """Return the schema of the state rows of windows."""
    of_trigger, of_windows, of_keys = declared_states(windows)
    result = windows.result_type if panes.keeps_panes(windows.assigner.merges) else None
    return StateSchema(
        key,
        contents_columns(windows, value_type),
        result,
        tuple((state.name, state.arrow_type) for state in of_trigger),
        tuple((state.name, state.arrow_type) for state in (*of_windows, *of_keys)),
        "global_window" if windows.assigner.is_global else "time_window",
        windows.may_lose_data,
    )


def declared_states(windows: Windows) -> tuple[Sequence[StateDescriptor], ...]:
    """Return the declared states of the trigger per window, and of the function per window and per key."""
    function = windows.process
    of_function = ((), ()) if function is None else (function.states(), function.global_states())
    return windows.effective_trigger.states(), *of_function


def contents_columns(windows: Windows, value_type: pa.DataType | None) -> tuple[tuple[str, pa.DataType | None], ...]:
    """Return the name and type of each column that holds a window's contents."""
    if windows.aggregate is not None and windows.evictor is None:
        aggregate = windows.bound_aggregate
        if isinstance(aggregate, AggregateColumns):
            parts = zip(aggregate.names, aggregate.functions, strict=True)
            return _with_rests([(f"acc_{name}", function) for name, function in parts])
        return _with_rests([("acc", aggregate)])
    if windows.reduce is not None and windows.evictor is None:
        return ((REDUCED, value_type),)
    if value_type is None:
        return ((ELEMENTS, None),)
    return ((ELEMENTS, pa.list_(pa.struct([("timestamp", pa.int64()), ("value", value_type)]))),)


def _with_rests(
    functions: Sequence[tuple[str, AggregateFunction]],
) -> tuple[tuple[str, pa.DataType | None], ...]:
    """Return the columns of accumulators, then those of the remainders of accumulators that have one."""
    rests = [(f"{REST}{name}", function.rest_type) for name, function in functions if function.rest_type is not None]
    return (*((name, function.accumulator_type) for name, function in functions), *rests)


def to_rows(operator: WindowOperatorState) -> Iterator[StateRow]:
    """Yield the operator's whole state, a row for each key and namespace."""
    encode = contents_of(operator.windows).encode
    of_trigger, of_windows, of_keys = declared_states(operator.windows)

    def alive(cell: Cell | None, declared: Sequence[StateDescriptor]) -> Cell | None:
        return without_expired(cell, declared, lambda: operator.current_processing_time)

    timers = operator.timers.snapshot()
    for slot in {**operator.cells, **timers}:
        key, window = slot
        cell = operator.cells.get(slot) or WindowCell()
        event_time, processing_time = timers.get(slot) or ([], [])
        yield StateRow(
            key,
            WINDOW,
            window,
            _state_window(operator, slot),
            event_time_timers=event_time,
            processing_time_timers=processing_time,
            contents=None if cell.contents is None else encode(cell.contents),
            missing=None if cell.missing is None else [f"acc_{name}" for name in sorted(cell.missing)],
            pane=cell.pane,
            late_firing=None if cell.late_firing is None else _FIRE_AND_PURGE if cell.late_firing else _FIRE,
            emitted=cell.emitted,
            trigger_state=alive(cell.trigger_state, of_trigger),
            user_state=alive(cell.function_state, of_windows),
            unseen=cell.unseen,
        )
        if cell.discarded is not None:
            yield StateRow(key, DISCARDED, window, contents=encode(cell.discarded))
    for key, state in operator.global_cells.items():
        if kept := alive(state, of_keys):
            yield StateRow(key, KEY, user_state=kept)


def from_rows(operator: WindowOperatorState, rows: Iterable[StateRow]) -> None:
    """Restore state rows into a new operator."""
    decode, fresh = contents_of(operator.windows).decode, _fresh_accumulators(operator.windows)
    in_flight: dict[Any, list[TimeWindow]] = {}
    # The rows may come from code with another trigger or accumulation, whose panes and counts don't matter any more.
    keeps_panes = operator.panes.keeps_panes(operator.merging)
    counts_unseen = operator.windows.may_lose_data
    for row in rows:
        if row.namespace == KEY:
            operator.global_cells[row.key] = dict(row.user_state or {})
            continue
        slot = (row.key, row.window)
        contents = _in_memory(row, decode, fresh)
        if row.namespace == DISCARDED:
            operator.cells.setdefault(slot, WindowCell()).discarded = contents
            continue
        event_time = [time for time in row.event_time_timers if not operator.cleanup.is_left_over(time, slot)]
        kept = (event_time, row.processing_time_timers)
        operator.timers.restore(slot, kept)
        if row.state_window is None:
            continue
        if operator.merging:
            in_flight.setdefault(row.key, []).append(row.window)  # type: ignore[arg-type]
        cell = operator.cells.setdefault(slot, WindowCell())
        cell.contents = contents
        cell.missing = frozenset(name.removeprefix("acc_") for name in row.missing) if row.missing else None
        cell.pane = row.pane
        cell.unseen = row.unseen if counts_unseen else 0
        cell.identity = row.state_window if row.pane else None
        cell.emitted = row.emitted if keeps_panes else None
        cell.trigger_state = row.trigger_state
        cell.function_state = row.user_state
        operator.cleanup.restore(slot, cell, kept)
        if row.late_firing is not None:
            cell.late_firing = row.late_firing == _FIRE_AND_PURGE
            operator.late_firings[slot] = None
    for key, windows in in_flight.items():
        operator.merging_sets[key] = MergingWindowSet(operator.assigner, windows)  # type: ignore[arg-type]


def without_slices(rows: Iterable[StateRow], windows: Windows) -> list[StateRow]:
    """Return state rows with the contents of slices merged into the rows of the open windows that they belong to.

    The size and slide of the windows may have changed since the slices were written.
    """
    kind, fresh = contents_of(windows), _fresh_accumulators(windows)
    others, slices, whole = list[StateRow](), list[StateRow](), dict[Slot, StateRow]()
    for row in rows:
        if row.namespace == SLICE:
            slices.append(row)
        elif row.namespace == WINDOW:
            whole[row.key, row.window] = row
        else:
            others.append(row)
    merged: dict[Slot, Any] = {}
    for row in slices:
        for window in _windows_of(row):
            slot = (row.key, window)
            timers = [window.max_timestamp]
            before = whole.setdefault(slot, StateRow(row.key, WINDOW, window, window, event_time_timers=timers))
            if slot not in merged:
                merged[slot] = _in_memory(before, kind.decode, fresh)
            # A merge may change an accumulator, so each window gets its own copy.
            contents = _in_memory(replace(row, contents=deepcopy(row.contents)), kind.decode, fresh)
            merged[slot] = contents if merged[slot] is None else kind.merge(merged[slot], contents)
            before.missing = sorted({*(before.missing or ()), *(row.missing or ())}) or None
    for slot, contents in merged.items():
        whole[slot].contents = kind.encode(contents)
    return [*others, *whole.values()]


def _windows_of(row: StateRow) -> Iterator[TimeWindow]:
    """Yield the open windows of a slice, as listed in its row (windowing/columnar/slices.py)."""
    first, begin, timers = row.state_window, row.window, row.event_time_timers
    assert isinstance(first, TimeWindow)
    assert isinstance(begin, TimeWindow)
    last, step = (begin.start, timers[1] - timers[0]) if len(timers) > 1 else (first.start, 1)
    for start in range(first.start, last + 1, step):
        yield TimeWindow(start, start + first.end - first.start)


def _in_memory(row: StateRow, decode: Any, fresh: Mapping[str, Callable[[], Any]]) -> Any:
    """Return the contents of a row as accumulators, with new ones for aggregates that were added after the row."""
    contents = None if row.contents is None else decode(row.contents)
    if row.missing and contents is not None:
        for index, name in enumerate(fresh):
            if f"acc_{name}" in row.missing:
                contents[index] = fresh[name]()
    return contents


def _state_window(operator: WindowOperatorState, slot: Slot) -> Window | None:
    """Return the window at its first firing, or the window itself before that, or None if it is not in flight.

    The window of the first element would not do, because rows must not depend on the order of elements.
    """
    if operator.merging:
        merging_set = operator.merging_sets.get(slot[0])
        if merging_set is None or slot[1] not in merging_set:
            return None
    cell = operator.cells.get(slot)
    return None if cell is None else cell.identity or slot[1]


def _fresh_accumulators(windows: Windows) -> dict[str, Callable[[], Any]]:
    """Return the `create_accumulator` of each aggregate by name, for windows older than the aggregate.

    The result of such an aggregate stays null.
    """
    if windows.aggregate is None or not isinstance(windows.bound_aggregate, AggregateColumns):
        return {}
    aggregate = windows.bound_aggregate
    return {
        name: function.create_accumulator for name, function in zip(aggregate.names, aggregate.functions, strict=True)
    }
