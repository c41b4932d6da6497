"""A real kill -9 in a correction of a changed source, in a stream and in a backfill; then a start in another process.
The outcome is that of an undisturbed run, and has the windows of one backfill of the source as it is.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.lake import DAY0, LOCAL, Clock, Lake
from tests.pipelines.correct.lakes import HOURS, overwritten, two_users
from tests.pipelines.correct.pipelines import HOUR, PIPELINES
from tests.pipelines.correct.walks import Walk
from tests.pipelines.sources.changing import Changing
from tests.recovery.arrivals import STEPS
from tests.recovery.correcting import HOURS_BEFORE, Task, killed, pipeline_of, work
from tests.recovery.test_kills import victim
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.intervals import cut
from tidegate.windowing.time import to_millis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.recovery

KILLS = int(os.environ.get("TIDEGATE_TEST_KILLS", "40"))
"""Number of kills in the long form."""

LONGEST_DELAY = 60
"""Milliseconds between a step and the kill, which may also fall into later steps."""

COLUMNS = {
    "results": ["user", "window_start", "window_end", "window_id", "pane", "op", "events", "total", "largest"],
    "late": ["user", "at", "value", "reason", "reopened"],
    "rejects": ["user", "at", "value", "reason"],
    "epochs": [
        "epoch",
        "kind",
        "events_in",
        "on_time",
        "late",
        "reopened",
        "rejected",
        "rows_deleted",
        "deleted_in_windows",
    ],
}


def outcome(lake: Lake, pipeline: Pipeline) -> dict[str, list[str]]:
    """Return the rows of the tables, without what identifies the run that wrote them."""
    tables = {table: lake.rows(pipeline, table) for table in COLUMNS}
    return {
        table: sorted(map(str, rows.select([name for name in COLUMNS[table] if name in rows.column_names]).to_pylist()))
        for table, rows in tables.items()
    }


@dataclass
class Killed:
    """A pipeline that has read a random source, which then changed, and the same without kills.

    Args:
        name: name of the pipeline.
        run: stream or backfill.
        changing: the source.
    """

    name: str
    run: str
    changing: Changing

    @classmethod
    def of(cls, folder: Path, name: str, run: str, seed: str, changes: int) -> Killed:
        """Read a random source, and let things happen to it."""
        changing = Changing(Lake(folder / "lake", Clock(to_millis(DAY0) + 3_600_000)), random.Random(seed))
        changing.append()
        changing.settle()
        killed = cls(name, run, changing)
        changing.append()
        changing.settle()
        if run == "stream":
            work(changing.lake, name, run)
        if run == "backfill":
            with changing.lake.driver(LOCAL, pipeline_of(name)) as driver:
                driver.windows = WindowsTable()
                list(backfill(driver, cut(DAY0, DAY0 + HOURS_BEFORE * HOUR, None)))
        for _ in range(changes):
            changing.happen()
        changing.delete_a_user()
        changing.settle()
        return killed

    def task(self, step: str, epoch: int, delay: int = 0) -> Task:
        """A run that is killed."""
        lake = self.changing.lake
        return Task(str(lake.folder), self.name, self.run, lake.clock.now, step, epoch, delay)

    def beside(self, name: str) -> Lake:
        """A copy of the current lake."""
        lake = Lake(self.changing.lake.folder.parent / name, self.changing.lake.clock)
        shutil.copytree(self.changing.lake.folder, lake.folder)
        return lake

    def check(self, undisturbed: Lake) -> None:
        """Run to the end, and compare."""
        work(self.changing.lake, self.name, self.run)
        work(undisturbed, self.name, self.run)
        pipeline = pipeline_of(self.name)
        assert outcome(self.changing.lake, pipeline) == outcome(undisturbed, pipeline)

    def check_law(self) -> None:
        """Compare with one backfill of the source as it is, and check the counts."""
        with self.changing.lake.driver(LOCAL, pipeline_of(self.name)) as driver:
            walk = Walk(pipeline_of(self.name), self.changing, driver)
            walk.check_side_tables(self.changing.rows_of(self.changing.version))
            walk.check()
            walk.check_counts()


def test_corrections_that_are_killed_in_a_stream_and_in_a_backfill_lose_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = [Killed.of(tmp_path / run, "hours", run, f"short {run}", changes=1) for run in ("stream", "backfill")]
    undisturbed = [correction.beside("undisturbed") for correction in each]
    codes = killed(each[0].task("committed", 1), each[1].task("published results", 1))
    assert codes == [-signal.SIGKILL] * 2
    unrecovered = each[0].beside("unrecovered")
    for correction, beside in zip(each, undisturbed, strict=True):
        correction.check(beside)
    # A recovery that does not publish what the kill left is noticed.
    monkeypatch.setattr(Driver, "recover", lambda self: read_snapshot(self.tables))
    work(unrecovered, "hours", "stream")
    assert outcome(unrecovered, pipeline_of("hours")) != outcome(undisturbed[0], pipeline_of("hours"))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("run", ["stream", "backfill"])
def test_corrections_that_are_killed_anywhere_lose_and_double_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run: str
) -> None:
    seed = int(os.environ.get("TIDEGATE_TEST_SEED", random.SystemRandom().randrange(10**6)))
    with capsys.disabled():
        print(f"\n{KILLS} kills in each of a stream and a backfill, drawn from TIDEGATE_TEST_SEED={seed}")
    draw, kills, number = random.Random(f"{seed} {run}"), 0, 0
    while kills < KILLS:
        number += 1
        name = draw.choice([*PIPELINES])
        correction = Killed.of(tmp_path / str(number), name, run, f"{seed} {number}", changes=4)
        undisturbed = correction.beside("undisturbed")
        tasks = [
            correction.task(draw.choice(STEPS), draw.randrange(1, 3), draw.choice((0, draw.randrange(LONGEST_DELAY))))
            for _ in range(4)
        ]
        codes = killed(*tasks)
        assert set(codes) <= {0, -signal.SIGKILL}, codes
        kills += codes.count(-signal.SIGKILL)
        correction.check(undisturbed)
        correction.check_law()
        shutil.rmtree(tmp_path / str(number))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("step", ["operated", "committed", "published late"])
def test_a_correction_by_spark_that_is_killed_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, step: str
) -> None:
    lake = two_users(tmp_path)
    lake.stream(LOCAL, HOURS)
    lake.append(("bob", DAY0 + 10 * HOUR, 7))
    lake.stream(LOCAL, HOURS)
    DeltaTable(lake.path("events")).delete("value = 7")
    overwritten(lake, ("ann", DAY0 + 10 * HOUR, 8), ("cem", DAY0 + 18 * HOUR, 7))
    undisturbed = Lake(tmp_path / "undisturbed", lake.clock)
    shutil.copytree(lake.folder, undisturbed.folder)
    assert victim(lake, "change", step, epoch=2) == -signal.SIGKILL
    for each in (lake, undisturbed):
        each.stream(LOCAL, HOURS)

    assert outcome(lake, HOURS) == outcome(undisturbed, HOURS)
