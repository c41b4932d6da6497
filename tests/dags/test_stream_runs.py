"""Through a real scheduler, without Spark: a stream that can't start says why, and nothing waits for it any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.airflow.dag_runs import run_of, states, task_log
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.inspect.status import read_status

pytestmark = pytest.mark.airflow


@pytest.mark.long
def test_a_lease_that_is_held_is_tried_again_then_told_and_changes_nothing(airflow: EmbeddedAirflow) -> None:
    config = load_config(Path(airflow.settings["TIDEGATE_CONFIG"]))
    before = read_status(config.file, "sessions")
    with Lease(PipelineTables(warehouse_of(config), "sessions"), "the test", system_clock):
        run = run_of(airflow, "sessions__restart", mode="continuous")
    found = states(airflow, run)
    assert found["stream"] == ("failed", 2)
    assert "(the test)" in task_log(airflow, run, "stream")
    assert "exit code 4" in task_log(airflow, run, "stream")
    assert found["first_epoch"][0] == "failed", "no epoch will come from a stream that has ended"
    assert "task stream ended (failed)" in task_log(airflow, run, "first_epoch")
    assert read_status(config.file, "sessions") == before
