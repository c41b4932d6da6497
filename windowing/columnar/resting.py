"""State rows that rest: the epoch passes them on unchanged.

Most epochs change few of the windows in state, so the cost of an epoch should not grow with all of them. A window
rests if no element has its key and no timer or firing of it is due. Windows merge only through elements, so the
other windows of its key can't change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates.vectorised import Bools
from tidegate.windowing.columnar.kernel import Rules
from tidegate.windowing.columnar.state import is_plain, millis_of
from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.keys import KeySchema


def resting_rows(state: pa.Table, key: KeySchema, elements: Elements, rules: Rules, timeline: Timeline) -> Bools | None:
    """Return a flag for each state row: it rests. Return None if the search costs more than it saves.

    Args:
        state: all state rows.
        key: names and types of the key columns.
        elements: elements of the epoch.
        rules: settings of firing and cleanup.
        timeline: watermarks and clocks of the epoch.
    """
    # Early firings by interval have timers of their own.
    if len(state) <= len(elements) or rules.interval is not None:
        return None
    ends = millis_of(state, "window_end")
    filled, pending = _array(state["filled"].fill_null(False)), _array(state["late_firing"].is_valid())
    # If one state row of a key needs the row operator, all rows of that key go to it.
    odd = ~_array(is_plain(state)) | rules.lacks_contents(ends, filled, pending, timeline)
    rests: Bools = ~odd & ~pending & ~rules.due(ends, timeline)
    if len(elements) or odd.any():
        rests &= ~_has_keys(state, key, elements.keys, odd)
    return rests if np.count_nonzero(rests) * 2 > len(rests) else None


def _has_keys(state: pa.Table, key: KeySchema, columns: Mapping[str, pa.Array], odd: Bools) -> Bools:
    """Return a flag for each state row: an element or an odd row has its key.

    Each key column is compared by itself, so the flag of a few other keys may be set too.
    """
    matches: Bools = np.ones(len(state), np.bool_)
    for name, kind in zip(key.names, key.types, strict=True):
        column = state[name].cast(kind)
        values = _values([columns[name], column.filter(pa.array(odd))], kind)
        matches &= _array(pc.is_in(column, value_set=values))
    return matches


def _values(columns: Sequence[pa.Array | pa.ChunkedArray], kind: pa.DataType) -> pa.Array:
    """Return the distinct values of key columns, with all values of their dictionaries."""
    chunks = [
        chunk for column in columns for chunk in (column.chunks if isinstance(column, pa.ChunkedArray) else [column])
    ]
    values = [chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk for chunk in chunks]
    nulls = pa.nulls(int(any(column.null_count for column in columns)), kind)
    return pc.unique(pa.concat_arrays([nulls, *(part.cast(kind) for part in values)]))


def _array(column: pa.ChunkedArray) -> Bools:
    return np.asarray(column.to_numpy())
