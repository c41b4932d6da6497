"""Settings, output and late elements, which both kernels of the columnar operator share."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.columnar.contents import ColumnarContents
from tidegate.windowing.columnar.panes import PaneRows
from tidegate.windowing.columnar.state import CodedRows, StateArrays
from tidegate.windowing.epochs.arrays import ParallelArrays
from tidegate.windowing.epochs.outcome import LATE_COLUMNS
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis


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
        interval: milliseconds between early firings, None if there are none.
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
        """Return a flag for each window: whether it fires at its end, or is cleaned up, within the epoch."""
        last = ends - 1
        fires = (last > timeline.initial) & timeline.reaches(last)
        due: Bools = fires | timeline.reaches(self.cleanups(ends))
        return due

    def lacks_contents(self, ends: Int64s, filled: Bools, pending: Bools, timeline: Timeline) -> Bools:
        """Return a flag for each window: whether it is empty but should have contents; the row operator handles it."""
        waits = (ends - 1 > timeline.initial) | pending
        lacking: Bools = ~filled & (waits | np.bool_(not self.empties))
        return lacking

    def is_window_late(self, ends: Int64s, watermarks: Int64s) -> Bools:
        """Return a flag for each window: whether at the watermark it accepts no element, unless it has state."""
        late: Bools = (self.cleanups(ends) <= watermarks) | (ends - 1 <= self.closed_through)
        return late

    def is_element_late(self, times: Int64s, watermarks: Int64s) -> Bools:
        """Return a flag for each element that no window accepts: whether it is late by its own time."""
        # It is judged as a window would be whose last millisecond is its time.
        return self.is_window_late(times + 1, watermarks)

    def cleanups(self, ends: Int64s) -> Int64s:
        """Return the time at which each window is cleaned up, at most the end of time."""
        return cleanup_times(ends - 1, self.lateness)


def cleanup_times(lasts: Int64s, lateness: Millis) -> Int64s:
    """Return the time at which each window is cleaned up, at most the end of time."""
    if lateness == 0:
        return lasts
    if lateness >= MAX_TIMESTAMP:
        return np.full(len(lasts), MAX_TIMESTAMP)
    if not len(lasts) or int(lasts.max()) <= MAX_TIMESTAMP - lateness:
        return lasts + lateness
    return np.where(lasts > MAX_TIMESTAMP - lateness, MAX_TIMESTAMP, lasts + lateness)


@dataclass(frozen=True, kw_only=True)
class LateRows(ParallelArrays):
    """Late elements by their index, with the watermark that made them late and the bounds of their first window.

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
