"""The page of a form of the benchmarks: each figure with its target, the machine, and plots.

The figures are stored next to the page as JSON, so that one program can be measured again without the others.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, figure_of
from benchmarks.plots import plot_growth, plot_ratios


@dataclass(frozen=True, slots=True)
class Section:
    """The figures of one program.

    Args:
        title: title of the section.
        command: command line to measure it again.
        measured: day of the measurement.
        machine: description of the machine in one line.
        busy: share of the cores that other work had at the start.
        figures: the figures in order.
        failure: the reason why figures are missing; empty if all went well.
    """

    title: str
    command: str
    measured: str
    machine: str
    busy: float
    figures: tuple[Figure, ...]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The page of one form, in a folder.

    Args:
        folder: folder of the documentation.
        form: `quick` or `full`, which names the files.
    """

    folder: Path
    form: str

    def read(self) -> dict[str, Section]:
        """Return the sections by program, from the last measurement of each."""
        if not self._figures.exists():
            return {}
        return {name: _section(values) for name, values in json.loads(self._figures.read_text()).items()}

    def write(self, sections: dict[str, Section]) -> None:
        """Write the page, its plots, and the figures."""
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = {name: asdict(section) for name, section in sections.items()}
        self._figures.write_text(json.dumps(kept, indent=1) + "\n")
        figures = [figure for section in sections.values() for figure in section.figures]
        pictures = []
        for name, alternative, plot in (
            ("ratios", "Ratios to peers", plot_ratios),
            ("growth", "Seconds by size", plot_growth),
        ):
            file = self.folder / f"{self.form}-{name}.svg"
            if plot(figures, file):
                pictures.append(f"![{alternative}]({file.name})\n")
        machines = dict.fromkeys(section.machine for section in sections.values())
        lines = [f"# Benchmarks, {self.form} form\n", _wrapped(f"Measured on {'; and on '.join(machines)}."), *pictures]
        for section in sections.values():
            lines += [f"## {section.title}\n", f"`{section.command}`\n"]
            lines.append(_wrapped(f"{section.measured}; {_company(section.busy)}."))
            if section.figures:
                lines += [_table(section.figures), *_details(section.figures)]
            if section.failure:
                lines.append(_wrapped(f"The program failed: {section.failure}"))
        (self.folder / f"{self.form}.md").write_text("\n".join(lines))

    @property
    def _figures(self) -> Path:
        return self.folder / f"{self.form}.json"


def _company(busy: float) -> str:
    return f"other work used {busy:.0%} of the cores at the start"


def _table(figures: Sequence[Figure]) -> str:
    lines = ["| what | measured | target |", "|---|---:|---|"]
    for figure in figures:
        wanted = "" if figure.wanted is None else f"{figure.wanted}{'' if figure.is_reached else ': **missed**'}"
        lines.append(f"| {figure.title} | {figure.measured} | {wanted} |")
    return "\n".join(lines) + "\n"


def _details(figures: Sequence[Figure]) -> list[str]:
    """Return a list of what the figures were computed from, because it is too long for a cell of the table."""
    items = [_wrapped(f"- {figure.title}: {figure.detail}", "  ") for figure in figures if figure.detail]
    return ["Computed from:\n", "".join(items)] if items else []


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) + "\n"


def _section(values: dict[str, Any]) -> Section:
    return Section(**{**values, "figures": tuple(figure_of(json.dumps(figure)) for figure in values["figures"])})
