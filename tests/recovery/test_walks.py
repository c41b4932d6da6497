"""Whatever is done to a pipeline, its tables equal those computed from scratch, or a refusal names a remedy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.expectations.broken import broken_by_rules
from tests.pipelines.by_hand import START_OF_DRIVER
from tests.pipelines.standing import check_windows
from tests.recovery.walks import FORGOTTEN, NOW, Walk
from tidegate.expectations.pinned import pin
from tidegate.pipelines.definition import windows
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots import lineages, recovery
from tidegate.pipelines.ledger.snapshots.head import list_snapshots
from tidegate.pipelines.ledger.snapshots.publish_windows import make_windows
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.snapshots.retention import prune
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.ledger.tables.table_log import TableLog
from tidegate.pipelines.remedy import Act

pytestmark = pytest.mark.recovery

SEED = int(os.environ.get("TIDEGATE_TEST_SEED", "1"))


@pytest.mark.parametrize("seed", [SEED, pytest.param(SEED + 1, marks=pytest.mark.long)])
def test_a_walk_ends_as_a_computation_from_scratch_does(tmp_path: Path, seed: int) -> None:
    Walk(tmp_path / "walk", seed).run(steps=8)


class CheckedWalk(Walk):
    """A walk whose tables are checked by the rules of `tidegate quality check` after each step."""

    def check(self) -> None:
        super().check()
        broken = broken_by_rules(pin(self.by_hand.tables, self.by_hand.pipeline))
        assert not broken, f"rules that don't hold: {broken}"


@pytest.mark.long
def test_a_prune_is_known_after_a_start_from_scratch_was_left_again(tmp_path: Path) -> None:
    """Found by a longer walk: the start from scratch removed the prune's row from table epochs."""
    walk = CheckedWalk(tmp_path / "walk", 4)
    tables = walk.by_hand.tables
    walk._stream()
    while not len(walk.by_hand.rows("late")):
        walk._stream()
    with_late_rows = list_snapshots(tables)[0].manifest["epoch"]
    prune(tables, START_OF_DRIVER + (with_late_rows + 1) * 60_000, NOW)
    walk.pruned = True
    assert not len(walk.by_hand.rows("late"))
    walk._anew()
    walk._back_to(str(with_late_rows))
    walk.check()


class SetBackWalk(CheckedWalk):
    """A walk on which published tables are set back, and compacted more often than in other walks."""

    def _steps(self) -> list[Callable[[], None]]:
        return [*super()._steps(), *[self._published_set_back] * 6, *[self._compact] * 2]


class ChangedWalk(CheckedWalk):
    """A walk on which others change rows of published tables, and the remedies in the refusals are applied."""

    def _steps(self) -> list[Callable[[], None]]:
        return [*super()._steps(), *[self._changed_by_others] * 12]


def test_a_walk_finds_state_that_goes_on_behind_what_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: nothing checks what the published tables know."""
    monkeypatch.setattr(recovery, "check_agreement", lambda *ignored: None)
    with pytest.raises(AssertionError, match=r"seed 2, after .*: (windows|late rows|epochs) "):
        Walk(tmp_path / "walk", 2).run(steps=12)


def test_a_walk_finds_advice_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: an abandoned lineage is refused, but still listed."""
    monkeypatch.setattr(lineages, "restorable", lambda tables, entries: {entry.epoch: True for entry in entries})
    with pytest.raises(AssertionError, match=r"seed 7, after .*: epoch \d+ is listed"):
        Walk(tmp_path / "walk", 7).run(steps=12)


class WindowsWalk(Walk):
    """A walk of a pipeline with table windows, which others also set back, move and remove."""

    def _steps(self) -> list[Callable[[], None]]:
        return [*super()._steps(), *[self._windows_changed] * 4, *[self._compact] * 2]

    def _windows_changed(self) -> None:
        tables, path = self.by_hand.tables, self.by_hand.tables.path(windows.NAME)
        handle = tables.open(windows.NAME)
        earlier = [version for version in TableLog(tables, windows.NAME).recent if version < handle.version()]
        ways = ("set back", "optimized", "deleted", "gone", "compacted")
        way = self.draw.choice(ways if earlier else ways[1:])
        self.told.append(f"[windows {way}]")
        if way == "set back":
            handle.restore(self.draw.choice(earlier[-4:]))
        elif way == "optimized":
            handle.optimize.compact()
        elif way == "deleted":
            handle.delete("total > 3")
        elif way == "gone":
            shutil.rmtree(path)
        else:
            compact(tables, windows.NAME)

    def _way_on(self, refused: Refused) -> Callable[[], None]:
        if Act.BUILD_WINDOWS in {way.act for way in refused.remedies}:
            self.told.append("(build windows)")
            return self._build_windows
        return super()._way_on(refused)

    def _build_windows(self) -> None:
        make_windows(self.by_hand.tables, self.by_hand.pipeline.key, WindowsTable(partition_by="day"))

    def _forget(self) -> None:
        super()._forget()
        tables = self.by_hand.tables
        for file in Path(tables.path(windows.NAME)).glob("*.parquet"):
            rows = tables.warehouse.read_files(
                tables.path(windows.NAME), [file.name], self.by_hand.rows("results").schema, ["user"]
            )
            assert FORGOTTEN not in rows["user"].to_pylist(), "a file has a key that was forgotten"

    def check(self) -> None:
        tables = self.by_hand.tables
        if not tables.warehouse.exists(tables.path(windows.NAME)):
            self._build_windows()
        recover(tables)
        check_windows(tables)
        super().check()


FURTHER: list[tuple[type[Walk], int, Iterable[int]]] = [
    (Walk, 24, range(SEED + 2, SEED + 32)),
    (CheckedWalk, 8, (107, 108)),  # They found a restore that a refusal named, after which a check always failed.
    (CheckedWalk, 20, range(SEED, SEED + 20)),
    (SetBackWalk, 8, (SEED,)),
    (SetBackWalk, 20, range(SEED + 1, SEED + 16)),
    (ChangedWalk, 8, (SEED, SEED + 1)),
    (ChangedWalk, 20, range(SEED + 2, SEED + 32)),
    (WindowsWalk, 10, (SEED, SEED + 1)),
    (WindowsWalk, 20, range(SEED + 2, SEED + 22)),
]
"""Walks of `make test-long`: the kind, the number of steps, and the seeds."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("walk", "steps", "seed"), [(walk, steps, seed) for walk, steps, seeds in FURTHER for seed in seeds]
)
def test_a_further_walk_does_too(tmp_path: Path, walk: type[Walk], steps: int, seed: int) -> None:
    walk(tmp_path / "walk", seed).run(steps=steps)
