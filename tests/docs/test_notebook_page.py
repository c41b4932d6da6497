"""The code of the page about notebooks runs, in order, in an empty folder, one part of it in a Spark session. The
notebooks of the guide run, show their actual output, and describe correctly what reopening does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.notebooks import code_cells, executed
from tests.docs.step_tables import BLOCK
from tests.pipelines.by_hand import ByHand
from tests.pipelines.correct.arrivals import Arrivals
from tidegate import Project
from tidegate.pipelines.definition import results
from tidegate.pipelines.project import project as facade
from tidegate.pipelines.testing import PipelineHarness

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
    (table,) = re.findall(r"^\| for \| methods \|\n(.*?)\n\n", PAGE, re.DOTALL | re.MULTILINE)
    cells = [line.split("|")[2] for line in table.splitlines()[1:]]
    named = {name for cell in cells for name in re.findall(r"`([a-z_.]+)`", cell)}
    project = facade.Project(warehouse=".", pipelines=[], engine="local")
    assert len(named) > 30
    for name in named:
        assert callable(attrgetter(name)(project)), name


GUIDE = Path(__file__).parents[2] / "docs" / "guide"
NOTEBOOKS = sorted(GUIDE.glob("*.ipynb"))
SESSION, NOTEBOOK = GUIDE / "a-session-window.ipynb", GUIDE / "a-project.ipynb"


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text())
    return notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_give_what_it_was_saved_with(path: Path) -> None:
    notebook = read(path)
    _, outputs = executed(notebook)
    assert [cell["outputs"] for cell in code_cells(notebook)] == outputs
    assert sum(map(len, outputs)) >= 5, "a notebook that shows nothing explains nothing"


IN_SPARK = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.docs.notebooks import code_cells, executed

if sys.argv[2].startswith("sc://"):
    spark = SparkSession.builder.remote(sys.argv[2]).getOrCreate()
else:
    spark = SparkSession.builder.master(sys.argv[2]).config("spark.ui.enabled", "false").getOrCreate()
notebook = json.loads(Path(sys.argv[1]).read_text())
cells = code_cells(notebook)
for cell in cells:
    cell["source"] = ["".join(cell["source"]).replace('engine="local"', "spark=spark")]
assert any("spark=spark" in cell["source"][0] for cell in cells)
for cell, shown in zip(cells, executed(notebook, spark=spark)[1], strict=True):
    assert cell["outputs"] == shown, (cell["source"], cell["outputs"], shown)
"""


@pytest.mark.long
@pytest.mark.spark
def test_the_notebook_of_project_gives_the_same_in_a_session_of_spark() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_SPARK, str(NOTEBOOK), "local[2]"],
        env={**os.environ, "PYTHONPATH": str(GUIDE.parents[1]), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_links_of_a_notebook_lead_to_files(path: Path) -> None:
    text = "".join("".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_a_cell_that_gives_something_else_is_found() -> None:
    notebook = read(SESSION)
    cell = code_cells(notebook)[-1]
    cell["source"] = ["'something else'"]
    _, outputs = executed(notebook)
    assert cell["outputs"] != outputs[-1]


def test_a_reopening_puts_out_what_the_notebook_says(tmp_path: Path) -> None:
    scope, _ = executed(read(SESSION))
    arrivals = Arrivals(ByHand(tmp_path, scope["visits"]))
    stream = PipelineHarness(scope["visits"], scope["source"])
    for number, rows in enumerate(scope["arrived"]):
        stream.commit(rows, at=10**12 * 2 + number)
        stream.run()
        watermark = datetime.fromtimestamp(stream.watermark / 1000, UTC)
        arrivals.commit(*(tuple(row.values()) for row in rows), watermark=watermark)

    assert totals(arrivals) == [(row["user"], row["events"], row["total"]) for row in scope["before"]]
    manifest = arrivals.reopen()
    assert manifest is not None
    assert totals(arrivals) == [(row["user"], row["events"], row["total"]) for row in scope["reopened"]]
    panes = [row for row in arrivals.by_hand.rows("results").to_pylist() if row["epoch"] == manifest.epoch]
    corrections = sorted((row["op"], row["pane"], row["timing"], row["total"]) for row in panes)
    assert corrections == [("+", 2, "late", 23), ("-", 1, "on_time", 7)]
    assert arrivals.by_hand.rows("late")["reopened"].to_pylist() == [manifest.epoch]


def totals(arrivals: Arrivals) -> list[tuple[str, int, int]]:
    """Return user, events and total of each final window."""
    latest = results.latest(arrivals.by_hand.rows(results.NAME), ("user",))
    final = results.final(latest, arrivals.by_hand.head().manifest.watermark).to_pylist()
    return [(row["user"], row["events"], row["total"]) for row in final]
