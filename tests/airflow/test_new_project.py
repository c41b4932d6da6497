"""The project that `tidegate init` makes runs in Airflow as it is: its DAG file, its pipeline, its checks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.airflow.dag_runs import states
from tests.waiting import wait_until
from tidegate import Project
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.examples.starter import DAYS
from tidegate.pipelines.project.cli import run

pytestmark = [pytest.mark.long, pytest.mark.airflow, pytest.mark.timeout(600)]


def test_a_day_of_a_new_project_is_backfilled_and_checked(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    assert run(["init", str(folder)]) == 0
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = today - timedelta(days=DAYS)
    airflow = EmbeddedAirflow(home=tmp_path / "airflow", dags=folder / "dags", runs=folder / ".work" / "runs")
    try:
        airflow.start()
        airflow.wait_for_dags(["visits__backfill", "visits__stream", "visits__quality"])
        # Unpaused, the DAG also begins the later days by itself, one after the other.
        airflow.create_backfill("visits__backfill", first, first)
        airflow.start_component("scheduler")

        def ended() -> bool:
            runs = airflow.runs_of("visits__backfill")
            return bool(runs) and runs[0]["state"] in ("success", "failed")

        wait_until(ended, "the first day", 300.0)
        tasks = states(airflow, airflow.runs_of("visits__backfill")[0])
        assert {task: state for task, (state, _) in tasks.items()} == {"windows": "success", "quality": "success"}
    finally:
        airflow.stop()
    project = Project(folder / "tidegate.toml")
    epochs = {row["epoch"]: row["kind"] for row in project.runs("visits").to_arrow().to_pylist()}
    assert epochs[1] == "backfill"
    windows = project.results("visits", limit=100, sort="window_start").to_arrow().to_pylist()
    of_first_day = [row for row in windows if row["epoch"] == 1]
    assert len(of_first_day) == 3
    assert all(first <= row["window_start"] < first + timedelta(days=1) for row in of_first_day)
