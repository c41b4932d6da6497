"""Errors planted in tables: the suite that should catch each of them does, the task fails, and the asset event is held
back. Through a real scheduler, events of checked windows carry what is known of them, and impossible requests are
refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.dag_runs import events_of, run_of, states, task_log
from tests.waiting import wait_until
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.project.cli import run as cli
from tidegate.pipelines.storage.warehouse import read_table

pytestmark = pytest.mark.airflow

DAG, ASSET = "sessions__quality", "sessions__final_windows"


@pytest.fixture
def tables(airflow: EmbeddedAirflow) -> PipelineTables:
    return PipelineTables(warehouse_of(load_config(Path(airflow.settings["TIDEGATE_CONFIG"]))), "sessions")


def alarms_of(airflow: EmbeddedAirflow) -> list[dict[str, Any]]:
    lines = (airflow.dags.parent / ".work" / "alarms.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.long
def test_a_planted_error_fails_the_task_once_and_holds_the_asset_back(
    tables: PipelineTables, airflow: EmbeddedAirflow
) -> None:
    """A lost row. tests/expectations always plants each error, without Airflow."""
    table = tables.open(results.NAME)
    good, pane = table.version(), read_table(tables.warehouse, table).to_pylist()[0]
    before = events_of(airflow, ASSET)
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
    (alarm,) = [alarm for alarm in alarms_of(airflow) if alarm["run"] == run["dag_run_id"]]
    assert (alarm["exit_code"], alarm["severity"]) == (5, "critical")
    assert alarm["run_url"].startswith(f"{airflow.url}/dags/{DAG}/runs/")
    assert alarm["docs_url"] == f"{airflow.url}/tidegate/pipelines/sessions/checks/index.html"
    assert alarm["log_url"].startswith(airflow.url)
    assert alarm["failed"]
    assert "held back" in alarm["what_to_do"]["words"]


@pytest.mark.long
def test_once_the_table_is_put_back_the_check_passes(airflow: EmbeddedAirflow) -> None:
    run = run_of(airflow, DAG)
    assert states(airflow, run) == {"quality": ("success", 1)}
    assert events_of(airflow, ASSET)[-1]["extra"]["quality"] == "passed"
    assert run["dag_run_id"] not in {alarm["run"] for alarm in alarms_of(airflow)}


@pytest.mark.long
def test_windows_that_hold_reach_the_asset_with_what_is_known_of_them(airflow: EmbeddedAirflow) -> None:
    run = run_of(airflow, "sessions__quality", epoch=2)
    assert states(airflow, run) == {"quality": ("success", 1)}
    # Another module may have announced the same windows, and they are announced only once.
    events = events_of(airflow, "sessions__final_windows")
    # One for readers by day, one for readers of everything.
    assert {event["partition_key"] for event in events} == {None, "2024-03-01T00:00:00"}
    (event,) = [event for event in events if event["partition_key"] is None]
    extra = event["extra"]
    assert (extra["epoch"], extra["timeline"], extra["snapshot_version"]) == (2, 1, 2)
    assert extra["quality"] == "passed"
    assert extra["counters"]["events_in"] == 4
    assert extra["watermark"] == 1_709_298_600_000
    assert Path(extra["report"]).is_file()
    address = f"{airflow.url}/tidegate/pipelines/sessions/reports/2"
    assert extra["report_url"] == address
    assert f"Run report: {address}" in task_log(airflow, run, "quality")
    links = f"dags/sessions__quality/dagRuns/{run['dag_run_id']}/taskInstances/quality/links"
    checks = f"{airflow.url}/tidegate/pipelines/sessions/checks/index.html"
    assert airflow.call("GET", links)["extra_links"] == {
        "Run report": address,
        "Data Docs": checks,
        "Pipeline": f"{airflow.url}/tidegate/#sessions",
    }


@pytest.mark.long
def test_held_partitions_fail_a_task_of_their_own_until_their_windows_are_right(airflow: EmbeddedAirflow) -> None:
    """One hour fails the suite. The other hour is announced immediately, and the failing one as soon as it is
    acknowledged.
    """

    def told() -> list[str | None]:
        return [event["partition_key"] for event in events_of(airflow, "hours__final_windows")]

    def alarms() -> list[tuple[Any, ...]]:
        found = [alarm for alarm in alarms_of(airflow) if alarm["pipeline"] == "hours"]
        return [tuple(alarm[name] for name in ("severity", "task", "exit_code")) for alarm in found]

    run = run_of(airflow, "hours__quality")
    assert (run["state"], states(airflow, run)) == ("failed", {"quality": ("success", 1), "held": ("failed", 1)})
    assert told() == ["2024-03-01T11:00:00"]
    assert "1 partitions of hours are held back" in task_log(airflow, run, "held")
    assert alarms() == [("critical", "held", 5)]
    again = run_of(airflow, "hours__quality")
    assert states(airflow, again) == {"quality": ("success", 1), "held": ("failed", 1)}
    assert (len(told()), len(alarms())) == (1, 2), "readers are told once, and each failed task has an alarm"

    config = ["--config", airflow.settings["TIDEGATE_CONFIG"]]
    assert cli(["quality", "acknowledge", "hours", "--where", "events > 3", "--reason", "doubled", *config]) == 0
    conf = {
        "dry_run": False,
        "dag_run_id": run["dag_run_id"],
        "task_ids": ["quality"],
        "include_downstream": True,
        "only_failed": False,
    }
    airflow.call("POST", "dags/hours__quality/clearTaskInstances", json=conf)
    wait_until(lambda: states(airflow, run) == {"quality": ("success", 2), "held": ("success", 2)}, "the second try")
    assert sorted(told()[1:], key=str) == ["2024-03-01T10:00:00", None]
    assert len(alarms()) == 2
