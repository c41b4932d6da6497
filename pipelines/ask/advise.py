"""The lateness curve of a pipeline: what effect each setting would have had. Starts no JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import floor
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tidegate.extras import require
from tidegate.pipelines.ask.arrivals import Arrivals, Int64s
from tidegate.pipelines.ask.lateness import Figures, Lateness, Setting
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.names import count_of
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import COUNT, DURATION, OBJECT, PERCENT, TEXT, Column, Columns, Table
from tidegate.pipelines.storage.artifacts import page_name
from tidegate.windowing.time import Millis, show_duration

_SHARES = ("99", "99.9", "99.99")
_DRAWN = (0.5, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999, 1.0)
"""Shares of on-time rows for which the curve has points."""
_IDLENESS = (60_000, 600_000, 3_600_000, 21_600_000, 86_400_000)
_FOR_EVER = 1 << 60
_GAPS = (0.25, 0.5, 2.0, 4.0)
"""Multiples of the current gap."""


@dataclass(frozen=True, slots=True)
class Advised:
    """A point of the curve: a setting and its effect on the rows of the source. Times are milliseconds.

    Args:
        varied: the field that differs from the current settings: bound, lateness, idleness or gap; `present` if none
            differs.
        bound: bound on out-of-orderness; None for a generator without one, or if two inputs have different ones.
        lateness: allowed lateness; None if nothing is ever late.
        idleness: idle timeout; None if there is none, or if two inputs have different ones.
        gap: session gap; None for other windows.
        late: number of late rows.
        late_by_partition: number of late rows of each source partition.
        windows: number of windows of all keys, late rows included.
        wrong: number of windows whose first result lacked a row.
        open_most: largest number of windows that were open after a commit.
        open_now: number of windows that are open after the newest commit.
        wait: median of how far event time was past the end of a window when it fired.
        wait_99: the same, 99th percentile.
        wait_by_clock: median time from the commit that reached a window's end to the commit that fired it.
        wait_by_clock_99: the same, 99th percentile.
    """

    varied: str
    bound: Millis | None
    lateness: Millis | None
    idleness: Millis | None
    gap: Millis | None
    late: int
    late_by_partition: dict[str, int]
    windows: int
    wrong: int
    open_most: int
    open_now: int
    wait: Millis | None
    wait_99: Millis | None
    wait_by_clock: Millis | None
    wait_by_clock_99: Millis | None


@dataclass(frozen=True, slots=True)
class PartitionAdvice:
    """A source partition. Times are milliseconds.

    Args:
        name: its name; empty if there is only one.
        late: number of its late rows under the current settings.
        held_back: number of commits after which it held the watermark back.
        behind: largest distance between its watermark and that of the next partition, while it held the watermark back.
        bounds: by share of its rows in per cent, the bound under which that share is on time; empty if there are none.
    """

    name: str
    late: int
    held_back: int
    behind: Millis
    bounds: dict[str, Millis]


_TITLES = {
    "bound": "bound on out-of-orderness",
    "lateness": "allowed lateness",
    "idleness": "idle timeout of a source partition",
    "gap": "gap of sessions",
}


def _length(name: str) -> Callable[[Advised], str]:
    return lambda point: show_duration(getattr(point, name))


_SETTINGS = tuple(Column(name, DURATION, text=_length(name)) for name in _TITLES)


@dataclass(frozen=True, slots=True)
class Advice(Facts):
    """What other time settings would have done to the rows of a pipeline's source.

    Args:
        commits: number of commits of the source that added rows.
        changed: number of commits that changed rows, which are left out.
        rows: number of usable rows.
        bounds: by share of the rows in per cent, a bound on out-of-orderness under which that share is on time; None
            without allowed lateness. For sessions, which a late row may still join, a smaller bound may suffice.
        curve: the settings with their effects, the current ones first.
        partitions: the source partitions, those that held the watermark back most first.
        file: path or URI of the page; None if none was written.
    """

    pipeline: str
    commits: int
    changed: int
    rows: int
    bounds: dict[str, Millis]
    curve: tuple[Advised, ...]
    partitions: tuple[PartitionAdvice, ...]
    file: str | None = None

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("commits", COUNT),
        Column("changed", COUNT),
        Column("rows", COUNT),
        Column("bounds", OBJECT),
        Column("file", TEXT),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "curve": (
            Column("varied", TEXT, text=lambda point: "now" if point.varied == "present" else _TITLES[point.varied]),
            *_SETTINGS,
            Column("late", COUNT),
            Column("share", PERCENT),
            Column("late_by_partition", OBJECT, ""),
            Column("windows", COUNT, ""),
            Column("wrong", COUNT, "wrong at first", text=lambda point: f"{point.wrong} of {point.windows}"),
            Column("wait", DURATION, "waits", text=_length("wait")),
            Column("wait_99", DURATION, "waits (99 %)", text=_length("wait_99")),
            Column("wait_by_clock", DURATION, "by the clock", text=_length("wait_by_clock")),
            Column("wait_by_clock_99", DURATION, ""),
            Column("open_most", COUNT, "open at most"),
            Column("open_now", COUNT, "open now"),
        ),
        "partitions": (
            Column("name", TEXT, "partition"),
            Column("late", COUNT),
            Column("held_back", COUNT, "held back (commits)"),
            Column("behind", DURATION, "behind by"),
            Column("bounds", DURATION, is_spread=True),
        ),
    }

    @property
    def present(self) -> Advised:
        """The current settings."""
        return self.curve[0]

    def points(self, varied: str) -> list[Advised]:
        """Return the current settings and those that differ in a field, in the order of that field."""
        points = [self.present, *(advised for advised in self.curve if advised.varied == varied)]
        names = [varied, *(name for name in _TITLES if name != varied)]
        return sorted(points, key=lambda advised: [_ordered(getattr(advised, name)) for name in names])

    def tables(self) -> Iterator[Table]:
        varying = _varying(self.curve)
        columns = (each for each in self.holds["curve"] if each.name not in _TITLES or each.name in varying)
        shares = {"share": lambda point: point.late / self.rows if self.rows else None}
        columns = (replace(each, value=shares.get(each.name)) for each in columns)
        points = [
            self.present,
            *(point for varied in _TITLES for point in self.points(varied) if point is not self.present),
        ]
        yield Table("curve", tuple(columns), points, "settings, and what they would have done")
        yield Table(
            "partitions",
            self.holds["partitions"],
            self.partitions,
            "source partitions, the one that held the watermark back most first",
            is_shown=len(self.partitions) > 1,
        )

    def lines(self) -> Iterator[str]:
        yield f"{self.rows:,} rows of {self.commits:,} commits, read without a run"
        if self.changed:
            yield f"{count_of(self.changed, 'commit')} with changed rows left out"
        if self.bounds:
            bounds = ", ".join(f"{show_duration(bound)} for {share} %" for share, bound in self.bounds.items())
            yield f"bound on out-of-orderness that keeps rows on time: {bounds}"

    def remarks(self) -> Iterator[str]:
        if self.file is not None:
            yield f"page: {self.file}"


def _varying(points: Sequence[Advised]) -> list[str]:
    """Return the fields in which points differ."""
    return [name for name in _TITLES if len({getattr(point, name) for point in points}) > 1]


def _ordered(value: Millis | None) -> float:
    return float("inf") if value is None else value


def advise(
    config: Config,
    pipeline: str,
    values: Mapping[str, Sequence[Millis]],
    from_version: int,
    page: bool,
    to: Path | None,
) -> Advice:
    """Read the rows of a pipeline's source, and return the effects of other settings.

    `values` has, by field of `Setting`, values to evaluate, milliseconds; without any, some are chosen from the rows.
    """
    asked = {name: each for name, each in values.items() if each}
    value = load_pipeline(config, pipeline)
    if page or to is not None:
        require("the page of the lateness curve", "jinja2", "matplotlib")
    arrivals = Arrivals.open(config, value, from_version)
    lateness = Lateness(arrivals)
    present, zero = lateness.present, replace(lateness.present, bound=0)
    if "gap" in asked and present.gap is None:
        raise UsageError(f"--gap: the windows of {pipeline!r} are not sessions with one gap")
    # These arrays of all rows are released before the figures are counted.
    asked_of = [zero] if asked else [zero, present]
    (distances, *others), partitions = _distances(lateness, asked_of)
    by_lateness = [value for each in others for value in _least(each, _DRAWN)]
    del others
    # A row is late under a bound only if its distance without a bound is at least that bound, so these bounds are
    # exact.
    distances -= min(present.lateness or 0, _FOR_EVER)
    names = arrivals.partitions
    of_partitions = [_bounds(distances[partitions == number]) for number in range(len(names))]
    bounds, by_bound = _bounds(distances), _least(distances, _DRAWN)
    del distances, partitions
    tried = list(_asked(asked, present)) if asked else _drawn(lateness, by_bound, by_lateness)
    present_bounds = {strategy.out_of_orderness for strategy in arrivals.strategies}
    bound = None if len(present_bounds) > 1 else present_bounds.pop()
    same = present, replace(present, bound=bound)
    settings = [("present", present), *((name, setting) for name, setting in tried if setting not in same)]
    figures = lateness.figures([setting for _, setting in settings])
    curve = tuple(
        _advised(name, setting, bound, figure) for (name, setting), figure in zip(settings, figures, strict=True)
    )
    advice = Advice(
        pipeline=pipeline,
        commits=len(arrivals.reads),
        changed=arrivals.changed,
        rows=arrivals.measures.usable,
        bounds=bounds,
        curve=curve,
        partitions=_of_partitions(arrivals, figures[0], of_partitions),
    )
    return advice if not page and to is None else _with_page(config, advice, to)


def _of_partitions(
    arrivals: Arrivals, figures: Figures, bounds: Sequence[dict[str, Millis]]
) -> tuple[PartitionAdvice, ...]:
    """Return the source partitions, the one that held the watermark back most first."""
    seen = arrivals.watermarks(observe=True)
    found = (
        PartitionAdvice(name, figures.late[name], seen.holding[name], seen.behind[name], bounds[number])
        for number, name in enumerate(arrivals.partitions)
    )
    return tuple(sorted(found, key=lambda part: (-part.held_back, part.name)))


def _with_page(config: Config, advice: Advice, to: Path | None) -> Advice:
    """Write the page of the lateness curve, and return the advice with its path or URI."""
    from tidegate.pipelines.observe.report.page import ADVICE, write_answer
    from tidegate.pipelines.observe.report.plots import curve as plotted

    plots: dict[str, str] = {}
    for varied in dict.fromkeys(advised.varied for advised in advice.curve[1:]):
        points = [(getattr(point, varied), point) for point in advice.points(varied)]
        known = [(value, point) for value, point in points if value is not None]
        plots |= plotted(_TITLES[varied], known, getattr(advice.present, varied))
    name, title = page_name(advice.pipeline, ADVICE), f"{advice.pipeline}: lateness curve"
    return replace(advice, file=write_answer(config, name, advice, title, plots, to))


def _advised(varied: str, setting: Setting, bound: Millis | None, figures: Figures) -> Advised:
    return Advised(
        varied,
        bound if setting.bound is None else setting.bound,
        setting.lateness,
        setting.idleness,
        setting.gap,
        figures.late_rows,
        figures.late,
        figures.windows,
        figures.wrong,
        figures.open_most,
        figures.open_now,
        figures.waits[0.5],
        figures.waits[0.99],
        figures.waits_by_clock[0.5],
        figures.waits_by_clock[0.99],
    )


def _asked(asked: Mapping[str, Sequence[Millis]], present: Setting) -> Iterator[tuple[str, Setting]]:
    """Yield every combination of the given values; a field without values keeps its current one."""
    for values in product(*asked.values()):
        yield next(iter(asked)), replace(present, **dict(zip(asked, values, strict=True)))


def _distances(lateness: Lateness, settings: Sequence[Setting]) -> tuple[list[Int64s], npt.NDArray[np.int32]]:
    """Return the distances of all rows by setting, and their source partitions, or nothing if rows can't be late."""
    if settings[0].lateness is None:
        return [np.empty(0, np.int64) for _ in settings], np.empty(0, np.int32)
    return lateness.distances(settings)


def _drawn(lateness: Lateness, by_bound: Sequence[Millis], by_lateness: Sequence[Millis]) -> list[tuple[str, Setting]]:
    """Return settings that each differ from the current ones in one field, with values chosen from the rows."""
    present = lateness.present
    values: dict[str, set[Millis | None]] = {"bound": {0, *by_bound}}
    if lateness.has_windows:
        values["lateness"] = {0, *by_lateness}
    if len(lateness.arrivals.partitions) > 1:
        values["idleness"] = {None, *_IDLENESS}
    if present.gap is not None:
        values["gap"] = {round(present.gap * times) or 1 for times in _GAPS}
    return [
        (name, replace(present, **{name: value}))
        for name, drawn in values.items()
        for value in sorted(drawn, key=_ordered)
    ]


def _bounds(distances: Int64s) -> dict[str, Millis]:
    least = _least(distances, [float(share) / 100 for share in _SHARES])
    return dict(zip(_SHARES, least, strict=True)) if len(distances) else {}


def _least(distances: Int64s, shares: Sequence[float]) -> list[Millis]:
    """Return, for each share, the smallest setting of at least 0 under which that share of the rows is on time.

    Args:
        distances: distance of each row; a row is late under a setting that does not exceed it. Their order is changed.
        shares: 0 to 1.
    """
    places = [len(distances) - 1 - floor(len(distances) * (1 - share) + 1e-9) for share in shares]
    if inside := sorted({place for place in places if place >= 0}):
        distances.partition(inside)
    return [max(0, int(distances[place]) + 1) if place >= 0 else 0 for place in places]
