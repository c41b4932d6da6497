"""Run all benchmarks, one after the other, and write the report in docs/benchmarks.

    python -m benchmarks [--full] [--only PROGRAM ...] [--folder docs/benchmarks]

The quick form takes less than 10 minutes on two cores, the full one an hour and a half. Programs that --only leaves
out keep their figures in the report.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from benchmarks.figures import figure_of
from benchmarks.machine import describe_machine
from benchmarks.report import Report, Section


@dataclass(frozen=True, slots=True)
class Program:
    """A benchmark: its title, its module, and the arguments of its two forms; a form without the program has None."""

    title: str
    module: str
    quick: tuple[str, ...] | None = None
    full: tuple[str, ...] | None = ()


PROGRAMS = {
    "spark": Program(
        "Compared with Spark's own windows", "against_spark", ("--rounds=1", "--streamed=2500000"), ("--rounds=3",)
    ),
    "tables": Program(
        "Tables as users have them, compared with Spark's own windows over the same tables",
        "user_tables",
        ("--events=500000", "--per-commit=100000", "--rounds=1", "--kind=session", "--windows=few"),
        ("--rounds=3",),
    ),
    "state_processor": Program(
        "Compared with hand-written sessions in Spark's state processor",
        "against_state_processor",
        ("--events=4000", "--per-commit=2000", "--deadline=40"),
        ("--deadline=300",),
    ),
    "flink": Program(
        "Compared with Flink",
        "against_flink",
        ("--events=1000000", "--rounds=1", "--small=5000", "--deadline=20"),
        ("--rounds=3",),
    ),
    "nexmark": Program(
        "Nexmark, with answers compared with the correct ones",
        "nexmark",
        ("--events=100000", "--per-commit=25000"),
        ("--events=10000000", "--sides=tidegate,tidegate_spark,duckdb,flink,spark", "--deadline=1800"),
    ),
    "scaling": Program("How cost grows", "scaling", ("--quick", "epochs", "open", "hot"), full=None),
    "epochs": Program("Small and large epochs", "scaling", full=("epochs",)),
    "open": Program("Growing numbers of open windows", "scaling", full=("open",)),
    "shard": Program("One shard of a hundred", "scaling", full=("shard",)),
    "hot": Program("A hot key", "scaling", full=("hot",)),
    "size": Program("Growing numbers of events and keys", "scaling", full=("events", "keys")),
    "large": Program("50 million events in one epoch", "scaling", full=("large",)),
    "large_hot": Program("The same, with half of them in one key", "scaling", full=("large_hot",)),
    "long_stream": Program(
        "A long stream: lag, memory and files at the end, compared with the middle",
        "long_stream",
        full=("--seconds=1800",),
    ),
    "latency": Program(
        "From a source commit to its visible result",
        "latency",
        ("--seconds=40", "--rates=20000", "--alone"),
        ("--seconds=180",),
    ),
    "engines": Program(
        "The local engine compared with Spark's: the first result, and batches",
        "engines",
        ("--events=2000000", "--rounds=3"),
        (),
    ),
    "windows_table": Program(
        "Table windows: epochs with it, compared with epochs without it",
        "windows_table",
        ("--commits=8", "--sizes", "1000", "100000"),
        (),
    ),
    "large_local": Program("50 million events in one epoch of the local engine", "scaling", full=("large_local",)),
    "changed_rows": Program(
        "Changed rows of the source, compared with appended rows and a full backfill",
        "changed_rows",
        ("--rows=500000", "--rounds=2", "--kind", "tumbling"),
        (),
    ),
    "kernels": Program(
        "In one process: the columnar operator, the NumPy floor and the row operator",
        "kernels",
        ("--events=1000000", "--by-row=50000"),
    ),
    "open_windows": Program("In one process: epochs over open windows", "open_windows", ()),
    "row_operator": Program(
        "In one process: the row operator compared with a bare loop",
        "row_operator",
        ("--elements=200000", "--keys=20000"),
    ),
    "main_job": Program("The main job: flights by the day and by the month", "main_job"),
    "sizes": Program("What an epoch costs, predicted and measured", "sizes", ("--write",), ("--full", "--write")),
    "large_logs": Program("A run over a source with a large log", "large_logs"),
    "answers": Program("What advise and verify cost", "answers", full=("--advise", "1000000", "10000000")),
    "quality": Program("The quality run of a month of flights", "quality"),
}


QUICK_LIMIT, FULL_LIMIT = 420.0, 3600.0
"""Time limit of a program in seconds, in each form."""


def run(program: Program, arguments: Sequence[str], limit: float) -> Section:
    """Run a program in a process of its own for `limit` seconds at most, showing its output."""
    busy = psutil.cpu_percent(interval=1) / 100
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures"
        command = [sys.executable, "-m", f"benchmarks.{program.module}", *arguments, "--json", str(file)]
        with subprocess.Popen(command, start_new_session=True) as process:
            try:
                failure = f"exit code {code}" if (code := process.wait(limit)) else ""
            except subprocess.TimeoutExpired:
                failure = f"not finished after {limit:.0f} seconds"
            finally:
                _end_all(process)
        lines = file.read_text().splitlines() if file.exists() else []
    return Section(
        title=program.title,
        command=" ".join(["python -m", f"benchmarks.{program.module}", *arguments]),
        measured=datetime.now(UTC).date().isoformat(),
        machine=describe_machine(),
        busy=busy,
        figures=tuple(map(figure_of, lines)),
        failure=failure,
    )


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """End a program and its children: a JVM that is left behind would slow down the following programs."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    """Run the chosen programs and write the report; return 1 if a program failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all sizes, several rounds")
    parser.add_argument("--only", nargs="+", choices=tuple(PROGRAMS), metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--folder", type=Path, default=Path("docs/benchmarks"))
    options = parser.parse_args()
    report = Report(options.folder, "full" if options.full else "quick")
    before, failed = report.read(), False
    for name in options.only or PROGRAMS:
        program = PROGRAMS[name]
        arguments = program.full if options.full else program.quick
        if arguments is None:
            continue
        print(f"\n{program.title}", flush=True)
        before[name] = run(program, arguments, FULL_LIMIT if options.full else QUICK_LIMIT)
        failed |= bool(before[name].failure)
        # The report is written after each program, so that its figures are kept if a later one fails.
        report.write({kept: before[kept] for kept in PROGRAMS if kept in before})
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
