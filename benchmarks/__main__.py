"""The quick form of all benchmarks, in under 10 minutes: `python -m benchmarks [FOLDER]`.

Prints what each prints, and leaves it in FOLDER (docs/benchmarks) with a plot of the ratios.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

RUNS: dict[str, Sequence[str]] = {
    "In one process: columnar operator, NumPy floor, row operator": ("benchmarks.kernels", "1000000", "50000"),
    "In one process: epochs over open windows": ("benchmarks.open_windows", "1000000"),
    "The row operator beside a bare loop": ("benchmarks.row_operator", "--elements", "200000", "--keys", "20000"),
    "Side by side with Spark": ("benchmarks.against_spark", "--events", "2000000", "--rounds", "1"),
    "Side by side with Spark, half of all events in one key": (
        *("benchmarks.against_spark", "--events", "2000000", "--rounds", "1", "--hot", "0.5", "--only", "batch"),
    ),
}
_RATIO = re.compile(r"^(.+?)\s+[\d.]+ s\s+[\d.]+ s\s+([\d.]+) x$", re.MULTILINE)


def plot(told: dict[str, str], file: Path) -> None:
    """A bar for each ratio to Spark."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = [
        (f"{name}{', hot key' if 'half' in title else ''}", float(ratio))
        for title, text in told.items()
        for name, ratio in _RATIO.findall(text)
    ]
    if not bars:
        return
    figure, axes = pyplot.subplots(figsize=(7, 0.5 + 0.4 * len(bars)))
    axes.barh([name for name, _ in bars], [ratio for _, ratio in bars], color="#2a6f97")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast as Spark's own windows, which write nothing")
    figure.tight_layout()
    figure.savefig(file)


def main(folder: str = "docs/benchmarks") -> None:
    """Run everything and write the report."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    told: dict[str, str] = {}
    for title, (module, *arguments) in RUNS.items():
        print(f"\n{title}", flush=True)
        command = [sys.executable, "-m", module, *arguments]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        told[title] = ran.stdout
        print(ran.stdout, flush=True)
    plot(told, target / "ratios.svg")
    parts = [f"# Benchmarks\n\n{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}.\n"]
    if (target / "ratios.svg").exists():
        parts.append("![Ratios to Spark](ratios.svg)\n")
    parts += [f"## {title}\n\n```\n{text.rstrip()}\n```\n" for title, text in told.items()]
    (target / "README.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main(*sys.argv[1:])
