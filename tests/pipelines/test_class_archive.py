"""The archive of Spark's classes: one for each Java and Spark, never in the way of a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidegate.pipelines.engine.spark.class_archive import archive_file, java_options, make_archive
from tidegate.pipelines.engine.spark.jars import JARS_ENVIRONMENT, check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = 'openjdk version "17.0.9" 2023-10-17'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(JARS_ENVIRONMENT, str(tmp_path))
    return tmp_path


def a_python(folder: Path, script: str) -> str:
    """An interpreter that only runs a script of the shell; its last argument is the archive to make."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nfor archive; do :; done\n{script}\n")
    python.chmod(0o755)
    return str(python)


def test_another_java_has_another_archive(folder: Path) -> None:
    assert archive_file(JAVA) == archive_file(JAVA)
    assert archive_file(JAVA) != archive_file(JAVA.replace("17.0.9", "21.0.1"))
    assert archive_file(JAVA).parent == folder


def test_jars_that_were_written_again_have_another_archive(folder: Path) -> None:
    jar = folder / "delta-spark.jar"
    jar.touch()
    before = archive_file(JAVA)
    os.utime(jar, (0, 0))
    assert archive_file(JAVA) != before


def test_without_an_archive_the_jvm_is_told_nothing(folder: Path) -> None:
    assert java_options(JAVA) == ""
    archive_file(JAVA).touch()
    assert str(archive_file(JAVA)) in java_options(JAVA)


def test_a_java_that_keeps_no_archive_is_told_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", a_python(folder, "echo began >&2; echo no room >&2; exit 3"))
    told: list[str] = []
    assert make_archive(JAVA, "tidegate.pipelines.run.warm_up", told.append) is None
    assert told == ["the run that creates the archive ended with exit code 3: no room"]
    assert list(folder.glob("classes-*")) == []


def test_the_archive_is_made_by_a_jvm_even_if_runs_go_to_a_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://server")
    monkeypatch.setattr(sys, "executable", a_python(folder, 'echo "server: ${SPARK_REMOTE-none}" >&2; exit 3'))
    told: list[str] = []
    make_archive(JAVA, "tidegate.pipelines.run.warm_up", told.append)
    assert told == ["the run that creates the archive ended with exit code 3: server: none"]


def test_archives_of_environments_that_are_gone_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age in range(5):
        left = folder / f"classes-{age}.jsa"
        left.touch()
        os.utime(left, (age, age))
    monkeypatch.setattr(sys, "executable", a_python(folder, 'touch "$archive"'))
    assert make_archive(JAVA, "tidegate.pipelines.run.warm_up") == archive_file(JAVA)
    assert {file.name for file in folder.glob("classes-*")} == {
        archive_file(JAVA).name,
        "classes-4.jsa",
        "classes-3.jsa",
    }


@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells which files a process has mapped")
def test_spark_starts_from_the_archive_that_setup_made(spark: SparkSession) -> None:
    archive = archive_file(check_java())
    if not archive.exists():
        pytest.skip("`tidegate setup` was not run in this environment")
    jvm = spark.sparkContext._gateway.proc.pid
    assert str(archive) in Path(f"/proc/{jvm}/maps").read_text()
