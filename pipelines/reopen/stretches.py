"""Spans of time to compute again: windows of a key, or stretches of connected sessions of a key.

Every row that was read lies in a published window, in an open window, or in the window that a late row would have gone
to. If such windows of sessions touch, event order makes one session of them. So these windows alone determine the
stretches of a key that have to be read, and a stretch contains whole sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.pipelines.tables.groups import distinct
from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.columnar.key_codes import KeyCodes, encode_keys
from tidegate.windowing.compute import Windows
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.timestamps import epoch_millis

START, END = "\0start", "\0end"
"""Columns of a span beside its key columns: int64 epoch milliseconds, the end exclusive.

A key may have any name, and Delta takes none with a NUL.
"""


def spans_of(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Return the windows of rows as spans: key columns, start and end. Rows without bounds are left out."""
    bounds = {START: epoch_millis(rows["window_start"]), END: epoch_millis(rows["window_end"])}
    return pa.table({**{name: rows[name] for name in key}, **bounds}).filter(bounds[START].is_valid())


def windows_at(windows: Windows, key: KeySchema, rows: pa.Table, times: Int64s, also: tuple[str, ...] = ()) -> pa.Table:
    """Return the windows that rows belong to by their event times, each once, for windows that don't merge.

    Args:
        windows: the windows with their assigner.
        key: the key columns.
        rows: rows with the key columns.
        times: event times of the rows, int64 epoch milliseconds.
        also: further columns of the rows; windows with different values in them are different.
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


@dataclass(frozen=True)
class Islands:
    """Groups of spans of a key that touch; each island is the union of its spans.

    Args:
        keys: keys of the spans.
        codes: key of each island, as a code.
        starts: start of each island, int64 epoch milliseconds.
        ends: end of each island, int64 epoch milliseconds, exclusive.
        of_span: index of the island of each span, in the order of the given spans.
    """

    keys: KeyCodes
    codes: Int64s
    starts: Int64s
    ends: Int64s
    of_span: Int64s

    def table(self, which: Bools | None = None) -> pa.Table:
        """Return the islands as spans: all, or those for which `which` is True."""
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


@dataclass(frozen=True)
class Stretches:
    """Stretches of keys to compute again.

    Args:
        wanted: the stretches, as spans.
        late: for each late row, True if it lies in a stretch.
    """

    wanted: pa.Table
    late: Bools


def session_stretches(
    key: KeySchema,
    late: pa.Table,
    selected: Bools,
    closed: Sequence[pa.Table],
    may_begin: tuple[int, int],
    margin: int = 0,
) -> Stretches:
    """Return the stretches of selected late rows, and the stretches with several sessions that should be one.

    Sessions of a stream may touch without a late row: an element behind the watermark may open a session beside one
    that has passed already.

    Args:
        key: the key columns.
        late: spans of late rows that were not reopened.
        selected: for each late row, True if it is selected.
        closed: spans of published sessions and of open sessions.
        may_begin: smallest and largest start of stretches without a late row.
        margin: largest distance of sessions that may be one, milliseconds. It is above 0 if the gap was shorter when
            they were made.
    """
    published = distinct(pa.concat_tables(closed).select([*key.names, START, END]))
    connected = islands(key, late, published.select(late.column_names), margin=margin)
    count = len(connected.codes)
    asked = np.zeros(count, np.bool_)
    asked[connected.of_span[: len(late)][selected]] = True
    sessions = np.bincount(connected.of_span[len(late) :], minlength=count)
    asked |= (sessions > 1) & (connected.starts >= may_begin[0]) & (connected.starts <= may_begin[1])
    return Stretches(connected.table(asked), asked[connected.of_span[: len(late)]])
