"""The cluster of docker-compose.yml, natively: Postgres, Airflow, Spark standalone, and a run of each kind."""

from __future__ import annotations

import json
import os
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from pipelines.airflow.embedded import EmbeddedAirflow
from pipelines.config import load_config
from pipelines.flights.source import load_flights
from pipelines.snapshots.head import read_snapshot
from pipelines.storage import read_table, warehouse_of
from pipelines.tables import epochs
from pipelines.tables.pipeline_tables import PipelineTables
from tests.deployment.native import ROOT, postgres, postgres_programs, spark_cluster, wait_until
from tests.running_airflow import DAG_FILE

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long]

PIPELINE = "airport_hours"
RUN_SECONDS = 300.0


def project(folder: Path, master: str) -> Path:
    """The cluster's own project, with this machine's paths and addresses; its tidegate.toml."""
    text = (ROOT / "deployment" / "tidegate.toml").read_text()
    for there, here in (
        ("/shared/", f"{folder}/"),
        ("spark://spark-master:7077", master),
        ('"airflow-scheduler"', '"127.0.0.1"'),
        ('"0.0.0.0"', '"127.0.0.1"'),
        ('"spark.executor.memory" = "2g"', '"spark.executor.memory" = "512m"'),
        ('"spark.executor.cores" = 2', '"spark.executor.cores" = 1'),
        ('"spark.driver.memory" = "2g"', '"spark.driver.memory" = "1g"'),
    ):
        assert there in text, there
        text = text.replace(there, here)
    text = text.replace("catchup = false", 'catchup = false\nstream_schedule = "0 0 1 1 *"')
    (folder / "dags").mkdir(parents=True)
    (folder / "dags" / "tidegate_dags.py").write_text(DAG_FILE)
    (folder / "tidegate.toml").write_text(text)
    return folder / "tidegate.toml"


def ended(airflow: EmbeddedAirflow, kind: str, runs: int) -> list[str]:
    """States of the runs of a DAG once so many have ended."""
    states = [run["state"] for run in airflow.runs_of(f"{PIPELINE}__{kind}")]
    return states if len(states) == runs and set(states) <= {"success", "failed"} else []


def run_of(airflow: EmbeddedAirflow, kind: str, **conf: Any) -> dict[str, str]:
    """State of each task of a run with these Params, when it has ended."""
    dag = f"{PIPELINE}__{kind}"
    made = airflow.call("POST", f"dags/{dag}/dagRuns", json={"logical_date": None, "conf": conf})["dag_run_id"]
    wait_until(
        lambda: airflow.call("GET", f"dags/{dag}/dagRuns/{made}")["state"] in ("success", "failed"),
        f"the end of a run of {dag}",
        RUN_SECONDS,
    )
    return {task["task_id"]: task["state"] for task in airflow.tasks_of(dag, made)}


def test_a_backfill_a_stream_restart_and_a_quality_run_on_a_cluster(tmp_path: Path) -> None:
    postgres_programs()
    with postgres(tmp_path / "postgres") as database, spark_cluster(tmp_path / "spark") as (master, page):
        config_file = project(tmp_path / "project", master)
        config = load_config(config_file)
        warehouse = warehouse_of(config)
        load_flights(warehouse.path("flights"), 4)
        tables = PipelineTables(warehouse, PIPELINE)
        with EmbeddedAirflow(
            home=tmp_path / "airflow",
            dags=config_file.parent / "dags",
            runs=config.work_folder / "runs",
            triggerer=True,
            settings={
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
                "TIDEGATE_CONFIG": str(config_file),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            },
        ) as airflow:
            airflow.wait_for_dags([f"{PIPELINE}__{kind}" for kind in ("backfill", "stream", "quality")])
            airflow.call("POST", "pools", json={"name": "spark", "slots": 1})
            first, last = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)
            airflow.create_backfill(f"{PIPELINE}__backfill", first, last)
            states = wait_until(lambda: ended(airflow, "backfill", runs=2), "the end of the backfill", RUN_SECONDS)
            assert states == ["success", "success"]
            head = read_snapshot(tables)
            assert head is not None
            assert head.manifest.epoch == 2

            # Its schedule ticks once a year, so unpausing makes one run: the hand-over from the backfill.
            airflow.call("PATCH", f"dags/{PIPELINE}__stream", json={"is_paused": False})
            states = wait_until(lambda: ended(airflow, "stream", runs=1), "the end of the stream", RUN_SECONDS)
            assert states == ["success"]
            streamed = read_snapshot(tables)
            assert streamed is not None
            assert streamed.manifest.epoch > 2
            assert run_of(airflow, "stream", restore="2", savepoint="before_restart")["stream"] == "success"
            restarted = read_snapshot(tables)
            assert restarted is not None
            assert restarted.manifest.timeline == streamed.manifest.timeline + 1

            airflow.call("PATCH", f"dags/{PIPELINE}__quality", json={"is_paused": False})
            assert run_of(airflow, "quality") == {"quality": "success"}

        rows = read_table(warehouse, tables.open(epochs.NAME))
        source = read_table(warehouse, warehouse.open(warehouse.path("flights")))
        assert pc.sum(rows["events_in"]).as_py() == len(source), "every event came in once, the restart included"
        with urllib.request.urlopen(f"{page}/json/", timeout=10) as answer:
            applications = json.load(answer)["completedapps"]
        assert len(applications) >= 4, "the drivers ran on the standalone cluster"
