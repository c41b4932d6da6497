"""The events that Airflow's OpenLineage provider sends to a file for real runs of our DAGs. These tests have their own
Airflow, because loading the provider takes each process a second.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.airflow.conftest import day
from tests.airflow.dag_runs import run_of, states
from tests.airflow.visits import daily
from tests.dags.project import write_project
from tests.expectations.quality_lake import session_lake
from tests.lake import Lake, at
from tests.running_airflow import BY_HAND, DAG_FILE, PROJECT, ROOT, SELDOM_PARSED
from tests.waiting import wait_until
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.storage.warehouse import read_table

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

Event = dict[str, Any]


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedAirflow]:
    """An Airflow whose section [openlineage] names a file."""
    folder = tmp_path_factory.mktemp("lineage")
    config = write_project(folder, session_lake(), default_args="{ retry_delay = 1 }", **BY_HAND)
    # No stream starts on its own between two tests.
    yearly = '[pipelines.daily]\nstream_schedule = "0 0 1 1 *"'
    config.write_text(config.read_text() + PROJECT.replace("[pipelines.daily]", yearly))
    shutil.copy(ROOT / "tests" / "airflow" / "visits.py", folder)
    (folder / "dags").mkdir()
    (folder / "dags" / "tidegate_dags.py").write_text(DAG_FILE)
    transport = {"type": "file", "log_file_path": str(folder / "events.jsonl"), "append": True}
    with EmbeddedAirflow(
        home=folder / "airflow",
        dags=folder / "dags",
        settings={
            "TIDEGATE_CONFIG": str(config),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
            "AIRFLOW__OPENLINEAGE__NAMESPACE": "ours",
            "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "60",
            **SELDOM_PARSED,
        },
    ) as running:
        running.wait_for_dags(["daily__backfill", "daily__stream", "sessions__quality"])
        yield running


def all_of(airflow: EmbeddedAirflow, job: str, *kinds: str) -> list[Event]:
    """Return the events of these kinds for a task, oldest first."""
    file = airflow.dags.parent / "events.jsonl"
    events = map(json.loads, file.read_text().splitlines() if file.exists() else [])
    return [event for event in events if event["job"]["name"] == job and event["eventType"] in kinds]


def rows_into(event: Event, table: str) -> int:
    rows: int = named(event["outputs"])[table]["outputFacets"]["outputStatistics"]["rowCount"]
    return rows


def events_of(airflow: EmbeddedAirflow, job: str, *kinds: str) -> list[Event]:
    """Wait for the last of these kinds of events of a task, and return the newest events."""

    def written() -> list[Event]:
        newest = {event["eventType"]: event for event in all_of(airflow, job, *kinds)}
        return [newest[kind] for kind in kinds if kind in newest] if set(kinds) <= set(newest) else []

    events: list[Event] = wait_until(written, f"events {kinds} of {job}")
    return events


def named(datasets: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["name"].rsplit("/", 1)[-1]: each for each in datasets}


def test_a_backfill_tells_its_source_its_tables_and_what_it_put_out(listening: EmbeddedAirflow) -> None:
    lake = Lake(listening.dags.parent)
    lake.append(("ann", at("10:00"), 1), ("bob", at("23:50"), 2), table="daily_events")
    moments = {"interval_start": day(0).isoformat(), "interval_end": day(1).isoformat()}
    run = run_of(listening, "daily__backfill", **moments)
    assert states(listening, run)["windows"][0] == "success"
    start, end = events_of(listening, "daily__backfill.windows", "START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"]
    assert [each["name"] for each in start["inputs"]] == [lake.path("daily_events")]
    assert list(named(start["outputs"])) == ["results", "late", "rejects", "epochs"]
    assert end["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 2
    results = named(end["outputs"])["results"]
    assert results["outputFacets"]["outputStatistics"]["rowCount"] == 1, "bob's visit goes on after midnight"
    assert results["facets"]["columnLineage"]["fields"]["user"]["inputFields"][0]["field"] == "user"
    assert results["facets"]["version"]["datasetVersion"] != "0"
    (check,) = events_of(listening, "daily__backfill.quality", "COMPLETE")
    checked = named(check["inputs"])
    assert checked["results"]["namespace"] == results["namespace"]
    assert checked["results"]["name"] == results["name"], "one graph: the check reads what the backfill wrote"
    assertions = checked["results"]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert assertions
    assert all(each["success"] for each in assertions)


def test_a_stream_tells_what_it_read_and_its_skipped_tasks_nothing(listening: EmbeddedAirflow) -> None:
    lake = Lake(listening.dags.parent)
    lake.append(("ann", at("10:00", 1), 4), table="daily_events")
    run = run_of(listening, "daily__stream", mode="available-now")
    assert states(listening, run)["stream"][0] == "success"
    # Unpausing the DAG also created a scheduled run. A run that started while the other one drove the pipeline has no
    # numbers.
    wait_until(lambda: len(all_of(listening, "daily__stream.stream", "COMPLETE")) == 2, "the end of both streams")
    streams = all_of(listening, "daily__stream.stream", "COMPLETE")
    ends = [end for end in streams if "inputStatistics" in end["inputs"][0]["inputFacets"]]
    assert sum(end["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] for end in ends) == 1
    assert sum(rows_into(end, "results") for end in ends) >= 1
    told = sum(rows_into(end, "epochs") for end in (*ends, *all_of(listening, "daily__backfill.windows", "COMPLETE")))
    tables = lake.tables(daily)
    assert told == len(read_table(tables.warehouse, tables.open("epochs"))), "each epoch is counted once"
    run_of(listening, "daily__restart", mode="available-now")
    skipped = wait_until(lambda: all_of(listening, "daily__restart.savepoint", "COMPLETE"), "the end of a skipped task")
    assert {len(event["inputs"]) + len(event["outputs"]) for event in skipped} == {0}


def test_a_task_that_fails_still_tells_what_it_works_on(listening: EmbeddedAirflow) -> None:
    run = run_of(listening, "daily__backfill", interval_start="2024-03-20", interval_end="2024-03-21")
    assert states(listening, run)["windows"][0] == "failed"
    (end,) = events_of(listening, "daily__backfill.windows", "FAIL")
    assert "errorMessage" in end["run"]["facets"]
    assert end["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 0
    # Table windows is the fifth table if a run of another test created it.
    assert list(named(end["outputs"]))[:4] == ["results", "late", "rejects", "epochs"]


def test_a_check_of_tables_needs_no_code_of_the_pipeline(listening: EmbeddedAirflow) -> None:
    run = run_of(listening, "sessions__quality", epoch=None)
    assert states(listening, run)["quality"][0] == "success"
    (end,) = events_of(listening, "sessions__quality.quality", "COMPLETE")
    facets = named(end["inputs"])["results"]["inputFacets"]
    assert facets["dataQualityMetrics"]["rowCount"] == 3
    assert facets["dataQualityAssertions"]["assertions"]
