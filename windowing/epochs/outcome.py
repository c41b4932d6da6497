"""The outcome of an epoch, as tables; and the one interface that every operator has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.epochs.elements import KEY_PREFIX, VALUE_PREFIX, Elements
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.time import Millis


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Everything that an epoch made of some keys. Times are int64 epoch milliseconds.

    Args:
        panes: a row for each pane and retraction of a window: the key columns as `key_<name>`, `window_id`,
            `window_start`, `window_end` (null for the global window), `pane`, `timing`, `op`, `watermark`, the
            results as `value_<name>`. Without columns where no windows are computed.
        outputs: a row for each result and side output of a process function or join: the key columns as
            `key_<name>`, `timestamp` (null where a timer in processing time made it), `output` (the tag, null for a
            result), the results as `value_<name>`. Without columns where windows are computed.
        late: a row for each late element: its `row` among the elements, `reason`, `watermark`,
            `window_start`, `window_end`.
        state: state rows, sorted by key group.
        counters: what was counted.
        next_timer: the watermark at which something happens next, None if nothing waits for one.
        next_processing_time_timer: when the next timer in processing time is due, None if there is none.
        rows_by_row: how many of the elements went one by one.
    """

    panes: pa.Table
    outputs: pa.Table
    late: pa.Table
    state: pa.Table
    counters: Counters
    next_timer: Millis | None
    next_processing_time_timer: Millis | None = None
    rows_by_row: int = 0

    def with_late_rows(self, rows: Int64s) -> Outcome:
        """Return the same outcome of elements that are `rows` of others, which the late ones then number."""
        if not len(self.late):
            return self
        numbers = pa.array(rows[self.late["row"].to_numpy()], pa.int64())
        return replace(self, late=self.late.set_column(0, "row", numbers))


class EpochOperator(Protocol):
    """An operator that takes an epoch at a time, and remembers nothing between epochs but state rows."""

    def run(self, elements: Elements, state: pa.Table, timeline: Timeline) -> Outcome:
        """Take in the elements of an epoch and the state rows before it.

        Args:
            elements: all elements of some keys.
            state: all state rows of these keys, and of any others.
            timeline: how watermark and clock move.
        """


def pane_table(
    key: KeySchema,
    keys: Sequence[pa.Array],
    *,
    window_id: pa.Array,
    window_start: pa.Array,
    window_end: pa.Array,
    pane: pa.Array,
    timing: pa.Array,
    op: pa.Array,
    watermark: pa.Array,
    results: Mapping[str, pa.Array],
) -> pa.Table:
    """Return rows as `Outcome.panes` has them."""
    columns = {
        "window_id": window_id,
        "window_start": window_start,
        "window_end": window_end,
        "pane": pane,
        "timing": timing,
        "op": op,
        "watermark": watermark,
    }
    return pa.table(key_columns(key, keys) | columns | result_columns(results))


def output_table(
    key: KeySchema, keys: Sequence[pa.Array], *, timestamp: pa.Array, output: pa.Array, results: Mapping[str, pa.Array]
) -> pa.Table:
    """Return rows as `Outcome.outputs` has them."""
    columns = {"timestamp": timestamp, "output": output}
    return pa.table(key_columns(key, keys) | columns | result_columns(results))


def late_table(
    *, row: pa.Array, reason: pa.Array, watermark: pa.Array, window_start: pa.Array, window_end: pa.Array
) -> pa.Table:
    """Return rows as `Outcome.late` has them."""
    return pa.table(
        {
            "row": row,
            "reason": reason,
            "watermark": watermark,
            "window_start": window_start,
            "window_end": window_end,
        }
    )


def key_columns(key: KeySchema, keys: Sequence[pa.Array]) -> dict[str, pa.Array]:
    """Return the key columns of a table of an outcome, by name."""
    return {f"{KEY_PREFIX}{name}": column for name, column in zip(key.names, keys, strict=True)}


def result_columns(results: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Return the columns of results in a table of an outcome, by name."""
    return {f"{VALUE_PREFIX}{name}": column for name, column in results.items()}


@cache
def no_late() -> pa.Table:
    """Return the late elements of an epoch that has none. Made when asked for: making an array imports pandas."""
    columns = [("row", pa.int64()), ("reason", pa.string())]
    times = [(name, pa.int64()) for name in ("watermark", "window_start", "window_end")]
    return pa.schema([*columns, *times]).empty_table()


@cache
def nothing() -> pa.Table:
    """Return a table without columns: what an outcome has of what its operator does not make."""
    return pa.table({})
