"""Measure a run of a stream over a source with a large log: very many files, commits or source partitions.

    python -m benchmarks.large_logs [--files 1000000] [--commits 100000] [--partitions 1000] [--json FILE]

The stream has read one commit. Then maintenance rewrites the table into very many files, or makes very many commits,
and another commit adds 5,000 events. The figures are the processor time and the peak memory of the run that reads these
events, from its call to its return. Of the many files there are only log entries. Source partitions are values of
`watermark_by`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from deltalake import DeltaTable

from benchmarks.figures import Figure, tell
from benchmarks.machine import processor_time
from benchmarks.memory import forget_peak, peak_of
from benchmarks.sized_run import BEGIN, SPAN, SourceTable, Trial, pipeline_of
from tidegate.pipelines.project.project import Project

_EVENTS, _KEYS = 5_000, 500


def figures(files: int, commits: int, partitions: int) -> Iterator[Figure]:
    """Yield the figures of a small log, and of a log that is large in each direction."""
    titles = {"a small log": (0, 0, 0), f"{files:,} files": (files, 0, 0), f"{commits:,} commits": (0, commits, 0)}
    for title, sizes in {**titles, f"{partitions:,} source partitions": (0, 0, partitions)}.items():
        command = [sys.executable, "-m", "benchmarks.large_logs", "--measure", *map(str, sizes)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{title}: {done.stderr[-2000:]}")
        seconds, peak = json.loads(done.stdout.splitlines()[-1])
        yield Figure(f"run of a stream, {title}", seconds, "s")
        yield Figure(f"run of a stream, {title}: memory", peak / 2**20, "MiB")


def measure(files: int, commits: int, partitions: int, within: Path) -> tuple[float, int]:
    """Return processor seconds and peak bytes of a run in this process, after the log has grown."""
    trial = Trial("stream", "tumbling", _EVENTS, _KEYS, partitions=partitions)
    pipeline = pipeline_of(trial, "measured")
    project = Project(warehouse=within, work=within / "work", pipelines=[pipeline], engine="local")
    table = SourceTable(within / pipeline.source.table, trial)
    numbers = np.arange(_EVENTS) % _KEYS
    table.append(numbers, BEGIN)
    project.stream(pipeline.name)
    if files:
        _rewrite(table, files)
    for _ in range(commits):
        table.table.commit()
    table.append(numbers, BEGIN + SPAN)
    forget_peak()
    began = processor_time()
    project.stream(pipeline.name)
    return processor_time() - began, peak_of()


def _rewrite(table: SourceTable, files: int) -> None:
    """Write a commit of maintenance that replaces the table's files by many, and a checkpoint."""
    (old,) = DeltaTable(str(table.folder)).file_uris()
    statistics = json.dumps({"numRecords": 1, "minValues": {"at": _TIME}, "maxValues": {"at": _TIME}})
    shared = {"size": 1_000, "modificationTime": 0, "dataChange": False, "partitionValues": {}, "stats": statistics}
    adds = ({"add": {"path": f"rewritten/part-{number}.parquet", **shared}} for number in range(files))
    table.table.commit({"remove": {"path": Path(old).name, "dataChange": False, "deletionTimestamp": 0}}, *adds)
    DeltaTable(str(table.folder)).create_checkpoint()


_TIME = "2023-11-14T22:10:00.000Z"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--measure", type=int, nargs=3, metavar=("FILES", "COMMITS", "PARTITIONS"), help="only one log")
    parser.add_argument("--json", type=Path, help="file for the figures, one a line")
    options = parser.parse_args()
    if options.measure:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(*options.measure, within=Path(folder))))
        return
    tell(figures(options.files, options.commits, options.partitions), options.json)


if __name__ == "__main__":
    main()
