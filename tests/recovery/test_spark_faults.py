"""Faults that only Spark shows: a driver out of memory, a task that raises, a worker that is killed."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.recovery import arrivals
from tests.recovery.arrivals import copy_of, differences, outcome, source_of
from tests.recovery.fatal import Fatal
from tests.recovery.test_faults import assert_sound, rot
from tidegate.pipelines.definition import state
from tidegate.pipelines.errors import OTHER, Refused, TidegateError
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.windowing import TumblingEventTimeWindows, Windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.recovery]

ROOT = Path(__file__).parents[2]

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
        ("raise", r"ValueError: no result for 1 elements \(tests/recovery/fatal\.py:\d+ in process\)"),
        ("kill", r"Python worker exited unexpectedly \(crashed\) \(killed, or out of memory\?\)"),
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
    with pytest.raises(
        TidegateError, match=f"^epoch 2 of hours can't be computed: {told}. Nothing of the epoch was committed"
    ):
        lake.stream(spark, fatal)
    assert lake.snapshot(fatal).manifest.epoch == 1


@pytest.mark.long
def test_state_that_rotted_is_refused_by_the_task_that_reads_it(spark: SparkSession, lake: Lake) -> None:
    pipeline = hourly_pipeline()
    lake.append(("ann", at("10:00"), 1))
    lake.stream(spark, pipeline)
    tables = lake.tables(pipeline)
    head = read_snapshot(tables)
    assert head is not None
    for file in head.files:
        rot(Path(tables.path(state.NAME), file["path"]))
    lake.append(("ann", at("10:30"), 1))
    with pytest.raises(Refused, match=r"^epoch 2 of hours can't be computed: a file of table .*state can't be read"):
        lake.stream(spark, pipeline)
