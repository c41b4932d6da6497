"""DAGs that read a pipeline's results: day by day, after every check, and once the windows of an hour are final."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, PartitionedAssetTimetable, StartOfDayMapper, task

from tidegate.pipelines.airflow.assets import final_windows_asset
from tidegate.pipelines.airflow.sensors import SnapshotSensor

WINDOWS = final_windows_asset("aircraft_duty")
CONFIG = str(Path(__file__).parent / "tidegate.toml")


@task
def count_windows() -> int:
    """Count the final windows. Table `results` itself has a row for each pane, and a window may have several."""
    from tidegate import Project

    return Project(CONFIG).results("aircraft_duty").total


@task
def show_day(dag_run: Any = None) -> str:
    """Print the day whose final windows changed. A real task recomputes the day and replaces its earlier output."""
    return str(dag_run.partition_key)


with DAG(
    "duty_by_day", schedule=PartitionedAssetTimetable(assets=WINDOWS, default_partition_mapper=StartOfDayMapper())
):
    show_day()

with DAG("duty_after_every_check", schedule=[WINDOWS]):
    count_windows()

with DAG(
    "duty_of_every_hour",
    start_date=datetime(2013, 1, 1),
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    catchup=False,
):
    are_final = SnapshotSensor(
        task_id="are_final", pipeline="aircraft_duty", config=CONFIG, watermark_past="{{ data_interval_end }}"
    )
    are_final >> count_windows()
