"""Errors planted in tables: the suite that should catch each does, the task fails, the asset is held back."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

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


def a_pane_twice(table: DeltaTable, pane: dict[str, Any], schema: pa.Schema) -> None:
    write_deltalake(table, pa.Table.from_pylist([pane], schema=schema), mode="append")


def a_session_that_overlaps_another(table: DeltaTable, pane: dict[str, Any], schema: pa.Schema) -> None:
    later = {name: pane[name] + timedelta(minutes=1) for name in ("window_start", "window_end")}
    a_pane_twice(table, {**pane, **later, "window_id": pane["window_id"] + 60_000}, schema)


def a_lost_row(table: DeltaTable, pane: dict[str, Any], schema: pa.Schema) -> None:
    table.delete(f"user = '{pane['user']}' AND window_id = {pane['window_id']}")


def a_changed_result(table: DeltaTable, pane: dict[str, Any], schema: pa.Schema) -> None:
    table.update({"events": "events + 1"}, predicate=f"user = '{pane['user']}' AND window_id = {pane['window_id']}")


def a_row_that_was_never_published(table: DeltaTable, pane: dict[str, Any], schema: pa.Schema) -> None:
    a_pane_twice(table, {**pane, "epoch": 99}, schema)


@pytest.fixture
def tables(airflow: EmbeddedAirflow) -> PipelineTables:
    return PipelineTables(warehouse_of(load_config(Path(airflow.settings["TIDEGATE_CONFIG"]))), "sessions")


@pytest.mark.long
@pytest.mark.parametrize(
    ("plant", "caught"),
    [
        # Without Airflow, tests/expectations plants each of them in every run.
        pytest.param(a_pane_twice, "panes: expect_compound_columns_to_be_unique", marks=pytest.mark.long),
        pytest.param(
            a_session_that_overlaps_another, "final windows: expect_sessions_to_lie_apart", marks=pytest.mark.long
        ),
        (a_lost_row, "ledger: expect_column_pair_values_to_be_equal"),
        pytest.param(a_changed_result, "files: expect_files_to_be_of_our_commits", marks=pytest.mark.long),
        pytest.param(a_row_that_was_never_published, "lines: expect_epochs_to_be_of_the_line", marks=pytest.mark.long),
    ],
)
def test_a_planted_error_fails_the_task_once_and_holds_the_asset_back(
    plant: Callable[[DeltaTable, dict[str, Any], pa.Schema], None],
    caught: str,
    tables: PipelineTables,
    airflow: EmbeddedAirflow,
) -> None:
    table = tables.open(results.NAME)
    good, rows = table.version(), read_table(tables.warehouse, table)
    before = events_of(airflow, ASSET)
    # No check passed since the error before this one, so the same expectations would fail in the same incident.
    (airflow.runs.parent / incidents_name("sessions")).unlink(missing_ok=True)
    plant(table, rows.to_pylist()[0], rows.schema)
    try:
        run = run_of(airflow, DAG)
    finally:
        tables.open(results.NAME).restore(good)
    assert states(airflow, run) == {"quality": ("failed", 1)}, "a retry would change nothing"
    told = task_log(airflow, run, "quality")
    assert caught in told
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
