"""The Spark session: one factory, with the settings that Tidegate's exactness rests on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config import Config
from pipelines.errors import UsageError
from pipelines.shipping import ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JARS_ENVIRONMENT = "TIDEGATE_JARS"

_TIME_ZONE = "spark.sql.session.timeZone"
_MINIMUM_JAVA = 17


def start_session(config: Config, name: str) -> SparkSession:
    """A Spark session for a run, with Delta; executors of a cluster have the code of this process.

    Args:
        config: its `spark` settings go on top of ours.
        name: what the session is for, for people who look at Spark.

    Raises:
        UsageError: there is no Java, or too old a one; the jars were never resolved; or `spark` sets another time zone.
    """
    zone = config.spark.get(_TIME_ZONE, "UTC")
    if zone != "UTC":
        raise UsageError(
            f"spark.{_TIME_ZONE!r} = {zone!r} in {config.file}: event times are read in UTC. Remove it, and name the "
            "zone of a wall-clock column in DeltaSource(..., zone=)"
        )
    check_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"tidegate {name}")
    for key, value in {**_settings(config), **config.spark}.items():
        builder = builder.config(key, str(value).lower() if isinstance(value, bool) else value)
    with _errors_to(config.work_folder / "logs" / f"spark-{os.getpid()}.log"):
        session = builder.getOrCreate()
    ship(session, config.root, config.work_folder / "shipped")
    return session


@contextmanager
def _errors_to(file: Path) -> Iterator[None]:
    """Processes that are started meanwhile keep writing their stderr to a file: the JVM chats a lot."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"work folder {file.parent} can't be made: {error.strerror}. Set `work` in tidegate.toml"
        ) from error
    own = os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def _settings(config: Config) -> dict[str, str | int | bool]:
    logging = Path(__file__).parent / "log4j2.properties"
    return {
        "spark.master": "local[*]",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.jars": ",".join(str(jar) for jar in find_jars()),
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.log.level": "ERROR",
        # Out of memory it ends, and the run with it: a JVM that limps on may hang.
        "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()} -XX:+ExitOnOutOfMemoryError",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": str(config.work_folder / "spark-warehouse"),
        # Times cross to Python as the session's zone, and ours is UTC.
        _TIME_ZONE: "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": 100_000,
        "spark.sql.shuffle.partitions": 8,
        "spark.databricks.delta.snapshotPartitions": 2,
        "spark.python.worker.faulthandler.enabled": True,
    }


def ended_with(session: SparkSession, within: float = 0.0) -> int | None:
    """The exit code of a session's JVM, which this process started; None while it runs.

    Args:
        session: started here.
        within: seconds that it is given to end.
    """
    started: subprocess.Popen[bytes] | None = getattr(session.sparkContext._gateway, "proc", None)
    try:
        return None if started is None else started.wait(within)
    except subprocess.TimeoutExpired:
        return None


def stop_session(session: SparkSession) -> None:
    """End a session; one whose JVM is gone has ended."""
    if ended_with(session) is None:
        session.stop()


def check_java() -> None:
    """Refuse to start without a Java that Spark runs on.

    Raises:
        UsageError: none on the PATH or in JAVA_HOME, or older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java or not Path(java).exists():
        raise UsageError(f"no Java found: install Java {_MINIMUM_JAVA} or newer, or set JAVA_HOME")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    number = re.search(r'version "(\d+)', told)
    if number is None or int(number[1]) < _MINIMUM_JAVA:
        found = number[1] if number else "of an unknown version"
        raise UsageError(
            f"{java} is Java {found}: Spark needs {_MINIMUM_JAVA} or newer; install one, or set JAVA_HOME to it"
        )


def jars_folder() -> Path:
    """Where the jars are kept once they were resolved, by version: TIDEGATE_JARS, else the user's cache."""
    if named := os.environ.get(JARS_ENVIRONMENT):
        return Path(named).absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tidegate" / f"jars-spark-{version('pyspark')}-delta-{version('delta-spark')}"


def find_jars() -> list[Path]:
    """The jars that a session needs besides Spark's own.

    Raises:
        UsageError: they were never resolved.
    """
    jars = sorted(jars_folder().glob("*.jar"))
    if not jars:
        raise UsageError(f"no Delta jars in {jars_folder()}: run `tidegate setup` once, with access to Maven Central")
    return jars


def resolve_jars() -> list[Path]:
    """Resolve Delta's jars by Spark's own resolver, once; those that Spark brings itself stay out.

    Raises:
        UsageError: they can't be had; the message has the resolver's last words.
    """
    folder = jars_folder()
    if jars := sorted(folder.glob("*.jar")):
        return jars
    check_java()
    import pyspark
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    home = Path(pyspark.__file__).parent
    asked = configure_spark_with_delta_pip(SparkSession.Builder())._options
    coordinates = str(asked["spark.jars.packages"])
    ivy = folder.with_name(f"{folder.name}.resolving")
    shutil.rmtree(ivy, ignore_errors=True)
    command = [
        str(home / "bin" / "spark-submit"),
        *("--master", "local", "--packages", coordinates, "--conf", f"spark.jars.ivy={ivy}"),
        *("--class", "org.apache.spark.api.python.PythonGatewayServer", "spark-internal"),
    ]
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    environment["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(ivy / "connection")
    ivy.mkdir(parents=True)
    told = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    own = {_artifact(jar.name) for jar in (home / "jars").glob("*.jar")}
    resolved = [jar for jar in (ivy / "jars").glob("*.jar") if _artifact(jar.name.split("_", 1)[1]) not in own]
    if not resolved:
        lines = [line.strip() for line in told.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if "unresolved" in line.lower() or "exception" in line.lower()), "")
        raise UsageError(
            f"Delta's jars ({coordinates}) can't be resolved: {reason or lines[-1:]}. Setting up needs access to Maven "
            f"Central once; or put the jars into {folder} yourself"
        )
    ours = ivy / "ours"
    ours.mkdir()
    for jar in resolved:
        jar.rename(ours / jar.name)
    # All of them or none: a folder with half the jars would pass for a whole one.
    ours.rename(folder)
    shutil.rmtree(ivy, ignore_errors=True)
    return sorted(folder.glob("*.jar"))


def _artifact(name: str) -> str:
    return name.rsplit("-", 1)[0]
