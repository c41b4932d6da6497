"""Thousands of epochs of a life in virtual time: crashes, cleanups, restores, upgrades, and clocks that jump. The
tables are those of a pipeline that read the same source once, without any of this.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import DAY0, LOCAL, Clock, Lake, Row
from tests.recovery.arrivals import STEPS, Crash, differences, rows_of
from tests.recovery.growth import PIPELINE, USERS, Source
from tidegate.pipelines import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.head import list_snapshots
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import (
    create_savepoint,
    delete_savepoint,
    find_snapshot,
    list_savepoints,
)
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED
from tidegate.pipelines.remedy import Act
from tidegate.pipelines.run.next_commits import EpochLimits
from tidegate.pipelines.run.stream import Stream

pytestmark = pytest.mark.recovery

DAY = 86_400_000


def late_rows(version: int) -> list[Row]:
    """Rows that are too late, and rows within the lateness, in one version of three."""
    end = DAY0 + timedelta(minutes=20 * version)
    draw = random.Random(version)
    late = timedelta(hours=draw.choice([2, 3, 9]))
    return [(f"user{draw.randrange(USERS)}", end - late, -version)] if version % 3 == 0 and version > 30 else []


@dataclass
class Life:
    """A pipeline, and what happens to it.

    Args:
        folder: its folder.
        seed: seed of all random choices.
    """

    folder: Path
    seed: int
    lake: Lake = field(init=False)
    source: Source = field(init=False)
    draw: random.Random = field(init=False)
    pipeline: Pipeline = PIPELINE
    did: Counter[str] = field(default_factory=Counter)
    last: str = ""

    def __post_init__(self) -> None:
        self.lake = Lake(self.folder / "lake")
        self.source, self.draw = Source(self.lake, late_rows), random.Random(self.seed)

    def run(self, epochs: int) -> None:
        """Let things happen until this many epochs were planned."""
        self.source.commit()
        self._stream()
        often: list[Callable[[], None]] = [self._stream] * 6 + [self._crash] * 2 + [self._clock_jumps] * 2
        acts = [*often, self._clean_up, self._compact, self._upgrade, self._restore, self._savepoint]
        while self.did["epochs"] < epochs:
            for _ in range(self.draw.choice([1, 1, 2, 4])):
                self.source.commit()
            act = self.draw.choice(acts)
            self.last = act.__name__.strip("_")
            self.did[self.last] += 1
            try:
                act()
            except Exception as error:
                raise AssertionError(f"seed {self.seed}, after {dict(self.did)}, {self.last}: {error}") from error
        self._stream()

    def _stream(self, crash: str = "") -> None:
        def tell(step: str) -> None:
            self.did["epochs"] += step == STEPS[0]
            if step == crash:
                raise Crash

        with self.lake.driver(LOCAL, self.pipeline, tell) as driver:
            limits = EpochLimits(commits=self.draw.choice([1, 1, 2]))
            Stream(driver, lambda manifest: None, limits).run_available()

    def _crash(self) -> None:
        with pytest.raises(Crash):
            self._stream(self.draw.choice(STEPS))

    def _clock_jumps(self) -> None:
        """The next command runs on a host whose clock is ahead or behind."""
        self.lake.clock.now += self.draw.choice([-400 * DAY, -DAY, -3_600_000, 60_000, DAY, 40 * DAY])

    def _clean_up(self) -> None:
        tables = self.lake.tables(self.pipeline)
        with Lease(tables, "vacuum", self.lake.clock):
            vacuum(tables, Retention(self.draw.choice([1, 3, 10]), timedelta(0)), self.lake.clock())

    def _compact(self) -> None:
        for table in PUBLISHED:
            compact(self.lake.tables(self.pipeline), table)

    def _upgrade(self) -> None:
        """The code is deployed again with a different parallelism."""
        self.pipeline = replace(self.pipeline, parallelism=self.draw.choice([1, 2, 3]))

    def _restore(self) -> None:
        tables = self.lake.tables(self.pipeline)
        targets = [str(entry.epoch) for entry in list_snapshots(tables)[:6]]
        targets += [f"savepoint:{entry.name}" for entry in list_savepoints(tables)]
        try:
            with Lease(tables, "restore", self.lake.clock):
                restore(tables, find_snapshot(tables, self.draw.choice(targets)), self.lake.clock())
        except Refused as refused:
            # A cleanup removed rows of an abandoned lineage, and the user does not want to continue without them.
            if all(remedy.act is not Act.RESTART for remedy in refused.remedies):
                raise
            self.did["refused"] += 1

    def _savepoint(self) -> None:
        tables = self.lake.tables(self.pipeline)
        for entry in list_savepoints(tables):
            delete_savepoint(tables, entry.name)
        newest = str(list_snapshots(tables)[0].epoch)
        create_savepoint(tables, find_snapshot(tables, newest), f"at-{newest}", self.lake.clock())

    def without_any_of_it(self) -> Lake:
        """Return the tables of a pipeline that read the same source from its beginning to its end."""
        lake = Lake(self.folder / "calm", Clock(self.lake.clock.now))
        shutil.copytree(self.lake.path("events"), lake.path("events"))
        lake.stream(LOCAL, self.pipeline)
        return lake


@pytest.mark.parametrize(
    ("epochs", "seed"),
    [
        (31, 5),
        pytest.param(100, 1, marks=pytest.mark.long),
        pytest.param(10_000, 2, marks=[pytest.mark.long, pytest.mark.timeout(4 * 3600)]),
    ],
)
def test_a_long_life_changes_no_result(tmp_path: Path, epochs: int, seed: int) -> None:
    life = Life(tmp_path, seed)
    life.run(epochs)
    assert differences(rows_of(life.lake, life.pipeline), rows_of(life.without_any_of_it(), life.pipeline)) == {}
    assert {"crash", "clock_jumps", "clean_up", "compact", "upgrade", "restore", "savepoint"} <= {*life.did}
