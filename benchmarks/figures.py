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
    """

    what: str
    value: float
    unit: str
    wanted: Wanted | None = None
    detail: str = ""
    size: int | None = None

    @property
    def is_reached(self) -> bool:
        """Whether the bound holds; true where there is none."""
        return self.wanted is None or bool(_BOUNDS[self.wanted.bound](self.value, self.wanted.value))

    @property
    def measured(self) -> str:
        """Value and unit, for people."""
        return f"{self.value:,.0f} {self.unit}" if self.value >= 100 else f"{self.value:.2f} {self.unit}"

    def __str__(self) -> str:
        wanted = "" if self.wanted is None else f"{self.wanted}{'' if self.is_reached else ' (not reached)'}"
        return f"{self.what:44} {self.measured:>12}  {wanted:28}{self.detail}".rstrip()


def ratio(
    what: str,
    ours: float,
    peer: float,
    name: str,
    wanted: float | None = None,
    detail: str = "",
    size: int | None = None,
) -> Figure:
    """How many times as fast as a peer we are.

    Args:
        what: what both did.
        ours: our seconds.
        peer: the peer's seconds.
        name: of the peer.
        wanted: the least ratio that is wanted, if any.
        detail: more to say.
        size: as in a figure.
    """
    both = f"ours {ours:.2f} s, {name} {peer:.2f} s{f'; {detail}' if detail else ''}"
    return Figure(what, peer / ours, "x", None if wanted is None else Wanted("at least", wanted), both, size)


def tell(figures: Iterable[Figure], file: Path | None = None) -> None:
    """Print each figure when it is measured, and keep all of them in a file of JSON lines."""
    for figure in figures:
        print(figure, flush=True)
        if file is not None:
            with file.open("a") as lines:
                lines.write(json.dumps(asdict(figure)) + "\n")


def read_figures(file: Path) -> list[Figure]:
    """What `tell` left; nothing where it measured nothing."""
    if not file.exists():
        return []
    found = []
    for line in file.read_text().splitlines():
        values = json.loads(line)
        wanted = values.pop("wanted")
        found.append(Figure(**values, wanted=None if wanted is None else Wanted(**wanted)))
    return found
