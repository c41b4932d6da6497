"""A Spark session that starts when something first needs it: many runs find that there is nothing to do.

A source is opened, and an epoch planned, with the settings that the session will have. They are known before its start
if only tidegate.toml sets them; otherwise a question about them starts it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.pipelines.config import Config
from tidegate.pipelines.spark import jvm
from tidegate.pipelines.spark.connect import remote_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class SparkOnDemand:
    """A session that is started by its first call.

    Args:
        start: starts the session.
        known: returns a setting that the session will have, or None if it is not set; None if only the session knows.
    """

    start: Callable[[], SparkSession]
    known: Callable[[str], str | None] | None = None
    _session: SparkSession | None = field(default=None, init=False, repr=False)

    @classmethod
    def running(cls, session: SparkSession) -> SparkOnDemand:
        """Return a session that runs already."""
        demanded = cls(lambda: session)
        demanded()
        return demanded

    @property
    def session(self) -> SparkSession | None:
        """The session if it was started, else None."""
        return self._session

    def __call__(self) -> SparkSession:
        """Return the session, and start it first if needed."""
        if self._session is None:
            with _own_interrupt():
                self._session = self.start()
        return self._session

    def setting(self, name: str) -> str | None:
        """Return a setting of the session, or None if it is not set."""
        if self._session is None and self.known is not None:
            return self.known(name)
        return self().conf.get(name, None)


def settings_of(config: Config) -> Callable[[str], str | None]:
    """Return a function that returns the value of a setting in tidegate.toml, or None."""

    def setting(name: str) -> str | None:
        value = config.spark.get(name)
        return None if value is None else str(value)

    return setting


def known_settings(config: Config) -> Callable[[str], str | None] | None:
    """Return the function of `settings_of`; None if a session may have settings from other places."""
    return None if _has_other_settings(config) else settings_of(config)


def _has_other_settings(config: Config) -> bool:
    if remote_of(config.spark) is not None or os.environ.get("PYSPARK_SUBMIT_ARGS"):
        return True
    # A session in a JVM that runs already takes its settings over.
    if "pyspark" in sys.modules and jvm.is_running():
        return True
    folders = [os.environ.get("SPARK_CONF_DIR"), *(f"{home}/conf" for home in spark_homes())]
    return any(Path(folder, "spark-defaults.conf").is_file() for folder in folders if folder)


def spark_homes() -> list[str]:
    """Return the folders in which Spark may be installed, the one that is used first."""
    package = importlib.util.find_spec("pyspark")
    homes = [os.environ.get("SPARK_HOME"), *(package.submodule_search_locations or () if package else ())]
    return [home for home in homes if home]


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Keep a command's handler of Ctrl-C, in place of which PySpark sets its own; Python's default one may go."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before not in (signal.default_int_handler, None) and signal.getsignal(signal.SIGINT) is not before:
            signal.signal(signal.SIGINT, before)
