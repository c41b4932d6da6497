"""The task that fails after a check that held back partitions: its exit code, its alarm, and its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from tests.dags.project import task_instance, write_project
from tests.expectations.quality_lake import hour_lake
from tests.expectations.test_acknowledge import FEW, acknowledged
from tests.expectations.test_failed_expectation import checked, project
from tidegate.pipelines.airflow import project_dags
from tidegate.pipelines.airflow.alarms import describe, incident_of
from tidegate.pipelines.airflow.operator import CommandRefused
from tidegate.pipelines.airflow.tasks import HELD, HeldPartitions
from tidegate.pipelines.definition.config import load_config


def result_of_check(folder: Path, printed: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The result of a check as Airflow keeps it: without its lists."""
    printed.readouterr()
    checked(folder, "--json", "--partitions=hour")
    result: dict[str, Any] = json.JSONDecoder().raw_decode(printed.readouterr().out)[0]
    return {name: value for name, value in result.items() if not isinstance(value, list)}


def context(task: HeldPartitions, result: dict[str, Any]) -> Any:
    pulled = {"quality": result}
    return {"ti": task_instance("hours__backfill", HELD, "one", task=task, xcom_pull=lambda task_ids: pulled[task_ids])}


def test_it_fails_with_what_the_check_found_until_all_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project(hour_lake(), tmp_path, FEW, 'hold = "partitions"\n')
    task = HeldPartitions(task_id=HELD, check="quality", config=str(tmp_path / "tidegate.toml"), pipeline="hours")
    given = context(task, result_of_check(tmp_path, capsys))
    with pytest.raises(CommandRefused, match="epoch 2: 1 partitions of hours are held back") as failed:
        task.execute(given)
    config = load_config(tmp_path / "tidegate.toml")
    alarm = describe(given | {"exception": failed.value}, config, "hours")
    assert (alarm["exit_code"], alarm["severity"]) == (5, "critical")
    (check,) = alarm["failed"]
    assert (check["columns"], check["limits"], check["failing"]) == ("events", "max_value 3.0", 1)
    assert check["examples"][0]["key"] == "user a"
    assert "user a" in alarm["reason"]
    assert incident_of(given["ti"]) == "hours__backfill/held", "the next interval's check also looks at these windows"
    assert acknowledged(tmp_path, "events = 4") == 0
    given = context(task, result_of_check(tmp_path, capsys))
    assert task.execute(given)["held"] == 0
    assert describe(given, config, "hours")["failed"] == []


@pytest.mark.parametrize("hold", ["asset", "partitions"])
def test_it_follows_each_check_that_makes_events_if_partitions_are_held_back(hold: str, tmp_path: Path) -> None:
    dags: dict[str, DAG] = project_dags(write_project(tmp_path, hold=f'"{hold}"', reopen_schedule='"0 5 * * *"'))
    kinds = ("backfill", "quality", "late")
    followers = {kind: dags[f"sessions__{kind}"].get_task("quality").downstream_task_ids for kind in kinds}
    assert followers == dict.fromkeys(kinds, {HELD} if hold == "partitions" else set())
