"""The figures of a benchmark, each with the bound that it should keep; printed as they come, and stored as JSON.

Every program yields its figures one by one; `tell` prints them and, with `--json FILE`, stores them for the report.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

_BOUNDS = {"at least": operator.ge, "at most": operator.le}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A bound on a figure.

    Args:
        bound: `at least` or `at most`.
        value: the limit, in the figure's unit.
    """

    bound: str
    value: float

    def __post_init__(self) -> None:
        if self.bound not in _BOUNDS:
            raise ValueError(f"bound {self.bound!r}: one of {', '.join(_BOUNDS)}")

    def __str__(self) -> str:
        return f"{self.bound} {self.value:g}"

    def is_met_by(self, value: float, width: float = 1) -> bool:
        """Return True if a value keeps the bound, made `width` times as wide for machines that do other work too."""
        wide = self.value * width if self.bound == "at most" else self.value / width
        return bool(_BOUNDS[self.bound](value, wide))


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured number.

    Args:
        what: name of the measured work, such as `batch, session`.
        value: the number, in `unit`.
        unit: `x` for ratios, `s` for seconds, `MiB` for memory, `us` for microseconds.
        wanted: the bound that it should keep, if any.
        detail: the numbers behind it, such as the seconds of both sides.
        size: the size of this measurement, if the figure is one of a series over growing sizes.
        peer: name of the peer in a ratio; empty for other figures.
    """

    what: str
    value: float
    unit: str
    wanted: Wanted | None = None
    detail: str = ""
    size: int | None = None
    peer: str = ""

    @property
    def is_reached(self) -> bool:
        """Return True if the bound holds, or if there is none."""
        return self.wanted is None or self.wanted.is_met_by(self.value)

    @property
    def measured(self) -> str:
        """Return value and unit as text."""
        return f"{self.value:,.0f} {self.unit}" if self.value >= 100 else f"{self.value:.2f} {self.unit}"

    @property
    def title(self) -> str:
        """Return the name of the work with its size and its peer."""
        size = "" if self.size is None else f": {self.size:,}"
        return f"{self.what}{size}{f', vs. {self.peer}' if self.peer else ''}"

    def __str__(self) -> str:
        wanted = "" if self.wanted is None else f"{self.wanted}{'' if self.is_reached else ' (not reached)'}"
        return f"{self.title:60} {self.measured:>12}  {wanted:28}{self.detail}".rstrip()


def ratio(what: str, ours: float, theirs: float, peer: str, wanted: float | None = None, detail: str = "") -> Figure:
    """Return the figure of a ratio: our speed divided by the speed of a peer.

    Args:
        what: name of the work that both did.
        ours: our seconds.
        theirs: the peer's seconds.
        peer: name of the peer.
        wanted: the smallest ratio that is wanted, if any.
        detail: further text.
    """
    both = f"Tidegate {ours:.2f} s, {peer} {theirs:.2f} s{f'; {detail}' if detail else ''}"
    return Figure(what, theirs / ours, "x", None if wanted is None else Wanted("at least", wanted), both, peer=peer)


def figure_of(line: str) -> Figure:
    """Return a figure from a line of JSON that `tell` wrote."""
    values = json.loads(line)
    wanted = values.pop("wanted")
    return Figure(**values, wanted=None if wanted is None else Wanted(**wanted))


def tell(figures: Iterable[Figure], file: Path | None = None) -> None:
    """Print each figure when it is measured, and append it to a file of JSON lines, if one is given."""
    for figure in figures:
        print(figure, flush=True)
        if file is not None:
            with file.open("a") as lines:
                lines.write(json.dumps(asdict(figure)) + "\n")
