"""The settings that a Spark session will have, before it is started: many runs find that there is nothing to do.

A source is opened, and an epoch planned, with these settings. They are known before the start if only tidegate.toml
sets them; otherwise a question about them starts the session.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tidegate.pipelines.config import Config
from tidegate.pipelines.engine.base import settings_of
from tidegate.pipelines.engine.spark import jvm
from tidegate.pipelines.engine.spark.connect import remote_of


def known_settings(config: Config) -> Callable[[str], str | None] | None:
    """Return the function of `settings_of`; None if a session may have settings from other places."""
    return None if _has_other_settings(config) else settings_of(config)


def _has_other_settings(config: Config) -> bool:
    if config.session is not None:
        return True
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
