"""The state rows that an epoch leaves as they are: found before anything is made of them.

Few of many windows change in most epochs, and what an epoch costs should not be what all of them weigh. A
window rests where no element has its key and nothing of it becomes due: without an element windows of a key don't meet.
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
    """Which state rows rest; None where looking costs more than it saves.

    Args:
        state: state rows.
        key: names and types of the key columns.
        elements: of the epoch.
        rules: how windows fire.
        timeline: how the watermark moves.
    """
    # Early firings by interval have timers of their own.
    if len(state) <= len(elements) or rules.interval is not None:
        return None
    ends = millis_of(state, "window_end")
    filled, pending = _array(state["filled"].fill_null(False)), _array(state["late_firing"].is_valid())
    # Of the keys of what only the row operator knows it has to know all.
    odd = ~_array(is_plain(state)) | rules.lacks_contents(ends, filled, pending, timeline)
    rests: Bools = ~odd & ~pending & ~rules.due(ends, timeline)
    if len(elements) or odd.any():
        rests &= ~_has_keys(state, key, elements.keys, odd)
    return rests if np.count_nonzero(rests) * 2 > len(rests) else None


def _has_keys(state: pa.Table, key: KeySchema, columns: Mapping[str, pa.Array], odd: Bools) -> Bools:
    """Whether elements, or odd rows, have a row's key; of several columns each by itself, so a few others are too."""
    found: Bools = np.ones(len(state), np.bool_)
    for name, kind in zip(key.names, key.types, strict=True):
        known = state[name].cast(kind)
        values = _values([columns[name], known.filter(pa.array(odd))], kind)
        found &= _array(pc.is_in(known, value_set=values))
    return found


def _values(columns: Sequence[pa.Array | pa.ChunkedArray], kind: pa.DataType) -> pa.Array:
    """The values of key columns, each once; of dictionaries all that they hold."""
    chunks = [
        chunk for column in columns for chunk in (column.chunks if isinstance(column, pa.ChunkedArray) else [column])
    ]
    values = [chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk for chunk in chunks]
    nulls = pa.nulls(int(any(column.null_count for column in columns)), kind)
    return pc.unique(pa.concat_arrays([nulls, *(part.cast(kind) for part in values)]))


def _array(column: pa.ChunkedArray) -> Bools:
    return np.asarray(column.to_numpy())
