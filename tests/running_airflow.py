"""One real Airflow for all tests of a run, over a project of several pipelines. It starts without Spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dags.project import write_project
from tests.expectations.quality_lake import hour_lake, session_lake
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow

ROOT = Path(__file__).parent.parent

DAG_FILE = """from pathlib import Path

from tidegate.pipelines.airflow import project_dags

globals().update(project_dags(Path(__file__).parent.parent / "tidegate.toml"))
"""

BILLING = """from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from tidegate.pipelines.airflow.assets import final_windows_asset

with DAG("billing", schedule=[final_windows_asset("daily")], is_paused_upon_creation=False):
    EmptyOperator(task_id="bill")
"""
"""A DAG that somebody else wrote, downstream of ours."""

READERS = """import json
from pathlib import Path

from airflow.sdk import DAG, PartitionedAssetTimetable, StartOfDayMapper, StartOfMonthMapper, task

from tidegate.pipelines.airflow.assets import final_windows_asset

ROOT = Path(__file__).parent.parent
FINAL = final_windows_asset("told")


@task
def read(dag_run=None):
    from tidegate.pipelines.definition.config import load_config
    from tidegate.pipelines.ledger.snapshots.published import pin_epoch
    from tidegate.pipelines.definition.config.opened import warehouse_of
    from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables

    tables = PipelineTables(warehouse_of(load_config(ROOT / "tidegate.toml")), "told")
    partition = dag_run.partition_key or "-"
    windows = pin_epoch(tables).final_windows().to_pylist()
    total = sum(row["total"] for row in windows if partition in ("-", str(row["window_start"])[: len(partition)]))
    folder = ROOT / "read"
    folder.mkdir(exist_ok=True)
    with (folder / f"{dag_run.dag_id}.jsonl").open("a") as notes:
        notes.write(json.dumps({"partition": partition, "total": total}) + "\\n")


with DAG("by_day", schedule=PartitionedAssetTimetable(assets=FINAL, default_partition_mapper=StartOfDayMapper())):
    read()

with DAG("by_month", schedule=PartitionedAssetTimetable(assets=FINAL, default_partition_mapper=StartOfMonthMapper())):
    read()

with DAG("by_any", schedule=[FINAL]):
    read()
"""
"""DAGs that read the final windows of `told`: by day, by month, and without partitions."""

BY_HAND = {
    "catchup": "false",
    "end": "2024-04-01",
    "stream_mode": '"continuous"',
    # The next leap day: a schedule whose last tick is after `start` gets a run for it immediately.
    "stream_schedule": '"0 0 29 2 *"',
}
"""Nothing starts on its own: a continuous stream has no schedule, and no current interval has to run."""

# On a busy machine Airflow may also lose a task that nobody killed: `QUICK_TO_NOTICE` gives it ten seconds.
PROJECT = """
[pipelines.daily]
object = "visits:daily"
start = 2024-03-01
end = 2024-04-01
catchup = false
default_args.retries = 3
default_args.retry_delay = 1

[pipelines.live]
object = "visits:live"
start = 2024-03-01
catchup = false
stream_mode = "continuous"
reopen_schedule = "0 0 29 2 *"
default_args.retry_delay = 1

[pipelines.life]
object = "visits:life"
start = 2024-03-01
end = 2024-04-01
catchup = false
stream_schedule = "0 0 29 2 *"
default_args.retries = 3
default_args.retry_delay = 1

[pipelines.resting]
object = "visits:resting"
start = 2024-03-01
end = 2024-04-01
catchup = false
stream_schedule = "0 0 1 * *"
default_args.retry_delay = 1

[pipelines.told]
object = "visits:told"
start = 2024-03-01
end = 2024-04-01
catchup = false
stream_mode = "continuous"
stream_schedule = "0 0 29 2 *"
default_args.retry_delay = 1

[pipelines.watched]
object = "visits:watched"
start = 2024-03-01
end = 2024-04-01
catchup = false
stream_mode = "commits"
default_args.retry_delay = 1

[pipelines.hours]
object = "tests.expectations.quality_lake:hours"
start = 2024-03-01
end = 2024-04-01
catchup = false
suites.final = "few:suite"
hold = "partitions"
asset_partitions = "hour"
default_args.retry_delay = 1

[pipelines.left]
object = "held:left"
start = 2024-03-01
catchup = false
stream_schedule = "0 0 29 2 *"
default_args.retries = 0

[pipelines.right]
object = "held:right"
start = 2024-03-01
catchup = false
stream_schedule = "0 0 29 2 *"
default_args.retries = 0

[stream_groups]
held = ["left", "right"]

[spark]
"spark.driver.memory" = "1g"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"
"""

FEW = """import great_expectations as gx
import great_expectations.expectations as gxe

few = gxe.ExpectColumnValuesToBeBetween(column="events", max_value=3, severity="critical")
suite = gx.ExpectationSuite(name="own", expectations=[few])
"""
"""Suite of `hours`, which one of its windows fails."""

HELD = """from pathlib import Path

from tests.waiting import wait_until
from visits import visits_of

FOLDER = Path(__file__).parent
if (FOLDER / "hold").exists():
    (FOLDER / "held").touch()
    wait_until(lambda: not (FOLDER / "hold").exists(), "the end of the hold")
left, right = visits_of("left"), visits_of("right")
"""
"""Pipelines whose commands wait before they begin while file `hold` exists."""

PIPELINES = ("sessions", "daily", "live", "life", "resting", "told", "watched", "hours")

QUICK_TO_NOTICE = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "10",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "2",
}
"""Airflow notices a killed worker or scheduler after ten seconds, not after five minutes."""


SELDOM_PARSED = {
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "3600",
}
"""No test changes a DAG file, and parsing one takes a second of processor time."""

RUNNING = pytest.StashKey[EmbeddedAirflow]()


def engine_of(config: pytest.Config) -> str:
    """Tasks run on the local engine in `make test`, where other tests cover Spark, and on Spark in `make test-long`."""
    return "local" if "not long" in config.getoption("markexpr") else "spark"


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End Airflow after the last test that needs it: even idle, it would use processor time until the end of the
    run.
    """
    if (
        nextitem is not None
        and "airflow" not in getattr(nextitem, "fixturenames", ())
        and (running := item.session.stash.get(RUNNING, None))
    ):
        running.stop()
        del item.session.stash[RUNNING]


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[EmbeddedAirflow]:
    """Airflow with a scheduler, a triggerer, and the DAGs of eight pipelines. The tables of `sessions` and `hours`
    contain two correct epochs; `daily`, `live`, `life`, `resting`, `told` and `watched` never ran. Only the stream of
    `resting` gets a run as soon as it is unpaused: that of the last first of a month.
    """
    folder = tmp_path_factory.mktemp("project")
    config = write_project(folder, session_lake(), max_lag_minutes="90", default_args="{ retry_delay = 1 }", **BY_HAND)
    config.write_text(f'engine = "{engine_of(request.config)}"\n{config.read_text()}{PROJECT}')
    hour_lake().write(folder)
    (folder / "few.py").write_text(FEW)
    (folder / "held.py").write_text(HELD)
    shutil.copy(ROOT / "tests" / "airflow" / "visits.py", folder)
    (folder / "dags").mkdir()
    (folder / "dags" / "tidegate_dags.py").write_text(DAG_FILE)
    (folder / "dags" / "billing.py").write_text(BILLING)
    (folder / "dags" / "readers.py").write_text(READERS)
    with EmbeddedAirflow(
        home=folder / "airflow",
        dags=folder / "dags",
        slots=3,
        triggerer=True,
        # The pipeline itself is one of the tests' modules.
        settings={
            "TIDEGATE_CONFIG": str(config),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            **QUICK_TO_NOTICE,
            **SELDOM_PARSED,
        },
    ) as running:
        request.session.stash[RUNNING] = running
        kinds = ("backfill", "stream", "quality")
        running.wait_for_dags([f"{name}__{kind}" for name in PIPELINES for kind in kinds])
        running.wait_for_dags(["sessions__watch", "billing", "by_day", "by_month", "by_any", "live__late"])
        yield running
