"""Errors planted in tables: the suite that should catch each does, the task fails, the asset is held back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.airflow.dag_runs import events_of, run_of, states, task_log
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.artifacts import incidents_name
from tidegate.pipelines.storage.warehouse import read_table

pytestmark = pytest.mark.airflow

DAG, ASSET = "sessions__quality", "sessions__final_windows"


@pytest.fixture
def tables(airflow: EmbeddedAirflow) -> PipelineTables:
    return PipelineTables(warehouse_of(load_config(Path(airflow.settings["TIDEGATE_CONFIG"]))), "sessions")


@pytest.mark.long
def test_a_planted_error_fails_the_task_once_and_holds_the_asset_back(
    tables: PipelineTables, airflow: EmbeddedAirflow
) -> None:
    """A lost row; tests/expectations plants each error, without Airflow, in every run."""
    table = tables.open(results.NAME)
    good, pane = table.version(), read_table(tables.warehouse, table).to_pylist()[0]
    before = events_of(airflow, ASSET)
    # No check passed since the error before this one, so the same expectations would fail in the same incident.
    (airflow.runs.parent / incidents_name("sessions")).unlink(missing_ok=True)
    table.delete(f"user = '{pane['user']}' AND window_id = {pane['window_id']}")
    try:
        run = run_of(airflow, DAG)
    finally:
        tables.open(results.NAME).restore(good)
    assert states(airflow, run) == {"quality": ("failed", 1)}, "a retry would change nothing"
    told = task_log(airflow, run, "quality")
    assert "ledger: expect_column_pair_values_to_be_equal" in told
    assert "exit code 5" in told
    assert events_of(airflow, ASSET) == before
    (alarm,) = [
        alarm
        for alarm in map(json.loads, (airflow.runs.parent / "alarms.jsonl").read_text().splitlines())
        if alarm["run"] == run["dag_run_id"]
    ]
    assert (alarm["exit_code"], alarm["status"], alarm["severity"]) == (5, "began", "critical")
    assert alarm["run_url"].startswith(f"{airflow.url}/dags/{DAG}/runs/")
    assert alarm["docs_url"] == f"{airflow.url}/tidegate/pipelines/sessions/checks/index.html"
    assert alarm["log_url"].startswith(airflow.url)
    assert alarm["failed"]
    assert "held back" in alarm["meaning"]


@pytest.mark.long
def test_once_the_table_is_put_back_the_check_passes_and_the_incident_ends(airflow: EmbeddedAirflow) -> None:
    run = run_of(airflow, DAG)
    assert states(airflow, run) == {"quality": ("success", 1)}
    assert events_of(airflow, ASSET)[-1]["extra"]["quality"] == "passed"
    alarms = list(map(json.loads, (airflow.runs.parent / "alarms.jsonl").read_text().splitlines()))
    assert (alarms[-1]["status"], alarms[-1]["run"]) == ("ended", run["dag_run_id"])
