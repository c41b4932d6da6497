"""The cluster of docker-compose.yml, natively: Postgres, Airflow, Spark standalone, an S3 server, and a run of each
kind. Then two machines fail: a Spark worker in the middle of an epoch, and Postgres for a minute.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pandas as pd
import psutil
import pyarrow.compute as pc
import pytest

from tests import flights_oracle
from tests.airflow.dag_runs import begin, end_of, run_of, states, unpause
from tests.deployment.fleet import fleet
from tests.deployment.native import ROOT, Postgres, SparkCluster, postgres_programs
from tests.running_airflow import DAG_FILE
from tests.store.server import KEY, S3Server, running_server
from tests.store.server import SECRET as STORE_SECRET
from tests.waiting import wait_until
from tidegate.pipelines import Pipeline
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.definition import epochs, results
from tidegate.pipelines.definition.config import Config, load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.engine.spark.session import SECRET
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.examples.flights.duty import aircraft_duty
from tidegate.pipelines.examples.flights.hours import airport_hours
from tidegate.pipelines.examples.flights.source import FIRST_DAY, SCHEMA, load_flights, read_flights
from tidegate.pipelines.ledger.lease import read_lease
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.head import require_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import read_table

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

RUN_SECONDS = 600.0
OUTAGE_SECONDS = 60.0
DAYS = 4
FLEET = """
[pipelines.fleet]
object = "fleet:fleet"
start = 2013-01-01
end = 2014-01-01
catchup = false
pool = "spark"
"""


@dataclass(frozen=True)
class Cluster:
    """All processes, and the project that they share."""

    airflow: EmbeddedAirflow
    postgres: Postgres
    spark: SparkCluster
    store: S3Server
    config: Config

    def tables(self, pipeline: Pipeline) -> PipelineTables:
        return PipelineTables(warehouse_of(self.config), pipeline.name)

    def newest(self, pipeline: Pipeline) -> Manifest:
        return require_snapshot(self.tables(pipeline)).manifest

    def begin_day(self, pipeline: Pipeline, number: int) -> str:
        """Trigger the backfill of a day, and return the run's id."""
        start = datetime.combine(FIRST_DAY, datetime.min.time(), UTC) + timedelta(days=number)
        interval = {"interval_start": start.isoformat(), "interval_end": (start + timedelta(days=1)).isoformat()}
        return begin(self.airflow, f"{pipeline.name}__backfill", **interval)

    def wait_for_driver(self, pipeline: Pipeline) -> None:
        def at_work() -> bool:
            row = read_lease(self.tables(pipeline))
            return row is not None and row.is_alive(time.time_ns() // 1_000_000)

        wait_until(at_work, f"a driver of {pipeline.name}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    postgres_programs()
    folder = tmp_path_factory.mktemp("cluster")
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": STORE_SECRET}
    # Spark's processes don't have the key of the store: tasks get it with their work.
    with (
        Postgres() as postgres,
        SparkCluster(folder / "spark") as spark,
        running_server() as store,
        pytest.MonkeyPatch.context() as environment,
    ):
        for name, value in keys.items():
            environment.setenv(name, value)
        store.make_bucket("lake")
        config = load_config(project(folder / "project", spark.master, store.endpoint))
        warehouse = warehouse_of(config)
        load_flights(warehouse.path("flights"), DAYS, warehouse.options)
        with EmbeddedAirflow(
            home=folder / "airflow",
            dags=config.root / "dags",
            triggerer=True,
            settings={
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.url,
                "TIDEGATE_CONFIG": str(config.file),
                "SPARK_LOCAL_IP": "127.0.0.1",
                SECRET: spark.secret,
                "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            },
        ) as airflow:
            kinds = ("backfill", "stream", "quality")
            names = (airport_hours.name, aircraft_duty.name, fleet.name)
            airflow.wait_for_dags([f"{name}__{kind}" for name in names for kind in kinds])
            airflow.call("POST", "pools", json={"name": "spark", "slots": 1})
            yield Cluster(airflow, postgres, spark, store, config)


def project(folder: Path, master: str, endpoint: str) -> Path:
    """Create the cluster's project with this machine's paths and addresses, and return its tidegate.toml."""
    text = (ROOT / "deployment" / "tidegate.toml").read_text()
    for there, here in (
        ('"/scratch"', f'"{folder}/work"'),
        ("http://store:7070", endpoint),
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
    text += FLEET
    (folder / "dags").mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "fleet.py", folder)
    (folder / "dags" / "tidegate_dags.py").write_text(DAG_FILE)
    (folder / "tidegate.toml").write_text(text)
    return folder / "tidegate.toml"


def ended(airflow: EmbeddedAirflow, dag: str, runs: int) -> list[str]:
    """Wait until this many runs of a DAG have ended, and return their states."""
    found = [run["state"] for run in airflow.runs_of(dag)]
    return found if len(found) == runs and set(found) <= {"success", "failed"} else []


def test_a_backfill_a_stream_restart_and_a_quality_run(cluster: Cluster) -> None:
    airflow, name = cluster.airflow, airport_hours.name
    first, last = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)
    airflow.create_backfill(f"{name}__backfill", first, last)
    found = wait_until(lambda: ended(airflow, f"{name}__backfill", 2), "the end of the backfill", RUN_SECONDS)
    assert found == ["success", "success"]
    assert cluster.newest(airport_hours).epoch == 2

    # It is scheduled once a year, so unpausing creates one run: the handover from the backfill.
    unpause(airflow, f"{name}__stream")
    found = wait_until(lambda: ended(airflow, f"{name}__stream", 1), "the end of the stream", RUN_SECONDS)
    assert found == ["success"]
    streamed = cluster.newest(airport_hours)
    assert streamed.epoch > 2
    restart = run_of(airflow, f"{name}__restart", restore="2", savepoint="before_restart")
    assert states(airflow, restart)["stream"] == ("success", 1)
    assert cluster.newest(airport_hours).timeline == streamed.timeline + 1

    checked = run_of(airflow, f"{name}__quality")
    assert states(airflow, checked) == {"quality": ("success", 1)}

    written = cluster.store.keys("lake", "warehouse/_tidegate/artifacts")
    parts = {key.split("/")[3] for key in written}
    assert {"reports", "quality"} <= parts, "other hosts see them"
    assert not list(cluster.config.work_folder.rglob("*.html"))

    tables = cluster.tables(airport_hours)
    rows = read_table(tables.warehouse, tables.open(epochs.NAME))
    source = read_table(tables.warehouse, tables.warehouse.open(tables.warehouse.path("flights")))
    assert pc.sum(rows["events_in"]).as_py() == len(source), "every event came in once, the restart included"
    assert len(cluster.spark.state()["completedapps"]) >= 4, "the drivers ran on the standalone cluster"


def commands_of(*words: str) -> int:
    """Return how many commands with these words are running."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return sum(line[1:4] == ["-m", "tidegate", words[0]] and set(words) <= set(line) for line in lines)


def test_while_postgres_is_away_for_a_minute_the_run_goes_on_with_one_driver(cluster: Cluster) -> None:
    airflow, dag = cluster.airflow, f"{aircraft_duty.name}__backfill"
    run = cluster.begin_day(aircraft_duty, 0)
    cluster.wait_for_driver(aircraft_duty)
    cluster.postgres.stop()
    back = time.monotonic() + OUTAGE_SECONDS
    wait_until(lambda: time.monotonic() > back, "the end of the outage")
    cluster.postgres.start()
    most = 0

    def is_over() -> bool:
        nonlocal most
        airflow.restart_ended()
        most = max(most, commands_of("backfill", aircraft_duty.name))
        # The first answers after the outage may be errors.
        with suppress(TidegateError, httpx.TransportError):
            return airflow.call("GET", f"dags/{dag}/dagRuns/{run}")["state"] in ("success", "failed")
        return False

    wait_until(is_over, "the end of the run", RUN_SECONDS)
    assert end_of(airflow, dag, run)["state"] == "success"
    assert most <= 1, "never two at once"
    assert cluster.newest(aircraft_duty).epoch == 1


def test_an_epoch_whose_spark_worker_is_killed_ends_right_on_the_other_one(cluster: Cluster) -> None:
    """Runs functions of the project that are shipped to the executors. This test is last in the file because it kills a
    worker.
    """
    airflow, dag = cluster.airflow, f"{fleet.name}__backfill"
    run = cluster.begin_day(fleet, 0)
    busy = wait_until(lambda: cluster.spark.at_work, "a task of the epoch on a worker")
    cluster.spark.kill_worker(busy[0])
    assert end_of(airflow, dag, run, RUN_SECONDS)["state"] == "success"
    assert states(airflow, {"dag_id": dag, "dag_run_id": run})["windows"] == ("success", 1)
    logs = "".join(file.read_text() for file in (cluster.config.work_folder / "logs").glob("spark-*.log"))
    assert "Lost executor" in logs, "the run had taken that worker"

    end = pd.Timestamp(FIRST_DAY, tz="UTC") + timedelta(days=1)
    flights = read_flights()
    due = flights["departed_at"].fillna(flights["scheduled_at"])
    tables = cluster.tables(fleet)
    found = results.latest(read_table(tables.warehouse, tables.open(results.NAME)), fleet.key).to_pandas()
    columns = ["tailnum", "window_start", "window_end", "flights", "longest_leg"]
    expected = flights_oracle.duty_sessions(flights.loc[due < end, SCHEMA.names], end)[columns]
    flights_oracle.assert_equal(found, expected, ["tailnum", "window_start"])
