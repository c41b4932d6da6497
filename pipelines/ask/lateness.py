"""The effect of lateness settings on a source's rows: late rows, wrong windows and waiting times.

A window is wrong at first if one of its rows arrives after the watermark has passed its end: its first result lacks the
row. Sessions are those that all rows form, including late ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import numpy as np
import numpy.typing as npt

from tidegate.pipelines.ask.arrivals import Arrivals, Arrived, Divided, Int64s, Watermarks
from tidegate.pipelines.ask.row_windows import Grouped, Ordered, aligned, sessions
from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.errors import Refused
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.columnar.order import begins
from tidegate.windowing.compute import WindowJoin, Windows
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks import WatermarkStrategy

_COARSE, _MANY = 1_000, 1 << 16
"""Unit to which the waits of a share of the keys are rounded up if many differ, so that few values need memory."""

_MOST_UNITS = 1 << 24
_SHARES = (0.5, 0.99)

NEVER = -(1 << 62)
"""Distance of a row that arrived before the first watermark, and so is not late under any setting."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings that decide which rows are late, milliseconds.

    Args:
        bound: bound on out-of-orderness; None keeps the pipeline's watermark generator.
        lateness: allowed lateness; None if nothing is ever late.
        idleness: time without a commit after which a source partition is idle; None if it never is, or if two inputs
            have different ones.
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
            milliseconds; None if no window fired.
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

    Raises:
        Refused: only the pipeline's own code can tell which rows are late.
    """

    def __init__(self, arrivals: Arrivals) -> None:
        self.arrivals = arrivals
        bound = arrivals.source.bound
        self._assigner = _assigner_of(bound)
        timeouts = {each.idle_timeout for each in arrivals.strategies}
        self.present = Setting(
            None,
            bound.lateness,
            None if len(timeouts) > 1 else timeouts.pop(),
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

            def changed(strategy: WatermarkStrategy) -> WatermarkStrategy:
                is_own = setting.idleness == self.present.idleness
                idleness = strategy.idle_timeout if is_own else setting.idleness
                if setting.bound is not None:
                    strategy = WatermarkStrategy.for_bounded_out_of_orderness(setting.bound)
                return replace(strategy, idle_timeout=idleness)

            found = self.arrivals.watermarks(changed)
            self._watermarks[name] = next((each for each in self._watermarks.values() if each.equals(found)), found)
        return self._watermarks[name]

    def figures(self, settings: Sequence[Setting]) -> list[Figures]:
        """Return the figures for each setting, in order."""
        counts: dict[Millis | None, dict[tuple[int, Millis | None], _Count]] = {}
        of_settings = []
        for setting in settings:
            # Settings with the same watermarks have the same figures.
            watermarks, of_gap = self.watermarks(setting), counts.setdefault(setting.gap, {})
            name = id(watermarks), setting.lateness
            of_settings.append(of_gap.setdefault(name, _Count(self.arrivals, watermarks, setting.lateness)))
        unit = 1 if self.shares == 1 else _COARSE
        for arrived in self._arrived():
            for gap, of_gap in counts.items():
                grouped, waits = self._group(arrived, gap), dict[int, _Waits]()
                ends = _counted(grouped.ends)
                for (number, _), count in of_gap.items():
                    if number not in waits:
                        waits[number] = count.waits(*ends, unit)
                    count.add(grouped, waits[number])
        return [count.figures() for count in of_settings]

    def distances(self, settings: Sequence[Setting]) -> tuple[list[Int64s], npt.NDArray[np.int32]]:
        """Return, for each setting, how far the watermark is past the last window of each row; and the partitions.

        A row whose distance is smaller than the allowed lateness is never late. The settings have the current gap.
        """
        taken, rows = 0, self.arrivals.measures.usable
        distances, partitions = [np.empty(rows, np.int64) for _ in settings], np.zeros(rows, np.int32)
        for arrived in self._arrived():
            grouped = self._group(arrived, self.present.gap)
            rows_of = slice(taken, taken + len(arrived))
            for setting, of_setting in zip(settings, distances, strict=True):
                watermarks = self.watermarks(setting).before[grouped.commits]
                of_setting[rows_of] = np.where(watermarks == MIN_TIMESTAMP, NEVER, watermarks - grouped.lasts)
            partitions[rows_of] = grouped.partitions
            taken += len(arrived)
        return distances, partitions

    def _arrived(self) -> Iterator[Arrived]:
        if self.shares == 1:
            yield self._whole
            return
        for share in range(self.shares):
            # The rows of a share are freed before the next ones are read.
            self._ordered = None
            yield self._divided.rows(share)

    @cached_property
    def _whole(self) -> Arrived:
        return self.arrivals.rows()

    @cached_property
    def _divided(self) -> Divided:
        return self.arrivals.divided(self.shares)

    def _group(self, arrived: Arrived, gap: Millis | None) -> Grouped:
        """Return rows with their windows. The windows of all rows with the current gap are cached."""
        if gap != self.present.gap or self.shares > 1:
            return self._grouped(arrived, gap)
        if self._of_all is None:
            self._of_all = self._grouped(arrived, gap)
        return self._of_all

    def _grouped(self, arrived: Arrived, gap: Millis | None) -> Grouped:
        if self._assigner is None:
            nothing = np.empty(0, np.int64)
            return Grouped(arrived.commits, arrived.partitions, arrived.times, nothing, nothing, nothing)
        if not self._assigner.forms_sessions:
            return aligned(arrived, _codes(arrived), self._assigner)
        if self._ordered is None or self._ordered[0] is not arrived:
            self._ordered = arrived, Ordered.of(arrived, _codes(arrived))
        return sessions(self._ordered[1], gap)


def _codes(arrived: Arrived) -> Int64s:
    """Return the key of each row as a number."""
    return np.unique(arrived.keys, return_inverse=True)[1].astype(np.int64)


def _assigner_of(bound: BoundPipeline) -> WindowAssigner | None:
    """Return the assigner if its windows can be assigned on arrays, or None for functions and joins."""
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
        raise Refused(f"pipeline {name!r}: the global window never ends, so its rows are never late")
    if not assigner.is_event_time:
        raise Refused(f"pipeline {name!r}: its windows end by the clock, so its rows are never late")
    known = assigner.needs_rows is None if assigner.forms_sessions else assigner.array_assignment is not None
    if not known:
        raise Refused(
            f"pipeline {name!r}: {assigner.needs_rows or f'the stagger of {assigner!r} is not chosen yet'}, so its "
            f"late "
            "rows can't be counted without a run. Count them with a copy of the pipeline with tumbling, sliding, "
            "calendar or session windows"
        )
    return assigner


@dataclass(frozen=True, slots=True)
class _Waits:
    """How long windows wait: durations in milliseconds, and the number of windows with each duration.

    Args:
        by_event_time: how far event time is past the end of a window when it fires.
        by_clock: time from the commit that reaches its end to the commit that fires it.
    """

    by_event_time: tuple[Int64s, Int64s]
    by_clock: tuple[Int64s, Int64s]


class _Count:
    """The figures of one setting, summed over shares of the keys."""

    def __init__(self, arrivals: Arrivals, watermarks: Watermarks, lateness: Millis | None) -> None:
        self._arrivals, self._watermarks, self._lateness = arrivals, watermarks, lateness
        self._largest, self._clock = arrivals.largest, arrivals.clock
        self._late = np.zeros(len(arrivals.partitions), np.int64)
        self._changes = np.zeros(len(arrivals.reads), np.int64)
        self._wrong = self._windows = 0
        self._waits: list[_Waits] = []

    def add(self, grouped: Grouped, waits: _Waits) -> None:
        """Add the rows of a share, and how long its windows wait."""
        late, wrong = grouped.late(self._lateness, self._watermarks)
        if len(self._late):
            self._late += np.bincount(grouped.partitions[late], minlength=len(self._late))
        self._wrong += wrong
        self._windows += len(grouped.ends)
        if not len(grouped.ends):
            return
        self._changes += grouped.opened_and_closed(self._lateness, self._watermarks)
        self._waits.append(waits)

    def waits(self, ends: Int64s, numbers: Int64s, unit: Millis) -> _Waits:
        """Return how long windows that end at these times wait.

        Args:
            ends: the distinct ends of windows, ascending.
            numbers: number of windows with each end.
            unit: unit to which many waits are rounded up.
        """
        fires = np.searchsorted(self._watermarks.after, ends - 1)
        fired = int(np.searchsorted(fires, len(self._clock)))
        ends, numbers, fires = ends[:fired], numbers[:fired], fires[:fired]
        reached = np.minimum(np.searchsorted(self._largest, ends - 1), fires)
        by_event_time, by_clock = self._largest[fires] - (ends - 1), self._clock[fires] - self._clock[reached]
        return _Waits(*(_rounded(waits, numbers, unit) for waits in (by_event_time, by_clock)))

    def figures(self) -> Figures:
        """Return the figures."""
        open_after = np.cumsum(self._changes)
        return Figures(
            dict(zip(self._arrivals.partitions, self._late.tolist(), strict=True)),
            self._windows,
            self._wrong,
            int(open_after.max(initial=0)),
            int(open_after[-1]) if len(open_after) else 0,
            _quantiles([waits.by_event_time for waits in self._waits]),
            _quantiles([waits.by_clock for waits in self._waits]),
        )


def _counted(ends: Int64s) -> tuple[Int64s, Int64s]:
    """Return the distinct values in ascending order, and how often each occurs."""
    ordered = np.sort(ends)
    bounds = np.flatnonzero(begins(ordered))
    return ordered[bounds], np.diff(np.append(bounds, len(ordered)))


def _rounded(values: Int64s, numbers: Int64s, unit: Millis) -> tuple[Int64s, Int64s]:
    """Return values, rounded up to a unit if there are many, and how often each occurs."""
    if unit == 1 or len(values) < _MANY:
        return values, numbers
    units = -(-values // unit)
    if units.max() >= _MOST_UNITS:
        units, numbers = _counted(np.repeat(units, numbers))
        return units * unit, numbers
    counted = np.bincount(units, weights=numbers).astype(np.int64)
    occurring = np.flatnonzero(counted)
    return occurring * unit, counted[occurring]


def _quantiles(waits: Sequence[tuple[Int64s, Int64s]]) -> dict[float, Millis | None]:
    """Return the median and the 99th percentile of values with multiplicities, or None without values."""
    if not any(len(values) for values, _ in waits):
        return dict.fromkeys(_SHARES)
    values, numbers = (np.concatenate(column) for column in zip(*waits, strict=True))
    if (total := int(numbers.sum())) <= 2 * len(values):
        places = [max(0, ceil(share * total) - 1) for share in _SHARES]
        placed = np.partition(values if total == len(values) else np.repeat(values, numbers), places)
        return {share: int(placed[place]) for share, place in zip(_SHARES, places, strict=True)}
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(numbers[order])
    return {share: int(values[order[np.searchsorted(sums, share * total)]]) for share in _SHARES}
