"""Readers follow a pipeline through a random walk: crashes, restores, savepoints, clean-ups, and actions of others.
After each step some queries continue, some of them die in a batch, and the rest wait. Then the target of each has what
its view has, the view is the same for every reader, and a refusal names a remedy that works.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.lake import session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.ledger.tables.test_queries import Duck, queries_of, same
from tests.pipelines.observe.reading.query import STEPS, Query, Rows, values_of
from tests.pipelines.observe.reading.targets import project
from tests.recovery.walks import FORGOTTEN, NOW, Walk
from tidegate.pipelines.definition import results
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.backups.backup import create_backup, find_backup, list_backups, restore_backup
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.reading import read_view
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing import Accumulation, Count, EventTimeSessionWindows, Sum, Windows

SEED = int(os.environ.get("TIDEGATE_TEST_SEED", "1"))

KEPT = ["ann", "cid"]
"""Keys of a query with a condition."""

NEW_QUERY = "Start the query with a new checkpoint folder and an empty target"
ERASED = re.compile(r'"forgottenThrough", "(\d+)"')


class Died(Exception):
    """Ends a query within a batch."""


@dataclass
class Follower:
    """A query over a view, and how often it started with an empty target."""

    folder: Path
    options: dict[str, str]
    began: int = 0

    @property
    def query(self) -> Query:
        folder = self.folder / str(self.began)
        return Query(folder / "checkpoint", folder / "target", self.options)

    def read_on(self, tell: Callable[[int, str], None] = lambda number, step: None) -> None:
        """Read what is there; if that is refused, do what the refusal says."""
        for _ in range(4):
            try:
                return self.query.run(tell)
            except Refused as refused:
                if erased := ERASED.search(str(refused)):
                    self.options = {**self.options, "forgottenThrough": erased[1]}
                    for file in self.query.target.glob("[0-9]*"):
                        rows = json.loads(file.read_text())
                        file.write_text(json.dumps([row for row in rows if row[1] != FORGOTTEN]))
                elif NEW_QUERY in str(refused):
                    self.began += 1
                else:
                    raise
        raise AssertionError("the ways on lead nowhere")

    def merged(self, names: list[str]) -> Rows:
        """Return the target that the MERGE of the guide maintains."""
        kept: dict[Any, tuple[Any, ...]] = {}
        user, window = (names.index(name) for name in ("user", "window_id"))
        for file in sorted(self.query.target.glob("[0-9]*")):
            for op, *row in sorted(json.loads(file.read_text()), key=lambda row: str(row[0]), reverse=True):
                # Within a batch `-` comes first here, and `+` replaces it.
                if op == "+":
                    kept[row[user], row[window]] = tuple(row)
                else:
                    kept.pop((row[user], row[window]), None)
        return Counter(kept.values())


@dataclass
class FollowedWalk(Walk):
    """A walk of a pipeline whose sessions are late, merge and are retracted, with queries that follow it."""

    accumulation: Accumulation = Accumulation.RETRACTING
    followers: list[Follower] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.folder.mkdir()
        config = project(self.folder, "sessions")
        windows = Windows(
            EventTimeSessionWindows.with_gap(timedelta(minutes=30)),
            allowed_lateness=timedelta(hours=self.draw.choice((0, 2, 12))),
            accumulation=self.accumulation,
            aggregate={"events": Count(), "total": Sum("value")},
        )
        self.by_hand = ByHand(self.folder, session_pipeline(compute=windows, null_keys="keep"))
        for number, options in enumerate(({}, {"where": "user IN ('ann', 'cid')"}, {"view": "latest"})):
            folder = self.folder / "followers" / str(number)
            self.followers.append(Follower(folder, {"path": "sessions", "config": str(config), **options}))

    def _steps(self) -> list[Callable[[], None]]:
        return [*super()._steps(), self._published_set_back, self._drop_epochs, self._backup, self._from_backup]

    def _backup(self) -> None:
        create_backup(self.by_hand.tables, self._place, f"after-{len(self.told)}", NOW + len(self.told))

    def _from_backup(self) -> None:
        """The tables are lost, and are restored from the newest backup."""
        if list_backups(self._place):
            tables = self.by_hand.tables
            tables.warehouse.delete_folder(tables.path("").rstrip("/"))
            restore_backup(tables, self._place, find_backup(self._place, "latest"))

    @property
    def _place(self) -> PipelineTables:
        return PipelineTables(Warehouse(str(self.folder / "backups")), "sessions")

    def _drop_epochs(self) -> None:
        with Lease(self.by_hand.tables, "vacuum", lambda: NOW):
            vacuum(self.by_hand.tables, Retention(1, timedelta(0), epochs=timedelta(0)), NOW)

    def check(self) -> None:
        """Compare what every reader has with the results of the functions."""
        self._check_readers()
        for follower in self.followers:
            if self.draw.random() < 0.6:
                self._check_followed(follower)

    def _check_listed(self) -> None:
        """Leave the snapshots to the walks without readers."""

    def _views(self) -> dict[str, pa.Table]:
        rows = self.by_hand.rows("results")
        latest = results.latest(rows, ("user",))
        return {"all": rows, "latest": latest, "final": results.final(latest, self.by_hand.head().manifest.watermark)}

    def _check_readers(self) -> None:
        queries, duck = queries_of(self.by_hand), Duck(self.by_hand)
        for view, rows in self._views().items():
            same(duck.rows(queries.of(view)), rows)
            same(read_view("sessions", view, config=self.folder / "tidegate.toml"), rows)

    def _check_followed(self, follower: Follower) -> None:
        if self.draw.random() < 0.3:
            self._read_and_die(follower)
        follower.read_on()
        rows = self._views()[follower.options.get("view", "final")]
        if "where" in follower.options:
            rows = rows.filter(pc.is_in(rows["user"], pa.array(KEPT)))
        expected = Counter(tuple(values) for _, *values in values_of(rows))
        found = follower.query.total()
        assert found == expected, f"{follower.options}: lost {expected - found}, too many {found - expected}"
        merged = follower.merged([name for name in rows.column_names if name != "op"])
        assert merged == expected, f"{follower.options}, merged: {merged} and not {expected}"

    def _read_and_die(self, follower: Follower) -> None:
        """Let a query die in its next batch, and run the pipeline before the query starts again."""
        last = self.draw.choice(STEPS)

        def tell(number: int, step: str) -> None:
            if step == last:
                raise Died

        with suppress(Died):
            follower.read_on(tell)
        if self.draw.random() < 0.5:
            self._heeding(self.draw.choice([self._stream, self._restore, self._compact, self._vacuum]))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(SEED, SEED + 6))
def test_readers_follow_a_walk(tmp_path: Path, seed: int) -> None:
    accumulation = (Accumulation.RETRACTING, Accumulation.ACCUMULATING, Accumulation.DISCARDING)[seed % 3]
    FollowedWalk(tmp_path / "walk", seed, accumulation=accumulation).run(steps=16)
