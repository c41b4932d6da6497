"""The JVM of this process's Spark sessions, and what is known about Spark without a JVM: settings and functions.

A JVM outlives a session, and serves the next one. Tidegate starts it with pyspark's `launch_gateway`, so it gets the
JVM's process without using Spark's private names.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.engine.base import settings_of
from tidegate.pipelines.engine.spark.connect import remote_of

_gateways: list[Any] = []
"""The gateway to the JVM that this process started; empty before that."""


def is_running() -> bool:
    """Return True if this process has a JVM. A running JVM no longer reads a properties file."""
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
        # Other code may have a context whose session is active in another thread.
        end()


def process() -> subprocess.Popen[bytes] | None:
    """Return the process of the JVM, or None if this process did not start it."""
    started: subprocess.Popen[bytes] | None = _gateways[0].proc if _gateways else None
    return started


def end() -> None:
    """End the JVM, and wait until it has ended."""
    gateway = _gateways.pop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def known_settings(config: Config) -> Callable[[str], str | None] | None:
    """Return what `settings_of` returns, or None if a session may get settings from other places than tidegate.toml."""
    return None if _has_other_settings(config) else settings_of(config)


def _has_other_settings(config: Config) -> bool:
    if config.session is not None:
        return True
    if remote_of(config.spark) is not None or os.environ.get("PYSPARK_SUBMIT_ARGS"):
        return True
    # A session in a running JVM inherits its settings.
    if "pyspark" in sys.modules and is_running():
        return True
    folders = [os.environ.get("SPARK_CONF_DIR"), *(f"{home}/conf" for home in spark_homes())]
    return any(Path(folder, "spark-defaults.conf").is_file() for folder in folders if folder)


def spark_homes() -> list[str]:
    """Return the folders where Spark may be installed, starting with the one that is used."""
    package = importlib.util.find_spec("pyspark")
    homes = [os.environ.get("SPARK_HOME"), *(package.submodule_search_locations or () if package else ())]
    return [home for home in homes if home]


_REGISTRY = "org/apache/spark/sql/catalyst/analysis/FunctionRegistry$.class"
_NAME = re.compile(rb"\x01\x00.([a-z_][a-z_0-9]*)", re.DOTALL)
"""A string among the constants of a class: its kind, its length in two bytes, and the string itself."""
_OF_GRAMMAR = frozenset(
    {
        "timestampadd",
        "timestampdiff",
        "dateadd",
        "date_add",
        "datediff",
        "date_diff",
        "timediff",
        "identifier",
        "try_cast",
    }
)
"""Names that are in Spark's grammar but not in its registry."""
_ADDS = ("spark.sql.extensions", "spark.sql.catalogImplementation", "spark.sql.catalog.spark_catalog")
"""Settings that may add functions of other libraries."""


def function_names(config: Config) -> frozenset[str] | None:
    """Return all names that Spark's functions may have in a project; None if other libraries may have added some.

    They are read from the constants of the class that registers the functions, so they match the installed version.
    """
    if known_settings(config) is None or any(name in config.spark for name in _ADDS):
        return None
    return installed_names()


@cache
def installed_names() -> frozenset[str] | None:
    """Return the constants that may be names of functions, or None without Spark's jars, as with Connect's client."""
    jars = (jar for home in spark_homes() for jar in Path(home, "jars").glob("spark-catalyst_*.jar"))
    if (jar := next(jars, None)) is None:
        return None
    with zipfile.ZipFile(jar) as archive:
        try:
            constants = archive.read(_REGISTRY)
        except KeyError:
            return None
    return _OF_GRAMMAR | {name.decode() for name in _NAME.findall(constants)}
