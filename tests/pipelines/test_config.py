from __future__ import annotations

import re
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidegate.pipelines.definition.config import ENVIRONMENT, Config, find_config, load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.errors import TidegateError, UsageError

ENTRY = '[pipelines.hours]\nobject = "tidegate.pipelines.examples.flights.hours:airport_hours"\nstart = 2013-01-01\n'


def config(folder: Path, text: str) -> Config:
    file = folder / "tidegate.toml"
    file.write_text(text)
    return load_config(file)


def test_relative_folders_are_taken_from_the_file_and_uris_as_they_are(tmp_path: Path) -> None:
    relative = config(tmp_path, 'warehouse = "lake"\nwork = "w"')
    assert relative.warehouse_uri == str(tmp_path / "lake")
    assert relative.work_folder == tmp_path / "w"
    assert config(tmp_path, 'warehouse = "s3://bucket/lake"').warehouse_uri == "s3://bucket/lake"
    folder = config(tmp_path, 'warehouse = "file:///data/a%20b"')
    assert (folder.warehouse_uri, folder.artifacts_uri) == ("/data/a b", str(tmp_path / ".work"))


def test_a_date_without_a_zone_is_utc(tmp_path: Path) -> None:
    entry = config(tmp_path, ENTRY + "end = 2014-01-01T06:00:00\n").entry("hours")
    assert entry.start == datetime(2013, 1, 1, tzinfo=UTC)
    assert entry.end == datetime(2014, 1, 1, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('warehose = "x"', "warehose: unknown key; did you mean warehouse?"),
        ('root = "/"', "root: "),
        ('colour = "x"', "colour: unknown key; the keys here are warehouse, work, "),
        ("warehouse = 3", "warehouse: give a string in quotes"),
        ('spark = "local"', "spark: make it a table: [spark]"),
        ('engine = "duckdb"', "engine: give 'spark' or 'local'"),
        (
            "engine = local",
            'Invalid value (at line 1, column 10): write a string in quotes: engine = "spark" or "local"',
        ),
        (ENTRY + "pool = data-team # us", "Invalid value (at line 4, column 8): write a string in quotes: pool"),
        (ENTRY + "catchup = False", "Invalid value (at line 4, column 11): write catchup = false"),
        ('warehouse = "http://host/x"', "warehouse: 'http' is not an object store: give a folder, or a URI with s3://"),
        ('warehouse = "S3://b/x"', "warehouse: 'S3' is not an object store"),
        ('warehouse = "s3:/bucket/x"', "warehouse: write it as s3://bucket/folder"),
        ('artifacts = "s3:///x"', "artifacts: write it as s3://bucket/folder"),
        ('artifacts = "s3://b/a%20b"', "artifacts: a URI can't have '%', nor any of"),
        ('warehouse = "s3://b/a//b"', "warehouse: a URI can't have the folders '.' or '..', or an empty one"),
        ('warehouse = "s3://b/x/../y"', "warehouse: a URI can't have the folders '.' or '..'"),
        ("[spark]\nx = 2.5", "spark.x: give a string in quotes, a whole number, true or false"),
        ("[storage_options]\nkey = 4", "storage_options.key: give a string in quotes"),
        ('[pipelines]\nhours = "x"', "pipelines.hours: make it a table: [pipelines.hours]"),
        ("[pipelines.hours]\nstart = 2013-01-01", "pipelines.hours.object: required field is missing, such as"),
        (ENTRY.replace("2013-01-01", '"yesterday"'), "pipelines.hours.start: give a date or date-time, such as 2024"),
        (ENTRY.replace("2013-01-01", "5"), "pipelines.hours.start: give a date or date-time"),
        (ENTRY + 'catchup = "often"', "pipelines.hours.catchup: give true or false (given 'often')"),
        (ENTRY + "retain_snapshots = 0", "pipelines.hours.retain_snapshots: give at least 1 (given 0)"),
        (ENTRY + "max_lag_minutes = 0", "pipelines.hours.max_lag_minutes: give more than 0 (given 0)"),
        (ENTRY + "retain_days = 1.5", "pipelines.hours.retain_days: give a whole number (given 1.5)"),
        (ENTRY + 'tags = "a"', 'pipelines.hours.tags: give a list, such as ["a", "b"] (given \'a\')'),
        (
            ENTRY + "stream_mode = 'x'",
            "pipelines.hours.stream_mode: give 'schedule', 'commits' or 'continuous' (given 'x')",
        ),
        (ENTRY + "schedule = 'every day'", "pipelines.hours.schedule: 2 fields: give a cron expression"),
        (ENTRY + "stream_schedule = '*/15 25 * * *'", "pipelines.hours.stream_schedule: '25' is not a valid hour"),
        (ENTRY + "full_check_schedule = '0 4 32 * *'", "pipelines.hours.full_check_schedule: '32' is not a valid day"),
        (ENTRY + "reopen_schedule = '0 4 * foo *'", "pipelines.hours.reopen_schedule: 'foo' is not a valid month"),
        (ENTRY + "schedul = 'x'", "pipelines.hours.schedul: unknown key; did you mean schedule?"),
        ("[metrics]\nprometheus = 'http://localhost:9464'", "metrics.prometheus: give a port, such as 9464"),
        ("[metrics]\nprometheus = 'localhost'", "metrics.prometheus: give a port, such as 9464, or an address"),
        ("[metrics]\ntextfile = 's3://bucket/metrics'", "metrics.textfile: give a folder on this host, such as"),
        ("[metrics]\ntextfile = ''", "metrics.textfile: give a folder on this host, such as"),
        ("work = 's3://bucket/work'", "work: give a folder on this host, such as"),
    ],
)
def test_a_fault_is_told_in_our_words_with_the_way_out(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        config(tmp_path, text).check_entries()
    assert f"{tmp_path}/tidegate.toml: {told}" in str(refused.value)
    assert "Input should" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        'storage_options = "AWS_SECRET_ACCESS_KEY=hush"',
        "[storage_options]\nAWS_SECRET_ACCESS_KEY = hush",
        'storage_optionz = { AWS_SECRET_ACCESS_KEY = "hush" }',
        'AWS_SECRET_ACCESS_KEY = "hush"',
        '[storage_options]\nAWS_SECRET_ACCESS_KEY = ["hush"]',
        '[spark]\n"spark.hadoop.fs.s3a.secret.key" = ["hush"]',
        'spark = "spark.hadoop.fs.s3a.secret.key=hush"',
        'warehouse = ["s3://key:hush@bucket"]',
        'warehouse = "s3://key:hush@bucket/x"',
        'warehouse = "s3://key:a/hush@bucket/x"',
        'artifacts = "https://key:hush@host/x"',
        ENTRY + 'storage_options = { AWS_SECRET_ACCESS_KEY = "hush" }',
        ENTRY + 'suite = { token = "hush" }',
        'pipelines = "hush"',
        '[pipelines]\nhours = ["hush"]',
    ],
)
def test_no_fault_shows_what_may_be_a_secret_nor_does_its_traceback(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as refused:
        config(tmp_path, text).check_entries()
    assert "hush" not in "".join(traceback.format_exception(refused.value))


def test_a_faulty_entry_stops_only_its_own_pipeline(tmp_path: Path) -> None:
    faults = '[pipelines.days]\nobject = "a:b"\n[pipelines."../x"]\nobject = "a:b"\nstart = 2013-01-01\n'
    read = config(tmp_path, ENTRY + faults)
    assert read.entry("hours").start == datetime(2013, 1, 1, tzinfo=UTC)
    assert sorted(read.declared) == ["../x", "days", "hours"]
    with pytest.raises(UsageError, match=r"tidegate\.toml: pipelines\.days\.start: required field is missing"):
        read.entry("days")
    with pytest.raises(UsageError, match=r"pipelines\.days\.start: .*; pipelines\.\.\./x: "):
        read.check_entries()
    with pytest.raises(UsageError, match=r"pipelines\.days\.start: .*; warehose: unknown key"):
        config(tmp_path, 'warehose = "x"\n' + ENTRY + faults)


def test_neither_a_config_nor_a_warehouse_shows_its_secrets(tmp_path: Path) -> None:
    made = config(
        tmp_path,
        'storage_options = { AWS_SECRET_ACCESS_KEY = "hush" }\n[spark]\n"spark.hadoop.fs.s3a.secret.key" = "hush"',
    )
    warehouse = warehouse_of(made)
    assert warehouse.options == {"AWS_SECRET_ACCESS_KEY": "hush"}
    assert "hush" not in f"{made!r} {made} {warehouse!r} {warehouse}"


def test_a_file_of_another_name_is_what_commands_are_given_again(tmp_path: Path) -> None:
    (tmp_path / "staging.toml").touch()
    assert load_config(tmp_path / "staging.toml").file == tmp_path / "staging.toml"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml"):
        load_config(tmp_path / "nowhere.toml")


def test_a_folder_in_place_of_the_file_is_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"{tmp_path} is a folder: name the file, such as {tmp_path}/tidegate\.toml"):
        load_config(tmp_path)


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
        load_pipeline(config(tmp_path, ENTRY), "ours")


def test_a_pipeline_is_imported_from_the_projects_own_folder(tmp_path: Path) -> None:
    (tmp_path / "of_a_project.py").write_text("from tidegate.pipelines.examples.flights.hours import airport_hours\n")
    text = ENTRY.replace("hours]", "airport_hours]").replace(
        "tidegate.pipelines.examples.flights.hours", "of_a_project"
    )
    assert load_pipeline(config(tmp_path, text), "airport_hours").name == "airport_hours"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("from pipelines import Pipeline\n\nPipeline(kye=1)\n", "{file}, line 3: "),
        ("import not_installed\n", "{file}, line 1: ModuleNotFoundError: No module named 'not_installed'"),
        ("from helper_of_a_project import x\n", "{folder}/helper_of_a_project.py, line 2: ZeroDivisionError"),
        (
            "from windowing import TumblingEventTimeWindows\nwindows = TumblingEventTimeWindows.of(-1)\n",
            "{file}, line 2: ",
        ),
    ],
    ids=["unknown keyword", "missing package", "in another module", "a bad window"],
)
def test_an_error_in_the_projects_code_is_a_usage_error_with_file_and_line(
    tmp_path: Path, code: str, told: str
) -> None:
    (tmp_path / "broken_project.py").write_text(code)
    (tmp_path / "helper_of_a_project.py").write_text("x = 1\nx / 0\n")
    with pytest.raises(UsageError) as refused:
        load_pipeline(
            config(tmp_path, ENTRY.replace("tidegate.pipelines.examples.flights.hours", "broken_project")), "hours"
        )
    expected = told.format(file=tmp_path / "broken_project.py", folder=tmp_path)
    assert f"pipelines.hours.object = 'broken_project:airport_hours': {expected}" in str(refused.value)


@pytest.mark.parametrize("number", [1, 2])
def test_a_test_does_not_meet_the_module_of_another_one(tmp_path: Path, number: int) -> None:
    (tmp_path / "numbered_project.py").write_text(f"number = {number}\n")
    assert config(tmp_path, ENTRY).load("numbered_project:number", "object") == number


def test_what_a_module_can_not_read_may_be_there_the_next_time(tmp_path: Path) -> None:
    (tmp_path / "reading_project.py").write_text("open('/nowhere/at/all')\n")
    with pytest.raises(TidegateError, match=r"reading_project\.py, line 1: FileNotFoundError") as refused:
        load_pipeline(
            config(tmp_path, ENTRY.replace("tidegate.pipelines.examples.flights.hours", "reading_project")), "hours"
        )
    assert refused.value.exit_code == 1


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("visitz:visits", "there is no visitz.py in {folder}; did you mean visits?"),
        ("visits.deep:visits", "'visits' is not a package"),
        ("visits:vists", "module visits has no 'vists'; it has visits"),
        ("visits:other", "it is a int, not a Pipeline; it has visits"),
        ("visits", "write it as package.module:name"),
        ("no_such_module:hours", "No module named 'no_such_module'"),
        ("tidegate.pipelines.examples.flights.hours:airport_hours", "named 'airport_hours'"),
    ],
)
def test_a_typo_in_object_is_told_with_what_there_is(tmp_path: Path, path: str, told: str) -> None:
    (tmp_path / "visits.py").write_text(
        "from tests.lake import session_pipeline\nvisits = session_pipeline()\nother = 1\n"
    )
    with pytest.raises(UsageError) as refused:
        load_pipeline(
            config(tmp_path, ENTRY.replace("tidegate.pipelines.examples.flights.hours:airport_hours", path)), "hours"
        )
    assert told.format(folder=tmp_path) in str(refused.value)


CODE = """from pipelines import DeltaSource, Pipeline
from tidegate.windowing import Count, TumblingEventTimeWindows, WatermarkStrategy, Windows

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
            "Windows has no field 'triger': did you mean 'trigger'",
        ),
        ('DeltaSource("s", timestamp="at", zzz=1)', "DeltaSource has no field 'zzz': it has table, timestamp, "),
        ('DeltaSource("s")', "TypeError: DeltaSource.__init__() missing 1 required positional argument:"),
        ("Cuont()", "NameError: name 'Cuont' is not defined"),
        ("Count().of(1)", "AttributeError: 'Count' object has no attribute 'of'"),
        ("Count(", "SyntaxError: '(' was never closed"),
    ],
)
def test_a_mistake_in_the_code_is_usage_with_its_line_and_nobody_tries_again(
    tmp_path: Path, body: str, reason: str
) -> None:
    (tmp_path / "with_a_mistake.py").write_text(CODE.format(body=body))
    text = ENTRY.replace("tidegate.pipelines.examples.flights.hours:airport_hours", "with_a_mistake:made")
    with pytest.raises(UsageError, match=re.escape(f"with_a_mistake.py, line 4: {reason}")) as refused:
        load_pipeline(config(tmp_path, text), "hours")
    assert refused.value.exit_code == 2
    assert "with_a_mistake" not in sys.modules


@pytest.mark.parametrize(
    "schedule",
    ["0 0 * * *", "*/15 * * * *", "@daily", "0 4 1,15 jan-MAR sun", "5-50/5 0-23 ? * 1#2", "0 0 L * *", "30 6 * * L5"],
)
def test_what_airflow_reads_as_a_cron_expression_is_taken(tmp_path: Path, schedule: str) -> None:
    (tmp_path / "tidegate.toml").write_text(f"{ENTRY}schedule = '{schedule}'\n")
    assert load_config(tmp_path / "tidegate.toml").entry("hours").schedule == schedule
