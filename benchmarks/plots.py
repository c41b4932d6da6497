"""The figures as pictures: ratios with their wanted values, and the growth of cost with size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Picture

from benchmarks.figures import Figure

_OURS, _WANTED = "#2f6f9f", "#c0392b"
_COLUMNS = 2
_TICKS = [unit * power for power in (0.1, 1, 10, 100, 1000) for unit in (1, 2, 5)]
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    # A fixed salt lets the same figures give the same file.
    "svg.hashsalt": "tidegate",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
}


def plot_ratios(figures: Iterable[Figure], file: Path) -> bool:
    """Draw a bar for each ratio to a peer, with a mark at its wanted value; return False if there is no ratio."""
    bars = [figure for figure in figures if figure.peer]
    if not bars:
        return False
    with mpl.rc_context(_STYLE):
        picture = Picture(figsize=(9, 1 + 0.34 * len(bars)), layout="constrained")
        axes = picture.subplots()
        places = range(len(bars))
        axes.barh(places, [figure.value for figure in bars], color=_OURS)
        for place, figure in zip(places, bars, strict=True):
            if figure.wanted is not None:
                axes.plot([figure.wanted.value] * 2, [place - 0.4, place + 0.4], color=_WANTED, linewidth=2.5)
            axes.annotate(f" {figure.value:.1f}", (max(figure.value, 1), place), verticalalignment="center")
        axes.set_yticks(places, [f"{figure.what}: {figure.peer}" for figure in bars])
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        ticks = [tick for tick in _TICKS if low <= tick <= high]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.invert_yaxis()
        axes.set_xlabel("times as fast as the peer, which writes nothing (red: wanted)")
        picture.savefig(file, metadata={"Date": None})
    return True


def plot_growth(figures: Iterable[Figure], file: Path) -> bool:
    """Draw a curve for each series of sizes; return False if there is none."""
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for figure in figures:
        if figure.size is not None:
            series[figure.what].append((figure.size, figure.value))
    curves = {what: points for what, points in series.items() if len(points) > 1}
    if not curves:
        return False
    rows = -(-len(curves) // _COLUMNS)
    with mpl.rc_context(_STYLE):
        picture = Picture(figsize=(9, 2.6 * rows), layout="constrained")
        grid = picture.subplots(rows, _COLUMNS, squeeze=False)
        for axes in grid.flat[len(curves) :]:
            axes.remove()
        for axes, (what, points) in zip(grid.flat, curves.items(), strict=False):
            axes.plot(*zip(*points, strict=True), marker="o", color=_OURS)
            axes.set_xscale("log")
            axes.set_ylim(bottom=0)
            axes.set_title(what)
            axes.set_ylabel("seconds")
        picture.savefig(file, metadata={"Date": None})
    return True
