"""What all kernels of the columnar operator share: settings, panes, late elements and output."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.columnar.contents import ColumnarContents
from tidegate.windowing.columnar.hashing import window_ids
from tidegate.windowing.columnar.key_codes import KeyCodes
from tidegate.windowing.columnar.state import CodedRows, StateArrays, are_lists_equal, next_firings, timer_lists
from tidegate.windowing.epochs.arrays import ParallelArrays
from tidegate.windowing.epochs.outcome import LATE_COLUMNS, result_table
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.lateness import are_late, cleanup_times
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.panes import Accumulation, Timing
from tidegate.windowing.state.rows import emitted_type
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis

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

        Each state row with the flag `present` gets the next of these panes; the others get null.
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


@dataclass(frozen=True)
class Rules:
    """Settings of firing, lateness and cleanup.

    Args:
        contents: the aggregates.
        state: reader and writer of state rows.
        lateness: allowed lateness, milliseconds.
        accumulation: relation between the panes of a window.
        purging: True if the trigger purges when it fires.
        retract_merged: True if the panes of extended and absorbed windows are retracted.
        interval: milliseconds between early firings; None if there are none.
        closed_through: see `PanePolicy`.
    """

    contents: ColumnarContents
    state: StateArrays
    lateness: Millis
    accumulation: Accumulation
    purging: bool
    retract_merged: bool
    interval: Millis | None = None
    closed_through: Millis = MIN_TIMESTAMP

    @property
    def empties(self) -> bool:
        """True if a window is empty after it fires."""
        return self.purging or self.accumulation is Accumulation.DISCARDING

    @property
    def retracts(self) -> bool:
        """True if each pane is preceded by the retraction of the previous one."""
        return self.accumulation is Accumulation.RETRACTING

    def due(self, ends: Int64s, timeline: Timeline) -> Bools:
        """Return a flag for each window: whether, within the epoch, it fires at its end or is cleaned up."""
        last = ends - 1
        fires = (last > timeline.initial) & timeline.reaches(last)
        due: Bools = fires | timeline.reaches(self.cleanups(ends))
        return due

    def are_foreign(self, rows: pa.Table, ends: Int64s, filled: Bools, pending: Bools, timeline: Timeline) -> Bools:
        """Return a flag for each window in state: whether other settings wrote it.

        Only the row operator can continue a window of another trigger, allowed lateness or accumulation mode.
        """
        waits = ends - 1 > timeline.initial
        foreign: Bools = filled != (waits | pending | np.bool_(not self.empties))
        foreign |= ~self.has_own_timers(rows, ends, waits)
        return foreign

    def has_own_timers(self, rows: pa.Table, ends: Int64s, waits: Bools) -> Bools:
        """Return a flag for each window in state: whether it has the timers that these rules set."""
        if self.interval is None:
            return are_lists_equal(rows["event_time_timers"], self.timers(ends, waits))
        firings = next_firings(rows)
        equal = are_lists_equal(rows["event_time_timers"], self.timers(ends, waits, firings))
        return equal & ~(waits & (firings >= ends))

    def timers(self, ends: Int64s, waits: Bools, firings: Int64s | None = None) -> pa.Array:
        """Return the timers of windows. Those that wait for their end may also have a next early firing."""
        last, cleanups = ends - 1, self.cleanups(ends)
        early = last if firings is None else firings
        cleaned_later = (cleanups < MAX_TIMESTAMP) & ~(waits & (cleanups == last))
        return timer_lists((early, waits & (early < last)), (last, waits), (cleanups, cleaned_later))

    def is_window_late(self, ends: Int64s, watermarks: Int64s) -> Bools:
        """Return a flag for each window: whether, at its watermark, it accepts elements only if it has state."""
        late: Bools = are_late(ends - 1, self.lateness, watermarks) | (ends - 1 <= self.closed_through)
        return late

    def is_element_late(self, times: Int64s, watermarks: Int64s) -> Bools:
        """Return a flag for each element that no window accepts: whether it is late by its own time."""
        # The rule is that of a window whose last millisecond is the element's time.
        return self.is_window_late(times + 1, watermarks)

    def cleanups(self, ends: Int64s) -> Int64s:
        """Return the time at which each window is cleaned up; see `cleanup_times`."""
        return cleanup_times(ends - 1, self.lateness)


@dataclass(frozen=True, kw_only=True)
class LateRows(ParallelArrays):
    """Indices of late elements, with the watermark that made them late and the bounds of their first window.

    `with_window` is True if the element has a window.
    """

    rows: Int64s
    watermarks: Int64s
    starts: Int64s
    ends: Int64s
    with_window: Bools

    def table(self, reason: str) -> pa.Table:
        """Return the rows in the format of `Outcome.late`."""
        columns = {
            "row": pa.array(self.rows, pa.int64()),
            "reason": pa.repeat(pa.scalar(reason, pa.string()), len(self)),
            "watermark": pa.array(self.watermarks, pa.int64()),
            "window_start": pa.array(self.starts, pa.int64(), mask=~self.with_window),
            "window_end": pa.array(self.ends, pa.int64(), mask=~self.with_window),
        }
        return pa.table(columns, schema=LATE_COLUMNS)


@dataclass
class KernelOutput:
    """The output of a kernel: panes, late elements, state rows and counts."""

    panes: list[PaneRows] = field(default_factory=list)
    late: list[LateRows] = field(default_factory=list)
    state: list[CodedRows] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)


def count(flags: Bools) -> int:
    """Return the number of true flags."""
    return int(np.count_nonzero(flags))
