"""`tidegate results` filters windows by a condition, and exports all of them for other programs."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.lake import DAY0, LOCAL, Lake, at, session_pipeline
from tests.pipelines.project.cli.project import Project
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.project.results import FORMATS, Results

USERS = 30


@pytest.fixture(scope="module")
def backfilled(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("backfilled") / "lake")
    lake.append(*((f"u{number:02}", at("10:00"), number) for number in range(USERS)))
    lake.backfill(LOCAL, session_pipeline(), DAY0, DAY0 + timedelta(days=1))
    return lake


@pytest.fixture
def full(project: Project, backfilled: Lake) -> Project:
    """A project with one window for each of thirty users."""
    shutil.copytree(backfilled.folder, project.folder, dirs_exist_ok=True)
    return project


def test_a_condition_leaves_the_windows_that_fulfil_it(full: Project) -> None:
    for where, users in (
        ("total >= 28", ["u28", "u29"]),
        ("user = 'u03' OR total = 5", ["u03", "u05"]),
        ("window_start < '2024-03-01 10:00:00'", []),
        ("user LIKE 'u0%' AND total % 4 = 1", ["u01", "u05", "u09"]),
        ("NOT (total > 0)", ["u00"]),
    ):
        assert sorted(row["user"] for row in full.data("results", "sessions", "--where", where)) == users
    for where in ("totl > 1", "total", "total >", "rand() > 0.5", "1 / total > 0.1"):
        assert "the columns are" in full.says(2, f"--where {where!r}: ", "results", "sessions", "--where", where)


def test_a_condition_that_only_spark_evaluates_names_the_query_for_it(full: Project) -> None:
    said = full.says(2, "HexString (X'61') is not proven", "results", "sessions", "--where", "user = x'61'")
    assert "use a query over the table" in said
    assert "the run fails" not in full.says(2, "it can't be parsed", "results", "sessions", "--where", "total >")


def test_what_is_shown_is_counted_of_what_fulfils_the_condition(full: Project) -> None:
    assert "(20 of 30)" in full.tidegate("results", "sessions")[1]
    assert "(2 of 25)" in full.tidegate("results", "sessions", "--where", "total > 4", "--limit", "2")[1]
    assert "(30 of 30)" in full.tidegate("results", "sessions", "--limit", "0")[1]


def test_every_format_has_all_rows(full: Project, tmp_path: Path) -> None:
    readers: dict[str, Callable[[Path], list[str]]] = {
        "csv": lambda file: [row["user"] for row in csv.DictReader(io.StringIO(file.read_text()))],
        "jsonl": lambda file: [json.loads(line)["user"] for line in file.read_text().splitlines()],
        "parquet": lambda file: pq.read_table(file)["user"].to_pylist(),
        "arrow": lambda file: pa.ipc.open_file(file.read_bytes()).read_all()["user"].to_pylist(),
    }
    assert {*readers} == {*FORMATS}
    for format_, users in readers.items():
        file = tmp_path / f"windows.{format_}"
        assert full.tidegate("results", "sessions", "--format", format_, "--to", str(file)) == (0, "")
        assert sorted(users(file)) == [f"u{number:02}" for number in range(USERS)]
    assert len([*tmp_path.glob("windows*")]) == len(readers)


def test_the_standard_output_has_the_rows_and_nothing_else(full: Project) -> None:
    command = [sys.executable, "-m", "tidegate", "results", "sessions", "--format", "csv"]
    options = ["--where", "total < 2", "--sort", "total"]
    done = subprocess.run([*command, *options], cwd=full.folder, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    first = next(csv.DictReader(lines))
    assert (first["user"], first["window_start"], first["total"]) == ("u01", "2024-03-01 10:00:00.000000Z", "1")


def test_local_times_are_written_with_their_offset(full: Project, tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    full.tidegate(
        "results", "sessions", "--format", "csv", "--to", str(file), "--local", "Europe/Berlin", "--limit", "1"
    )
    (row,) = csv.DictReader(file.read_text().splitlines())
    assert (row["window_start"], row["window_date"]) == ("2024-03-01 11:00:00.000000+0100", "2024-03-01")


def test_a_file_that_can_not_be_written_is_a_usage_error(full: Project) -> None:
    full.says(2, "--to nowhere/f: No such file", "results", "sessions", "--format", "csv", "--to", "nowhere/f")


def test_bytes_are_csv_where_they_are_text(tmp_path: Path) -> None:
    text, other = (
        Results("hours", "final", pa.table({"id": pa.array([value, None]), "n": [1, 2]}), 2, ("id",), has_panes=False)
        for value in (b"a", b"\xff")
    )
    text.write(tmp_path / "f", "csv")
    assert (tmp_path / "f").read_text().splitlines()[1] == '"a",1'
    with pytest.raises(UsageError, match=r"--format csv: id has bytes that are not text in UTF-8: give parquet"):
        other.write(tmp_path / "f", "csv")


def test_a_table_in_a_table_is_no_csv_and_the_file_of_before_stays(tmp_path: Path) -> None:
    rows = pa.table({"user": ["ann"], "top": [[1, 2]]})
    answer = Results("p", "final", rows, 1, ("user",), has_panes=True)
    file = tmp_path / "f"
    file.write_text("before")
    with pytest.raises(UsageError, match=r"--format csv: top has several values per row: give jsonl or parquet"):
        answer.write(file, "csv")
    assert (file.read_text(), [path.name for path in tmp_path.iterdir()]) == ("before", ["f"])
    answer.write(file, "jsonl")
    assert json.loads(file.read_text()) == {"user": "ann", "top": [1, 2]}
