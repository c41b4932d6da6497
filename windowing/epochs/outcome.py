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
class EpochOutcome:
    """The results, late elements and state that an epoch produced for a set of keys.

    Times are int64 epoch milliseconds.

    Args:
        panes: a row for each pane and retraction of a window: the key columns as `key_<name>`, `window_id`,
            `window_start`, `window_end` (null for the global window), `pane`, `timing`, `op`, `watermark`, and the
            results as `value_<name>`. It has no columns if the computation has no windows.
        outputs: a row for each result and side output of a process function or join: the key columns as `key_<name>`,
            `timestamp` (null if it came from a processing-time timer), `output` (the tag, null for a result), and the
            results as `value_<name>`. It has no columns if the computation has windows.
        late: a row for each late element: `row` (its index among the elements), `reason`, `watermark`, `window_start`,
            `window_end`.
        state: state rows, sorted by key group.
        counters: counts of the epoch.
        next_timer: smallest watermark at which a timer or a held element is due; None if none is waiting.
        next_processing_time_timer: time of the next processing-time timer; None if there is none.
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

    def with_late_rows(self, rows: Int64s) -> EpochOutcome:
        """Renumber the late elements, for an epoch whose elements are the rows `rows` of a larger set."""
        if not len(self.late):
            return self
        numbers = pa.array(rows[self.late["row"].to_numpy()], pa.int64())
        return replace(self, late=self.late.set_column(0, "row", numbers))


class EpochOperator(Protocol):
    """An operator that computes one epoch at a time, and keeps only state rows between epochs."""

    def run(self, elements: Elements, state: pa.Table, timeline: Timeline) -> EpochOutcome:
        """Return the outcome of an epoch.

        The elements and state rows must be complete for a set of keys. State rows of other keys may be present.
        """


LATE_COLUMNS = pa.schema(
    [("row", pa.int64()), ("reason", pa.string())]
    + [(name, pa.int64()) for name in ("watermark", "window_start", "window_end")]
)
"""Columns of `Outcome.late`."""


def result_table(
    key: KeySchema, keys: Sequence[pa.Array], results: Mapping[str, pa.Array], **columns: pa.Array
) -> pa.Table:
    """Return rows in the format of `Outcome.panes` or `Outcome.outputs`; `columns` are those besides key and value."""
    of_key = {f"{KEY_PREFIX}{name}": column for name, column in zip(key.names, keys, strict=True)}
    of_results = {f"{VALUE_PREFIX}{name}": column for name, column in results.items()}
    return pa.table(of_key | columns | of_results)


@cache
def no_late() -> pa.Table:
    """Return an empty table of late elements. It is created on first use, because creating arrays imports pandas."""
    return LATE_COLUMNS.empty_table()


@cache
def nothing() -> pa.Table:
    """Return a table without columns, in place of the panes or outputs that an operator does not produce."""
    return pa.table({})
