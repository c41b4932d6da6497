"""The other sides: DuckDB, which also gives the truth, and Flink SQL. A side that can't answer raises `Missing`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, json

from benchmarks.flink.environment import FLINK, run_in_flink
from benchmarks.nexmark.events import TABLES
from tidegate.pipelines.errors import UsageError

FLINK_TASKS = 2
NOT_FOR_FLINK = {
    "q12": "its processing time is the clock of the job, so each run has another answer",
}
_KEYS = {"q18": 2}
"""Number of the first columns that are the key of a changelog without the rows that updates replace."""


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
        files = [file for file in (self._folder / query).rglob("*") if file.is_file() and file.stat().st_size]
        if not files:
            return kinds.empty_table()
        changes = pa.concat_tables(_changes(file, kinds) for file in files)
        return _newest(changes, kinds.names[: _KEYS[query]]) if query in _KEYS else _remaining(changes, kinds.names)

    def seconds(self, query: str) -> tuple[float, float]:
        """Return the net seconds of a query's job, and of a scan of its tables."""
        return self._seconds[query]


def _changes(file: Path, kinds: pa.Schema) -> pa.Table:
    """Return the rows of a file of changes, and in `by` whether each comes (1) or goes (-1)."""
    row = pa.struct([pa.field(name, kind) for name, kind in zip("abcde", kinds.types, strict=False)])
    options = json.ParseOptions(pa.schema([("before", row), ("after", row), ("op", pa.string())]))
    changes = json.read_json(file, parse_options=options)
    comes = pc.equal(changes["op"], "c")
    rows = pc.if_else(comes, changes["after"], changes["before"]).combine_chunks()
    columns = dict(zip(kinds.names, rows.flatten(), strict=True))
    return pa.table({**columns, "by": pc.if_else(comes, 1, -1)})


def _remaining(changes: pa.Table, columns: list[str]) -> pa.Table:
    """Return the rows that come more often than they go."""
    counts = changes.group_by(columns).aggregate([("by", "sum")])
    times = np.repeat(np.arange(len(counts)), counts["by_sum"].to_numpy())
    return counts.drop_columns("by_sum").take(pa.array(times))


def _newest(changes: pa.Table, key: list[str]) -> pa.Table:
    """Return the last row of each key; all changes of a key are in one file."""
    numbered = changes.append_column("place", pa.array(np.arange(len(changes))))
    last = changes.take(numbered.group_by(key).aggregate([("place", "max")])["place_max"])
    return last.filter(pc.equal(last["by"], 1)).drop_columns("by")
