"""The main job on the cluster, from an empty store: a backfill, a stream, a restart from a snapshot, a failing check,
and what a signed-in user sees of them. The tests build on each other, in this order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, StorageState, expect

from tests import flights_oracle
from tests.cluster.conftest import DAYS
from tests.cluster.running import Cluster
from tests.waiting import wait_until
from tidegate.pipelines.examples.flights.source import FIRST_DAY, read_flights

pytestmark = [pytest.mark.containers, pytest.mark.long, pytest.mark.browser, pytest.mark.timeout(3600)]

HOURS = "airport_hours"
KEY = ("origin",)
BACKFILLED = 3
BAD_ROWS = """
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.examples.flights.source import SCHEMA

warehouse = warehouse_of(load_config(Path("tidegate.toml")))
path = warehouse.path("flights")
rows = [
    {"departed_at": datetime(2013, 2, day, 5, tzinfo=UTC), "carrier": "ZZ", "origin": origin, "dep_delay": 0}
    for day, origin in ((1, "ZZZ"), (5, "EWR"))
]
write_deltalake(path, pa.Table.from_pylist(rows, SCHEMA), mode="append", storage_options=warehouse.options_of(path))
"""
"""A departure from an airport that the suite does not know, and a later one that ends the hour of the first."""


def oracle(until: pd.Timestamp) -> pd.DataFrame:
    """Return the hours of the source that have ended."""
    flights = read_flights()
    due = flights["departed_at"].fillna(flights["scheduled_at"])
    loaded = pd.Timestamp(FIRST_DAY, tz="UTC") + pd.Timedelta(days=DAYS)
    hours = flights_oracle.airport_hours(flights[due < loaded])
    return hours[hours["window_start"] + pd.Timedelta(hours=1) <= until]


def ended_run(cluster: Cluster, dag: str, number: int) -> dict[str, Any]:
    """Wait until a DAG has this many runs and all have ended, and return the newest."""

    def found() -> list[dict[str, Any]]:
        runs = cluster.runs_of(dag)
        return runs if len(runs) >= number and {run["state"] for run in runs} <= {"success", "failed"} else []

    runs: list[dict[str, Any]] = wait_until(found, f"the end of {number} runs of {dag}", 900, between_looks=3)
    return max(runs, key=lambda run: str(run["run_after"]))


def states(cluster: Cluster, run: dict[str, Any]) -> dict[str, str]:
    return {task["task_id"]: task["state"] for task in cluster.tasks_of(run["dag_id"], run["dag_run_id"])}


def test_flights_are_written_into_the_bucket(flights: str, cluster: Cluster) -> None:
    assert "s3://lake/warehouse/flights holds" in flights
    assert "_delta_log" in cluster.exec("store", "ls", "-A", "/buckets/lake/warehouse/flights")


def test_airflow_has_read_every_dag(cluster: Cluster) -> None:
    wanted = {
        f"{name}__{kind}" for name in (HOURS, "aircraft_duty") for kind in ("backfill", "stream", "restart", "quality")
    }

    def found() -> bool:
        assert cluster.call("GET", "importErrors")["import_errors"] == []
        return wanted <= {dag["dag_id"] for dag in cluster.call("GET", "dags", params={"limit": 100})["dags"]}

    wait_until(found, "the DAGs", 300)


def test_a_backfill_of_three_days_runs_on_both_workers(cluster: Cluster) -> None:
    dag = f"{HOURS}__backfill"
    cluster.unpause(dag)
    # A cluster that was kept may have begun it.
    if not cluster.runs_of(dag):
        days = ("--from-date", "2013-01-01", "--to-date", f"2013-01-0{BACKFILLED}")
        create = ("airflow", "backfill", "create", "--dag-id", dag, *days, "--reprocess-behavior", "failed")
        cluster.exec("airflow-scheduler", *create)
    ended_run(cluster, dag, BACKFILLED)
    runs = cluster.runs_of(dag)
    assert [states(cluster, run) for run in runs] == [{"windows": "success", "quality": "success"}] * BACKFILLED
    end = pd.Timestamp(FIRST_DAY, tz="UTC") + pd.Timedelta(days=BACKFILLED)
    flights_oracle.assert_equal(cluster.results(HOURS, *KEY), oracle(end), ["origin", "window_start"])
    for worker in ("spark-worker-1", "spark-worker-2"):
        assert "app-" in cluster.exec(worker, "ls", "/scratch/worker"), f"{worker} had executors"


def test_the_page_shows_the_log_that_the_host_of_the_task_serves(cluster: Cluster) -> None:
    run = cluster.runs_of(f"{HOURS}__backfill")[0]
    log = cluster.log_of(run["dag_id"], run["dag_run_id"], "windows")
    assert "epoch" in log
    assert "Could not read served logs" not in log


def test_a_stream_takes_over_and_reads_the_rest(cluster: Cluster) -> None:
    dag = f"{HOURS}__stream"
    cluster.unpause(dag)
    ended = ended_run(cluster, dag, 1)
    # Its next runs would only read nothing.
    cluster.unpause(dag, paused=True)
    assert states(cluster, ended)["stream"] == "success"
    _equals_the_oracle(cluster)


def _equals_the_oracle(cluster: Cluster) -> None:
    found = cluster.results(HOURS, *KEY)
    assert found["window_end"].max() > pd.Timestamp("2013-01-12", tz="UTC"), "it read the rest"
    flights_oracle.assert_equal(found, oracle(found["window_end"].max()), ["origin", "window_start"])


def test_a_restart_from_a_snapshot_gives_the_same_tables(cluster: Cluster) -> None:
    dag = f"{HOURS}__restart"
    run = cluster.begin(dag, restore="2", savepoint="before_restart")
    ended = cluster.end_of(dag, run, 900)
    assert states(cluster, ended)["stream"] == "success"
    assert "before_restart" in cluster.tidegate("savepoints", "list", HOURS)
    _equals_the_oracle(cluster)


def test_a_failing_suite_raises_an_alarm(cluster: Cluster) -> None:
    cluster.python("airflow-scheduler", BAD_ROWS)
    before = len(cluster.runs_of(f"{HOURS}__quality"))
    cluster.unpause(f"{HOURS}__quality")
    run = cluster.begin(f"{HOURS}__stream")
    assert states(cluster, cluster.end_of(f"{HOURS}__stream", run))["stream"] == "success"
    cluster.unpause(f"{HOURS}__stream", paused=True)
    checked = ended_run(cluster, f"{HOURS}__quality", before + 1)
    assert states(cluster, checked)["quality"] == "failed"
    alarms = "/buckets/lake/warehouse/_tidegate/artifacts/alarms"
    told = cluster.exec("store", "sh", "-c", f"cat {alarms}/*")
    assert "expect_column_values_to_be_in_set" in told
    assert "ZZZ" in told, "with the row that fails"


@pytest.fixture(scope="module")
def logged_in(cluster: Cluster, browser: Browser) -> StorageState:
    """A login by the form."""
    page = browser.new_page()
    page.goto(f"{cluster.url}/auth/login/")
    page.fill("input[name=username]", "admin")
    page.fill("input[name=password]", cluster.password())
    page.click("button[type=submit]")
    page.wait_for_url(f"{cluster.url}/")
    kept = page.context.storage_state()
    page.close()
    return kept


def test_a_signed_in_user_reads_the_report_and_data_docs_through_the_page(
    cluster: Cluster,
    page: Page,
    keep: Callable[[Page, str], Path],
) -> None:
    page.goto(f"{cluster.url}/plugin/tidegate")
    frame = page.frame_locator("iframe")
    frame.locator("main[data-loaded]").wait_for(timeout=60_000)
    row = frame.locator(f"[data-row={HOURS}]")
    expect(row).to_contain_text(re.compile(r"epoch \d+: failed"))
    row.locator(".name").click()
    card = frame.locator(f"[data-pipeline={HOURS}]")
    keep(page, "cluster-page")
    with page.expect_popup() as opened:
        card.get_by_role("link", name="report", exact=True).first.click()
    expect(opened.value.locator("h1")).to_contain_text(f"{HOURS}, epoch", timeout=60_000)
    keep(opened.value, "cluster-report")
    with page.expect_popup() as opened:
        card.get_by_role("link", name="Data Docs").click()
    expect(opened.value.locator("#checks")).to_contain_text("failed", timeout=60_000)
    keep(opened.value, "cluster-data-docs")


def test_others_are_refused(cluster: Cluster) -> None:
    for path in (
        "",
        "pipelines",
        f"pipelines/{HOURS}",
        f"pipelines/{HOURS}/reports/2",
        f"pipelines/{HOURS}/checks/index.html",
    ):
        assert httpx.get(f"{cluster.url}/tidegate/{path}").status_code == 401, path
        forged = httpx.get(f"{cluster.url}/tidegate/{path}", headers={"Authorization": "Bearer forged"})
        assert forged.status_code in (401, 403), path
    wrong = httpx.post(f"{cluster.url}/auth/token", json={"username": "admin", "password": "wrong"})
    assert wrong.status_code == 401
    viewer = {"Authorization": f"Bearer {cluster.token('vic')}"}
    assert httpx.get(f"{cluster.url}/tidegate/pipelines", headers=viewer).status_code == 200
    restart = f"{cluster.url}/api/v2/dags/{HOURS}__restart/dagRuns"
    refused = httpx.post(restart, headers=viewer, json={"logical_date": None, "conf": {}})
    assert refused.status_code == 403, "a viewer restarts nothing"
