"""Sessions of Spark Connect: Spark runs in a server, and this process has no JVM.

The server is named as usual in Spark: by the setting `spark.remote`, or else by the variable SPARK_REMOTE. Tidegate and
the project's modules are sent with the session; other packages must be installed where the server runs Python.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tidegate.extras import pip_install
from tidegate.pipelines.errors import TidegateError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMOTE = "spark.remote"
REMOTE_ENVIRONMENT = "SPARK_REMOTE"
_ANSWERS_WITHIN = 30.0
"""Longest time in seconds to reach a server; Spark's own client tries for ten minutes."""
_ROWS_TO_COUNT = 1 << 16
"""Number of rows in the job that counts cores: many more than there are cores, so that every task gets a row."""

_TOUCHED_EVERY = 300.0
"""Seconds between two calls that keep a session alive. A server closes sessions that were unused for an hour."""

_cores: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()
_touched: WeakKeyDictionary[SparkSession, float] = WeakKeyDictionary()


def remote_of(settings: Mapping[str, str | int | bool]) -> str | None:
    """Return the address of the Connect server that a project's settings or SPARK_REMOTE name, or None for a JVM."""
    return str(settings.get(REMOTE) or os.environ.get(REMOTE_ENVIRONMENT) or "") or None


def without_remote() -> dict[str, str]:
    """Return the environment for a process that must start its own JVM."""
    return {name: text for name, text in os.environ.items() if name != REMOTE_ENVIRONMENT}


def is_connect(session: SparkSession) -> bool:
    """Return True for a session of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def start_connect(remote: str, name: str, ours: Mapping[str, str], given: Mapping[str, str], file: str) -> SparkSession:
    """Start a session on a Connect server.

    Args:
        remote: address of the server, such as `sc://host:15002`; it may contain a token, so messages never show it in
            full.
        name: purpose of the session.
        ours: session settings that Tidegate chooses.
        given: settings of the project.
        file: the file that contains them, for messages.

    Raises:
        UsageError: the address is faulty, a package is missing, or a setting can only be changed when the server is
            started.
        TidegateError: no server answers.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    _check_reached(remote)
    session = SparkSession.builder.appName(f"tidegate {name}").remote(remote).getOrCreate()
    for key, text in {**ours, **given}.items():
        if key == REMOTE:
            continue
        try:
            if key == "spark.master":
                raise ValueError("the server has its own master")
            session.conf.set(key, text)
        except (PySparkException, ValueError) as error:
            session.stop()
            raise UsageError(
                f"spark.{key!r} in {file} can't be set in a session of Spark Connect: {str(error).splitlines()[0]} "
                f"Remove it, and start the server {_shown(remote)} with it if you need it"
            ) from error
    return session


def _check_reached(remote: str) -> None:
    if not remote.startswith("sc://"):
        raise UsageError(
            f"{REMOTE} = {_shown(remote)!r}: give the address of a Spark Connect server, such as sc://host:15002; "
            f'for Spark in this process, use "spark.master" instead'
        )
    try:
        import grpc
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.client import DefaultChannelBuilder
    except ImportError as error:
        raise UsageError(
            f"Spark Connect ({_shown(remote)}) needs packages that are not installed: {str(error).splitlines()[0]} "
            f"Install them with `{pip_install('connect')}`"
        ) from error
    try:
        channel = DefaultChannelBuilder(remote).toChannel()
    except (PySparkException, ValueError) as error:
        raise UsageError(
            f"{REMOTE} = {_shown(remote)!r} is not the address of a Spark Connect server: give sc://host:port, with "
            "parameters as in sc://host:port/;use_ssl=true;token=..."
        ) from error
    try:
        grpc.channel_ready_future(channel).result(timeout=_ANSWERS_WITHIN)
    except grpc.FutureTimeoutError as error:
        raise TidegateError(
            f"no Spark Connect server answers at {_shown(remote)} within {_ANSWERS_WITHIN:.0f} s: start it, or "
            f"correct {REMOTE} in tidegate.toml or the variable {REMOTE_ENVIRONMENT}"
        ) from error
    finally:
        channel.close()


def _shown(remote: str) -> str:
    """Return an address without its parameters and user, which may be secrets."""
    return re.sub(r"//[^@/;]*@", "//", remote.partition(";")[0]).rstrip("/")


def count_cores(session: SparkSession) -> int:
    """Return the number of tasks that the session runs at the same time.

    Spark Connect has no call for this. The server splits a range into as many partitions as it has cores, and a short
    job counts them, once per session.
    """
    if not is_connect(session):
        return session.sparkContext.defaultParallelism
    if session not in _cores:
        from pyspark.sql import functions as F

        parts = session.range(_ROWS_TO_COUNT).select(F.spark_partition_id().alias("part"))
        _cores[session] = int(parts.agg(F.max("part")).collect()[0][0]) + 1
    return _cores[session]


def runs_here(session: SparkSession) -> bool:
    """Return True if all tasks of a session run on this machine."""
    return not is_connect(session) and (session.sparkContext.master or "").startswith("local")


def keep_alive(session: SparkSession, timer: Callable[[], float] = time.monotonic) -> None:
    """Use a Connect session after minutes without use, so that it survives while a stream waits for data.

    Args:
        session: the session; one with its own JVM needs nothing.
        timer: returns seconds from a monotonic clock.
    """
    if not is_connect(session):
        return
    now = timer()
    if now - _touched.setdefault(session, now) >= _TOUCHED_EVERY:
        _touched[session] = now
        session.conf.get("spark.sql.session.timeZone")
