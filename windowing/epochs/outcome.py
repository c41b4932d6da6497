"""The outcome of an epoch as tables, and the interface of every epoch operator."""

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
    """The results, late elements and state that an epoch produced for a set of keys.

    Times are int64 epoch milliseconds.

    Args:
        panes: a row for each pane and retraction of a window: the key columns as `key_<name>`, `window_id`,
            `window_start`, `window_end` (null for the global window), `pane`, `timing`, `op`, `watermark`, the results
            as `value_<name>`. Without columns if the computation has no windows.
        outputs: a row for each result and side output of a process function or join: the key columns as `key_<name>`,
            `timestamp` (null if it came from a processing-time timer), `output` (the tag, null for a result), the
            results as `value_<name>`. Without columns if the computation has windows.
        late: a row for each late element: `row` (its index among the elements), `reason`, `watermark`, `window_start`,
            `window_end`.
        state: state rows, sorted by key group.
        counters: counts of the epoch.
        next_timer: smallest watermark at which a timer or a held element is due, None if none is waiting.
        next_processing_time_timer: time of the next processing-time timer, None if there is none.
        rows_by_row: number of elements that the row operator processed.
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
        """Return the outcome with late elements renumbered: the epoch's elements are `rows` of a larger set."""
        if not len(self.late):
            return self
        numbers = pa.array(rows[self.late["row"].to_numpy()], pa.int64())
        return replace(self, late=self.late.set_column(0, "row", numbers))


class EpochOperator(Protocol):
    """An operator that computes one epoch at a time, and keeps only state rows between epochs."""

    def run(self, elements: Elements, state: pa.Table, timeline: Timeline) -> Outcome:
        """Return the outcome of an epoch.

        Elements and state rows are all of a set of keys; there may be state rows of others.
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
    """Return rows in the format of `Outcome.panes`."""
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
    """Return rows in the format of `Outcome.outputs`."""
    columns = {"timestamp": timestamp, "output": output}
    return pa.table(key_columns(key, keys) | columns | result_columns(results))


def late_table(
    *, row: pa.Array, reason: pa.Array, watermark: pa.Array, window_start: pa.Array, window_end: pa.Array
) -> pa.Table:
    """Return rows in the format of `Outcome.late`."""
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
    """Return an empty table of late elements. It is created on first use, because creating arrays imports pandas."""
    columns = [("row", pa.int64()), ("reason", pa.string())]
    times = [(name, pa.int64()) for name in ("watermark", "window_start", "window_end")]
    return pa.schema([*columns, *times]).empty_table()


@cache
def nothing() -> pa.Table:
    """Return a table without columns, for the panes or outputs that an operator does not produce."""
    return pa.table({})
