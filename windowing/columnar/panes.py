"""Panes and retractions of many windows as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.columnar.hashing import window_ids
from tidegate.windowing.columnar.key_codes import KeyCodes
from tidegate.windowing.epochs.arrays import ParallelArrays
from tidegate.windowing.epochs.outcome import result_table
from tidegate.windowing.panes import Timing
from tidegate.windowing.state.rows import emitted_type

TIMINGS = tuple(timing.value for timing in Timing)
EARLY, ON_TIME, LATE = (TIMINGS.index(timing.value) for timing in (Timing.EARLY, Timing.ON_TIME, Timing.LATE))
_OPS = ("+", "-")


@dataclass(frozen=True, kw_only=True)
class PaneRows(ParallelArrays):
    """Panes and retractions, one per row, with an array for each result column.

    A timing is an index into `TIMINGS`. `is_retraction` is 1 or 0.
    """

    codes: Int64s
    starts: Int64s
    ends: Int64s
    panes: Int64s
    timings: Int64s
    is_retraction: Int64s
    watermarks: Int64s
    results: list[pa.Array]

    def table(self, keys: KeyCodes, result: pa.StructType) -> pa.Table:
        """Return the rows in the format of `Outcome.panes`."""
        return result_table(
            keys.schema,
            keys.take(self.codes),
            dict(zip(result.names, self.results, strict=True)),
            window_id=pa.array(window_ids(keys.hashes[self.codes], self.starts, self.ends)),
            window_start=pa.array(self.starts),
            window_end=pa.array(self.ends),
            pane=pa.array(self.panes.astype(np.int32)),
            timing=_named(self.timings, TIMINGS),
            op=_named(self.is_retraction, _OPS),
            watermark=pa.array(self.watermarks),
        )

    def emitted(self, result: pa.StructType, present: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
        """Return the panes as lists of one pane, for the state rows of windows that may retract them.

        Each state row with the flag `present` gets the next of these panes, the others get null.
        """
        kind = emitted_type(result)
        values = pa.StructArray.from_arrays(self.results, fields=list(result))
        entries = pa.StructArray.from_arrays(
            [
                *(pa.array(self.starts), pa.array(self.ends)) * 2,
                pa.array(self.panes.astype(np.int32)),
                _named(self.timings, TIMINGS),
                values,
            ],
            fields=list(kind.value_type),
        )
        offsets = np.zeros(len(present) + 1, np.int32)
        np.cumsum(present, out=offsets[1:])
        return pa.ListArray.from_arrays(pa.array(offsets), entries, type=kind, mask=pa.array(~present))


def _named(indices: Int64s, names: tuple[str, ...]) -> pa.Array:
    if len(indices) and (indices == indices[0]).all():
        return pa.repeat(names[indices[0]], len(indices))
    return pa.DictionaryArray.from_arrays(pa.array(indices.astype(np.int8)), pa.array(names)).dictionary_decode()
