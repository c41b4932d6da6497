"""What settings of lateness would have done to the rows of a source: late rows, wrong windows, waits.

A window is wrong at first if one of its rows arrives after the watermark has passed its end: its first result lacks the
row. Sessions are counted as all their rows, late ones included, form them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.observe.inspect.arrivals import Arrivals, Arrived, Int64s, Watermarks
from tidegate.pipelines.observe.inspect.row_windows import Grouped, Ordered, aligned, later, sessions
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.columnar.order import begins
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks import WatermarkStrategy
from tidegate.windowing.window_join import WindowJoin

NEVER = -(1 << 62)
"""Distance of a row that came before the first watermark, so that it is late under no setting."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings that decide which rows are late, milliseconds.

    Args:
        bound: bound on out-of-orderness; None keeps the pipeline's watermark generator.
        lateness: allowed lateness; None if nothing is ever late.
        idleness: time without a commit after which a source partition is idle; None if it never is.
        gap: gap of sessions; None for other windows, or if a column has the gaps.
    """

    bound: Millis | None
    lateness: Millis | None
    idleness: Millis | None
    gap: Millis | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What a setting would have done to the rows of a source.

    Args:
        late: number of late rows by source partition.
        windows: number of windows of all keys.
        wrong: number of windows whose first result would have lacked a row.
        open_most: largest number of windows open after any commit.
        open_now: number of windows open after the last commit.
        waits: quantiles (0.5 and 0.99) over the windows: how far event time was past the end of a window when it fired,
            milliseconds; None if none fired.
        waits_by_clock: the same in commit times, from the commit that first reached the window's end.
    """

    late: dict[str, int]
    windows: int
    wrong: int
    open_most: int
    open_now: int
    waits: dict[float, Millis | None]
    waits_by_clock: dict[float, Millis | None]

    @property
    def late_rows(self) -> int:
        """Number of late rows."""
        return sum(self.late.values())


class Lateness:
    """Late rows and their consequences under different settings.

    Args:
        arrivals: the rows.

    Raises:
        Refused: only the pipeline's own code can tell which rows are late.
    """

    def __init__(self, arrivals: Arrivals) -> None:
        self.arrivals = arrivals
        bound = arrivals.source.bound
        self._assigner = _assigner_of(bound)
        strategy = arrivals.pipeline.watermark
        self.present = Setting(
            None,
            bound.lateness,
            strategy.idle_timeout,
            None if self._assigner is None else self._assigner.gap_of_every_element,
        )
        self._of_all: Grouped | None = None
        self._ordered: tuple[Arrived, Ordered] | None = None
        self._watermarks: dict[tuple[Millis | None, Millis | None], Watermarks] = {}

    @property
    def has_windows(self) -> bool:
        """True if the rows go to windows."""
        return self._assigner is not None

    @property
    def shares(self) -> int:
        """Number of shares of the keys, which are processed one at a time."""
        grid = None if self._assigner is None or self._assigner.merges else self._assigner.window_grid
        return self.arrivals.shares * (1 if grid is None else max(1, grid.windows_of_an_element // 2))

    def watermarks(self, setting: Setting) -> Watermarks:
        """Return the watermarks under a setting."""
        name = setting.bound, setting.idleness
        if name not in self._watermarks:
            strategy = None
            if setting.bound is not None:
                strategy = WatermarkStrategy.for_bounded_out_of_orderness(setting.bound)
            elif setting.idleness != self.present.idleness:
                strategy = self.arrivals.pipeline.watermark
            if strategy is not None:
                strategy = replace(strategy, idle_timeout=setting.idleness)
            self._watermarks[name] = self.arrivals.watermarks(strategy)
        return self._watermarks[name]

    def figures(self, settings: Sequence[Setting]) -> list[Figures]:
        """Return the figures for each setting, in order."""
        counts = [_Count(self.arrivals, self.watermarks(setting)) for setting in settings]
        for arrived in self._arrived():
            grouped: dict[Millis | None, Grouped] = {}
            for setting, count in zip(settings, counts, strict=True):
                if setting.gap not in grouped:
                    grouped = {setting.gap: self._group(arrived, setting.gap)}
                count.add(grouped[setting.gap], setting.lateness)
        return [count.figures() for count in counts]

    def distances(self, setting: Setting) -> tuple[Int64s, npt.NDArray[np.int32]]:
        """Return how far the watermark is past the last window of each row, and the row's source partition.

        A row whose distance is smaller than the allowed lateness is never late.
        """
        before, taken = self.watermarks(setting).before, 0
        distances = np.empty(self.arrivals.measures.usable, np.int64)
        partitions = np.zeros(len(distances), np.int32)
        for arrived in self._arrived():
            grouped = self._group(arrived, setting.gap)
            rows = slice(taken, taken + len(arrived))
            watermarks = before[grouped.commits]
            distances[rows] = np.where(watermarks == MIN_TIMESTAMP, NEVER, watermarks - grouped.lasts)
            partitions[rows] = grouped.partitions
            taken += len(arrived)
        return distances, partitions

    def late_rows(self, setting: Setting) -> tuple[Int64s, Int64s]:
        """Return the file (an index of `arrivals.files.parts`) and the place of each late row."""
        parts, places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for arrived in self._arrived(with_places=True):
            grouped = self._group(arrived, setting.gap)
            late, _ = grouped.late(setting.lateness, self.watermarks(setting))
            rows = grouped.order[late]
            parts.append(arrived.parts[rows])
            places.append(arrived.places[rows])
        return np.concatenate(parts), np.concatenate(places)

    def _arrived(self, with_places: bool = False) -> Iterator[Arrived]:
        shares = self.shares
        if shares == 1 and not with_places:
            yield self._whole
            return
        for share in range(shares):
            # The rows of a share are freed before the next ones are read.
            self._ordered = None
            yield self.arrivals.rows(share, shares, with_places)

    @cached_property
    def _whole(self) -> Arrived:
        return self.arrivals.rows()

    def _group(self, arrived: Arrived, gap: Millis | None) -> Grouped:
        """Return rows with their windows. Those of all rows with the present gap are kept."""
        if gap != self.present.gap or self.shares > 1:
            return self._grouped(arrived, gap)
        if self._of_all is None:
            self._of_all = self._grouped(arrived, gap)
        return self._of_all

    def _grouped(self, arrived: Arrived, gap: Millis | None) -> Grouped:
        nothing = np.empty(0, np.int64)
        if self._assigner is None:
            every = np.arange(len(arrived))
            return Grouped(arrived.commits, arrived.partitions, arrived.times, every, nothing, nothing, nothing)
        if not self._assigner.forms_sessions:
            return aligned(arrived, _codes(arrived), self._assigner)
        if self._ordered is None or self._ordered[0] is not arrived:
            self._ordered = arrived, Ordered.of(arrived, _codes(arrived))
        return sessions(self._ordered[1], gap)


def _codes(arrived: Arrived) -> Int64s:
    """Return the key of each row as a number."""
    return np.unique(arrived.keys, return_inverse=True)[1].astype(np.int64)


def _assigner_of(bound: BoundPipeline) -> WindowAssigner | None:
    """Return the assigner if arrays can assign its windows; None for functions and joins."""
    windows = bound.compute
    if isinstance(windows, WindowJoin):
        raise Refused(
            f"pipeline {bound.pipeline.name!r}: the windows of a join over two inputs can't be counted without a run. "
            "Name a pipeline with windows over one of the inputs"
        )
    if not isinstance(windows, Windows):
        return None
    assigner, name = windows.assigner, bound.pipeline.name
    if assigner.is_global:
        raise Refused(f"pipeline {name!r}: the global window never ends, so none of its rows is ever late")
    if not assigner.is_event_time:
        raise Refused(f"pipeline {name!r}: its windows end by the clock, so none of its rows is ever late")
    known = assigner.needs_rows is None if assigner.forms_sessions else assigner.array_assignment is not None
    if not known:
        raise Refused(
            f"pipeline {name!r}: {assigner.needs_rows or f'the stagger of {assigner!r} is not drawn yet'}, so its late "
            "rows can't be counted without a run. Count them with a copy of the pipeline with tumbling, sliding, "
            "calendar or session windows"
        )
    return assigner


class _Count:
    """The figures of one setting, summed over shares of the keys."""

    def __init__(self, arrivals: Arrivals, watermarks: Watermarks) -> None:
        self._arrivals, self._watermarks = arrivals, watermarks
        self._late = np.zeros(len(arrivals.partitions), np.int64)
        self._changes = np.zeros(len(arrivals.reads) + 1, np.int64)
        self._wrong = self._windows = 0
        self._ends: list[tuple[Int64s, Int64s]] = []

    def add(self, grouped: Grouped, lateness: Millis | None) -> None:
        """Add the rows of a share."""
        before, after = self._watermarks.before, self._watermarks.after
        late, wrong = grouped.late(lateness, self._watermarks)
        if len(self._late):
            self._late += np.bincount(grouped.partitions[late], minlength=len(self._late))
        self._wrong += wrong
        self._windows += len(grouped.ends)
        if not len(grouped.ends):
            return
        cleanups = later(grouped.ends - 1, lateness or 0)
        opened = cleanups > before[grouped.first]
        self._changes += np.bincount(grouped.first[opened], minlength=len(self._changes))
        closed = np.searchsorted(after, cleanups[opened])
        self._changes -= np.bincount(np.maximum(closed, grouped.first[opened]), minlength=len(self._changes))
        self._ends.append(_counted(grouped.ends))

    def figures(self) -> Figures:
        """Return the figures."""
        open_after = np.cumsum(self._changes)[:-1]
        by_event, by_clock = self._waits
        return Figures(
            dict(zip(self._arrivals.partitions, self._late.tolist(), strict=True)),
            self._windows,
            self._wrong,
            int(open_after.max(initial=0)),
            int(open_after[-1]) if len(open_after) else 0,
            by_event,
            by_clock,
        )

    @cached_property
    def _waits(self) -> tuple[dict[float, Millis | None], dict[float, Millis | None]]:
        """Return how long windows wait, by event time and by the clock."""
        nothing: dict[float, Millis | None] = {0.5: None, 0.99: None}
        if not self._ends:
            return nothing, nothing
        ends, numbers = (np.concatenate(column) for column in zip(*self._ends, strict=True))
        largest, clock = self._arrivals.largest, self._arrivals.clock
        fires = np.searchsorted(self._watermarks.after, ends - 1)
        fired = fires < len(clock)
        if not fired.any():
            return nothing, nothing
        ends, numbers, fires = ends[fired], numbers[fired], fires[fired]
        reached = np.minimum(np.searchsorted(largest, ends - 1), fires)
        return tuple(  # type: ignore[return-value]
            {share: _quantile(waits, numbers, share) for share in nothing}
            for waits in (largest[fires] - (ends - 1), clock[fires] - clock[reached])
        )


def _counted(ends: Int64s) -> tuple[Int64s, Int64s]:
    """Return the distinct values of sorted numbers, and how often each occurs."""
    bounds = np.flatnonzero(begins(ends))
    return ends[bounds], np.diff(np.append(bounds, len(ends)))


def _quantile(values: Int64s, numbers: Int64s, share: float) -> Millis:
    """Return the smallest value that is at least as large as a share of all values, each counted `numbers` times."""
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(numbers[order])
    return int(values[order[np.searchsorted(sums, share * sums[-1])]])
