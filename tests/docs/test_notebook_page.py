"""The code of the page about notebooks runs, in order, in an empty folder; one part in a session of Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.step_tables import BLOCK
from tidegate import Project
from tidegate.pipelines.project import project as facade

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "notebook.md").read_text()
BLOCKS = BLOCK.findall(PAGE)


def run(scope: dict[str, Any], needs_spark: bool) -> dict[str, Any]:
    for block in BLOCKS:
        if needs_spark or "spark=spark" not in block:
            exec(compile(block, "notebook.md", "exec"), scope)
    return scope


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_has_a_block_with_a_session_and_several_without() -> None:
    with_session = [block for block in BLOCKS if "spark=spark" in block]
    assert (len(with_session), len(BLOCKS) >= 5) == (1, True)


def test_the_code_that_needs_no_spark_runs() -> None:
    scope = run({}, needs_spark=False)
    assert isinstance(scope["project"], Project)


@pytest.mark.long
@pytest.mark.spark
def test_all_code_runs_in_a_session_that_exists(spark: SparkSession) -> None:
    mine = spark.newSession()
    mine.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    run({"spark": mine}, needs_spark=True)
    assert mine.conf.get("spark.sql.session.timeZone") == "Europe/Berlin"
    assert mine.range(3).count() == 3


def test_every_method_that_the_page_names_exists() -> None:
    (table,) = re.findall(r"^\| command \| methods \|\n(.*?)\n\n", PAGE, re.DOTALL | re.MULTILINE)
    cells = [line.split("|")[2] for line in table.splitlines()[1:]]
    named = {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)}
    assert {name for name in named if not hasattr(facade.Project, name)} == set()
