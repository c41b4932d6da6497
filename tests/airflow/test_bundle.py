"""A project in a versioned DAG bundle (Git), run by CeleryExecutor: which code runs, and where its data is."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.airflow.dag_runs import create_backfill, end_of, events_of, run_of, states, task_log
from tests.airflow.providers import provider_folder, redis
from tests.lake import DAY0, Lake, at
from tests.running_airflow import DAG_FILE, QUICK_TO_NOTICE, ROOT
from tests.waiting import wait_until
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow, free_port
from tidegate.pipelines.storage.warehouse import Warehouse, read_table

pytestmark = [pytest.mark.airflow, pytest.mark.long, pytest.mark.timeout(900)]

BACKFILL = "visits__backfill"
MODULE = """
from datetime import timedelta

from tidegate import Count, DeltaSource, EventTimeSessionWindows, Pipeline, Sum, WatermarkStrategy, Windows

visits = Pipeline(
    name="visits",
    source=DeltaSource("events", timestamp="at"),
    key=("user",),
    watermark=WatermarkStrategy.for_monotonous_timestamps(),
    compute=Windows(EventTimeSessionWindows.with_gap(timedelta(minutes=30)), aggregate={AGGREGATE}),
)
"""
FIRST, SECOND = '{"events": Count()}', '{"events": Count(), "total": Sum("value")}'
"""Versions of the code: the second adds an aggregate, and can continue what the first left."""

TOML = """
warehouse = "{data}/warehouse"
work = "{data}/work"
engine = "local"

[pipelines.visits]
object = "of_bundle:visits"
start = 2024-03-01
end = 2024-04-01
catchup = false
backfill_events = false
retry_delay_seconds = 1
"""


class Repository:
    """The Git repository of the bundle."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder = folder
        (folder / "dags").mkdir(parents=True)
        (folder / "dags" / "tidegate_dags.py").write_text(DAG_FILE)
        (folder / "tidegate.toml").write_text(TOML.format(data=data))
        self._git("init", "--quiet", "--initial-branch=main")

    def commit(self, aggregate: str) -> str:
        """Commit a version of the code; its name."""
        (self.folder / "of_bundle.py").write_text(MODULE.replace("{AGGREGATE}", aggregate))
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
            "refresh_interval": 2,
        },
    }
    with redis(folder, free_port()) as broker:
        home = folder / "airflow"
        settings = {
            **QUICK_TO_NOTICE,
            "PYTHONPATH": os.pathsep.join((str(providers), str(ROOT))),
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CELERY__BROKER_URL": broker,
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+sqlite:///{home}/celery.db",
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": "2",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(folder / "bundles"),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "2",
            "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "2",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "2",
        }
        runs = folder / "data" / "work" / "runs"
        with EmbeddedAirflow(home=home, dags=folder / "none", runs=runs, settings=settings) as running:
            running.start_component("celery worker")
            running.wait_for_dags([BACKFILL])
            yield running


@pytest.fixture(scope="module")
def lake(repository: Repository) -> Lake:
    lake = Lake(repository.folder.parent / "data")
    for day in range(3):
        lake.append(("ann", at("10:00", day), 1 + day), ("bob", at("12:00", day), 10))
    return lake


def results(lake: Lake) -> pa.Table:
    warehouse = Warehouse(str(lake.folder / "warehouse"))
    return read_table(warehouse, DeltaTable(str(lake.folder / "warehouse" / "visits" / "results")))


def version_of(airflow: EmbeddedAirflow, run: str) -> str:
    return str(airflow.call("GET", f"dags/{BACKFILL}/dagRuns/{run}")["bundle_version"])


def newest_version(airflow: EmbeddedAirflow) -> str:
    return str(airflow.call("GET", f"dags/{BACKFILL}/details")["bundle_version"])


def test_a_backfill_across_two_versions_goes_on_over_the_same_warehouse(
    airflow: EmbeddedAirflow, repository: Repository, lake: Lake
) -> None:
    first = newest_version(airflow)
    create_backfill(airflow, BACKFILL, DAY0, DAY0 + timedelta(days=1), "failed")

    def ended() -> list[dict[str, Any]] | None:
        runs = airflow.runs_of(BACKFILL)
        return runs if len(runs) == 2 and {run["state"] for run in runs} <= {"success", "failed"} else None

    runs = wait_until(ended, "the end of the backfill", 400)
    told = [task_log(airflow, run, "windows")[-3000:] for run in runs if run["state"] == "failed"]
    assert {run["state"] for run in runs} == {"success"}, told
    assert {version_of(airflow, run["dag_run_id"]) for run in runs} == {first}
    assert "total" not in results(lake).column_names
    assert events_of(airflow, "visits__final_windows") == [], "backfill_events = false"

    second = repository.commit(SECOND)
    wait_until(lambda: newest_version(airflow) == second, "the new version", 120)
    third = run_of(airflow, BACKFILL, interval_start="2024-03-03", interval_end="2024-03-04")
    assert third["state"] == "success", task_log(airflow, third, "windows")[-3000:]
    assert third["bundle_version"] == second
    rows = {(row["user"], row["window_start"].day): row for row in results(lake).to_pylist()}
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
    current = [row for row in results(lake).to_pylist() if not row["stale"]]
    assert next(row["total"] for row in current if (row["user"], row["window_start"].day) == ("ann", 2)) == 2
    assert states(airflow, again)["windows"] == ("success", 2)
