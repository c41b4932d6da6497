"""What has to be computed again: windows of a key, or for sessions the stretches of time in which they are connected.

Every row that was read lies in a window that was published, in one that is open, or in one that a late
row would have gone to. Where such windows touch, event order has one session; so these windows alone
tell which stretches of a key are to be read, and a stretch holds whole sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.columnar.key_codes import KeyCodes, encode_keys
from tidegate.windowing.compute import Windows
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.timestamps import epoch_millis

START, END = "__start", "__end"
"""Columns of a span of a key beside the key columns: int64 epoch milliseconds, the end not included."""


def spans_of(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The windows of rows: key columns, start and end. Rows without bounds have none."""
    bounds = {START: epoch_millis(rows["window_start"]), END: epoch_millis(rows["window_end"])}
    return pa.table({**{name: rows[name] for name in key}, **bounds}).filter(bounds[START].is_valid())


def windows_at(windows: Windows, key: KeySchema, rows: pa.Table, times: Int64s, also: tuple[str, ...] = ()) -> pa.Table:
    """The windows that rows of given event times belong to, each once, for windows that don't merge.

    Args:
        windows: with the assigner.
        key: the key columns.
        rows: with these columns.
        times: of the rows, int64 epoch milliseconds.
        also: further columns to tell windows apart by.
    """
    assign = windows.assigner.array_assignment
    if assign is None:
        raise IllegalArgument("compute.assigner", windows.assigner, "give one that assigns by event time alone")
    assigned = assign(times)
    names = [*key.names, *also]
    keys = rows.select(names).take(pa.array(assigned.rows))
    spans = {START: pa.array(assigned.starts, pa.int64()), END: pa.array(assigned.ends, pa.int64())}
    found = pa.table({**{name: keys[name] for name in names}, **spans})
    return found.group_by(found.column_names, use_threads=False).aggregate([])


@dataclass(frozen=True)
class Islands:
    """Spans that touch, put together by key.

    Args:
        keys: of the spans.
        codes: the key of each island, as a code.
        starts: int64 epoch milliseconds.
        ends: not included.
        of_span: the island of each span, in the order in which spans were given.
    """

    keys: KeyCodes
    codes: Int64s
    starts: Int64s
    ends: Int64s
    of_span: Int64s

    def table(self, which: Bools | None = None) -> pa.Table:
        """Some of them (all) as spans."""
        chosen = np.arange(len(self.codes)) if which is None else np.flatnonzero(which)
        columns = dict(zip(self.keys.schema.names, self.keys.take(self.codes[chosen]), strict=True))
        return pa.table({**columns, START: pa.array(self.starts[chosen]), END: pa.array(self.ends[chosen])})


def islands(key: KeySchema, *parts: pa.Table, margin: int = 0) -> Islands:
    """Put spans together that touch: `start <= end + margin` of one before, as sessions do where there is none."""
    keys = encode_keys(key, *(({name: part[name] for name in key.names}, len(part)) for part in parts))
    codes = np.concatenate(keys.codes)
    starts, ends = (
        np.concatenate([np.asarray(part[name].to_numpy(), np.int64) for part in parts]) for name in (START, END)
    )
    order = np.lexsort((ends, starts, codes))
    code, start, end = codes[order], starts[order], ends[order]
    # The running maximum within a key: ranks are small enough to carry the key along.
    known, rank = np.unique(end, return_inverse=True)
    reached = known[np.maximum.accumulate(code * len(known) + rank) - code * len(known)] if len(known) else end
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
        wanted: as spans.
        late: which late rows lie in them.
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
    """The stretches of selected late rows, and those where sessions lie that should be one.

    Sessions of a stream may touch without a late row: an element behind the watermark opens one over
    another that has passed.

    Args:
        key: the key columns.
        late: spans of late rows that were not reopened.
        selected: which of them are meant.
        closed: spans of published and of open sessions.
        may_begin: smallest and largest start of stretches without a late row.
        margin: milliseconds by which sessions may be apart and yet be one: those of a shorter gap than today's.
    """
    windows = pa.concat_tables(closed).group_by([*key.names, START, END], use_threads=False).aggregate([])
    found = islands(key, late, windows.select(late.column_names), margin=margin)
    count = len(found.codes)
    asked = np.zeros(count, np.bool_)
    asked[found.of_span[: len(late)][selected]] = True
    sessions = np.bincount(found.of_span[len(late) :], minlength=count)
    asked |= (sessions > 1) & (found.starts >= may_begin[0]) & (found.starts <= may_begin[1])
    return Stretches(found.table(asked), asked[found.of_span[: len(late)]])
