"""The other sides: DuckDB, which also gives the truth, and Flink SQL. A side that can't answer raises `Missing`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from benchmarks.flink.environment import FLINK, run_in_flink
from benchmarks.nexmark.events import TABLES
from tidegate.pipelines.errors import UsageError

FLINK_TASKS = 2
NOT_FOR_FLINK = {
    "q12": "its processing time is the clock of the job, so each run has another answer",
}


class Missing(Exception):
    """A side can't answer a query; the message has the reason."""


def write_csv(tables: Mapping[str, pa.Table], folder: Path) -> None:
    """Write the tables for Flink: two files for each, in order of time."""
    plain = csv.WriteOptions(include_header=False)
    for name in TABLES:
        rows = tables[name]
        millis = pc.divide(rows["at"].cast(pa.int64()), 1000)
        rows = rows.drop_columns(["at", "commit"]).append_column("ts", millis)
        (folder / name).mkdir(parents=True)
        for task in range(FLINK_TASKS):
            part = rows.take(pa.array(np.arange(task, len(rows), FLINK_TASKS)))
            csv.write_csv(part, folder / name / f"{task}.csv", plain)


class Flink:
    """Answers of Flink SQL, all from one job.

    Args:
        folder: folder of the CSV files.
        queries: the queries to answer.
        deadline: seconds for all of them.
    """

    def __init__(self, folder: Path, queries: Sequence[str], deadline: float) -> None:
        self._folder = folder
        self._seconds: dict[str, tuple[float, float]] = {}
        self._failure = ""
        try:
            for line in run_in_flink("nexmark", [str(folder), *queries], deadline):
                self._seconds[line["job"]] = (line["seconds"], line["scan"])
        except UsageError as error:
            self._failure = str(error)
        except subprocess.TimeoutExpired:
            self._failure = f"Flink {FLINK} was not done after {deadline:.0f} s"
        except subprocess.SubprocessError as error:
            self._failure = str(error).splitlines()[-1]

    def answer(self, query: str, kinds: pa.Schema) -> pa.Table:
        """Return the answer of a query, in these columns.

        Raises:
            Missing: Flink did not answer it.
        """
        if query in NOT_FOR_FLINK:
            raise Missing(NOT_FOR_FLINK[query])
        if query not in self._seconds:
            raise Missing(self._failure or "the job printed nothing about it")
        file = self._folder / f"{query}.csv"
        if not file.stat().st_size:
            return kinds.empty_table()
        types = csv.ConvertOptions(column_types=dict(zip(kinds.names, kinds.types, strict=True)))
        return csv.read_csv(file, csv.ReadOptions(column_names=kinds.names), convert_options=types)

    def seconds(self, query: str) -> tuple[float, float]:
        """Return the net seconds of a query's job, and of a scan of its tables."""
        return self._seconds[query]
