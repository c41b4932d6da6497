"""The plots of lateness curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from tidegate.pipelines.observe.report.plots import BLUE, ORANGE, RED, draw
from tidegate.windowing.time import Millis, unit_of

_SIZE = (7.5, 2.6)


class Point(Protocol):
    """A point of the curve: late rows and waits in milliseconds, as in `Advised`."""

    @property
    def late(self) -> int: ...
    @property
    def wrong(self) -> int: ...
    @property
    def wait(self) -> Millis | None: ...


def curve(title: str, points: Sequence[tuple[Millis, Point]], present: Millis | None) -> dict[str, str]:
    """Return the plots of a curve over one setting as SVG, by title: what is late and wrong, and how long windows wait.

    Args:
        title: the setting.
        points: its values in milliseconds, ascending, each with its effect.
        present: the current value, which is marked.
    """
    name, unit = unit_of(max((value for value, _ in points), default=0))

    def drawn(axes: Axes, lines: Sequence[tuple[str, str, Sequence[float]]], label: str) -> None:
        for legend, colour, heights in lines:
            axes.plot(
                [value / unit for value, _ in points], heights, color=colour, marker="o", markersize=3, label=legend
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
        f"Late rows and wrong windows by {title}": draw(lambda axes: drawn(axes, lost, "number"), _SIZE),
        f"How long windows wait by {title}": draw(lambda axes: drawn(axes, waiting, wait_name), _SIZE),
    }
