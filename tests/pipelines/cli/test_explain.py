from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.explanation import explain
from tests.lake import hourly_pipeline, session_pipeline
from tests.pipelines.cli.project import Project
from windowing import CountTrigger


def test_it_names_the_operator_the_reason_and_the_steps(project: Project) -> None:
    told = project.data("explain", "sessions")
    assert told["operator"] == {
        "name": "columnar",
        "reason": "EventTimeSessionWindows and every aggregate have array forms; sessions that a late element may meet "
        "go row by row",
    }
    assert [step["where"] for step in told["steps"]][:2] == ["driver", "Python task"]
    assert any("columns value" in step["does"] for step in told["steps"])


def test_people_read_it_as_a_table(project: Project) -> None:
    code, told = project.tidegate("explain", "sessions")
    assert code == 0
    assert "sessions runs through the columnar operator" in told


def test_a_trigger_without_an_array_form_is_named_as_the_reason() -> None:
    pipeline = hourly_pipeline()
    counted = replace(pipeline, compute=replace(pipeline.compute, trigger=CountTrigger.of(3)))
    explanation = explain(counted)
    assert explanation.operator.name == "row"
    assert explanation.operator.reason == "trigger CountTrigger(max_count=3) has no array form"
    assert "CountTrigger" in explanation.order


@pytest.mark.parametrize("make", [session_pipeline, hourly_pipeline])
def test_windows_that_only_the_set_of_elements_decides_are_told_so(make: object) -> None:
    assert explain(make()).order.startswith("the set of a window's elements decides")  # type: ignore[operator]


def test_it_starts_no_jvm(project: Project) -> None:
    code = (
        "import sys; from pipelines.cli import run; "
        f"code = run(['explain', 'sessions', '--config', {str(project.folder / 'tidegate.toml')!r}]); "
        "import pyspark; sys.exit(code or int(pyspark.SparkContext._gateway is not None))"
    )
    root = Path(__file__).parents[3]
    ran = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
