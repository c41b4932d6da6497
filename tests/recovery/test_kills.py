"""A real kill -9 of a driver in a separate process; then a start in another process. Faults that only occur with Spark:
a driver out of memory, a task that raises, a worker that is killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.standing import check_windows
from tests.recovery import arrivals
from tests.recovery.arrivals import STEPS, copy_of, differences, outcome, source_of
from tests.recovery.fatal import Fatal
from tests.recovery.test_faults import assert_sound
from tidegate.pipelines import Pipeline
from tidegate.pipelines.errors import OTHER, TidegateError
from tidegate.pipelines.ledger.lease import read_lease
from tidegate.windowing import TumblingEventTimeWindows, Windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.recovery]

ROOT = Path(__file__).parents[2]

KILLS = int(os.environ.get("TIDEGATE_TEST_KILLS", "100"))
"""Number of kills in the long form."""

LONGEST_DELAY = 400
"""Milliseconds between a step and the kill, which may also fall into later steps."""


def victim(lake: Lake, kind: str, step: str, epoch: int, delay: int = 0) -> int:
    """Run until the kill; return the exit code of the process, 0 if it had ended before."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tests.recovery.victim", str(lake.folder)),
            *(kind, step, str(epoch), str(delay), str(lake.clock.now)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode


def assert_taken_over_at_once(lake: Lake, pipeline: Pipeline) -> None:
    """The lease of a dead process on this host does not have to expire."""
    held = read_lease(lake.tables(pipeline))
    assert held is not None
    assert held.expires_at > lake.clock()
    assert not psutil.pid_exists(held.process)


# tests/recovery/test_killed_corrections.py always kills a stream and a backfill without a JVM, and
# tests/recovery/test_stream_crashes.py always ends a stream after each step.
@pytest.mark.long
@pytest.mark.parametrize("step", ["operated", "committed", "published late"])
def test_a_stream_killed_around_its_commit_and_before_the_end_of_its_publishing_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, step: str
) -> None:
    lake = source_of(tmp_path / "lake", commits=2)
    undisturbed = copy_of(lake, tmp_path / "undisturbed")
    assert victim(lake, "stream", step, epoch=4) == -signal.SIGKILL
    assert_taken_over_at_once(lake, arrivals.PIPELINE)
    arrivals.run(spark, lake)
    arrivals.run(LOCAL, undisturbed)
    assert differences(outcome(lake), outcome(undisturbed)) == {}
    check_windows(lake.tables(arrivals.PIPELINE))


@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
def test_a_stream_killed_a_hundred_times_anywhere_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("TIDEGATE_TEST_SEED", random.SystemRandom().randrange(10**6)))
    with capsys.disabled():
        print(f"\n{KILLS} kills drawn from TIDEGATE_TEST_SEED={seed}")
    draw = random.Random(seed)
    lake = source_of(tmp_path / "lake", commits=KILLS + 5)
    undisturbed = copy_of(lake, tmp_path / "undisturbed")
    kills = [
        victim(
            lake, "stream", draw.choice(STEPS), draw.randrange(1, 4), draw.choice((0, draw.randrange(LONGEST_DELAY)))
        )
        for _ in range(KILLS)
    ]
    assert kills.count(-signal.SIGKILL) == KILLS, f"the stream ended before the kill, seed {seed}"
    arrivals.run(spark, lake)
    arrivals.run(LOCAL, undisturbed)
    assert differences(outcome(lake), outcome(undisturbed)) == {}, f"seed {seed}"
    check_windows(lake.tables(arrivals.PIPELINE))


PROJECT = """
[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "600m"

[pipelines.hours]
object = "tests.recovery.arrivals:PIPELINE"
start = 2024-03-01
"""


@pytest.mark.long
def test_a_driver_out_of_memory_ends_with_an_error_that_says_so_and_its_last_snapshot_goes_on(tmp_path: Path) -> None:
    lake = source_of(tmp_path / "lake", commits=2)
    undisturbed = copy_of(lake, tmp_path / "undisturbed")
    (lake.folder / "tidegate.toml").write_text(PROJECT)
    starved = subprocess.run(
        [sys.executable, "-m", "tests.recovery.starved", str(lake.folder / "tidegate.toml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert starved.returncode == OTHER, starved.stderr
    told = starved.stderr.strip().splitlines()[-1]
    assert told.startswith("tidegate: Spark's process ran out of memory (exit code 3)")
    assert "spark.driver.memory" in told
    assert_sound(lake)
    assert lake.snapshot(arrivals.PIPELINE).manifest.epoch == 1
    arrivals.run(LOCAL, lake)
    arrivals.run(LOCAL, undisturbed)
    assert differences(outcome(lake), outcome(undisturbed)) == {}


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (
            "raise",
            (
                r"pipeline hours: its code raised ValueError: no result for 1 elements "
                r"\(tests/recovery/fatal\.py:\d+ in process\) for the timer of .*\. "
                r"Nothing of epoch 2 was committed\. A retry would fail"
            ),
        ),
        (
            "kill",
            (
                r"epoch 2 of hours can't be computed: Python worker exited unexpectedly \(crashed\) "
                r"\(killed, or out of memory\?\)\. Nothing of the epoch was committed"
            ),
        ),
    ],
)
def test_a_task_that_fails_stops_the_stream_in_its_own_words_and_commits_nothing(
    spark: SparkSession, lake: Lake, how: str, told: str
) -> None:
    hour = TumblingEventTimeWindows.of(timedelta(hours=1))
    sound, fatal = (hourly_pipeline(compute=Windows(hour, process=Fatal(act))) for act in ("never", how))
    lake.append(("ann", at("10:00"), 1))
    lake.stream(spark, sound)
    lake.append(("ann", at("13:00"), 1))
    with pytest.raises(TidegateError, match=f"^{told}"):
        lake.stream(spark, fatal)
    assert lake.snapshot(fatal).manifest.epoch == 1
