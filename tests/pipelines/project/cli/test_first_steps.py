"""The first commands in a new project: no pipeline named, no source yet, no run yet. Each message names the next
step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.pipelines.project.cli.project import Project
from tidegate.pipelines.examples.flights.source import SCHEMA
from tidegate.pipelines.project.cli import run

DAY = ("--start", "2024-03-01", "--end", "2024-03-02")


@pytest.mark.parametrize(
    "command", [("results",), ("why", "--key", "ann"), ("snapshots", "list"), ("savepoints", "create")], ids=" ".join
)
def test_a_command_without_its_pipeline_lists_those_of_the_project(project: Project, command: tuple[str, ...]) -> None:
    code, told = project.tidegate(*command)
    assert code == 2
    assert told == (
        f"tidegate: Missing argument 'PIPELINE'. Give a pipeline: {project.folder / 'tidegate.toml'} has sessions\n"
    )


def test_a_command_without_its_pipeline_says_why_none_can_be_listed(project: Project) -> None:
    (project.folder / "tidegate.toml").write_text('warehouse = "warehouse"\n')
    assert "has no pipeline; add one as [pipelines.NAME]" in project.tidegate("results")[1]
    (project.folder / "tidegate.toml").write_text('warehaus = "warehouse"\n')
    code, told = project.tidegate("results")
    assert (code, "Missing argument 'PIPELINE'" in told, "did you mean warehouse?" in told) == (2, True, True), told
    (project.folder / "tidegate.toml").unlink()
    project.says(2, f"can't be listed: there is no {project.folder / 'tidegate.toml'}", "results")


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "sessions", *DAY),
        ("backfill", "sessions", *DAY),
        ("replay", "sessions"),
        ("stream", "sessions", "--available-now"),
    ],
    ids=" ".join,
)
def test_a_source_that_does_not_exist_is_refused_before_spark_starts(
    project: Project, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr("tidegate.pipelines.run.drive.engine_of", lambda *given: pytest.fail("Spark starts"))
    told = project.says(3, f"source table {project.folder}/warehouse/events does not exist", *command)
    assert "or `warehouse` in tidegate.toml" in told


@pytest.mark.parametrize("name", ["a%20b", "a\\b"])
def test_a_source_in_a_folder_that_deltalake_takes_for_another_is_refused(project: Project, name: str) -> None:
    project.rewrite(f"session_pipeline(source=DeltaSource({name!r}, timestamp='at'))")
    project.says(2, f"{project.folder}/warehouse/{name}: deltalake can't open", "stream", "sessions", "--available-now")


@pytest.mark.parametrize(
    "command",
    [
        *(("snapshots", "list"), ("savepoints", "list"), ("runs",), ("late", "summary")),
        *(("tables", "optimize"), ("results",)),
    ],
    ids=" ".join,
)
def test_a_pipeline_without_tables_is_told_in_one_way_with_the_setting(
    project: Project, command: tuple[str, ...]
) -> None:
    """An empty list is not an error, so it ends with 0; people still read the reason."""
    code, told = project.tidegate(*command, "sessions")
    assert code == (3 if command == ("results",) else 0)
    assert f"has no snapshot yet in warehouse {project.folder}/warehouse. " in " ".join(told.split())
    assert "correct `warehouse` in tidegate.toml" in " ".join(told.split())
    assert run([*command, "sessions", "--json", "--config", str(project.folder / "tidegate.toml")]) == code
    printed = project.printed.readouterr()
    nothing = {"pipeline": "sessions", "rows": 0, "open": 0, "groups": []}
    assert command[-1] in ("results", "optimize") or json.loads(printed.out) in ([], nothing)
    if code == 0:
        assert ("has no snapshot yet" in printed.err, printed.err.count("\n")) == (True, 1), "one line, no document"


def test_a_faulty_entry_is_named_in_a_list_and_stops_no_other_pipeline(project: Project) -> None:
    toml = project.folder / "tidegate.toml"
    toml.write_text(toml.read_text() + '[pipelines.days]\nobject = "days:days"\n')
    code, told = project.tidegate("runs")
    assert (code, "has days, sessions. Faulty: pipelines.days.start: required field is missing" in told) == (2, True), (
        told
    )
    assert project.tidegate("runs", "sessions")[0] == 0
    project.says(2, f"{toml}: pipelines.days.start: required field is missing", "runs", "days")


@pytest.mark.parametrize(("words", "found"), [("tidegate res", "results"), ("tidegate results --wh", "--where")])
def test_the_shell_completes_commands_and_options(words: str, found: str) -> None:
    asked = {"_TIDEGATE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [Path(sys.executable).parent / "tidegate"]
    told = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=True).stdout
    assert f"plain,{found}" in told.splitlines()


def test_the_source_of_the_example_is_written_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tidegate.toml").write_text('warehouse = "tables"\n')
    command = ["flights", "--config", str(tmp_path / "tidegate.toml"), "--json", "--days"]
    assert run([*command, "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    table = DeltaTable(told["table"])
    assert told["table"] == str(tmp_path / "tables" / "flights")
    assert set(SCHEMA.names) == {field.name for field in table.schema().fields}
    assert told["rows"] == table.count() > 500, "a day of flights from New York"
    assert run([*command, "2"]) == 0
    assert json.loads(capsys.readouterr().out) == told
    assert run([*command, "400"]) == 2
    assert "--days 400" in json.loads(capsys.readouterr().out)["message"]
