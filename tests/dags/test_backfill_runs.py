"""Through a real scheduler, without Spark: an interval that can't be is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.airflow.dag_runs import run_of, states, task_log
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.observe.inspect.status import read_status

pytestmark = pytest.mark.airflow


@pytest.mark.long
def test_an_interval_before_the_source_begins_is_refused_and_changes_nothing(airflow: EmbeddedAirflow) -> None:
    config = Path(airflow.settings["TIDEGATE_CONFIG"])
    before = read_status(config, "sessions")
    interval = {"interval_start": "2024-02-29T00:00:00Z", "interval_end": "2024-03-01T00:00:00Z"}
    run = run_of(airflow, "sessions__backfill", **interval)
    found = states(airflow, run)
    assert found["windows"] == ("failed", 1), "a retry would change nothing"
    assert found["quality"][0] == "upstream_failed"
    told = task_log(airflow, run, "windows")
    assert "--start 2024-02-29" in told
    assert "the start of sessions (both in UTC): begin at the start, or set an earlier `start`" in told
    assert "exit code 2" in told
    assert read_status(config, "sessions") == before
