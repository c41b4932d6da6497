"""The JVM of this process's Spark sessions. It outlives a session, and serves the next one.

Tidegate starts it with pyspark's `launch_gateway`, so it has the JVM's process without a private name of Spark.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

_gateways: list[Any] = []
"""Gateway to the JVM that this process started; empty before that."""


def is_running() -> bool:
    """Return True if this process has a JVM, which no longer reads a file of properties."""
    from pyspark.sql import SparkSession

    return bool(_gateways) or SparkSession.getActiveSession() is not None


def start(settings: Mapping[str, str]) -> None:
    """Start a JVM with a context, unless this process has one.

    Args:
        settings: settings of the JVM and of the context.
    """
    if is_running():
        return
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf()
    for key, value in settings.items():
        conf.set(key, value)
    launch: Any = launch_gateway
    _gateways.append(launch(conf))
    try:
        SparkContext(conf=conf, gateway=_gateways[0])
    except ValueError:
        # Other code has a context, whose session is active in another thread.
        end()


def process() -> subprocess.Popen[bytes] | None:
    """Return the process of the JVM; None if this process did not start it."""
    started: subprocess.Popen[bytes] | None = _gateways[0].proc if _gateways else None
    return started


def end() -> None:
    """End the JVM, and wait for its end."""
    gateway = _gateways.pop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
