"""Code of a project runs in processes of its own, and none of them has Airflow's secrets in its environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dags.project import task_instance, write_project
from tests.expectations.quality_lake import session_lake
from tidegate.pipelines.airflow import project_dags
from tidegate.pipelines.airflow.operator import TidegateOperator
from tidegate.pipelines.airflow.process import without_airflow
from tidegate.pipelines.airflow.tasks import ReadStatus, StaleNote
from tidegate.pipelines.observe.inspect.overview import pipeline_names, pipeline_overview

SECRETS = {
    "AIRFLOW__CORE__FERNET_KEY": "fernet-0123",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql://airflow:database-0123@postgres/airflow",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD": "cat /run/command-0123",
    "AIRFLOW__API_AUTH__JWT_SECRET": "jwt-0123",
    "AIRFLOW__API__SECRET_KEY": "api-0123",
    "AIRFLOW__CELERY__BROKER_URL": "redis://:broker-0123@redis/0",
    "AIRFLOW_CONN_BANK": "https://user:connection-0123@bank",
    "AIRFLOW_VAR_TOKEN": "variable-0123",
    "_AIRFLOW_WWW_USER_PASSWORD": "first-user-0123",
    "__AIRFLOW_SUPERVISOR_FD": "9",
}
OTHERS = {
    "AIRFLOW_CTX_DAG_ID": "duty__backfill",
    "AWS_SECRET_ACCESS_KEY": "store-0123",
    "_SPARK_AUTH_SECRET": "spark-0123",
    "PATH": "/usr/bin",
    "HTTPS_PROXY": "http://proxy",
}
COMMAND = """#!{python}
import json, os, sys
from pathlib import Path

above = Path(f"/proc/{{os.getppid()}}/environ")
found = {{"own": dict(os.environ), "supervisor": above.read_text() if above.exists() else ""}}
open(sys.argv[sys.argv.index("--output") + 1], "w").write(json.dumps(found))
"""
"""An interpreter that stands for a command: it leaves its environment, and that of the process that waits for it."""


def test_of_an_environment_only_airflows_own_settings_are_taken_away() -> None:
    assert without_airflow({**SECRETS, **OTHERS}) == OTHERS


def test_neither_a_command_nor_its_supervisor_has_airflows_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**SECRETS, "AIRFLOW_CTX_DAG_ID": "duty__backfill", "MINE": "stays"}.items():
        monkeypatch.setenv(name, value)
    interpreter = tmp_path / "python"
    interpreter.write_text(COMMAND.format(python=sys.executable))
    interpreter.chmod(0o755)
    operator = TidegateOperator(
        task_id="windows",
        arguments=["backfill", "duty"],
        config=str(tmp_path / "tidegate.toml"),
        runs=str(tmp_path / "runs"),
        python=str(interpreter),
    )
    instance = task_instance("duty", "windows", stats_tags={})
    context: Any = {"ti": instance, "task_state_store": None}
    left = operator.execute(context)
    assert [name for name, value in SECRETS.items() if value in json.dumps(left["own"]) and len(value) > 1] == []
    assert "-0123" not in left["supervisor"]
    assert (left["own"]["MINE"], left["own"]["AIRFLOW_CTX_DAG_ID"]) == ("stays", "duty__backfill")


def test_airflows_processes_import_no_code_of_a_project(tmp_path: Path) -> None:
    """The DAG processor, the tasks that run no command, the triggerer and the page: here the code can't be imported."""
    lake = session_lake()
    config = write_project(tmp_path, lake, max_lag_minutes="1", reopen_schedule='"0 0 * * *"')
    text = config.read_text()
    for line in [line for line in text.splitlines() if line.startswith(("object", "suite"))]:
        text = text.replace(line, f'{line.partition("=")[0]}= "no_such_module:pipeline"')
    config.write_text(text)
    assert len(project_dags(config)) == 6
    name = lake.pipeline.name
    assert ReadStatus(task_id="before", config=str(config), pipeline=name).execute({})["epoch"] == 2  # type: ignore[typeddict-item]
    assert StaleNote(str(config), name)({}) is None
    assert pipeline_names(config) == [name]
    assert pipeline_overview(config, name)["epoch"] == 2
