"""The plots of a run report, each an SVG without scripts, fonts or links."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tidegate.pipelines.definition.counters import FILTERED, FIRED, RETRACTED
from tidegate.pipelines.definition.far_times import DAYS
from tidegate.pipelines.observe.report.run import RunReport
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis, from_millis, to_millis, unit_of

BLUE, ORANGE, GREY, RED, GREEN = "#2f6f9f", "#e08a1e", "#a7b0b8", "#c0392b", "#3d8f5f"

_SIZE = (4.6, 2.5)
_EPOCHS = 60
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tidegate",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a949c",
    "axes.labelcolor": "#45525c",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6eaed",
    "xtick.color": "#45525c",
    "ytick.color": "#45525c",
    "legend.frameon": False,
}


def plots(run: RunReport) -> dict[str, str]:
    """Return the plots as SVG by title, in the order of the page. A plot without data is left out."""
    rows, by_clock = run.epochs[-_EPOCHS:], run.manifest.ends_by_clock
    drawings: list[tuple[str, bool, Callable[[Axes], None]]] = [
        ("Watermark", any(row["watermark"] for row in rows), lambda axes: _watermark(axes, rows)),
        (
            "Watermark lag behind the clock",
            not by_clock and any(lag(row) is not None for row in rows),
            lambda axes: _lag(axes, rows),
        ),
        ("Events by outcome", True, lambda axes: _events(axes, rows)),
        ("Windows fired by timing", True, lambda axes: _fired(axes, rows)),
        ("Open windows by key group", True, lambda axes: _key_groups(axes, run.open_by_key_group)),
        ("Length of final windows", len(set(run.lengths)) > 1, lambda axes: _lengths(axes, run.lengths)),
    ]
    drawn = {title: draw(drawing) for title, has_data, drawing in drawings if has_data}
    if run.timeline:
        reached = from_millis(run.manifest.ended_through) if by_clock else run.epoch["watermark"]
        drawn[f"Windows of {run.key}"] = draw(lambda axes: _timeline(axes, run, reached))
    return drawn


def draw(drawing: Callable[[Axes], None], size: tuple[float, float] = _SIZE) -> str:
    """Return a drawing as SVG that loads nothing."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        drawing(figure.subplots())
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # The page sets fonts and size, and nobody reads the metadata.
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"font: ([^;\"]*?)px [^;\"]*", r"font-size: \1px", svg)
    return re.sub(r">\s+<", "><", svg).strip()


def _by_epoch(axes: Axes, rows: Sequence[dict[str, Any]]) -> list[int]:
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.margins(x=0.02)
    return [row["epoch"] for row in rows]


def _watermark(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    drawn = [row for row in rows if row["watermark"] is not None]
    axes.plot(_by_epoch(axes, drawn), [row["watermark"] for row in drawn], color=BLUE, marker=".", markersize=4)
    show_dates(axes.yaxis)


def lag(row: dict[str, Any]) -> Millis | None:
    """Return the lag of an epoch's watermark behind its clock, in milliseconds, or None if it has no watermark.

    A backfill has no lag either: a user chose its interval, so its age says nothing about the run.
    """
    if row["kind"] == "backfill" or row["watermark"] is None or row["processing_time"] is None:
        return None
    return to_millis(row["processing_time"]) - to_millis(row["watermark"])


def _lag(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    drawn = [row for row in rows if lag(row) is not None]
    values = [lag(row) or 0 for row in drawn]
    name, unit = unit_of(max(values, key=abs))
    axes.plot(_by_epoch(axes, drawn), [value / unit for value in values], color=ORANGE, marker=".", markersize=4)
    axes.set_ylabel(name)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:,g}"))
    if min(values) >= 0:
        axes.set_ylim(bottom=0, top=max(max(values) / unit * 1.15, 1))


def _stacked(axes: Axes, rows: Sequence[dict[str, Any]], parts: Sequence[tuple[str, str, tuple[str, ...]]]) -> None:
    numbers = _by_epoch(axes, rows)
    below = [0] * len(rows)
    for label, colour, counters in parts:
        heights = [sum(row[name] for name in counters) for row in rows]
        if any(heights):
            axes.bar(numbers, heights, bottom=below, color=colour, label=f"{label} {sum(heights):,}", width=0.8)
            below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if any(below):
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=8, handlelength=1, columnspacing=1)


def _events(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    _stacked(axes, rows, [("on time", BLUE, ("on_time",)), ("late", ORANGE, ("late",)), ("filtered", GREY, FILTERED)])


def _fired(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    fired = zip(FIRED, (GREEN, BLUE, ORANGE), strict=True)
    parts = [(name.removeprefix("fired_").replace("_", " "), colour, (name,)) for name, colour in fired]
    _stacked(axes, rows, [*parts, ("retracted", RED, (RETRACTED,))])


def _key_groups(axes: Axes, counts: Sequence[int]) -> None:
    axes.fill_between(range(len(counts) + 1), [*counts, counts[-1]], step="post", color=BLUE, linewidth=0)
    axes.set_xlabel("key group")
    axes.set_ylim(bottom=0, top=max(1, max(counts)) * 1.1)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.margins(x=0)


def _lengths(axes: Axes, lengths: Sequence[Millis]) -> None:
    name, unit = unit_of(max(lengths))
    # Most sessions have one element: on a linear axis, all others would be invisible.
    axes.hist([length / unit for length in lengths], bins=30, color=BLUE, log=True)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:,.0f}" if value >= 1 else ""))
    axes.minorticks_off()
    axes.set_xlabel(name)
    axes.set_ylabel("windows, logarithmic")


def _timeline(axes: Axes, run: RunReport, reached: datetime | None) -> None:
    """Draw windows as bars, in enough lanes that bars don't overlap."""
    ends: list[Millis] = []
    for session in run.timeline:
        lane = next((lane for lane, end in enumerate(ends) if end <= session.start), len(ends))
        ends[lane : lane + 1] = [session.end]
        start, end = (days(time) for time in (session.start, session.end))
        axes.barh(
            lane,
            end - start,
            left=start,
            height=0.6,
            color="none" if session.is_open else BLUE,
            edgecolor=ORANGE if session.is_open else "white",
            linewidth=1 if session.is_open else 0.5,
        )
    if reached is not None:
        axes.axvline(days(to_millis(reached)), color=RED, linewidth=1)
    show_dates(axes.xaxis)
    axes.set_ylim(-1.2 if len(ends) == 1 else -0.6, max(len(ends), 2) - 0.4)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")


def show_dates(axis: Axis) -> None:
    """Use dates as the ticks of an axis in `days`, and cut its margins at the years that have dates."""
    first, last = axis.get_view_interval()
    axis.set_view_interval(max(first, DAYS[0]), min(last, DAYS[1] - 1), ignore=True)
    # With 3 to 7 ticks, the locator finds an interval for every span; with other bounds, it may find none.
    locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
    axis.set_major_locator(locator)
    axis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]


def days(time: Millis) -> float:
    """Return a time in Matplotlib's unit: days since 1970."""
    return time / 86_400_000


_OF_A_ROW = ("in", "late", "no window")
_EMISSIONS = {"fired": (GREEN, "^"), "fired late": (ORANGE, "^"), "reopened": (ORANGE, "D")}


def time_line(elements: Sequence[Any], events: Sequence[Any], begin: int = 0) -> str:
    """Return the picture of a trace as SVG, from its rows (`Traced`) and what happened (`Happened`), in order.

    Events before number `begin` are left out, except for the windows that they opened.
    """
    return draw(lambda axes: _trace(axes, elements, events, begin), (7.5, 4.0))


def _trace(axes: Axes, elements: Sequence[Any], events: Sequence[Any], begin: int) -> None:
    times = {element.row: element.time for element in elements}
    drawn = events[begin:]
    of_rows = [times[event.rows[0]] for event in drawn if event.what in _OF_A_ROW]
    shown = [*of_rows, *(time for event in drawn for time in (event.start, event.end) if time is not None)]
    first, last = min(shown, default=0), max(shown, default=0)
    margin = max(1, (last - first) // 10)
    _draw_windows(axes, events, begin)
    _draw_points(axes, times, events, begin)
    _draw_watermark(axes, events, begin, (first - margin, last + margin))
    axes.set_xlim(days(first - margin), days(min(last + margin, MAX_TIMESTAMP)))
    axes.set_ylim(begin - 1, len(events) + 1)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.set_ylabel("events, in the order of arrival")
    show_dates(axes.xaxis)


def _draw_windows(axes: Axes, events: Sequence[Any], begin: int) -> None:
    """Draw each window as a rectangle, from the event that opened it to the one that merged or cleaned it."""
    opened: dict[tuple[Millis, Millis], int] = {}

    def close(bounds: tuple[Millis, Millis], place: int, edge: str) -> None:
        since = opened.pop(bounds, None)
        if since is not None and place > begin:
            since = max(since, begin)
            corner, width = (days(bounds[0]), since), days(bounds[1]) - days(bounds[0])
            axes.add_patch(Rectangle(corner, width, place - since, facecolor=GREY, edgecolor=edge, alpha=0.25))

    for place, event in enumerate(events):
        bounds = event.start, event.end
        if event.what == "merged":
            for other in event.merged:
                close(other, place, GREY)
        if event.what in ("opened", "merged"):
            opened[bounds] = place
        elif event.what == "cleaned":
            close(bounds, place, GREY)
    for bounds in list(opened):
        close(bounds, len(events), BLUE)


def _draw_points(axes: Axes, times: Mapping[int, Millis], events: Sequence[Any], begin: int) -> None:
    """Draw the rows that arrived, and the panes."""
    for place, event in enumerate(events[begin:], begin):
        if event.what in _OF_A_ROW:
            colour = RED if event.what == "late" else BLUE
            axes.plot(days(times[event.rows[0]]), place, "o", color=colour, markersize=5)
        elif event.what in _EMISSIONS:
            colour, marker = _EMISSIONS[event.what]
            axes.plot(days(event.end), place, marker, color=colour, markersize=7)


def _draw_watermark(axes: Axes, events: Sequence[Any], begin: int, limits: tuple[Millis, Millis]) -> None:
    line = [
        (min(max(event.watermark, limits[0]), limits[1]), place)
        for place, event in enumerate(events[begin:], begin)
        if event.watermark > MIN_TIMESTAMP
    ]
    if line:
        axes.step([days(time) for time, _ in line], [place for _, place in line], color=RED, linewidth=1, where="post")


_CURVE_SIZE = (7.5, 2.6)


def curve(title: str, points: Sequence[tuple[Millis, Any]], present: Millis | None) -> dict[str, str]:
    """Return the plots of a curve over one setting as SVG, by title: late rows and wrong windows, and waits.

    The points are values in milliseconds, ascending, each with its effect (`Advised`); the current value is marked.
    """
    name, unit = unit_of(max((value for value, _ in points), default=0))
    # If other settings vary too, a line would connect effects of different ones.
    line = "-" if len({value for value, _ in points}) == len(points) else ""

    def drawn(axes: Axes, lines: Sequence[tuple[str, str, Sequence[float]]], label: str) -> None:
        for legend, colour, heights in lines:
            axes.plot(
                [value / unit for value, _ in points],
                heights,
                line,
                color=colour,
                marker="o",
                markersize=3,
                label=legend,
            )
        if present is not None:
            axes.axvline(present / unit, color=RED, linewidth=1, label="now")
        axes.set_xlabel(f"{title}, {name}")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:,g}"))
        axes.legend(fontsize=8)

    lost = [
        ("late rows", ORANGE, [point.late for _, point in points]),
        ("windows wrong at first", BLUE, [point.wrong for _, point in points]),
    ]
    waits = [point.wait or 0 for _, point in points]
    wait_name, wait_unit = unit_of(max(waits, default=0))
    waiting = [("median wait", BLUE, [wait / wait_unit for wait in waits])]
    return {
        f"Late rows and wrong windows by {title}": draw(lambda axes: drawn(axes, lost, "number"), _CURVE_SIZE),
        f"How long windows wait by {title}": draw(lambda axes: drawn(axes, waiting, wait_name), _CURVE_SIZE),
    }
