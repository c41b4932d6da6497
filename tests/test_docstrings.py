"""Every example with `>>>`, in a docstring of `tidegate` or on a page, runs as written."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import tidegate

ROOT = Path(__file__).parent.parent
PROJECT = '[pipelines.visits]\nobject = "visits:visits"\nstart = 2024-03-01\n'


def module_of(file: Path) -> str:
    """Return the name under which a file of the package is imported."""
    path = file.relative_to(ROOT).with_suffix("")
    parts = path.parts if path.parts[0] == "tidegate" else ("tidegate", *path.parts)
    return ".".join(parts).removesuffix(".__init__")


MODULES = [
    module_of(file)
    for folder in ("windowing", "pipelines", "expectations")
    for file in sorted((ROOT / folder).rglob("*.py"))
    if ">>> " in file.read_text()
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def run(module: ModuleType, project: Path) -> doctest.TestResults:
    """Run the examples of a module as if it were a project's DAG file, if they name such a file."""
    return doctest.testmod(module, extraglobs={"__file__": str(project / "dags" / "tidegate_dags.py")})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tidegate.toml").write_text(PROJECT)
    return tmp_path


@pytest.mark.parametrize("name", ["tidegate", *MODULES])
def test_the_examples_of_a_module_hold(name: str, project: Path) -> None:
    if name.startswith("tidegate.pipelines.airflow"):
        pytest.importorskip("airflow")
    done = run(tidegate if name == "tidegate" else importlib.import_module(name), project)
    assert done.attempted > 0, "an example that nothing runs: it belongs into the docstring of something"
    assert done.failed == 0


def test_the_examples_of_a_page_hold() -> None:
    pages = [page for page in PAGES if re.search(r"^ *>>> ", page.read_text(), re.MULTILINE)]
    assert [page.name for page in pages if doctest.testfile(str(page), module_relative=False).failed] == []


def test_an_example_that_does_not_hold_is_found(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = ModuleType("wrong", "Wrong.\n\n>>> 1 + 1\n3\n")
    assert run(module, project).failed == 1
    assert "Expected" in capsys.readouterr().out
