"""Three teams share one Airflow: two projects and six pipelines in a versioned DAG bundle (Git), with CeleryExecutor.
Tests which code runs, where its data is, what waits in the triggerer, and who gets an alarm.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.airflow.dag_runs import (
    begin,
    create_backfill,
    end_of,
    events_of,
    run_of,
    states,
    task_log,
    unpause,
)
from tests.airflow.providers import provider_folder, redis
from tests.lake import DAY0, Lake, at
from tests.running_airflow import ROOT
from tests.waiting import wait_until
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow, free_port
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import read_lease
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.inspect.status import read_status
from tidegate.pipelines.run.stopping import stop_driver
from tidegate.pipelines.storage.warehouse import Warehouse, read_table

pytestmark = [pytest.mark.airflow, pytest.mark.long, pytest.mark.timeout(1800)]

BACKFILL = "web_visits__backfill"
DAG_FILE = """
from pathlib import Path

from airflow.sdk import DAG

from tidegate.pipelines.airflow import SnapshotSensor, project_dags

BUNDLE = Path(__file__).parent.parent
globals().update(project_dags(BUNDLE / "web" / "tidegate.toml", prefix="web_"))
globals().update(
    project_dags(
        BUNDLE / "billing" / "tidegate.toml",
        prefix="billing_",
        default_args={"owner": "billing"},
    )
)

with DAG("report", schedule=None):
    SnapshotSensor(
        task_id="wait", pipeline="invoices", config=BUNDLE / "billing" / "tidegate.toml", newer_than=0, poke_interval=1
    )
"""
MODULE = """
from datetime import timedelta

from tidegate import Count, DeltaSource, EventTimeSessionWindows, Pipeline, Sum, WatermarkStrategy, Windows


def of(name):
    return Pipeline(
        name=name,
        source=DeltaSource(f"{name}_events", timestamp="at"),
        key=("user",),
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        compute=Windows(EventTimeSessionWindows.with_gap(timedelta(minutes=30)), aggregate={AGGREGATE}),
    )


visits, orders, returns, baskets, invoices = map(of, ("visits", "orders", "returns", "baskets", "invoices"))
"""
CHECKS = """
import great_expectations as gx
import great_expectations.expectations as gxe

suite = gx.ExpectationSuite(
    name="own", expectations=[gxe.ExpectColumnValuesToBeBetween(column="{COLUMN}", min_value=1)]
)
rejects = gx.ExpectationSuite(
    name="rejects", expectations=[gxe.ExpectColumnValuesToNotBeInSet(column="reason", value_set=["null_key"])]
)
"""
FIRST, SECOND = '{"events": Count()}', '{"events": Count(), "total": Sum("value")}'
"""Versions of the code: the second adds an aggregate, and can continue from the first."""

PAGER = """import json
from pathlib import Path

from airflow.sdk import BaseNotifier


class Pager(BaseNotifier):
    def __init__(self, inbox):
        super().__init__()
        self.inbox = inbox

    def notify(self, context):
        with Path(self.inbox).open("a") as inbox:
            inbox.write(json.dumps(context["tidegate"]) + "\\n")
"""
"""The pager that all teams share. The people on call know only what it receives."""

PIPELINE = """
[pipelines.{name}]
object = "of_team:{name}"
start = 2024-03-01
end = 2024-04-01
catchup = false
stream_schedule = "0 0 29 2 *"
default_args.retries = 0
notifiers = [{{ notifier = "pager:Pager", inbox = "{data}/pager.jsonl" }}]
"""
PLACES = """
warehouse = "{data}/{project}/warehouse"
work = "{data}/{project}/work"
engine = "local"
"""
SETTINGS = {
    "web": {
        "visits": 'default_args.owner = "web"\nsuites.final = "checks:suite"\n'
        'maintenance_schedule = "0 0 29 2 *"\nmaintenance_savepoints = 1\n',
        "orders": 'default_args.owner = "shop"\n',
        "returns": 'default_args.owner = "shop"\n',
        "baskets": 'default_args.owner = "shop"\nstream_mode = "continuous"\n',
    },
    "billing": {"visits": 'suites = { rejects = "checks:rejects" }\n', "invoices": ""},
}
GROUPS = {"web": '[stream_groups]\nsmall = ["orders", "returns"]\n', "billing": ""}


def toml(project: str, data: Path) -> str:
    pipelines = [PIPELINE.format(name=name, data=data) + more for name, more in SETTINGS[project].items()]
    return PLACES.format(data=data, project=project) + "".join(pipelines) + GROUPS[project]


class Repository:
    """The Git repository of the bundle."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data = folder, data
        (folder / "dags").mkdir(parents=True)
        (folder / "dags" / "tidegate_dags.py").write_text(DAG_FILE)
        for project in SETTINGS:
            (folder / project).mkdir()
            (folder / project / "tidegate.toml").write_text(toml(project, data))
            (folder / project / "pager.py").write_text(PAGER)
        self._git("init", "--quiet", "--initial-branch=main")

    @property
    def web(self) -> Path:
        """The settings of project `web`: its paths are absolute, because Airflow copies the bundle."""
        return self.folder / "web" / "tidegate.toml"

    def commit(self, aggregate: str, column: str = "events") -> str:
        """Commit a version of the code, and return its name."""
        for project in SETTINGS:
            (self.folder / project / "of_team.py").write_text(MODULE.replace("{AGGREGATE}", aggregate))
            (self.folder / project / "checks.py").write_text(CHECKS.replace("{COLUMN}", column))
        self._git("add", "--all")
        self._git("-c", "user.name=a", "-c", "user.email=a@example", "commit", "--quiet", "--message", "a version")
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    folder = tmp_path_factory.mktemp("bundle")
    repository = Repository(folder / "repository", folder / "data")
    repository.commit(FIRST)
    return repository


@pytest.fixture(scope="module")
def airflow(repository: Repository) -> Iterator[EmbeddedAirflow]:
    """Airflow with the bundle, Redis and a Celery worker."""
    providers, folder = provider_folder(), repository.folder.parent
    bundle = {
        "name": "project",
        "classpath": "airflow.providers.git.bundles.git.GitDagBundle",
        "kwargs": {
            "repo_url": str(repository.folder),
            "tracking_ref": "main",
            "subdir": "dags",
            "refresh_interval": 5,
        },
    }
    with redis(folder, free_port()) as broker:
        home = folder / "airflow"
        settings = {
            "PYTHONPATH": os.pathsep.join((str(providers), str(ROOT))),
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CELERY__BROKER_URL": broker,
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+sqlite:///{home}/celery.db",
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": "3",
            # This makes Redis deliver the message of every longer task again. It checks every 100 seconds.
            "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": "5",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(folder / "bundles"),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "5",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "10",
        }
        given: dict[str, Any] = {"home": home, "dags": folder / "none", "triggerer": True}
        with EmbeddedAirflow(**given, settings=settings) as running:
            running.start_component("celery worker")
            running.wait_for_dags([BACKFILL, "web_small__streams", "billing_visits__quality", "report"])
            yield running


@pytest.fixture(scope="module")
def data(repository: Repository) -> Path:
    web, billing = (Lake(repository.data / project) for project in SETTINGS)
    for day in range(4):
        web.append(("ann", at("10:00", day), 1 + day), ("bob", at("12:00", day), 10), table="visits_events")
    web.append(("ann", at("10:00"), 1), table="orders_events")
    web.append(("ann", at("10:00"), 1), table="baskets_events")
    billing.append(("ann", at("10:00"), 1), (None, at("10:05"), 1), table="visits_events")
    billing.append(("ann", at("10:00"), 1), table="invoices_events")
    return repository.data


@pytest.fixture(scope="module", autouse=True)
def endless(airflow: EmbeddedAirflow, repository: Repository, data: Path) -> Iterator[str]:
    """A continuous stream that runs in the meantime."""
    run = begin(airflow, "web_baskets__stream", interval="2s")
    yield run
    stop_driver(repository.web, "baskets", patience=60)


def results(data: Path) -> pa.Table:
    folder = data / "web" / "warehouse"
    return read_table(Warehouse(str(folder)), DeltaTable(str(folder / "visits" / "results")))


def paged(data: Path, pipeline: str) -> list[dict[str, Any]]:
    """Return what the pager received about a pipeline."""
    inbox = data / "pager.jsonl"
    heard = [json.loads(line) for line in inbox.read_text().splitlines()] if inbox.exists() else []
    return [alarm for alarm in heard if alarm["pipeline"] == pipeline]


def tells(airflow: EmbeddedAirflow, alarm: dict[str, Any]) -> tuple[Any, ...]:
    """Check who an alarm is for, what failed, and that its link leads to a run that Airflow has."""
    path = unquote(urlsplit(alarm["run_url"]).path)
    _, dag, _, run = path.strip("/").split("/")
    assert airflow.call("GET", f"dags/{dag}/dagRuns/{run}")["dag_id"] == alarm["dag"]
    project = Path(alarm["project"])
    assert project.name == "tidegate.toml"
    assert project.exists(), "commands can be given it"
    named = ("owner", "name", "dag", "task", "severity", "exit_code")
    return (project.parent.name, *(alarm[each] for each in named))


def version_of(airflow: EmbeddedAirflow, run: str) -> str:
    return str(airflow.call("GET", f"dags/{BACKFILL}/dagRuns/{run}")["bundle_version"])


def newest_version(airflow: EmbeddedAirflow) -> str:
    return str(airflow.call("GET", f"dags/{BACKFILL}/details")["bundle_version"])


def test_a_backfill_across_two_versions_goes_on_over_the_same_warehouse(
    airflow: EmbeddedAirflow, repository: Repository, data: Path
) -> None:
    first = newest_version(airflow)
    create_backfill(airflow, BACKFILL, DAY0, DAY0 + timedelta(days=1), "failed", events=False)

    def ended() -> list[dict[str, Any]] | None:
        runs = airflow.runs_of(BACKFILL)
        return runs if len(runs) == 2 and {run["state"] for run in runs} <= {"success", "failed"} else None

    runs = wait_until(ended, "the end of the backfill")
    told = [task_log(airflow, run, "windows")[-3000:] for run in runs if run["state"] == "failed"]
    assert {run["state"] for run in runs} == {"success"}, told
    assert {version_of(airflow, run["dag_run_id"]) for run in runs} == {first}
    assert "total" not in results(data).column_names
    assert events_of(airflow, "web_visits__final_windows") == [], "Param events was off"

    second = repository.commit(SECOND)
    wait_until(lambda: newest_version(airflow) == second, "the new version")
    third = run_of(airflow, BACKFILL, interval_start="2024-03-03", interval_end="2024-03-04")
    assert third["state"] == "success", task_log(airflow, third, "windows")[-3000:]
    assert third["bundle_version"] == second
    rows = {(row["user"], row["window_start"].day): row for row in results(data).to_pylist()}
    assert rows["ann", 3]["total"] == 3, "the new code, over the state that the old one left"
    assert rows["ann", 1]["total"] is None

    day2 = runs[1]["dag_run_id"]
    airflow.call(
        "POST",
        f"dags/{BACKFILL}/clearTaskInstances",
        json={"dry_run": False, "dag_run_id": day2, "only_failed": False, "task_ids": ["windows"]},
    )
    again = end_of(airflow, BACKFILL, day2)
    assert again["state"] == "success", task_log(airflow, again, "windows")[-3000:]
    assert version_of(airflow, day2) == second, "a cleared run gets the newest code"
    current = [row for row in results(data).to_pylist() if not row["stale"]]
    assert next(row["total"] for row in current if (row["user"], row["window_start"].day) == ("ann", 2)) == 2
    assert states(airflow, again)["windows"] == ("success", 2)

    assert run_of(airflow, "web_visits__quality")["state"] == "success"
    for asset in ("web_visits__final_windows", f"{data}/web/warehouse/visits/results"):
        events = events_of(airflow, asset)
        assert events, f"what was held back is announced by the next check, and the table's own URI too: {asset}"


def test_one_team_breaks_its_suite_and_the_alarm_is_for_that_team(
    airflow: EmbeddedAirflow, repository: Repository, data: Path
) -> None:
    """After the test above, with the next interval of the backfill."""
    broken = repository.commit(SECOND, column="evnts")
    wait_until(lambda: newest_version(airflow) == broken, "the version with the broken suite")
    # Day 3 became stale above, so it runs first.
    run = run_of(airflow, BACKFILL, interval_start="2024-03-04", interval_end="2024-03-05", fill_gaps=True)
    assert {task: state for task, (state, _) in states(airflow, run).items()} == {
        "windows": "success",
        "quality": "failed",
    }
    (alarm,) = paged(data, "web_visits")
    assert tells(airflow, alarm) == ("web", "web", "visits", BACKFILL, "quality", "error", 2)
    assert "no column 'evnts'" in alarm["reason"]


def test_another_writes_bad_keys_and_the_alarm_is_for_that_team(airflow: EmbeddedAirflow, data: Path) -> None:
    """Its project has a pipeline with the same name."""
    unpause(airflow, "billing_visits__quality")
    assert run_of(airflow, "billing_visits__stream")["state"] == "success"
    (alarm,) = wait_until(lambda: paged(data, "billing_visits"), "the alarm")
    told = ("billing", "billing", "visits", "billing_visits__quality", "quality", "critical", 5)
    assert tells(airflow, alarm) == told
    (failed,) = alarm["failed"]
    assert (failed["suite"], failed["failing"]) == ("new rejected rows: rejects", 1)


def test_of_a_group_of_streams_the_one_that_failed_has_an_alarm_and_the_other_its_event(
    airflow: EmbeddedAirflow, repository: Repository, data: Path
) -> None:
    run = run_of(airflow, "web_small__streams")
    assert {task: state for task, (state, _) in states(airflow, run).items()} == {
        "streams": "success",
        "failed": "failed",
    }
    (alarm,) = paged(data, "web_returns")
    assert tells(airflow, alarm) == ("web", "shop", "returns", "web_small__streams", "failed", "error", 3)
    assert paged(data, "web_orders") == []
    newest = read_status(repository.web, "orders").epoch
    assert [event["extra"]["epoch"] for event in events_of(airflow, "web_orders__snapshot")] == [newest]
    assert events_of(airflow, "web_returns__snapshot") == []


def test_maintenance_makes_a_savepoint_and_cleans_the_tables(airflow: EmbeddedAirflow, data: Path) -> None:
    run = run_of(airflow, "web_visits__maintenance")
    done = dict.fromkeys(("savepoint", "optimize", "vacuum"), ("success", 1))
    assert states(airflow, run) == done, task_log(airflow, run, "savepoint")[-3000:]
    assert len(list((data / "web" / "warehouse" / "visits" / "savepoints").iterdir())) == 1


def test_a_sensor_waits_in_the_triggerer_for_a_run(airflow: EmbeddedAirflow) -> None:
    waiting = begin(airflow, "report")

    def state() -> str | None:
        (task,) = airflow.tasks_of("report", waiting)
        return str(task["state"])

    wait_until(lambda: state() == "deferred", "the sensor in the triggerer")
    run = run_of(airflow, "billing_invoices__stream")
    assert run["state"] == "success"
    assert end_of(airflow, "report", waiting)["state"] == "success"


def test_a_task_that_celery_delivers_again_runs_once(
    airflow: EmbeddedAirflow, repository: Repository, data: Path, endless: str
) -> None:
    log = airflow.home / "celery worker.log"
    again = "Task already running elsewhere, ignoring redelivered message"
    wait_until(lambda: again in log.read_text(), "the second delivery")
    tables = PipelineTables(Warehouse(str(data / "web" / "warehouse")), "baskets")
    driver = read_lease(tables)
    assert driver is not None
    assert driver.is_alive(system_clock())
    before = read_status(repository.web, "baskets").epoch
    Lake(data / "web").append(("bob", at("11:00"), 1), table="baskets_events")
    wait_until(lambda: read_status(repository.web, "baskets").epoch > before, "the next epoch")
    (task,) = airflow.tasks_of("web_baskets__stream", endless)
    assert (task["state"], task["try_number"]) == ("running", 1)
    stop_driver(repository.web, "baskets", patience=60)
    assert states(airflow, end_of(airflow, "web_baskets__stream", endless))["stream"] == ("success", 1)
    assert len(list((airflow.home / "logs" / "dag_id=web_baskets__stream").rglob("attempt=*.log"))) == 1, "one command"
