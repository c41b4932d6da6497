"""Something that the machine lacks is named in one line, before any JVM starts."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.engine.base import settings_of
from tidegate.pipelines.engine.spark import connect, jvm
from tidegate.pipelines.engine.spark.connect import count_cores, is_connect, keep_alive, remote_of
from tidegate.pipelines.engine.spark.jars import JARS_ENVIRONMENT, check_java, find_jars, jars_folder
from tidegate.pipelines.engine.spark.session import (
    LOG_ENVIRONMENT,
    SECRET,
    Log,
    ended_with,
    log_python_to,
    properties_text,
    protection,
    secret,
    set_python,
    start_session,
)
from tidegate.pipelines.errors import TidegateError, UsageError


def a_java(folder: Path, version: str) -> Path:
    """A Java that only prints its version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    java.chmod(0o755)
    return folder


def test_without_java_the_two_ways_out_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no Java found: install Java 17 or newer, or set JAVA_HOME"):
        check_java()


def test_a_java_home_that_holds_none_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="no Java found"):
        check_java()


@pytest.mark.parametrize(
    ("version", "number"), [("1.8.0_392", "1"), ("11.0.21", "11"), ("16", "16"), ("nonsense", "of an unknown version")]
)
def test_too_old_a_java_is_named_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, number: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path, version)))
    with pytest.raises(UsageError, match=rf"{tmp_path}/bin/java is Java {number}: Spark needs 17 or newer"):
        check_java()


@pytest.mark.parametrize("version", ["17", "17.0.9", "21.0.1", "25-ea"])
def test_a_java_that_spark_runs_on_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path, version)))
    check_java()


def test_jars_that_were_never_resolved_are_a_usage_error_with_the_command_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JARS_ENVIRONMENT, str(tmp_path))
    assert jars_folder() == tmp_path
    with pytest.raises(UsageError, match=rf"no Delta jars in {tmp_path}.*`tidegate setup`"):
        find_jars()
    (tmp_path / "delta.jar").touch()
    assert find_jars() == [tmp_path / "delta.jar"]


def test_another_time_zone_would_move_event_times_and_is_refused(tmp_path: Path) -> None:
    config = Config(root=tmp_path, spark={"spark.sql.session.timeZone": "Europe/Berlin"})
    with pytest.raises(UsageError, match=r"timeZone' = 'Europe/Berlin' in .*event times are read in UTC"):
        start_session(config, "tests")


def test_the_time_zone_of_a_given_session_does_not_send_sql_to_spark(tmp_path: Path) -> None:
    given = {"spark.sql.session.timeZone": "Europe/Berlin", "spark.sql.ansi.enabled": "false"}
    config = Config(root=tmp_path, session=SimpleNamespace(conf=given))
    setting = settings_of(config)
    assert setting("spark.sql.session.timeZone") is None, "runs have a session of their own, in UTC"
    assert setting("spark.sql.ansi.enabled") == "false"


def test_jars_of_another_spark_are_not_taken_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(JARS_ENVIRONMENT, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jars_folder().name == f"jars-spark-{version('pyspark')}-delta-{version('delta-spark')}"


def test_a_driver_of_a_standalone_cluster_needs_its_secret_or_says_that_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    master: dict[str, str | int | bool] = {"spark.master": "spark://there:7077"}
    with pytest.raises(UsageError, match=f"set {SECRET} to the secret of the cluster") as refused:
        start_session(Config(root=tmp_path, spark=master), "tests")
    assert '"spark.authenticate" = false' in str(refused.value), "the way out, if the cluster has no secret"
    assert protection({**master, "spark.authenticate": False}, "tidegate.toml") == {}
    monkeypatch.setenv(SECRET, "hush")
    protected = protection(master, "tidegate.toml")
    assert protected["spark.authenticate"] is protected["spark.network.crypto.enabled"] is True
    assert secret(master) == {"spark.authenticate.secret": "hush"}
    assert secret({}) == {}


@pytest.mark.parametrize(
    ("master", "protected"),
    [("local", True), ("local[*]", True), ("local[2, 3]", True), ("local-cluster[1,1,1024]", False), ("yarn", False)],
)
def test_in_local_mode_spark_makes_a_secret_of_its_own(master: str, protected: bool) -> None:
    assert protection({"spark.master": master}, "tidegate.toml") == ({"spark.authenticate": True} if protected else {})


def test_settings_are_written_as_java_reads_them() -> None:
    text = properties_text({"spark.a": "s e=c:r#e!t", "spark.b": "C:\\x\ny", "spark.c": "ü"})
    assert text.splitlines() == ["spark.a=s\\ e\\=c\\:r\\#e\\!t", "spark.b=C\\:\\\\x\\ny", "spark.c=ü"]


def test_settings_of_the_project_are_on_no_command_line_and_their_file_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a Java that only records how it was started, and ends."""
    java = a_java(tmp_path / "java", "17.0.9") / "bin" / "java"
    noted, kept = tmp_path / "arguments", tmp_path / "kept.properties"
    java.write_text(
        "#!/bin/bash\n"
        "echo 'openjdk version \"17.0.9\" 2024-01-16' >&2\n"
        f'echo "$0 $@ $PYSPARK_SUBMIT_ARGS" >> {noted}\n'
        f'for file in $PYSPARK_SUBMIT_ARGS; do [ -f "$file" ] && cp -p "$file" {kept}; done\n'
        "exit 1\n"
    )
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv(JARS_ENVIRONMENT, str(tmp_path))
    (tmp_path / "delta.jar").touch()
    # The process of this test may have a session of its own.
    for owner, name in (
        (SparkContext, "_gateway"),
        (SparkContext, "_active_spark_context"),
        (SparkSession, "_instantiatedSession"),
    ):
        monkeypatch.setattr(owner, name, None)
    monkeypatch.setattr(jvm, "_gateways", [])
    config = Config(root=tmp_path, spark={"spark.hadoop.fs.s3a.secret.key": "hush", "spark.driver.memory": "1g"})
    with pytest.raises(PySparkRuntimeError):
        start_session(config, "tests")
    assert "hush" not in noted.read_text()
    assert kept.read_text() == "spark.hadoop.fs.s3a.secret.key=hush\nspark.driver.memory=1g\n"
    assert kept.stat().st_mode & 0o077 == 0, "nobody else may read it"
    (file,) = [word for word in noted.read_text().split() if word.endswith(".properties") and "tidegate-spark" in word][
        :1
    ]
    assert not Path(file).exists()
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ


LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@pytest.fixture
def loggers_as_before() -> Iterator[None]:
    """The handlers of the process's session, if it has one, are restored: those of a test write into its folder."""
    from pyspark.logger import PySparkLogger

    loggers = [logging.getLogger("py4j"), *map(PySparkLogger.getLogger, LOGGERS)]
    before = [(logger, [*logger.handlers], logger.propagate) for logger in loggers]
    filters = [*logging.getLogger().filters]
    yield
    logging.getLogger().filters[:] = filters
    for logger, handlers, propagate in before:
        for handler in logger.handlers:
            handler.close()
        logger.handlers[:], logger.propagate = handlers, propagate


@pytest.mark.usefixtures("loggers_as_before")
def test_a_failed_analysis_is_logged_to_the_file_and_not_to_the_screen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from pyspark.logger import PySparkLogger

    for file in (tmp_path / "first.log", tmp_path / "second.log"):
        log_python_to(Log(file.parent, file.name))
        for name in LOGGERS:
            PySparkLogger.getLogger(name).exception("no such function", errorClass="UNRESOLVED_ROUTINE")
        assert file.read_text().count("UNRESOLVED_ROUTINE") == 2
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("given", [None, "stderr"])
def test_the_log_of_the_jvm_is_a_file_or_that_of_the_command(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if given is not None:
        monkeypatch.setenv(LOG_ENVIRONMENT, given)
    file = tmp_path / "logs" / "spark.log"
    with Log(tmp_path, "logs/spark.log").errors():
        subprocess.run(["sh", "-c", "echo of the JVM >&2"], check=True)
    subprocess.run(["sh", "-c", "echo afterwards >&2"], check=True)
    of_command = capfd.readouterr().err
    assert (file.read_text() if given is None else of_command).startswith("of the JVM\n")
    assert of_command.endswith("afterwards\n")
    assert file.exists() == (given is None)


@pytest.mark.parametrize(
    ("spark", "given", "tasks"),
    [
        ({}, {}, sys.executable),
        ({}, {"PYSPARK_PYTHON": "/opt/spark/python"}, "/opt/spark/python"),
        ({"spark.pyspark.python": "/opt/venv/python"}, {"PYSPARK_PYTHON": "/opt/spark/python"}, "/opt/venv/python"),
    ],
    ids=["default", "variable", "setting"],
)
def test_the_python_of_the_executors_is_the_one_that_the_user_names(
    spark: dict[str, str], given: dict[str, str], tasks: str
) -> None:
    environment = dict(given)
    set_python(spark, environment)
    assert environment == {"PYSPARK_PYTHON": tasks, "PYSPARK_DRIVER_PYTHON": sys.executable}


def remote_session(calls: list[str]) -> Any:
    """A Connect session that records which settings it was asked for, and has no `sparkContext`."""
    conf = SimpleNamespace(get=calls.append)
    return type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "conf": conf})()


def test_a_setting_names_the_server_or_else_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert remote_of({"spark.master": "local[2]"}) is None
    monkeypatch.setenv("SPARK_REMOTE", "sc://environment")
    assert remote_of({}) == "sc://environment"
    assert remote_of({"spark.remote": "sc://setting"}) == "sc://setting"


def test_spark_in_this_process_is_no_server(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"spark.remote = 'local\[2\]': give the address of a Spark Connect server"):
        start_session(Config(root=tmp_path, spark={"spark.remote": "local[2]"}), "tests")


@pytest.mark.parametrize("faulty", ["sc://", "sc://host:15002/path", "sc://host:port", "sc://host/;token"])
def test_a_faulty_address_is_named_with_a_good_one(tmp_path: Path, faulty: str) -> None:
    with pytest.raises(UsageError, match=r"is not the address of a Spark Connect server: give sc://host:port"):
        start_session(Config(root=tmp_path, spark={"spark.remote": faulty}), "tests")


def test_a_server_that_is_down_is_named_without_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_ANSWERS_WITHIN", 0.2)
    with pytest.raises(TidegateError) as raised:
        start_session(Config(root=tmp_path, spark={"spark.remote": "sc://ann@127.0.0.1:1/;token=hush"}), "tests")
    assert str(raised.value).startswith("no Spark Connect server answers at sc://127.0.0.1:1 within 0 s: start it")
    assert "hush" not in str(raised.value)
    assert raised.value.exit_code == 1, "a retry may find it up"


def test_a_session_that_waits_for_data_is_used_every_five_minutes() -> None:
    calls: list[str] = []
    session, times = remote_session(calls), iter([1000.0, 1299.0, 1300.0, 1301.0, 1600.0])
    used = []
    for _ in range(5):
        keep_alive(session, lambda: next(times))
        used.append(len(calls))
    assert used == [0, 0, 1, 1, 2]


def test_a_server_is_nobodys_child_and_a_session_with_a_jvm_needs_no_care() -> None:
    session = remote_session([])
    assert is_connect(session)
    assert ended_with(session) is None
    with_jvm: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=3))
    keep_alive(with_jvm)
    assert count_cores(with_jvm) == 3
