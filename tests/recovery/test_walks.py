"""Whatever is done to a pipeline, its tables hold what comes out from scratch, or a refusal names a way on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.expectations.broken import broken_by_rules
from tests.recovery.walks import Walk
from tidegate.expectations.pinned import pin
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.snapshots import line, recovery
from tidegate.pipelines.snapshots.losses import Losses

pytestmark = pytest.mark.recovery

SEED = int(os.environ.get("TIDEGATE_TEST_SEED", "1"))


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
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


@pytest.mark.parametrize("seed", [107, 108])
def test_after_each_step_of_a_walk_the_rules_of_quality_hold(tmp_path: Path, seed: int) -> None:
    """Such draws found a restore that a refusal named, after which a check failed for ever."""
    CheckedWalk(tmp_path / "walk", seed).run(steps=8)


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
