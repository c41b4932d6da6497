"""What the kernels of the columnar operator share: their settings, what they give, late elements."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.columnar.contents import ColumnarContents
from tidegate.windowing.columnar.panes import PaneRows
from tidegate.windowing.columnar.state import CodedRows, StateArrays
from tidegate.windowing.epochs.arrays import ParallelArrays
from tidegate.windowing.epochs.outcome import late_table
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis


@dataclass(frozen=True)
class Rules:
    """How windows fire and what stays of them.

    Args:
        contents: the aggregates.
        state: the state rows.
        lateness: allowed, milliseconds.
        accumulation: how the panes of a window relate.
        purging: whether the trigger purges when it fires.
        withdraw_merged: whether panes of windows that are extended or absorbed are withdrawn.
        interval: milliseconds between early firings, None if there are none.
        closed_through: see `PanePolicy`.
    """

    contents: ColumnarContents
    state: StateArrays
    lateness: Millis
    accumulation: Accumulation
    purging: bool
    withdraw_merged: bool
    interval: Millis | None = None
    closed_through: Millis = MIN_TIMESTAMP

    @property
    def empties(self) -> bool:
        """Whether a window is empty after it fired."""
        return self.purging or self.accumulation is Accumulation.DISCARDING

    @property
    def retracts(self) -> bool:
        """Whether each pane is preceded by the withdrawal of the one before."""
        return self.accumulation is Accumulation.RETRACTING

    def due(self, ends: Int64s, timeline: Timeline) -> Bools:
        """Whether a window fires or is cleaned at its end, or after it, within an epoch."""
        last = ends - 1
        fires = (last > timeline.initial) & timeline.reaches(last)
        found: Bools = fires | timeline.reaches(self.cleanups(ends))
        return found

    def lacks_contents(self, ends: Int64s, filled: Bools, pending: Bools, timeline: Timeline) -> Bools:
        """Whether a window should hold something and does not: only the row operator knows what to do."""
        waits = (ends - 1 > timeline.initial) | pending
        found: Bools = ~filled & (waits | np.bool_(not self.empties))
        return found

    def have_passed(self, ends: Int64s, watermarks: Int64s) -> Bools:
        """Whether windows that are not in the state take no element at a watermark."""
        found: Bools = (self.cleanups(ends) <= watermarks) | (ends - 1 <= self.closed_through)
        return found

    def cleanups(self, ends: Int64s) -> Int64s:
        """When windows are cleaned; the end of time where that would be later."""
        last = ends - 1
        if self.lateness == 0:
            return last
        if self.lateness >= MAX_TIMESTAMP:
            return np.full(len(ends), MAX_TIMESTAMP)
        return np.where(last > MAX_TIMESTAMP - self.lateness, MAX_TIMESTAMP, last + self.lateness)


@dataclass(frozen=True, kw_only=True)
class LateRows(ParallelArrays):
    """Late elements.

    Args:
        rows: places among the elements.
        watermarks: that they were judged against, int64 epoch milliseconds.
        starts: of the first window of each, int64 epoch milliseconds.
        ends: of that window, not included.
        with_window: whether there is such a window.
    """

    rows: Int64s
    watermarks: Int64s
    starts: Int64s
    ends: Int64s
    with_window: Bools

    def table(self, reason: str) -> pa.Table:
        """Return the rows as `Outcome.late` has them."""
        return late_table(
            row=pa.array(self.rows, pa.int64()),
            reason=pa.repeat(pa.scalar(reason, pa.string()), len(self)),
            watermark=pa.array(self.watermarks, pa.int64()),
            window_start=pa.array(self.starts, pa.int64(), mask=~self.with_window),
            window_end=pa.array(self.ends, pa.int64(), mask=~self.with_window),
        )


@dataclass
class Made:
    """What a kernel made: panes, late elements, state rows and counts."""

    panes: list[PaneRows] = field(default_factory=list)
    late: list[LateRows] = field(default_factory=list)
    state: list[CodedRows] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)


def count(flags: Bools) -> int:
    """How many are true."""
    return int(np.count_nonzero(flags))
