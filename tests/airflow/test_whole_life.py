"""A pipeline's whole life through a real Airflow, with passing checks after each step. Backfill, stream, restart from a
snapshot, restore, a correction and its consequences, the stream again, late rows reopened, an aggregate added: the
order in which a team meets them, each step building on the one before.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest

from tests.airflow.conftest import day
from tests.airflow.dag_runs import run_of, states
from tests.airflow.visits import GAP, life
from tests.flights_oracle import assert_equal
from tests.lake import Lake, Row, at
from tests.session_oracle import sessions
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.definition.config import ENVIRONMENT
from tidegate.pipelines.ledger.manifest import Manifest

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

MODULE = Path(__file__).parent / "visits.py"

# "ann" is active around each midnight, so that a session crosses every interval boundary.
DAYS: tuple[tuple[Row, ...], ...] = (
    (("ann", at("10:00"), 1), ("ann", at("23:50"), 2), ("bob", at("12:00"), 4)),
    (("ann", at("00:10", 1), 8), ("bob", at("12:00", 1), 16), ("ann", at("23:50", 1), 32)),
    (("ann", at("00:10", 2), 64), ("bob", at("12:00", 2), 128)),
)
LATE: Row = ("bob", at("12:10", 1), 256)
FORGOTTEN: Row = ("cid", at("15:00"), 512)
"""This row reaches the source after its day has run."""
LAST: tuple[Row, ...] = (("ann", at("12:00", 5), 1024), ("bob", at("12:00", 5), 2048))


@dataclass
class Life:
    """The pipeline, the rows of its source, and the Airflow that runs it."""

    lake: Lake
    airflow: EmbeddedAirflow
    rows: list[Row] = field(default_factory=list)

    def feed(self, *rows: Row) -> None:
        self.rows += rows
        self.lake.append(*rows, table="life_events")

    def backfill(self, number: int, **conf: object) -> None:
        """Run one day; the DAG also checks it."""
        moments = {"interval_start": day(number).isoformat(), "interval_end": day(number + 1).isoformat()}
        run = run_of(self.airflow, "life__backfill", **moments, **conf)
        assert {task: state for task, (state, _) in states(self.airflow, run).items()} == {
            "windows": "success",
            "quality": "success",
        }

    def stream(self, **conf: object) -> None:
        """Run the stream over everything in the source, then the checks."""
        run = run_of(self.airflow, "life__restart" if conf else "life__stream", mode="available-now", **conf)
        assert states(self.airflow, run)["stream"][0] == "success"
        self.check()

    def command(self, *arguments: str) -> None:
        """Run a command that has no DAG, as a user would, then the checks."""
        folder = self.lake.folder
        environment = {**os.environ, ENVIRONMENT: str(folder / "tidegate.toml"), "PYTHONPATH": _path(folder)}
        ran = subprocess.run(
            [sys.executable, "-m", "tidegate", *arguments],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        self.check()

    def check(self) -> None:
        run = run_of(self.airflow, "life__quality")
        assert states(self.airflow, run)["quality"] == ("success", 1)
        assert self._checked() == self.head.epoch, "the newest epoch is the one that was checked"

    def _checked(self) -> int:
        epochs = self.lake.rows(life, "quality")["epoch"].to_pylist()
        return max(epochs)

    @property
    def head(self) -> Manifest:
        return self.lake.snapshot(life).manifest

    def assert_final_windows(self, before: datetime, *left_out: Row) -> None:
        """Compare with the sessions that end by a given time, computed from all rows except those that the pipeline
        must not have.
        """
        expected = sessions([row for row in self.rows if row not in left_out], GAP)
        final = self.lake.final(life).to_pandas()
        assert_equal(
            final[["user", "window_start", "window_end", "events", "total"]],
            expected[expected["window_end"] < before],
            ["user", "window_start"],
        )


def _path(folder: Path) -> str:
    root = str(MODULE.parent.parent.parent)
    return os.pathsep.join(filter(None, (root, str(folder), os.environ.get("PYTHONPATH"))))


@pytest.fixture(scope="module")
def begun(airflow: EmbeddedAirflow, lake: Lake) -> Iterator[Life]:
    yield Life(lake, airflow)
    shutil.copy(MODULE, lake.folder)


def test_two_days_are_backfilled(begun: Life) -> None:
    begun.feed(*DAYS[0])
    begun.feed(*DAYS[1])
    begun.backfill(0)
    begun.backfill(1)
    begun.assert_final_windows(day(2))
    assert [begun.head.kind, begun.head.timeline] == ["backfill", 1]


def test_the_stream_takes_over_and_reads_what_follows(begun: Life) -> None:
    begun.feed(*DAYS[2])
    begun.stream()
    # The watermark is an hour behind the newest event, and an adjacent session may still be merged.
    begun.assert_final_windows(at("10:00", 2))


def test_it_starts_again_from_an_older_snapshot_and_says_the_same(begun: Life) -> None:
    handed_over = 3
    begun.stream(restore=str(handed_over), parallelism=2)
    assert (begun.head.timeline, len(begun.head.shards)) == (2, 2)
    begun.assert_final_windows(at("10:00", 2))


def test_a_restore_goes_back_to_the_backfill(begun: Life) -> None:
    begun.command("restore", "life", "2")
    assert (begun.head.kind, begun.head.timeline) == ("restore", 3)
    begun.assert_final_windows(day(2))


def test_a_day_is_corrected_with_those_that_follow_it(begun: Life) -> None:
    begun.feed(FORGOTTEN)
    begun.backfill(0, and_following=True)
    begun.assert_final_windows(day(2))


def test_the_stream_goes_on_and_keeps_what_comes_too_late(begun: Life) -> None:
    begun.stream()
    begun.feed(LATE)
    begun.stream()
    begun.assert_final_windows(at("10:00", 2), LATE)
    assert [row["user"] for row in begun.lake.rows(life, "late").to_pylist()] == ["bob"]


def test_late_rows_are_reopened(begun: Life) -> None:
    begun.command("late", "reopen", "life")
    assert begun.head.kind == "reopen"
    begun.assert_final_windows(at("10:00", 2))


def test_an_aggregate_is_added_and_everything_goes_on(begun: Life) -> None:
    code = MODULE.read_text().replace('"total": Sum("value")', '"total": Sum("value"), "largest": Max("value")')
    code = code.replace("EventTimeSessionWindows, Sum", "EventTimeSessionWindows, Max, Sum")
    (begun.lake.folder / "visits.py").write_text(code)
    begun.feed(*LAST)
    begun.stream()
    begun.assert_final_windows(at("10:00", 5))
    largest = {
        row["window_start"]: row["largest"] for row in begun.lake.final(life).to_pylist() if row["user"] == "bob"
    }
    assert largest[at("12:00", 2)] is None, "its events were not seen by the code that asks for it"
    assert json.loads(begun.head.model_dump_json())["schemas"]["contents"].keys() >= {"acc_largest"}
