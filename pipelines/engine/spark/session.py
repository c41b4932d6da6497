"""The Spark session: one factory, with the settings that Tidegate's exactness depends on."""

from __future__ import annotations

import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from socketserver import BaseServer
from typing import TYPE_CHECKING, Any, BinaryIO

from tidegate.extras import require
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.engine.base import TIME_ZONE
from tidegate.pipelines.engine.spark import jvm
from tidegate.pipelines.engine.spark.class_archive import java_options
from tidegate.pipelines.engine.spark.connect import REMOTE_ENVIRONMENT, is_connect, remote_of, start_connect
from tidegate.pipelines.engine.spark.jars import LOCAL_ADDRESS_ENVIRONMENT, LOOPBACK, check_java, find_jars
from tidegate.pipelines.engine.spark.shipping import is_local, search_path, ship
from tidegate.pipelines.engine.spark.versions import check_spark
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.storage.credentials import remember
from tidegate.pipelines.storage.shared_folder import APPEND, SharedFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SUBMIT = "PYSPARK_SUBMIT_ARGS"
LOG_ENVIRONMENT = "TIDEGATE_SPARK_LOG"
"""Environment variable. The value `stderr` sends Spark's log to the command's standard error instead of a file."""

SESSION: dict[str, str | int | bool] = {
    # Times are passed to Python in the session's zone, which must be UTC.
    TIME_ZONE: "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": 100_000,
    "spark.sql.shuffle.partitions": 8,
    "spark.databricks.delta.snapshotPartitions": 2,
}
"""Settings that a session can change, so that a Connect server gets them too."""

_WORKER_MEMORY: dict[str, str | int] = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": 32 << 20,
    "MALLOC_TRIM_THRESHOLD_": 512 << 20,
}
"""Environment of Python workers: Arrow and NumPy share one allocator, which keeps up to 512 MiB of freed memory.

With separate allocators, which return memory to the system after each array, a task spent a quarter of its time in page
faults.
"""

_STRUCTURED = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers of PySpark that print each failed analysis as a long line of JSON to stderr."""


def require_spark(config: Config, subject: str) -> None:
    """Check that Spark is installed, or the client of a Connect server if the project names one.

    Args:
        config: the project.
        subject: what needs Spark, such as `a backfill`; the message begins with it.

    Raises:
        UsageError: it is not installed; the error names the extra.
    """
    if remote_of(config.spark) is None:
        require(subject, "pyspark", "delta", "pandas")
    else:
        require(subject, "pyspark", "grpc", "pandas", extra="connect")


def start_session(config: Config, name: str) -> SparkSession:
    """Start a Spark session for a run; executors of a cluster or a Connect server get this process's code.

    Args:
        config: the project; its `spark` settings take precedence over Tidegate's.
        name: purpose of the session, shown in Spark's UI.

    Raises:
        UsageError: Spark is not installed, or too old; Java is missing or too old; the jars were never resolved;
            `spark` sets another time zone; or the secret of the cluster is missing.
        TidegateError: there is no Connect server at `spark.remote` or SPARK_REMOTE.
    """
    require_spark(config, f"the Spark session {name!r}")
    zone = config.spark.get(TIME_ZONE, "UTC")
    if zone != "UTC":
        raise UsageError(
            f"spark.{TIME_ZONE!r} = {zone!r} in {config.file}: event times are read in UTC. Remove it, and name the "
            "zone of a wall-clock column in DeltaSource(..., zone=)"
        )
    check_spark()
    remember({**config.spark, REMOTE_ENVIRONMENT: os.environ.get(REMOTE_ENVIRONMENT, "")})
    log = Log(config.work_folder, f"logs/spark-{os.getpid()}.log")
    remote = remote_of(config.spark)
    session = _start_jvm(config, name, log) if remote is None else _start_on_server(config, name, remote)
    log_python_to(log)
    ship(session, config.work_folder / "shipped")
    return session


def _start_on_server(config: Config, name: str, remote: str) -> SparkSession:
    ours = {key: _text(value) for key, value in SESSION.items()}
    given = {key: _text(value) for key, value in config.spark.items()}
    return start_connect(remote, name, ours, given, str(config.file))


def _start_jvm(config: Config, name: str, log: Log) -> SparkSession:
    protected = protection(config.spark, str(config.file))
    java = check_java()
    set_python(config.spark, os.environ)
    if is_local(str(config.spark.get("spark.master", "local[*]"))):
        # Without an address, Spark looks up the machine's name, which may have none, as in the build of an image.
        os.environ.setdefault(LOCAL_ADDRESS_ENVIRONMENT, LOOPBACK)
    from pyspark.sql import SparkSession

    ours = {
        key: _text(value) for key, value in {**_settings(config, java), **protected}.items() if key not in config.spark
    }
    given = {key: _text(value) for key, value in config.spark.items()}
    if jvm.is_running():
        # The JVM of an earlier session is still running and no longer reads a properties file.
        ours, given = ours | given, {}
    else:
        given = secret(config.spark) | given
    builder = SparkSession.builder.appName(f"tidegate {name}")
    for key, text in ours.items():
        builder = builder.config(key, text)
    with log.errors(), _properties(given):
        jvm.start({"spark.app.name": f"tidegate {name}", **ours})
        session = builder.getOrCreate()
    _log_updates_to_py4j()
    return session


def set_python(spark: Mapping[str, Any], environment: MutableMapping[str, str]) -> None:
    """Set the variables that name the Python of the tasks and of the driver, unless the user has chosen it.

    Executors on other machines may have their Python under another path than the driver: `spark.pyspark.python` in
    [spark], or PYSPARK_PYTHON. Spark reads the variable, and the setting only if spark-submit starts the driver.
    """
    for variable, setting in (
        ("PYSPARK_PYTHON", "spark.pyspark.python"),
        ("PYSPARK_DRIVER_PYTHON", "spark.pyspark.driver.python"),
    ):
        environment[variable] = str(spark.get(setting) or environment.get(variable) or sys.executable)


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _properties(settings: Mapping[str, str]) -> Iterator[None]:
    """Pass settings to a JVM that is started in the body, in a file that only this user can read.

    Everyone on the machine can read command lines, and the settings may include keys of an object store.
    """
    if not settings:
        yield
        return
    before = os.environ.get(_SUBMIT)
    descriptor, file = tempfile.mkstemp(prefix="tidegate-spark-", suffix=".properties")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as lines:
            lines.write(properties_text(settings))
        given = f"--properties-file {shlex.quote(file)} --load-spark-defaults"
        os.environ[_SUBMIT] = f"{given} {before or 'pyspark-shell'}"
        yield
    finally:
        Path(file).unlink()
        if before is None:
            os.environ.pop(_SUBMIT, None)
        else:
            os.environ[_SUBMIT] = before


def properties_text(settings: Mapping[str, str]) -> str:
    """Return settings in the format of Java's Properties."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


def _escaped(text: str) -> str:
    special = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", **{sign: f"\\{sign}" for sign in "\\ :=#!"}}
    return "".join(special.get(sign, sign) for sign in text)


def log_python_to(log: Log) -> None:
    """Redirect what PySpark and py4j log about failed calls to a file; the command reports errors itself."""
    from pyspark.logger import PySparkLogger

    loggers = [logging.getLogger("py4j"), *map(PySparkLogger.getLogger, _STRUCTURED)]
    for logger in loggers:
        for old in list(logger.handlers):
            logger.removeHandler(old)
            old.close()
        handler = _LogHandler(log)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    logging.getLogger().addFilter(_from_root_to_py4j)


def _from_root_to_py4j(record: logging.LogRecord) -> bool:
    """Redirect messages that py4j logs to the root logger, such as missing answers, to py4j's own logger."""
    if Path(record.pathname).parent.name != "py4j":
        return True
    record.name = "py4j"
    logging.getLogger("py4j").handle(record)
    return False


def _log_updates_to_py4j() -> None:
    """Log errors that Spark's accumulator server prints when the JVM has ended; the command reports that itself."""
    from pyspark import accumulators

    def handle_error(self: object, request: object, client_address: object) -> None:
        logging.getLogger("py4j.accumulators").warning(
            "the connection for updates of Spark accumulators failed", exc_info=True
        )

    # The servers differ between versions of Spark.
    for server in vars(accumulators).values():
        if isinstance(server, type) and issubclass(server, BaseServer) and server.__module__ == accumulators.__name__:
            server.handle_error = handle_error  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Log:
    """The log of a session in a work folder, in which other users may write.

    Args:
        work: the work folder.
        name: name of the file in it.
    """

    work: Path
    name: str

    @property
    def file(self) -> Path:
        """Return the path of the file."""
        return self.work / self.name

    def opened(self) -> BinaryIO:
        """Open the file to add to its end."""
        return SharedFolder(self.work).open(self.name, APPEND)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Redirect the stderr of processes started in the body to the file, because the JVM prints a lot.

        With TIDEGATE_SPARK_LOG=stderr, they write to this process's stderr, for containers whose files don't outlive
        them.
        """
        if os.environ.get(LOG_ENVIRONMENT) == "stderr":
            yield
            return
        try:
            opened = self.opened()
        except OSError as error:
            raise UsageError(
                f"{self.file} can't be written: {error.strerror}. Set another folder as `work` in tidegate.toml"
            ) from error
        stderr = os.dup(2)
        with opened:
            os.dup2(opened.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


class _LogHandler(logging.FileHandler):
    """Opens the log of a session at the first message."""

    def __init__(self, log: Log) -> None:
        self._log = log
        super().__init__(log.file, encoding="utf-8", delay=True)

    def _open(self) -> TextIOWrapper:
        return TextIOWrapper(self._log.opened(), encoding="utf-8")


def _settings(config: Config, java: str) -> dict[str, str | int | bool]:
    logging = Path(__file__).parent / "log4j2.properties"
    jars = [str(jar) for jar in find_jars()]
    master = str(config.spark.get("spark.master", "local[*]"))
    return {
        "spark.master": master,
        "spark.driver.memory": "2g",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.jars": ",".join(jars),
        # The driver also has them on its class path, because the archive contains only classes from there.
        "spark.driver.extraClassPath": os.pathsep.join(jars),
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.log.level": "ERROR",
        # A JVM that runs out of memory ends, and so does the run, which might otherwise hang.
        "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()} -XX:+ExitOnOutOfMemoryError "
        f"{java_options(java)}",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": str(config.work_folder / "spark-warehouse"),
        **SESSION,
        "spark.python.worker.faulthandler.enabled": True,
        **{f"spark.executorEnv.{name}": value for name, value in _WORKER_MEMORY.items()},
        # On other machines these folders may not exist, and the modules are sent.
        **({"spark.executorEnv.PYTHONPATH": search_path()} if is_local(master) else {}),
    }


def ended_with(session: SparkSession, within: float = 0.0) -> int | None:
    """Return the exit code of a session's JVM, or None while it runs or if it is not a child of this process."""
    if is_connect(session):
        return None
    started = jvm.process()
    try:
        return None if started is None else started.wait(within)
    except subprocess.TimeoutExpired:
        return None


def stop_session(session: SparkSession) -> None:
    """End a session, unless its JVM has already ended."""
    if ended_with(session) is None:
        session.stop()


SECRET = "_SPARK_AUTH_SECRET"
"""Environment variable with the secret. Spark gives it to the executors too."""

_LOCAL = re.compile(r"local(\[[^\]]*\])?")
_STANDALONE = "spark://"
_KUBERNETES = "k8s://"
_AUTHENTICATE = "spark.authenticate"
_OTHER_PLACES = ("spark.authenticate.secret", "spark.authenticate.secret.file", "spark.authenticate.secret.driver.file")
_PROTECTION: dict[str, str | int | bool] = {
    _AUTHENTICATE: True,
    "spark.network.crypto.enabled": True,
    "spark.network.crypto.authEngineVersion": 2,
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": False,
    # This covers the data that executors spill to disk.
    "spark.io.encryption.enabled": True,
}


def protection(settings: Mapping[str, str | int | bool], file: str) -> dict[str, str | int | bool]:
    """Return the settings that protect the connections of a project's Spark cluster, or nothing for other masters.

    Args:
        settings: Spark settings of the project.
        file: the file that contains them, for messages.

    Raises:
        UsageError: the secret is missing.
    """
    master = str(settings.get("spark.master", "local[*]"))
    if _LOCAL.fullmatch(master):
        return {_AUTHENTICATE: True}
    if str(settings.get(_AUTHENTICATE, True)).lower() == "false":
        return {}
    if master.startswith(_KUBERNETES):
        return dict(_PROTECTION)
    if not master.startswith(_STANDALONE):
        return {}
    if not os.environ.get(SECRET) and not any(settings.get(name) for name in _OTHER_PLACES):
        raise UsageError(
            f"spark.master = {master!r} in {file}: set {SECRET} to the secret of the cluster, the same for its master, "
            f'its workers and this process. For a cluster without authentication, set "{_AUTHENTICATE}" = false: then '
            "anyone who can reach the cluster can run code on it"
        )
    return dict(_PROTECTION)


def secret(settings: Mapping[str, str | int | bool]) -> dict[str, str]:
    """Return the setting with the environment's secret, which Spark requires of a driver on a standalone cluster."""
    is_standalone = str(settings.get("spark.master", "")).startswith(_STANDALONE)
    return {_OTHER_PLACES[0]: os.environ[SECRET]} if is_standalone and os.environ.get(SECRET) else {}
