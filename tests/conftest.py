"""What all tests share: where they run, one Spark session, a lake of a test's own, how long properties are searched.

Quickly by default, `--hypothesis-profile=long` for an evening.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from pipelines.config import Config
from tests.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A shared machine is no clock: how long one example took says nothing.
settings.register_profile("quick", deadline=None)
settings.register_profile("long", deadline=None, max_examples=5_000)
settings.load_profile("quick")

pytest_plugins = ("tests.running_airflow",)

if not hasattr(sys.modules["__main__"], "__file__"):
    # PySpark takes a process without a main file, which a worker is, for a run of its doctests and ends it.
    sys.modules["__main__"].__file__ = __file__

ENGINES = {"spark", "recovery", "airflow", "browser"}
"""Marks of what starts Spark or Airflow, or kills processes."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts an engine runs in one worker, one after the other, and what is measured there comes last.

    Then a run has one Spark session and one Airflow, and the other worker, which has all the rest, is done
    by the time that a benchmark wants the machine for itself.
    """
    engines = [item for item in items if ENGINES & {mark.name for mark in item.iter_markers()}]
    measured = [item for item in items if "benchmarks" in item.path.parts]
    alone = [*(item for item in engines if item not in measured), *measured]
    for item in alone:
        item.add_marker(pytest.mark.xdist_group("engines"))
    items[:] = [*alone, *(item for item in items if item.get_closest_marker("xdist_group") is None)]


SPARK_SETTINGS: dict[str, str | int | bool] = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    # Hundreds of small epochs: compiling lightly wins.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one session of the run, made as the product makes it."""
    from pipelines.session import start_session

    config = Config(root=tmp_path_factory.mktemp("session"), spark=SPARK_SETTINGS)
    session = start_session(config, "tests")
    yield session
    session.stop()
    # Its connections end with the interpreter, when there is no log any more to tell it to.
    logging.getLogger("py4j").setLevel(logging.WARNING)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty project in a folder of its own."""
    return Lake(tmp_path)
