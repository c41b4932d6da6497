"""What a benchmark measured: figures beside what is wanted of them, told as they come and kept as JSON.

Every program gives its figures one by one; `tell` prints them and, with `--json FILE`, leaves them for the report.
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
        value: in the figure's unit.
    """

    bound: str
    value: float

    def __post_init__(self) -> None:
        if self.bound not in _BOUNDS:
            raise ValueError(f"bound {self.bound!r}: one of {', '.join(_BOUNDS)}")

    def __str__(self) -> str:
        return f"{self.bound} {self.value:g}"

    def is_met_by(self, value: float, width: float = 1) -> bool:
        """Whether a value keeps the bound, or one so many times as wide: for machines that do other work too."""
        wide = self.value * width if self.bound == "at most" else self.value / width
        return bool(_BOUNDS[self.bound](value, wide))


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number.

    Args:
        what: what was measured, such as `batch, session`.
        value: in `unit`.
        unit: `x` for ratios, `s` for seconds, `MiB` for memory, `us` for microseconds.
        wanted: the bound that it shall keep, if any.
        detail: what it came from: the seconds of both sides, say.
        size: where the figure is one of a series over growing sizes, how large this one was.
        peer: whom a ratio compares us with, if anybody.
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
        """Whether the bound holds; true where there is none."""
        return self.wanted is None or self.wanted.is_met_by(self.value)

    @property
    def measured(self) -> str:
        """Value and unit, for people."""
        return f"{self.value:,.0f} {self.unit}" if self.value >= 100 else f"{self.value:.2f} {self.unit}"

    @property
    def title(self) -> str:
        """What was measured, at which size and beside whom."""
        size = "" if self.size is None else f": {self.size:,}"
        return f"{self.what}{size}{f', beside {self.peer}' if self.peer else ''}"

    def __str__(self) -> str:
        wanted = "" if self.wanted is None else f"{self.wanted}{'' if self.is_reached else ' (not reached)'}"
        return f"{self.title:60} {self.measured:>12}  {wanted:28}{self.detail}".rstrip()


def ratio(what: str, ours: float, theirs: float, peer: str, wanted: float | None = None, detail: str = "") -> Figure:
    """How many times as fast as a peer we are.

    Args:
        what: what both did.
        ours: our seconds.
        theirs: the peer's seconds.
        peer: its name.
        wanted: the least ratio that is wanted, if any.
        detail: more to say.
    """
    both = f"ours {ours:.2f} s, {peer} {theirs:.2f} s{f'; {detail}' if detail else ''}"
    return Figure(what, theirs / ours, "x", None if wanted is None else Wanted("at least", wanted), both, peer=peer)


def figure_of(line: str) -> Figure:
    """A figure from a line of JSON, as `tell` leaves them."""
    values = json.loads(line)
    wanted = values.pop("wanted")
    return Figure(**values, wanted=None if wanted is None else Wanted(**wanted))


def tell(figures: Iterable[Figure], file: Path | None = None) -> None:
    """Print each figure when it is measured, and keep all of them in a file of JSON lines."""
    for figure in figures:
        print(figure, flush=True)
        if file is not None:
            with file.open("a") as lines:
                lines.write(json.dumps(asdict(figure)) + "\n")
