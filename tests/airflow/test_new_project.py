"""The project that `tidegate init` creates runs in Airflow unchanged: its DAG file, its pipeline, its checks.
Corrections reach their readers: DAGs by partition run again for exactly the days and months that changed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.airflow.dag_runs import events_of, run_of, states, unpause
from tests.airflow.visits import told
from tests.lake import LOCAL, Lake, Row, at
from tests.recovery.arrivals import run as stream_without_spark
from tests.waiting import wait_until
from tidegate import Project
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.examples.starter import DAYS
from tidegate.pipelines.project.cli import run
from tidegate.pipelines.run.limits import EpochLimits

pytestmark = [pytest.mark.long, pytest.mark.airflow, pytest.mark.timeout(600)]


def test_a_day_of_a_new_project_is_backfilled_and_checked(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    assert run(["init", str(folder)]) == 0
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = today - timedelta(days=DAYS)
    airflow = EmbeddedAirflow(home=tmp_path / "airflow", dags=folder / "dags")
    try:
        airflow.start()
        airflow.wait_for_dags(["visits__backfill", "visits__stream", "visits__quality"])
        # Once unpaused, the DAG also starts the later days on its own, one after the other.
        airflow.create_backfill("visits__backfill", first, first)
        airflow.start_component("scheduler")

        def ended() -> bool:
            runs = airflow.runs_of("visits__backfill")
            return bool(runs) and runs[0]["state"] in ("success", "failed")

        wait_until(ended, "the first day", 300.0)
        tasks = states(airflow, airflow.runs_of("visits__backfill")[0])
        assert {task: state for task, (state, _) in tasks.items()} == {"windows": "success", "quality": "success"}
    finally:
        airflow.stop()
    project = Project(folder / "tidegate.toml")
    epochs = {row["epoch"]: row["kind"] for row in project.runs("visits").to_arrow().to_pylist()}
    assert epochs[1] == "backfill"
    windows = project.results("visits", limit=100, sort="window_start").to_arrow().to_pylist()
    of_first_day = [row for row in windows if row["epoch"] == 1]
    assert len(of_first_day) == 3
    assert all(first <= row["window_start"] < first + timedelta(days=1) for row in of_first_day)


FIRST: tuple[Row, ...] = (
    *(("ann", at("10:10", day), 10 ** (day + 1)) for day in range(-1, 4)),
    ("bob", at("11:00", 0), 7),
)
"""An hour on each of five days, the first of them in February. The last hour is still open, and one day has a second
hour.
"""
BEFORE = FIRST[:4] + FIRST[5:]
"""Return the rows of final windows."""
CHANGED = tuple((user, moment, value + 5 if value in (10, 7, 1000) else value) for user, moment, value in BEFORE)
"""Return these rows after three of them, on two days, were updated."""


@dataclass
class Readers:
    """The runs of the DAGs that read the final windows, as recorded by these DAGs.

    Args:
        folder: folder of the notes.
        seen: number of notes that were read.
    """

    folder: Path
    seen: Counter[str] = field(default_factory=Counter)

    def of(self, dag: str, runs: int) -> dict[str, int]:
        """Wait for new runs of a DAG, and return the total that each read, by partition."""
        notes = self.folder / f"{dag}.jsonl"

        def came() -> list[Any]:
            lines = notes.read_text().splitlines()[self.seen[dag] :] if notes.exists() else []
            return lines if len(lines) >= runs else []

        lines = [json.loads(line) for line in wait_until(came, f"{runs} runs of {dag}")]
        self.seen[dag] += len(lines)
        assert len(lines) == runs, lines
        return {line["partition"]: line["total"] for line in lines}


def totals(rows: Sequence[Row], shape: str) -> dict[str, int]:
    """Return the totals by day or month, computed in plain Python."""
    sums: Counter[str] = Counter()
    for _, moment, value in rows:
        assert isinstance(moment, datetime)
        sums[moment.strftime(shape)] += value
    return dict(sums)


def check(airflow: EmbeddedAirflow) -> list[str | None]:
    """Check the newest epoch as the stream's schedule does, and return the partitions of its events."""
    run = run_of(airflow, "told__quality")
    assert run["state"] == "success"
    events = [
        event for event in events_of(airflow, "told__final_windows") if event["source_run_id"] == run["dag_run_id"]
    ]
    return sorted((event["partition_key"] for event in events), key=str)


def test_three_changed_rows_on_two_days_run_these_days_and_their_month_again_once(
    airflow: EmbeddedAirflow, lake: Lake
) -> None:
    readers = Readers(airflow.dags.parent / "read")
    for dag in ("by_day", "by_month", "by_any"):
        unpause(airflow, dag)
    lake.append(*FIRST, table="told_events")
    stream_without_spark(LOCAL, lake, pipeline=told, limits=EpochLimits())
    days = [at("00:00", day).strftime("%Y-%m-%dT%H:%M:%S") for day in range(-1, 3)]
    assert check(airflow) == [*days, None]
    assert readers.of("by_day", 4) == totals(BEFORE, "%Y-%m-%d")
    assert readers.of("by_month", 2) == totals(BEFORE, "%Y-%m")
    assert check(airflow) == [], "no window changed since"

    DeltaTable(lake.path("told_events")).update({"value": "value + 5"}, predicate="value in (10, 7, 1000)")
    stream_without_spark(LOCAL, lake, pipeline=told, limits=EpochLimits())
    assert check(airflow) == [days[1], days[3], None]
    expected = totals(CHANGED, "%Y-%m-%d")
    assert readers.of("by_day", 2) == {day: expected[day] for day in ("2024-03-01", "2024-03-03")}
    assert readers.of("by_month", 1) == {"2024-03": totals(CHANGED, "%Y-%m")["2024-03"]}
    assert readers.of("by_any", 2) == {"-": sum(value for _, _, value in CHANGED)}
    for dag, runs in (("by_day", 6), ("by_month", 3), ("by_any", 2)):
        assert len(airflow.runs_of(dag)) == runs
