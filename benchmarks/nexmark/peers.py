"""Other streaming systems, each in an environment of its own: Flink SQL, pyclink and Pathway."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, json

from benchmarks.flink.environment import FLINK, python_with, run_elsewhere, run_in_flink
from benchmarks.nexmark.events import TABLES
from tidegate.pipelines.errors import UsageError

FLINK_TASKS = 2
CLINK = "0.12.2"
PATHWAY = "0.33.0"
_NAMES = {"id": "person"}
"""Columns with another name in the other system: Pathway has a column `id` of its own."""
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


class Peer:
    """Answers of another system, all from one job in an environment of its own.

    Args:
        name: name of the system and its version.
        lines: runs the job; yields a mapping with `job` (the query), `seconds` and `scan`.
        content: returns the final content of a query, in the columns of a schema.
        missing: the reason, for each query that the system can't answer.
    """

    def __init__(
        self,
        name: str,
        lines: Callable[[], Iterator[dict[str, Any]]],
        content: Callable[[str, pa.Schema], pa.Table],
        missing: Mapping[str, str],
    ) -> None:
        self._content = content
        self._missing = missing
        self._seconds: dict[str, tuple[float, float]] = {}
        self._failure = ""
        try:
            for line in lines():
                self._seconds[line["job"]] = (line["seconds"], line["scan"])
        except UsageError as error:
            self._failure = str(error)
        except subprocess.TimeoutExpired as error:
            self._failure = f"{name} was not done after {error.timeout:.0f} s"
        except subprocess.SubprocessError as error:
            self._failure = str(error).splitlines()[-1]

    def answer(self, query: str, kinds: pa.Schema) -> pa.Table:
        """Return the answer of a query, in these columns.

        Raises:
            Missing: the system did not answer it.
        """
        if query in self._missing:
            raise Missing(self._missing[query])
        if query not in self._seconds:
            raise Missing(self._failure or "the job printed nothing about it")
        return self._content(query, kinds)

    def seconds(self, query: str) -> tuple[float, float]:
        """Return the net seconds of a query's job, and of a scan of its tables."""
        return self._seconds[query]


def flink(tables: Mapping[str, pa.Table], folder: Path, queries: Sequence[str], deadline: float) -> Peer:
    """Run queries in Flink SQL, over CSV files.

    Args:
        tables: rows of each table.
        folder: folder for its files.
        queries: the queries.
        deadline: seconds for all of them.
    """
    write_csv(tables, folder)
    missing = {"q12": "its processing time is the clock of the job, so each run has another answer"}
    asked = [str(folder), *(query for query in queries if query not in missing)]

    def content(query: str, kinds: pa.Schema) -> pa.Table:
        files = [file for file in (folder / query).rglob("*") if file.is_file() and file.stat().st_size]
        if not files:
            return kinds.empty_table()
        changes = pa.concat_tables(_changes(file, kinds) for file in files)
        return _newest(changes, kinds.names[: _KEYS[query]]) if query in _KEYS else _remaining(changes, kinds.names)

    return Peer(f"Flink {FLINK}", lambda: run_in_flink("nexmark", asked, deadline), content, missing)


def write_json(tables: Mapping[str, pa.Table], folder: Path) -> None:
    """Write each table as JSON lines in order of time, with int64 epoch milliseconds in `ms`."""
    folder.mkdir(parents=True)
    with duckdb.connect() as database:
        for name in TABLES:
            database.register("given", tables[name])
            renamed = "RENAME (id AS person)" if name == "person" else ""
            rows = f'SELECT * EXCLUDE ("at", "commit") {renamed}, epoch_ms("at") AS ms FROM given'
            database.execute(f"COPY ({rows}) TO '{folder / name}.json' (FORMAT json)")


def clink(tables: Mapping[str, pa.Table], folder: Path, queries: Sequence[str], deadline: float) -> Peer:
    """Run queries in pyclink, over JSON lines; the arguments are those of `flink`."""
    missing = {"q8": "its joins compare one column, and this one needs the person and the window"}
    return _over_json(f"pyclink {CLINK}", "clink_job.py", missing, tables, folder, queries, deadline)


def pathway(tables: Mapping[str, pa.Table], folder: Path, queries: Sequence[str], deadline: float) -> Peer:
    """Run queries in Pathway, over JSON lines; the arguments are those of `flink`."""
    ranks = "it has no ranks; a reducer would keep all bids of a group as a Python value"
    missing = {"q18": ranks, "q19": ranks, "cumulate": "it has no cumulative windows"}
    return _over_json(f"pathway {PATHWAY}", "pathway_job.py", missing, tables, folder, queries, deadline)


def _over_json(
    name: str,
    script: str,
    missing: dict[str, str],
    tables: Mapping[str, pa.Table],
    folder: Path,
    queries: Sequence[str],
    deadline: float,
) -> Peer:
    write_json(tables, folder)
    missing = {"q12": "its processing time is the clock of the job, so each run has another answer", **missing}
    package, version = name.split()
    asked = [str(folder), *(query for query in queries if query not in missing)]

    def content(query: str, kinds: pa.Schema) -> pa.Table:
        files = [file for file in folder.glob(f"{query}*") if file.stat().st_size]
        named = pa.schema([field.with_name(_NAMES.get(field.name, field.name)) for field in kinds])
        parse = json.ParseOptions(named, unexpected_field_behavior="ignore")
        rows = pa.concat_tables([named.empty_table(), *(json.read_json(file, parse_options=parse) for file in files)])
        return rows.rename_columns(kinds.names)

    def lines() -> Iterator[dict[str, Any]]:
        yield from run_elsewhere(python_with(package, version), Path(__file__).with_name(script), asked, deadline)

    return Peer(name, lines, content, missing)


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
