"""Differences between versions of Spark and Delta: which jars match, which versions are refused, how rows are
placed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from tests.matrix import PAIRS, ROOT, Pair, split, without
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.engine.spark import versions
from tidegate.pipelines.engine.spark.class_archive import archive_file, java_options, make_archive
from tidegate.pipelines.engine.spark.jars import JARS_ENVIRONMENT, _artifact, check_java, resolve_jars
from tidegate.pipelines.engine.spark.session import start_session
from tidegate.pipelines.engine.spark.versions import (
    check_spark,
    delta_coordinates,
    from_arrow,
    numbers_by_partition,
    place_by_number,
    to_arrow,
)
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.sources.sql import functions
from tidegate.pipelines.sources.sql.compile import compile_expression
from tidegate.pipelines.sources.sql.reading import Unproven

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.parametrize(
    ("pyspark", "delta", "jar"),
    [
        ("4.0.0", "4.0.1", "io.delta:delta-spark_2.13:4.0.1"),
        ("4.0.5", "4.1.0", "io.delta:delta-spark_4.0_2.13:4.1.0"),
        ("4.1.4", "4.4.0", "io.delta:delta-spark_4.1_2.13:4.4.0"),
        ("4.2.0", "4.4.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.3.0.dev1", "4.10.0rc1", "io.delta:delta-spark_4.3_2.13:4.10.0rc1"),
    ],
)
def test_each_spark_has_a_jar_of_delta(pyspark: str, delta: str, jar: str) -> None:
    assert delta_coordinates(pyspark, delta) == jar


def test_without_spark_no_function_is_missing_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "version", lambda name: "4.0.5")
    assert functions.lacks_function("try_to_date")
    monkeypatch.setattr(functions, "is_installed", lambda name: False)
    assert not functions.lacks_function("try_to_date")


def test_the_jar_is_the_one_that_delta_itself_names() -> None:
    from importlib.metadata import version

    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    named = configure_spark_with_delta_pip(SparkSession.Builder())._options["spark.jars.packages"]
    assert delta_coordinates(version("pyspark"), version("delta-spark")) == named


@pytest.mark.parametrize(
    ("jar", "artifact"),
    [
        ("zstd-jni-1.5.7-3.jar", "zstd-jni"),
        ("delta-spark_4.0_2.13-4.2.0.jar", "delta-spark_4.0_2.13"),
        ("jackson-datatype-jdk8-2.13.5.jar", "jackson-datatype-jdk8"),
    ],
)
def test_a_jar_that_spark_has_in_another_version_is_known_by_its_artifact(jar: str, artifact: str) -> None:
    assert _artifact(jar) == artifact


STACK_TRACE = """:: loading settings
Exception in thread "main" java.lang.ExceptionInInitializerError
	at org.apache.spark.util.Utils.$anonfun$localCanonicalHostName$1(Utils.scala:1)
Caused by: java.lang.RuntimeException: no address
	... 3 more
Caused by: java.net.UnknownHostException: lost: Name or service not known
	at java.base/java.net.InetAddress.getLocalHost(InetAddress.java:1)
"""


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (STACK_TRACE, "Caused by: java.net.UnknownHostException: lost: Name or service not known"),
        (f"{STACK_TRACE}:: unresolved dependency: io.delta#delta\n", ":: unresolved dependency: io.delta#delta"),
        ('Exception in thread "main" java.lang.Error\n', 'Exception in thread "main" java.lang.Error'),
    ],
)
def test_the_message_has_the_root_of_why_the_jars_cannot_be_resolved(
    output: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a Java that only fails, and which writes the address that Spark was given."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    (tmp_path / "output").write_text(output)
    java.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.1"\' >&2 && exit\n'
        f"echo $SPARK_LOCAL_IP > {tmp_path}/address\ncat {tmp_path}/output >&2\nexit 1\n"
    )
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv(JARS_ENVIRONMENT, str(tmp_path / "jars"))
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    with pytest.raises(UsageError, match=f"can't be resolved: {re.escape(reason)}[.] Setting up needs access"):
        resolve_jars()
    assert (tmp_path / "address").read_text() == "127.0.0.1\n", "the name of the machine need not have an address"


@pytest.mark.parametrize("act", [lambda folder: resolve_jars(), lambda folder: start_session(Config(root=folder), "x")])
def test_too_old_a_spark_is_refused_before_anything_starts(
    act: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "version", lambda package: {"pyspark": "3.5.9"}[package])
    with pytest.raises(UsageError) as refused:
        act(tmp_path)
    assert str(refused.value) == (
        "pyspark 3.5.9 is too old: Tidegate needs Spark 4.0 or newer. Install a matching pair, such "
        "as `pip install pyspark==4.2.0 delta-spark==4.4.0`"
    )
    assert Pair("4.2.0", "4.4.0") in PAIRS, "the pair that the message names is tested"


@pytest.mark.parametrize("installed", ["4.0.0", "4.0.0.dev2", "4.2.1", "5.0.0", "10.1"])
def test_newer_versions_pass(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda package: installed)
    assert check_spark() == installed


@pytest.mark.parametrize(("installed", "is_left"), [("4.0.5", True), ("4.1.0", False), ("4.2.0", False)])
def test_a_function_that_this_spark_lacks_is_left_to_it_and_refused_there(
    installed: str, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "version", lambda package: installed)
    refused = pytest.raises(Unproven, match="try_to_date is not proven") if is_left else nullcontext()
    with refused:
        compile_expression("try_to_date(day, 'yyyy-MM-dd')", pa.schema([("day", pa.string())]))


class Frame40:
    """A frame of Spark 4.0, which has no `repartitionById`; everything else is delegated to the frame."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    def __getattr__(self, name: str) -> object:
        if name == "repartitionById":
            raise AttributeError(name)
        return getattr(self._frame, name)


@pytest.mark.long
@pytest.mark.parametrize("partitions", [1, 2, 7, 100])
def test_each_row_lands_in_the_partition_that_its_column_names(spark: SparkSession, partitions: int) -> None:
    rows = [(number % partitions, number) for number in range(3 * partitions)]
    numbered = spark.createDataFrame(rows, "part int, number int")
    for frame in (numbered, Frame40(numbered)):
        placed = place_by_number(frame, "part", partitions)  # type: ignore[arg-type]
        assert placed.columns == ["number"]
        found = placed.select("number", F.spark_partition_id().alias("part")).collect()
        assert sorted((row["part"], row["number"]) for row in found) == sorted(rows)


def test_each_partition_has_a_number_of_its_own() -> None:
    numbers = numbers_by_partition(50)
    assert len(set(numbers)) == 50
    assert numbers_by_partition(1) == [0]


def test_columns_are_the_same_in_spark_and_arrow() -> None:
    """Versions have other defaults for the zone of timestamps."""
    columns = pa.schema(
        [
            ("instant", pa.timestamp("us", tz="UTC")),
            ("wall clock", pa.timestamp("us")),
            ("nested", pa.struct([("at", pa.timestamp("us", tz="UTC")), ("names", pa.list_(pa.string()))])),
        ]
    )
    types = from_arrow(columns)
    assert [field.dataType.typeName() for field in types] == ["timestamp", "timestamp_ntz", "struct"]
    assert [field.type for field in to_arrow(types)][:2] == [field.type for field in columns][:2]
    assert to_arrow(types).field("nested").type.field("at").type == pa.timestamp("us", tz="UTC")


def test_the_page_has_a_row_for_each_pair_of_the_matrix() -> None:
    page = (ROOT / "docs" / "operations" / "versions.md").read_text()
    assert [pair for pair in PAIRS if f"| {pair.spark} | {pair.delta} |" not in page] == []


def test_a_lock_file_without_some_packages_has_all_others(tmp_path: Path) -> None:
    lock = ["# by hand\n", "a==1 \\\n", "    --hash=x\n", "pyspark==4.2.0 \\\n", "    --hash=y\n", "z==3\n"]
    assert list(without(lock, ("pyspark",))) == ["# by hand\n", "a==1 \\\n", "    --hash=x\n", "z==3\n"]


@pytest.mark.parametrize(
    ("arguments", "names", "tests"),
    [
        ([], set(), []),
        (["4.0.5", "4.2.0"], {"4.0.5", "4.2.0"}, []),
        (["4.0.5", "--", "-k", "x"], {"4.0.5"}, ["-k", "x"]),
    ],
)
def test_arguments_of_the_matrix(arguments: list[str], names: set[str], tests: list[str]) -> None:
    assert split(arguments) == (names, tests)


JAVA = 'openjdk version "17.0.9" 2023-10-17'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(JARS_ENVIRONMENT, str(tmp_path))
    return tmp_path


def a_python(folder: Path, script: str) -> str:
    """An interpreter that only runs a shell script; its last argument is the archive to create."""
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
