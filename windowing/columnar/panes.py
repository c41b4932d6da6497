"""Panes and withdrawals of many windows as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.columnar.contents import joined, take
from tidegate.windowing.columnar.hashing import window_ids
from tidegate.windowing.columnar.key_codes import KeyCodes
from tidegate.windowing.panes import Timing
from tidegate.windowing.state.rows import emitted_type

TIMINGS = tuple(timing.value for timing in Timing)
EARLY, ON_TIME, LATE = (TIMINGS.index(timing.value) for timing in (Timing.EARLY, Timing.ON_TIME, Timing.LATE))
_OPS = ("+", "-")


@dataclass(frozen=True)
class PaneRows:
    """Panes and withdrawals, one a row.

    Args:
        codes: the key, as a code.
        starts: of the window, int64 epoch milliseconds.
        ends: of the window, not included.
        identities: start and end of what the window was when it first fired.
        panes: number of the pane.
        timings: index into `TIMINGS`.
        withdrawn: 1 for a withdrawal, 0 for a pane.
        watermarks: int64 epoch milliseconds.
        results: one array for each result column.
    """

    codes: Int64s
    starts: Int64s
    ends: Int64s
    identities: tuple[Int64s, Int64s]
    panes: Int64s
    timings: Int64s
    withdrawn: Int64s
    watermarks: Int64s
    results: list[pa.Array]

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def joined(cls, parts: Sequence[PaneRows]) -> PaneRows:
        """Several, one after the other; there is at least one."""
        return cls(
            np.concatenate([part.codes for part in parts]),
            np.concatenate([part.starts for part in parts]),
            np.concatenate([part.ends for part in parts]),
            (
                np.concatenate([part.identities[0] for part in parts]),
                np.concatenate([part.identities[1] for part in parts]),
            ),
            np.concatenate([part.panes for part in parts]),
            np.concatenate([part.timings for part in parts]),
            np.concatenate([part.withdrawn for part in parts]),
            np.concatenate([part.watermarks for part in parts]),
            joined([part.results for part in parts]),
        )

    def some(self, rows: Int64s) -> PaneRows:
        """Some of them."""
        return PaneRows(
            self.codes[rows],
            self.starts[rows],
            self.ends[rows],
            (self.identities[0][rows], self.identities[1][rows]),
            self.panes[rows],
            self.timings[rows],
            self.withdrawn[rows],
            self.watermarks[rows],
            take(self.results, rows),
        )

    def table(self, keys: KeyCodes, result: pa.StructType) -> pa.Table:
        """The rows as `Outcome.panes` has them."""
        columns: dict[str, pa.Array] = {
            f"key_{name}": column for name, column in zip(keys.schema.names, keys.take(self.codes), strict=True)
        }
        columns |= {
            "window_id": pa.array(window_ids(keys.hashes[self.codes], *self.identities)),
            "window_start": pa.array(self.starts),
            "window_end": pa.array(self.ends),
            "pane": pa.array(self.panes.astype(np.int32)),
            "timing": _named(self.timings, TIMINGS),
            "op": _named(self.withdrawn, _OPS),
            "watermark": pa.array(self.watermarks),
        }
        columns |= {f"value_{field.name}": array for field, array in zip(result, self.results, strict=True)}
        return pa.table(columns)

    def emitted(self, result: pa.StructType, present: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
        """The panes as lists of one, for the state row of the window that may have to withdraw it.

        Args:
            result: type of a result row.
            present: for each state row, whether it has the next of these panes; the others are null.
        """
        kind = emitted_type(result)
        values = pa.StructArray.from_arrays(self.results, fields=list(result))
        entries = pa.StructArray.from_arrays(
            [
                pa.array(self.identities[0]),
                pa.array(self.identities[1]),
                pa.array(self.starts),
                pa.array(self.ends),
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
