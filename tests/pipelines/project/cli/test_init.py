"""`tidegate init` creates a project that works unchanged: its commands, its tests and its DAGs."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tidegate.pipelines.project.cli import run

FILES = [
    "tidegate.toml",
    "visits.py",
    "test_visits.py",
    "dags/tidegate_dags.py",
    "tidegate.schema.json",
    "warehouse/clicks",
]


def shell(folder: Path, *lines: str) -> str:
    """Return what a shell prints that runs these lines, as a user would type them in a folder."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-ec", "\n".join(lines)],
        cwd=folder,
        env={"PATH": path, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["my project", None])
def test_the_printed_commands_give_windows_and_the_tests_of_the_project_pass(
    tmp_path: Path, name: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init", *([] if name is None else [name])]) == 0
    told = capsys.readouterr().out
    folder = tmp_path / (name or "")
    assert [file for file in FILES if not (folder / file).exists()] == []
    printed = [line.strip() for line in told.splitlines() if line.startswith("  ")]
    assert printed[:-2] == ([] if name is None else ["cd 'my project'"])
    windows = shell(tmp_path, *printed)
    # For each day, the three visits that ended, and those that crossed midnight into a later one.
    assert "final windows of visits (20 of 27)" in windows
    assert "2 passed" in shell(folder, "python -m pytest -q -p no:cacheprovider")


def test_the_dag_file_of_a_new_project_has_its_dags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("airflow")
    assert run(["init", str(tmp_path / "new")]) == 0
    dags = runpy.run_path(str(tmp_path / "new" / "dags" / "tidegate_dags.py"))
    assert {"visits__backfill", "visits__stream", "visits__quality"} <= dags.keys()


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_exists_is_not_replaced(tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert run(["init", str(tmp_path)]) == 2
    assert f"{file} already in {tmp_path}: nothing was written" in capsys.readouterr().err
    assert (sorted(tmp_path.rglob("*")), (tmp_path / file).read_text()) == (before, "mine")


def test_a_folder_that_can_not_be_made_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run(["init", str(tmp_path / "file" / "new")]) == 2
    assert "can't be created" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a%20b", "a\\b"])
def test_a_folder_that_deltalake_takes_for_another_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / name)
    for folder in (name, "link"):
        assert run(["init", str(tmp_path / folder)]) == 2
        assert f"{tmp_path / name}/warehouse/clicks: deltalake can't open tables" in capsys.readouterr().err
    assert not (tmp_path / name).exists()


def test_programs_get_the_folder_the_files_and_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", str(tmp_path / "new"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["folder"], made["files"]) == (str(tmp_path / "new"), FILES)
    assert [command.split()[0] for command in made["commands"]] == ["cd", "tidegate", "tidegate"]


def test_the_settings_of_a_new_project_name_the_schema_that_a_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert run(["init", str(tmp_path)]) == 0
    capsys.readouterr()
    assert run(["schema"]) == 0
    schema = (tmp_path / "tidegate.schema.json").read_text()
    assert schema == capsys.readouterr().out
    toml = (tmp_path / "tidegate.toml").read_text()
    assert toml.startswith("#:schema tidegate.schema.json\n")
    jsonschema.validate(json.loads(json.dumps(tomllib.loads(toml), default=str)), json.loads(schema))
