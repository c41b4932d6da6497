"""Affected spans: the time spans of a key to recompute, which are single windows or runs of connected sessions.

Every row that was read is in a published window, in an open window, or in the window that a late row would have been
added to. Sessions among them that touch become one session in event order. So these windows alone determine
which spans of a key have to be read, and an affected span contains whole sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.event_columns import FIRST_TIME
from tidegate.pipelines.definition.row_sets import distinct
from tidegate.pipelines.errors import OtherWindows, Refused
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.columnar.key_codes import KeyCodes, encode_keys
from tidegate.windowing.compute import Windows
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.time import show_millis
from tidegate.windowing.timestamps import epoch_millis

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
