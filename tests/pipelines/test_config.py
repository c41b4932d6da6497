from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipelines.config import ENVIRONMENT, Config, find_config, load_config
from pipelines.errors import UsageError

ENTRY = '[pipelines.hours]\nobject = "pipelines.flights.hours:airport_hours"\nstart = 2013-01-01\n'


def config(folder: Path, text: str) -> Config:
    file = folder / "tidegate.toml"
    file.write_text(text)
    return load_config(file)


def test_relative_folders_are_taken_from_the_file_and_uris_as_they_are(tmp_path: Path) -> None:
    relative = config(tmp_path, 'warehouse = "lake"\nwork = "w"')
    assert relative.warehouse_uri == str(tmp_path / "lake")
    assert relative.work_folder == tmp_path / "w"
    assert config(tmp_path, 'warehouse = "s3://bucket/lake"').warehouse_uri == "s3://bucket/lake"


def test_a_date_without_a_zone_is_utc(tmp_path: Path) -> None:
    entry = config(tmp_path, ENTRY + "end = 2014-01-01T06:00:00\n").entry("hours")
    assert entry.start == datetime(2013, 1, 1, tzinfo=UTC)
    assert entry.end == datetime(2014, 1, 1, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('warehose = "x"', "warehose"),
        ("warehouse = 3", "warehouse"),
        ('root = "/"', "root"),
        ('spark = "local"', "spark"),
        ("[pipelines.hours]\nstart = 2013-01-01", "pipelines.hours.object"),
        ('[pipelines.hours]\nobject = "a:b"', "pipelines.hours.start"),
        ('[pipelines.hours]\nobject = "a:b"\nstart = "yesterday"', "pipelines.hours.start"),
        (ENTRY + 'schedul = "@daily"', "pipelines.hours.schedul"),
        (ENTRY + "retries = -1", "pipelines.hours.retries"),
        (ENTRY.replace("hours]", '"../hours"]'), "../hours"),
        ("work = 1\nwarehouse = = 2", "line 2"),
    ],
)
def test_a_faulty_file_is_refused_with_the_file_and_the_field_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(UsageError) as refused:
        config(tmp_path, text)
    assert str(tmp_path / "tidegate.toml") in str(refused.value)
    assert named in str(refused.value)


def test_a_file_of_another_name_is_what_commands_are_given_again(tmp_path: Path) -> None:
    (tmp_path / "staging.toml").touch()
    assert load_config(tmp_path / "staging.toml").file == tmp_path / "staging.toml"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml"):
        load_config(tmp_path / "nowhere.toml")


def test_the_file_is_found_from_a_folder_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    (tmp_path / "tidegate.toml").touch()
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_config(below) == tmp_path / "tidegate.toml"


def test_the_environment_names_the_file_before_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "other.toml"))
    assert find_config(tmp_path) == tmp_path / "other.toml"


def test_without_a_file_the_three_ways_out_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with pytest.raises(UsageError, match=rf"change to your project's folder, give --config, or set {ENVIRONMENT}"):
        find_config(tmp_path)


def test_an_unknown_pipeline_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown pipeline 'ours'.*hours"):
        config(tmp_path, ENTRY).pipeline("ours")


def test_a_pipeline_is_imported_from_the_projects_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "of_a_project.py").write_text("from pipelines.flights.hours import airport_hours\n")
    text = ENTRY.replace("hours]", "airport_hours]").replace("pipelines.flights.hours", "of_a_project")
    assert config(tmp_path, text).pipeline("airport_hours").name == "airport_hours"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("pipelines.flights.hours", "write it as package.module:name"),
        ("no_such_module:hours", "No module named 'no_such_module'"),
        ("pipelines.flights.hours:ours", "has no 'ours'"),
        ("pipelines.names:check_name", "a function, no Pipeline"),
        ("pipelines.flights.hours:airport_hours", "named 'airport_hours'"),
    ],
)
def test_an_object_that_is_no_pipeline_of_that_name_is_refused(tmp_path: Path, path: str, reason: str) -> None:
    text = ENTRY.replace("pipelines.flights.hours:airport_hours", path)
    with pytest.raises(UsageError, match=rf"pipelines\.hours\.object = '{path}'.*{reason}"):
        config(tmp_path, text).pipeline("hours")


CODE = """from pipelines import DeltaSource, Pipeline
from windowing import Count, TumblingEventTimeWindows, WatermarkStrategy, Windows

made = {body}
"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            'Pipeline(name="typo", source=DeltaSource("s", timestamp="at"), kye=("user",))',
            "Pipeline has no field 'kye': did you mean 'key'? It has name, source, key, ",
        ),
        (
            "Windows(TumblingEventTimeWindows.of(10), triger=None)",
            "Windows has no field 'triger': did you mean 'trigger'?",
        ),
        ('DeltaSource("s", timestamp="at", zzz=1)', "DeltaSource has no field 'zzz': it has table, timestamp, "),
        (
            'DeltaSource("s")',
            "TypeError: DeltaSource.__init__() missing 1 required positional argument:",
        ),
        ("Cuont()", "NameError: name 'Cuont' is not defined"),
        ("Count().of(1)", "AttributeError: 'Count' object has no attribute 'of'"),
        ("Count(", "SyntaxError: '(' was never closed"),
    ],
)
def test_a_mistake_in_the_code_is_usage_with_its_line_and_nobody_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "with_a_mistake.py").write_text(CODE.format(body=body))
    text = ENTRY.replace("pipelines.flights.hours:airport_hours", "with_a_mistake:made")
    with pytest.raises(UsageError, match=re.escape(f"with_a_mistake.py, line 4: {reason}")) as refused:
        config(tmp_path, text).pipeline("hours")
    assert refused.value.exit_code == 2
    assert "with_a_mistake" not in sys.modules
