"""kill -9 for real, on a driver of its own process; then a start in another process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pipelines.lease import read_lease
from tests.lake import Lake
from tests.recovery.days import PIPELINE, published
from tests.recovery.test_crashes import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.recovery]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("step", ["operated", "committed"])
def test_a_driver_killed_around_the_state_commit_loses_and_doubles_nothing(
    spark: SparkSession, lake: Lake, tmp_path_factory: pytest.TempPathFactory, step: str
) -> None:
    victim = subprocess.run(
        [sys.executable, "-m", "tests.recovery.victim", str(lake.folder), step, "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert victim.returncode == -signal.SIGKILL, victim.stderr
    held = read_lease(lake.tables(PIPELINE))
    assert held is not None
    assert held.expires_at > lake.clock()
    assert not psutil.pid_exists(held.process), "the lease of a dead process on this host is taken over at once"

    run(spark, lake)
    undisturbed = Lake(tmp_path_factory.mktemp("undisturbed"))
    run(spark, undisturbed)
    ours, expected = published(lake), published(undisturbed)
    assert {name: set(ours[name]) ^ set(expected[name]) for name in ours if ours[name] != expected[name]} == {}
