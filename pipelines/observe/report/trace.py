"""The picture of a trace: rows, watermark, windows and panes. Event time runs across, the order of arrival upwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from tidegate.pipelines.observe.report.plots import BLUE, GREEN, GREY, ORANGE, RED, days, draw, show_dates
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis

_EMISSIONS = {"fired": (GREEN, "^"), "fired late": (ORANGE, "^"), "reopened": (ORANGE, "D")}


def time_line(elements: Sequence[Any], events: Sequence[Any]) -> str:
    """Return the picture as SVG.

    Args:
        elements: the rows, as `Traced`.
        events: what happened, as `Happened`, in order.
    """
    return draw(lambda axes: _drawn(axes, elements, events), (7.5, 4.0))


def _drawn(axes: Axes, elements: Sequence[Any], events: Sequence[Any]) -> None:
    times = {element.row: element.time for element in elements}
    shown = [*times.values(), *(time for event in events for time in (event.start, event.end) if time is not None)]
    first, last = min(shown), max(shown)
    margin = max(1, (last - first) // 10)
    opened: dict[tuple[Millis, Millis], int] = {}

    def close(bounds: tuple[Millis, Millis], place: int, edge: str) -> None:
        begin = opened.pop(bounds, None)
        if begin is not None:
            corner, width = (days(bounds[0]), begin), days(bounds[1]) - days(bounds[0])
            axes.add_patch(Rectangle(corner, width, place - begin, facecolor=GREY, edgecolor=edge, alpha=0.25))

    for place, event in enumerate(events):
        bounds = event.start, event.end
        if event.what in ("in", "late", "no window"):
            colour = RED if event.what == "late" else BLUE
            axes.plot(days(times[event.rows[0]]), place, "o", color=colour, markersize=5)
        elif event.what == "opened":
            opened[bounds] = place
        elif event.what == "merged":
            for other in event.merged:
                close(other, place, GREY)
            opened[bounds] = place
        elif event.what in _EMISSIONS:
            colour, marker = _EMISSIONS[event.what]
            axes.plot(days(event.end), place, marker, color=colour, markersize=7)
        elif event.what == "cleaned":
            close(bounds, place, GREY)
    for bounds in list(opened):
        close(bounds, len(events), BLUE)
    line = [
        (min(max(event.watermark, first - margin), last + margin), place)
        for place, event in enumerate(events)
        if event.watermark > MIN_TIMESTAMP
    ]
    if line:
        axes.step([days(time) for time, _ in line], [place for _, place in line], color=RED, linewidth=1, where="post")
    axes.set_xlim(days(first - margin), days(min(last + margin, MAX_TIMESTAMP)))
    axes.set_ylim(-1, len(events) + 1)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.set_ylabel("events, in the order of arrival")
    show_dates(axes.xaxis)
