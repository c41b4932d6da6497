"""An epoch costs as much as is retained: after 300 epochs it costs no more than after 200."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.recovery.growth import Cost, growth, run_epochs
from tidegate.pipelines.ledger.snapshots.retention import Retention
from tidegate.pipelines.ledger.tables.table_log import TableLog
from tidegate.pipelines.run.stream import Maintenance

pytestmark = pytest.mark.long

BOUND = 1.1


def kept_up() -> Maintenance:
    return Maintenance(Retention(10, timedelta(0)), epochs=20)


def grown(costs: list[Cost]) -> dict[str, float]:
    """Return the costs that grew by more than the bound, without seconds, which depend on the load of the machine."""
    return {name: by for name, by in growth(costs).items() if by > BOUND and name != "seconds"}


def test_the_last_third_of_many_epochs_costs_what_the_third_before_it_did(tmp_path: Path) -> None:
    assert grown(run_epochs(tmp_path, 300, kept_up())) == {}


def with_tombstones(self: TableLog, version: int) -> None:
    self.tables.open(self.table, version).create_checkpoint()


def test_it_shows_where_checkpoints_keep_their_tombstones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableLog, "write_checkpoint", with_tombstones)
    assert "checkpoints" in grown(run_epochs(tmp_path, 150, kept_up()))


def test_it_shows_where_no_snapshot_ever_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.pipelines.run.stream.is_worthwhile", lambda *arguments: False)
    assert "files" in grown(run_epochs(tmp_path, 45, kept_up()))
