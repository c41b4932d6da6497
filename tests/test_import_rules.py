"""The arrows between the packages are the only imports there are, lazy ones and those within functions included."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LIBRARY = frozenset({"numpy", "pyarrow", "xxhash"})
ALLOWED = {
    "windowing": LIBRARY,
    "windowing/aggregates": LIBRARY | {"datasketches"},
    "pipelines": LIBRARY
    | {"windowing", "pyspark", "delta", "deltalake", "click", "dateutil", "pandas", "psutil", "pydantic", "rich"},
    "pipelines/examples/flights": {"windowing", "pandas", "pyarrow", "deltalake"},
    "pipelines/airflow": {"airflow", "asgiref", "deltalake", "fastapi", "httpx", "psutil", "pydantic"},
    "pipelines/report": LIBRARY | {"windowing", "deltalake", "jinja2", "matplotlib", "pandas"},
    "expectations": {"windowing", "pipelines", "great_expectations", "click", "deltalake", "jinja2"}
    | {"pandas", "pyarrow", "numpy"},
    "dags": {"pipelines"},
}
"""What the files of a folder may import beside the standard library; the longest folder that fits counts."""

NEEDS_NO = {
    "tidegate.pipelines.definition.pipeline": {"pyspark", "great_expectations", "airflow", "deltalake"},
    "tidegate.pipelines.config": {"pyspark", "great_expectations", "airflow", "windowing", "deltalake", "pyarrow"},
    "tidegate.pipelines.cli": {"pyspark", "great_expectations", "airflow", "windowing", "deltalake", "pandas"},
    "tidegate.pipelines.cli.snapshot": {"pyspark", "great_expectations", "airflow", "pandas"},
    "tidegate.pipelines.cli.results": {"pyspark", "great_expectations", "airflow"},
    "tidegate.pipelines.examples.flights.duty": {"pyspark", "great_expectations", "airflow", "pandas"},
    "tidegate.pipelines.airflow": {"pyspark", "great_expectations", "windowing"},
    "tidegate.pipelines.airflow.factory": {"pyspark", "great_expectations", "windowing", "deltalake"},
    "tidegate.pipelines.airflow.process": {"pyspark", "great_expectations", "windowing", "airflow"},
    "tidegate.pipelines.airflow.supervisor": {"pyspark", "great_expectations", "windowing", "airflow"},
    "tidegate.pipelines.inspect.overview": {"pyspark", "great_expectations", "windowing", "airflow", "deltalake"},
    "tidegate.pipelines.inspect.standing": {"pyspark", "great_expectations", "windowing", "airflow", "deltalake"},
    "tidegate.pipelines.run.stopping": {"pyspark", "great_expectations", "windowing", "airflow", "deltalake"},
    "windowing": {"pyspark", "deltalake", "airflow", "great_expectations", "pandas"},
}
"""What must not be loaded when a module has been imported: Airflow parses DAGs, and people wait for help."""


def files(folder: str) -> Iterator[Path]:
    yield from sorted((ROOT / folder).rglob("*.py"))


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every module that a file imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.lineno, node.module
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name | ast.Attribute)
            and getattr(node.func, "id", getattr(node.func, "attr", None)) in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.lineno, str(node.args[0].value)


def allowed(file: Path) -> frozenset[str] | set[str]:
    path = file.relative_to(ROOT).as_posix()
    folder = max((folder for folder in ALLOWED if path.startswith(f"{folder}/")), key=len)
    return ALLOWED[folder]


@pytest.mark.parametrize("package", ["windowing", "pipelines", "expectations", "dags"])
def test_a_package_imports_only_what_its_arrows_allow(package: str) -> None:
    broken = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in files(package)
        for line, name in imports(file)
        if (top := name.partition(".")[0]) != package
        and top not in sys.stdlib_module_names
        and top not in allowed(file)
    ]
    assert broken == []


def test_dag_files_import_nothing_but_the_factory() -> None:
    names = {name for file in files("dags") for _, name in imports(file)} - set(sys.stdlib_module_names)
    assert names == {"tidegate.pipelines.airflow"}


def test_what_airflow_loads_imports_no_room_of_the_spark_side() -> None:
    """Names alone are not enough: a room of ours may itself import Spark."""
    light = {
        "pipelines",
        "tidegate.pipelines.airflow",
        "tidegate.pipelines.config",
        "tidegate.pipelines.errors",
        "tidegate.pipelines.names",
        "tidegate.pipelines.inspect.overview",
        "tidegate.pipelines.inspect.standing",
        "tidegate.pipelines.run.stopping",
    }
    broken = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in files("pipelines/airflow")
        for line, name in imports(file)
        if name.startswith("pipelines") and not name.startswith("tidegate.pipelines.airflow") and name not in light
    ]
    assert broken == []


@pytest.mark.parametrize("module", sorted(NEEDS_NO))
def test_importing_a_module_loads_nothing_that_it_does_not_need(module: str) -> None:
    if module.startswith("tidegate.pipelines.airflow"):
        pytest.importorskip("airflow")
    code = f"import sys, json, {module}; print(json.dumps(sorted({{n.partition('.')[0] for n in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert loaded & NEEDS_NO[module] == set()


def test_every_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    declared = {_distribution(requirement) for requirement in requirements}
    # The package `airflow` comes in parts, of which apache-airflow brings all.
    distributions = packages_distributions() | {"airflow": ["apache-airflow"]}
    ours = {"windowing", "pipelines", "expectations"}
    tops = {
        name.partition(".")[0] for package in (*ours, "dags") for file in files(package) for _, name in imports(file)
    }
    undeclared = {
        top
        for top in tops - ours - set(sys.stdlib_module_names)
        if not {_distribution(name) for name in distributions.get(top, [top])} & declared
    }
    assert undeclared == set()


def _distribution(requirement: str) -> str:
    name = "".join(character if character.isalnum() or character in "-_" else " " for character in requirement)
    return name.split()[0].lower().replace("_", "-")
