"""Asked to stop: a stream and a backfill end after the epoch at work, whenever that is, and can go on there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lake import DAY0, Lake, assert_same_windows, at, hourly_pipeline, session_pipeline
from tests.pipelines.project.cli.project import CODE, SPARK_TOML
from tidegate.pipelines.errors import Stopped
from tidegate.pipelines.ledger.lease import read_lease, request_stop
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.intervals import cut, parse_slice
from tidegate.pipelines.run.next_commits import EpochLimits
from tidegate.pipelines.run.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


# In every run tests/pipelines/project/cli/test_stream.py sends both signals to the command, without a JVM,
# and the tests below ask epochs at work to stop.
@pytest.mark.long
def test_a_command_that_gets_sigterm_ends_its_epoch_publishes_it_and_gives_the_lease_back(tmp_path: Path) -> None:
    project, source = tmp_path / "project", Lake(tmp_path / "project")
    project.mkdir()
    source.append(("ann", at("08:00"), 8), ("ann", at("10:00"), 10))
    (project / "tidegate.toml").write_text(SPARK_TOML)
    (project / "of_the_project.py").write_text(CODE)
    command = [sys.executable, "-m", "tidegate", "stream", "sessions", "--interval", "1s"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(project)])}
    with subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            told = ""
            for line in process.stdout:
                told += line
                if line.startswith("epoch 1:"):
                    process.send_signal(signal.SIGTERM)
        finally:
            process.kill()
    assert process.returncode == 0, told
    assert "epoch 1: 2 in, 0 late" in told
    assert "sessions: ended after a whole epoch" in told
    pipeline = session_pipeline()
    head = source.snapshot(pipeline).manifest
    assert source.rows(pipeline, "epochs")["epoch"].to_pylist() == list(range(1, head.epoch + 1))
    lease = read_lease(source.tables(pipeline))
    assert lease is not None
    assert not lease.is_alive(source.clock())


def test_a_run_over_what_is_there_now_ends_after_its_epoch_when_asked_to(spark: SparkSession, lake: Lake) -> None:
    whole, stopped = hourly_pipeline(name="whole"), hourly_pipeline(name="stopped")
    for hour in range(4):
        lake.append(("a", at(f"{10 + hour}:30"), 1), ("b", at(f"{10 + hour}:40"), 2))
    made: list[Manifest] = []
    with lake.driver(spark, stopped) as driver:
        Stream(driver, made.append, EpochLimits(files=1)).run_available(lambda: bool(made))
    assert len(made) == 1
    assert made[0].position_in("events").version < 4
    lake.stream(spark, whole)
    lake.stream(spark, stopped)
    assert_same_windows(lake.final(stopped), lake.final(whole))


def test_a_backfill_ends_between_two_intervals_when_asked_to(spark: SparkSession, lake: Lake) -> None:
    lake.append(("a", at("10:30"), 1), ("b", at("22:40"), 2))
    pipeline = hourly_pipeline()
    halves = list(cut(DAY0, DAY0 + timedelta(days=1), parse_slice("12h")))

    def tell(step: str) -> None:
        if step == "committed":
            assert request_stop(lake.tables(pipeline), lake.clock()) is not None

    with lake.driver(spark, pipeline, tell) as driver:
        runs = backfill(driver, halves)
        assert next(runs).interval == halves[0]
        with pytest.raises(Stopped, match="hours was asked to stop"):
            next(runs)
    assert lake.snapshot(pipeline).manifest.interval == halves[0]
    assert [run.state for run in lake.backfill(spark, pipeline, DAY0, DAY0 + timedelta(days=1), "12h")] == [
        "unchanged",
        "done",
    ]
