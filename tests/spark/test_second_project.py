"""A project of somebody else's, outside this repository, uses the command line and the DAGs as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lake import Lake, at

pytestmark = pytest.mark.spark

PIPELINE = '''"""Clicks per user, by the hour."""

from datetime import timedelta

from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.windowing import Count, TumblingEventTimeWindows, WatermarkStrategy, Windows

clicks = Pipeline(
    name="clicks",
    source=DeltaSource("events", timestamp="at"),
    key=("user",),
    watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(minutes=5)),
    compute=Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"clicks": Count()}),
)
'''

TOML = """
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "1g"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"

[pipelines.clicks]
object = "clickstream.hourly:clicks"
start = 2024-03-01
"""

DAG = """from pathlib import Path

from tidegate.pipelines.airflow import project_dags

globals().update(project_dags(Path(__file__).parent.parent / "tidegate.toml"))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "clickstream").mkdir()
    (tmp_path / "clickstream" / "__init__.py").touch()
    (tmp_path / "clickstream" / "hourly.py").write_text(PIPELINE)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "all.py").write_text(DAG)
    (tmp_path / "tidegate.toml").write_text(TOML)
    return tmp_path


def tidegate(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidegate.pipelines.cli", *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_runs_a_backfill_of_its_own_and_reads_it(project: Path) -> None:
    lake = Lake(project)
    lake.append(("ann", at("10:05"), 1), ("ann", at("10:55"), 1), ("bob", at("23:59"), 1), (None, at("11:00"), 1))
    days = ("--start", "2024-03-01", "--end", "2024-03-02")
    (run,) = answer(tidegate(project, "backfill", "clicks", *days, "--json"))["runs"]
    assert run["counters"] | {"events_in": 4, "on_time": 3, "rejected": 1} == run["counters"]
    (snapshot,) = answer(tidegate(project, "snapshot", "list", "clicks", "--json"))
    assert snapshot["epoch"] == 1
    rows = answer(tidegate(project, "results", "clicks", "--json"))
    assert sorted((row["user"], row["clicks"]) for row in rows) == [("ann", 2), ("bob", 1)]


def test_its_dags_load_from_its_own_folder(project: Path) -> None:
    listed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import runpy, sys; print(sorted(k for k in runpy.run_path('dags/all.py') if '__' in k[1:-2]))",
        ],
        cwd=project,
        env={**os.environ, "AIRFLOW_HOME": str(project / "airflow")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "clicks__backfill" in listed.stdout, listed.stderr
    assert "clicks__stream" in listed.stdout
