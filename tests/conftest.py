"""Fixtures of all tests: the folder in which they run, one Spark session, a lake for each test, and the search effort.
Searches are short by default, longer with `--hypothesis-profile=thorough` in `make test-long`, and take an evening with
`long`.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.lake import Lake
from tidegate.pipelines.definition.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A shared machine is no reliable clock: how long one example took says nothing.
settings.register_profile("quick", deadline=None, max_examples=20)
settings.register_profile("thorough", deadline=None, max_examples=200)
settings.register_profile("long", deadline=None, max_examples=5_000)
settings.load_profile("quick")

pytest_plugins = ("tests.running_airflow",)

if not hasattr(sys.modules["__main__"], "__file__"):
    # PySpark mistakes a process without a main file, such as a worker, for a run of its doctests, and ends it.
    sys.modules["__main__"].__file__ = __file__

AIRFLOW = {"airflow", "browser"}
"""Markers of the tests that use the one Airflow of a run."""

SLOW = {
    "benchmarks",
    "conformance",
    "deployment",
    "docs",
    "expectations",
    "formal",
    "frozen",
    "interleavings",
    "oracle",
}
SLOW |= {"packaging", "property", "recovery", "store"}
"""Test folders that `make test-fast` leaves out."""

RUNS_PIPELINES = re.compile(r"\b(Lake|lake|ByHand|by_hand|source_of)\b|cli\.project")
"""What a file names whose tests write tables and run pipelines over them: `make test-fast` leaves it out as well."""


STORE = Path(__file__).parent / "store"
"""Folder of the tests that share an object store."""

MEMORY = Path("/dev/shm")
"""Linux's folder in memory: tests make many thousands of durable commits, each of which would wait for a disk."""

MEMORY_NEEDED = 8 * 1024**3
"""Free bytes from which tests run in memory."""


def pytest_configure() -> None:
    """Give tests folders in memory if there is room. `--basetemp` and PYTEST_DEBUG_TEMPROOT name other folders. Each
    worker has at most one core, so deltalake gets one thread; two would take a tenth more processor time.
    """
    os.environ.setdefault("TOKIO_WORKER_THREADS", "1")
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_NEEDED:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Don't even import what a run without slow tests leaves out: Great Expectations alone takes seconds to import."""
    without_slow = "slow" in config.getoption("markexpr").partition("not (")[2]
    return True if without_slow and _is_slow(collection_path) else None


@cache
def _is_slow(path: Path) -> bool:
    if SLOW & {*path.relative_to(Path(__file__).parent).parts}:
        return True
    return path.name.startswith("test_") and RUNS_PIPELINES.search(path.read_text(encoding="utf-8")) is not None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Don't look for garbage while thousands of tests are collected, or in them later: they all stay in memory."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


_COUNTED: Counter[str] = Counter()
"""Cases of a parametrized test that were collected so far, by test."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """A run has one Airflow in one worker, one Spark session in another, and one object store in a third. Tests that
    ask for the session are marked. The cases of a test after its `first` ones are the long form.
    """
    if (first := item.get_closest_marker("first")) is not None:
        test = item.nodeid.partition("[")[0]
        _COUNTED[test] += 1
        if _COUNTED[test] > first.args[0]:
            item.add_marker(pytest.mark.long)
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.spark)
    marks = {mark.name for mark in item.iter_markers()}
    if "containers" in marks:
        item.add_marker(pytest.mark.xdist_group("containers"))
    elif marks & AIRFLOW:
        item.add_marker(pytest.mark.xdist_group("airflow"))
    elif "spark" in marks or is_measured(item):
        item.add_marker(pytest.mark.xdist_group("spark"))
    elif item.path.parent == STORE:
        item.add_marker(pytest.mark.xdist_group("store"))
    if _is_slow(item.path):
        item.add_marker(pytest.mark.slow)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Both groups start together, and a worker that finishes takes tests from the rest; measurements run last, when the
    machine is quietest. Tests of the shared Airflow are next to each other, after those that start another one: it is
    ended after the last of them.
    """
    items.sort(
        key=lambda item: (
            (group := item.get_closest_marker("xdist_group")) is None,
            "" if group is None else group.args[0],
            "airflow" in getattr(item, "fixturenames", ()),
            is_measured(item),
        )
    )


def is_measured(item: pytest.Item) -> bool:
    """Return True for a test that measures, and so needs the machine for itself."""
    return "benchmarks" in item.path.parts


SPARK_SETTINGS: dict[str, str | int | bool] = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    # For hundreds of small epochs, light compilation is fastest.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # There are as many queries as rows, so interpreting a plan is faster than compiling it. The commands that tests run
    # compile theirs.
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one session of the run, created as the product creates it."""
    from tidegate.pipelines.engine.spark.session import start_session

    config = Config(root=tmp_path_factory.mktemp("session"), spark=SPARK_SETTINGS)
    session = start_session(config, "tests")
    yield session
    session.stop()
    # Its connections end with the interpreter, when there is no log left to report it to.
    logging.getLogger("py4j").setLevel(logging.WARNING)


@pytest.fixture(autouse=True)
def modules_end_with_their_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Modules from a test's own folder, and that folder on the module path, are unknown to the next test."""
    if "tmp_path" not in request.fixturenames:
        yield
        return
    folder, path, known = request.getfixturevalue("tmp_path"), [*sys.path], {*sys.modules}
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - known:
        module = sys.modules[name]
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
        if any(place is not None and Path(place).is_relative_to(folder) for place in places):
            del sys.modules[name]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty project in a separate folder."""
    return Lake(tmp_path)
