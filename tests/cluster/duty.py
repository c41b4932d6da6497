"""A backfill of the example's pipeline `aircraft_duty`, a day at a time, and the tables that it must have then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from tests import flights_oracle
from tests.cluster.running import Cluster
from tidegate.pipelines.examples.flights.source import FIRST_DAY, SCHEMA, read_flights

DUTY = "aircraft_duty"
BACKFILL = f"{DUTY}__backfill"


@dataclass(frozen=True)
class Run:
    """A run of the backfill of a day."""

    cluster: Cluster
    id: str

    def ended(self) -> dict[str, Any]:
        """Wait until it has ended, and return it."""
        return self.cluster.end_of(BACKFILL, self.id)

    def log(self) -> str:
        """Return the log of its command."""
        return self.cluster.log_of(BACKFILL, self.id, "windows")

    def again(self) -> None:
        """Clear its tasks."""
        tasks = {"dag_run_id": self.id, "dry_run": False, "only_failed": False}
        self.cluster.call("POST", f"dags/{BACKFILL}/clearTaskInstances", json=tasks)


def days_done(cluster: Cluster) -> int:
    """Return the number of days that are in the tables: the pipeline's intervals follow each other."""
    return sum(run["state"] == "success" for run in cluster.runs_of(BACKFILL))


def trigger_next_day(cluster: Cluster) -> Run:
    return Run(cluster, cluster.begin_day(DUTY, days_done(cluster)))


def begin_next_day(cluster: Cluster) -> Run:
    """Trigger the backfill of the next day, and wait until executors work for it."""
    run = trigger_next_day(cluster)
    cluster.wait_for_tasks()
    return run


def run_next_day(cluster: Cluster) -> dict[str, Any]:
    """Run the backfill of the next day to its end."""
    return trigger_next_day(cluster).ended()


def assert_as_without_faults(cluster: Cluster) -> None:
    """Compare the results with those that plain pandas computes for the days that are done."""
    end = pd.Timestamp(FIRST_DAY, tz="UTC") + pd.Timedelta(days=days_done(cluster))
    flights = read_flights()
    due = flights["departed_at"].fillna(flights["scheduled_at"])
    expected = flights_oracle.duty_sessions(flights.loc[due < end, SCHEMA.names], end)
    flights_oracle.assert_equal(cluster.results(DUTY, "tailnum"), expected, ["tailnum", "window_start"])
