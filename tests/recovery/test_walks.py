"""Whatever is done to a pipeline, its tables hold what comes out from scratch, or a refusal names a way on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.expectations.broken import broken_by_rules
from tests.pipelines.by_hand import START_OF_DRIVER
from tests.recovery.walks import NOW, Walk
from tidegate.expectations.pinned import pin
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots import line, recovery
from tidegate.pipelines.ledger.snapshots.head import list_snapshots
from tidegate.pipelines.ledger.snapshots.losses import Losses
from tidegate.pipelines.ledger.snapshots.prune import prune

pytestmark = pytest.mark.recovery

SEED = int(os.environ.get("TIDEGATE_TEST_SEED", "1"))


@pytest.mark.parametrize("seed", [SEED, pytest.param(SEED + 1, marks=pytest.mark.long)])
def test_a_walk_ends_as_a_computation_from_scratch_does(tmp_path: Path, seed: int) -> None:
    Walk(tmp_path / "walk", seed).run(steps=10)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED + 2, SEED + 32))
def test_a_longer_walk_does_too(tmp_path: Path, seed: int) -> None:
    Walk(tmp_path / "walk", seed).run(steps=24)


class CheckedWalk(Walk):
    """A walk whose tables are held against the rules of `tidegate quality` after each step, until rows are lost."""

    def check(self) -> None:
        super().check()
        if not self.lossy:
            broken = broken_by_rules(pin(self.by_hand.tables, self.by_hand.pipeline))
            assert not broken, f"rules that don't hold: {broken}"


@pytest.mark.parametrize("seed", [107, pytest.param(108, marks=pytest.mark.long)])
def test_after_each_step_of_a_walk_the_rules_of_quality_hold(tmp_path: Path, seed: int) -> None:
    """Such draws found a restore that a refusal named, after which a check failed for ever."""
    CheckedWalk(tmp_path / "walk", seed).run(steps=8)


def test_a_prune_is_known_after_a_start_from_scratch_was_left_again(tmp_path: Path) -> None:
    """A longer walk found it: the start from scratch took the prune's row out of table epochs."""
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


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
def test_after_each_step_of_a_longer_walk_too(tmp_path: Path, seed: int) -> None:
    CheckedWalk(tmp_path / "walk", seed).run(steps=20)


class SetBackWalk(CheckedWalk):
    """A walk on which published tables are set back, and compacted more often than elsewhere."""

    def _steps(self) -> list[Callable[[], None]]:
        return [*super()._steps(), *[self._published_set_back] * 6, *[self._compact] * 2]


def test_a_walk_goes_on_after_published_tables_were_set_back(tmp_path: Path) -> None:
    SetBackWalk(tmp_path / "walk", SEED).run(steps=8)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED + 1, SEED + 16))
def test_a_longer_walk_goes_on_after_that_too(tmp_path: Path, seed: int) -> None:
    SetBackWalk(tmp_path / "walk", seed).run(steps=20)


class ChangedWalk(CheckedWalk):
    """A walk on which others change rows of published tables, and what the refusals say is done."""

    def _steps(self) -> list[Callable[[], None]]:
        return [*super()._steps(), *[self._changed_by_others] * 12]


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_a_walk_loses_nothing_where_others_changed_rows_and_the_refusals_are_heeded(tmp_path: Path, seed: int) -> None:
    ChangedWalk(tmp_path / "walk", seed).run(steps=8)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED + 2, SEED + 32))
def test_a_longer_walk_loses_nothing_there_either(tmp_path: Path, seed: int) -> None:
    ChangedWalk(tmp_path / "walk", seed).run(steps=20)


def test_a_walk_finds_state_that_goes_on_behind_what_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: nothing looks at what the published tables know."""
    monkeypatch.setattr(recovery, "check_agreement", lambda *ignored: None)
    with pytest.raises(AssertionError, match=r"seed 2, after .*: (windows|late rows|epochs) "):
        Walk(tmp_path / "walk", 2).run(steps=12)


def test_a_walk_finds_advice_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: a line that was left is refused, with epoch 0 to go back to, and listed all the same."""

    def settle(self: Losses) -> None:
        if self.texts and not self.accepted:
            raise Refused(f"{self.texts[0]}. Restore epoch 0 or one before it, `tidegate restore sessions 0`")

    monkeypatch.setattr(Losses, "settle", settle)
    monkeypatch.setattr(
        line, "come_back_whole", lambda tables, entries: {entry.manifest["epoch"]: True for entry in entries}
    )
    with pytest.raises(AssertionError, match=r"seed 7, after .*: (epoch \d+ is listed|'0' is no snapshot)"):
        Walk(tmp_path / "walk", 7).run(steps=12)
