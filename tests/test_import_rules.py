"""The arrows between the packages are the only imports, including lazy ones and those within functions."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LIBRARY = frozenset({"numpy", "pyarrow", "xxhash"})
ALLOWED = {
    "tidegate": frozenset[str](),
    "windowing": LIBRARY,
    "windowing/aggregates": LIBRARY | {"datasketches"},
    "pipelines": LIBRARY
    | {
        "tidegate.windowing",
        "deltalake",
        "dateutil",
        "pandas",
        "psutil",
        "pydantic",
        "sqlglot",
        "pyroaring",
        "obstore",
    },
    "pipelines/examples": {"tidegate.windowing", "pandas", "pyarrow", "deltalake"},
    "pipelines/airflow": {"airflow", "asgiref", "deltalake", "fastapi", "httpx", "openlineage", "psutil", "pydantic"},
    "pipelines/project": LIBRARY | {"tidegate.windowing", "tidegate.expectations", "dateutil", "pandas"},
    "pipelines/project/cli": {"tidegate.windowing", "tidegate.expectations", "click", "deltalake", "numpy"}
    | {"pyarrow", "rich"},
    "pipelines/observe/metrics": {"tidegate.windowing", "opentelemetry", "prometheus_client"},
    "pipelines/engine": LIBRARY | {"loky"},
    "pipelines/engine/spark": LIBRARY | {"tidegate.windowing", "deltalake", "pyspark", "grpc"},
    "pipelines/observe/report": LIBRARY
    | {"tidegate.windowing", "deltalake", "jinja2", "matplotlib", "pandas", "pydantic"},
    "expectations": {"tidegate.windowing", "tidegate.pipelines", "great_expectations", "deltalake", "jinja2"}
    | {"pandas", "pyarrow", "numpy"},
    "dags": {"tidegate.pipelines"},
}
"""Packages that the files of a folder may import in addition to the standard library; the longest matching folder
counts.
"""

NEEDS_NO = {
    "tidegate": {"pyspark", "great_expectations", "airflow", "deltalake", "pyarrow", "tidegate.windowing"},
    "tidegate.extras": {"tidegate.pipelines", "tidegate.windowing", "pyspark", "airflow", "pyarrow"},
    "tidegate.pipelines.definition.pipeline": {"pyspark", "great_expectations", "airflow", "deltalake"},
    "tidegate.pipelines.definition.config": {
        "pyspark",
        "great_expectations",
        "airflow",
        "tidegate.windowing",
        "deltalake",
    }
    | {"pyarrow"},
    "tidegate.pipelines.project.cli": {
        "pyspark",
        "great_expectations",
        "airflow",
        "tidegate.windowing",
        "deltalake",
        "pandas",
    },
    "tidegate.pipelines.project.cli.declared": {
        "pyspark",
        "great_expectations",
        "airflow",
        "tidegate.windowing",
        "deltalake",
    },
    "tidegate.pipelines.project.project": {
        "pyspark",
        "great_expectations",
        "airflow",
        "tidegate.windowing",
        "deltalake",
    }
    | {"pandas", "pyarrow"},
    "tidegate.pipelines.project.results": {"pyspark", "great_expectations", "airflow"},
    "tidegate.pipelines.project.snapshots": {"pyspark", "great_expectations", "airflow", "pandas"},
    "tidegate.pipelines.examples.flights.duty": {"pyspark", "great_expectations", "airflow", "pandas"},
    "tidegate.pipelines.airflow": {"pyspark", "great_expectations", "tidegate.windowing"},
    "tidegate.pipelines.airflow.factory": {"pyspark", "great_expectations", "tidegate.windowing", "deltalake"}
    | {"openlineage"},
    "tidegate.pipelines.airflow.command": {"pyspark", "great_expectations", "tidegate.windowing", "airflow"}
    | {"pyarrow", "deltalake", "pydantic", "click", "numpy"},
    "tidegate.pipelines.airflow.operator": {"pyspark", "great_expectations", "tidegate.windowing"}
    | {"pyarrow", "deltalake", "numpy"},
    "tidegate.pipelines.observe.inspect.overview": {"pyspark", "great_expectations", "tidegate.windowing", "airflow"}
    | {"deltalake"},
    "tidegate.pipelines.observe.inspect.summary": {"pyspark", "great_expectations", "tidegate.windowing", "airflow"}
    | {"deltalake", "pyarrow"},
    "tidegate.pipelines.observe.inspect.status": {"pyspark", "great_expectations", "tidegate.windowing", "airflow"}
    | {"deltalake"},
    "tidegate.pipelines.airflow.hook": {"pyspark", "great_expectations", "tidegate.windowing", "deltalake"},
    "tidegate.pipelines.observe.inspect.unread": {"pyspark", "great_expectations", "tidegate.windowing", "airflow"}
    | {"deltalake"},
    "tidegate.pipelines.observe.lineage.datasets": {
        "pyspark",
        "great_expectations",
        "airflow",
        "openlineage",
        "pandas",
    },
    "tidegate.pipelines.run.stopping": {"pyspark", "great_expectations", "tidegate.windowing", "airflow", "deltalake"},
    "tidegate.pipelines.storage.artifacts": {"pyspark", "great_expectations", "tidegate.windowing", "airflow"}
    | {"deltalake", "obstore", "pyarrow"},
    "tidegate.pipelines.run.drive": {"pyspark", "great_expectations", "airflow", "opentelemetry", "prometheus_client"},
    "tidegate.windowing": {"pyspark", "deltalake", "airflow", "great_expectations", "pandas"},
}
"""Packages that importing a module must not load: Airflow parses DAGs, and people wait for help."""

AT_MOST = {
    "tidegate.pipelines.ask.why": 125,
    "tidegate.pipelines.project.listing": 85,
    "tidegate.pipelines.project.cli": 20,
    "tidegate.pipelines.project.project": 25,
    "tidegate.windowing.columnar.operator": 80,
    "tidegate.windowing": 3,
}
"""Largest number of our own modules that importing a module loads: the start of a command, task or worker."""

LOOSE = 5
"""The largest number of files in `pipelines` itself; all others are in its packages."""


def files(folder: str) -> Iterator[Path]:
    yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def imports(file: Path) -> tuple[tuple[int, str], ...]:
    """Return line and full name of every module that a file imports, wherever the statement is."""
    return tuple(_imports(file))


def _imports(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((node.lineno, name if is_module(name) else node.module) for name in submodules)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name | ast.Attribute)
            and getattr(node.func, "id", getattr(node.func, "attr", None)) in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.lineno, str(node.args[0].value)


def is_module(name: str) -> bool:
    """Return True if a name below `tidegate` is one of our files or folders."""
    path = ROOT.joinpath(*name.split(".")[1:])
    return name.startswith("tidegate.") and (path.with_suffix(".py").is_file() or path.is_dir())


def allowed(file: Path) -> frozenset[str] | set[str]:
    path = file.relative_to(ROOT).as_posix()
    folder = max((folder for folder in ALLOWED if path.startswith(f"{folder}/")), key=len)
    return ALLOWED[folder]


def top_of(name: str) -> str:
    """Return the package that a module belongs to: for ours, its part of `tidegate`."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "tidegate" else parts[0]


@pytest.mark.parametrize("package", ["windowing", "pipelines", "expectations", "dags"])
def test_a_package_imports_only_what_its_arrows_allow(package: str) -> None:
    broken = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in files(package)
        for line, name in imports(file)
        if (top := top_of(name)) not in (f"tidegate.{package}", "tidegate", "tidegate.exports", "tidegate.extras")
        and top not in sys.stdlib_module_names
        and top not in allowed(file)
    ]
    assert broken == []


def arrows(package: Path, room_of: Callable[[Path], str]) -> dict[str, set[str]]:
    """Return the packages that each package of a top package imports, except itself."""
    found: dict[str, set[str]] = {}
    for file in sorted(package.rglob("*.py")):
        for _, name in imports(file):
            path = ROOT.joinpath(*name.split(".")[1:])
            target = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            if name.startswith("tidegate.") and target.is_relative_to(package):
                found.setdefault(room_of(file), set()).add(room_of(target))
    return {room: others - {room} for room, others in found.items()}


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return a path through the graph that leads back to its start; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def room_in_pipelines(file: Path) -> str:
    """Return the folder of a file of `pipelines`; a loose file counts as a package of its own."""
    return file.relative_to(ROOT / "pipelines").parts[0]


def test_no_two_rooms_of_pipelines_import_each_other() -> None:
    assert circle(arrows(ROOT / "pipelines", room_in_pipelines)) == []


@pytest.mark.parametrize("package", ["windowing", "pipelines", "expectations"])
def test_no_two_files_import_each_other(package: str) -> None:
    assert circle(arrows(ROOT / package, lambda file: file.relative_to(ROOT).as_posix())) == []


def test_a_circle_is_found_within_a_function_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    for room, other in (("run", "epoch"), ("epoch", "run")):
        (tmp_path / "pipelines" / room).mkdir(parents=True)
        lines = ("def later():", f"    from tidegate.pipelines.{other} import work")
        (tmp_path / "pipelines" / room / "work.py").write_text("\n".join(lines))
    assert set(circle(arrows(tmp_path / "pipelines", room_in_pipelines))) == {"run", "epoch"}
    assert circle(arrows(tmp_path / "pipelines", lambda file: file.relative_to(tmp_path).as_posix())) != []


def test_few_files_of_pipelines_stand_in_no_room() -> None:
    loose = {file.name for file in (ROOT / "pipelines").glob("*.py")} - {"__init__.py"}
    assert len(loose) <= LOOSE, loose


DESCRIBES = {
    "pipelines/__init__.py": "hands the name DeltaSource to users",
    "pipelines/run/warm_up.py": "describes a table of its own, so that Spark loads the classes of Delta",
}
"""Files outside of the package `sources` that may name the source Delta, only to describe a table; and why."""


def test_only_sources_know_delta_and_others_at_most_describe_a_table() -> None:
    """Plans, runs and commands use the protocol of sources, so that another source is just one more folder."""
    delta, naming = "tidegate.pipelines.sources.delta", set[str]()
    for package in ("pipelines", "expectations", "dags"):
        for file in files(package):
            place = file.relative_to(ROOT).as_posix()
            names = {name for _, name in imports(file) if name == delta or name.startswith(f"{delta}.")}
            if names and not place.startswith("pipelines/sources/delta/"):
                assert names == {f"{delta}.description"}, place
                naming.add(place)
    assert naming == set(DESCRIBES)


def test_dag_files_import_nothing_but_the_factory() -> None:
    names = {name for file in files("dags") for _, name in imports(file)} - set(sys.stdlib_module_names)
    assert names == {"tidegate.pipelines.airflow"}


def test_what_airflow_loads_imports_no_room_of_the_spark_side() -> None:
    """Names alone are not enough, because one of our own packages may import Spark."""
    light = {
        "tidegate.pipelines",
        "tidegate.pipelines.airflow",
        "tidegate.pipelines.definition.config",
        "tidegate.pipelines.definition.config.faults",
        "tidegate.pipelines.definition.config.file",
        "tidegate.pipelines.definition.config.opened",
        "tidegate.pipelines.definition.config.settings",
        "tidegate.pipelines.errors",
        "tidegate.pipelines.definition.names",
        "tidegate.pipelines.observe.inspect.overview",
        "tidegate.pipelines.observe.inspect.probe",
        "tidegate.pipelines.observe.inspect.status",
        "tidegate.pipelines.observe.inspect.summary",
        "tidegate.pipelines.observe.inspect.unread",
        "tidegate.pipelines.observe.report.plain_text",
        "tidegate.pipelines.remedy",
        "tidegate.pipelines.rendering",
        "tidegate.pipelines.run.stopping",
        "tidegate.pipelines.definition.environment",
        "tidegate.pipelines.storage.artifacts",
        "tidegate.pipelines.storage.credentials",
    }
    broken = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for file in files("pipelines/airflow")
        for line, name in imports(file)
        if name.startswith("tidegate.pipelines")
        and not name.startswith("tidegate.pipelines.airflow")
        and name not in light
    ]
    assert broken == []


@pytest.mark.parametrize("module", sorted(NEEDS_NO))
def test_importing_a_module_loads_nothing_that_it_does_not_need(module: str) -> None:
    if module.startswith("tidegate.pipelines.airflow"):
        pytest.importorskip("airflow")
    assert {top_of(name) for name in loaded_by(f"import {module}")} & NEEDS_NO[module] == set()


def loaded_by(statement: str) -> list[str]:
    """Return the modules that a new process has loaded after a statement."""
    code = f"import sys, json\n{statement}\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", sorted(AT_MOST))
def test_importing_a_module_loads_few_of_our_own(module: str) -> None:
    assert sum(name.startswith("tidegate") for name in loaded_by(f"import {module}")) <= AT_MOST[module]


def test_help_lists_the_commands_without_the_libraries_of_tables() -> None:
    loaded = loaded_by("from tidegate.pipelines.project.cli import run; run(['--help'])")
    assert {top_of(name) for name in loaded} & {"numpy", "pyarrow", "deltalake", "tidegate.windowing"} == set()


EXPORTING = [
    str(file.relative_to(ROOT))
    for package in ("windowing", "pipelines")
    for file in sorted((ROOT / package).rglob("__init__.py"))
    if "exports(" in file.read_text()
]


@pytest.mark.parametrize("file", EXPORTING)
def test_a_package_exports_the_names_that_type_checkers_see(file: str) -> None:
    package = ".".join(("tidegate", *Path(file).parent.parts))
    (checked,) = (node for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.If))
    seen = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    module = import_module(package)
    named = {(node.module, alias.name) for node in seen for alias in node.names if alias.name != "*"}
    for source, name in named:
        assert getattr(module, name) is getattr(import_module(source), name)
    whole = {node.module for node in seen if node.names[0].name == "*"}
    rest = set(module.__all__) - {name for _, name in named}
    assert all(any(name in import_module(source).__all__ for source in whole) for name in rest)


def test_every_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    declared = {_distribution(requirement) for requirement in requirements}
    # The package `airflow` is split into parts; apache-airflow installs all of them.
    distributions = packages_distributions() | {"airflow": ["apache-airflow"]}
    folders = ("windowing", "pipelines", "expectations", "dags")
    tops = {name.partition(".")[0] for folder in folders for file in files(folder) for _, name in imports(file)}
    undeclared = {
        top
        for top in tops - {"tidegate"} - set(sys.stdlib_module_names)
        if not {_distribution(name) for name in distributions.get(top, [top])} & declared
    }
    assert undeclared == set()


def _distribution(requirement: str) -> str:
    name = "".join(character if character.isalnum() or character in "-_" else " " for character in requirement)
    return name.split()[0].lower().replace("_", "-")


OF_SPARK = ("pipelines/engine/spark",)
"""Folders that may name a session."""


def names_sessions(file: Path) -> bool:
    """Return True if a file of the product names Spark's session or a module of PySpark."""
    if file.relative_to(ROOT).as_posix().startswith(OF_SPARK):
        return False
    return "SparkSession" in file.read_text() or any(top_of(name) == "pyspark" for _, name in imports(file))


def test_no_module_outside_its_engine_takes_a_session_of_spark() -> None:
    found = [file.relative_to(ROOT).as_posix() for file in files("pipelines") if names_sessions(file)]
    assert found == []
