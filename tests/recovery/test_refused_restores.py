"""Restores that would lose published rows, of damaged files or of abandoned lineages, are refused before anything is
committed.
"""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tests.recovery.hourly import NOW, back_to, hours, sessions
from tests.remedies import remedy_of
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots import commit as commit_step
from tidegate.pipelines.ledger.snapshots import publish as publish_step
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, snapshots_by_epoch
from tidegate.pipelines.ledger.snapshots.lineages import restorable
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.remedy import Act
from tidegate.pipelines.storage.warehouse import active_files

pytestmark = pytest.mark.recovery


def keep(by_hand: ByHand, snapshots: int) -> None:
    with Lease(by_hand.tables, "vacuum", lambda: NOW):
        vacuum(by_hand.tables, Retention(snapshots, timedelta(0)), NOW)


def rot(by_hand: ByHand, table: str, number: int = 0) -> str:
    """Damage an active file of a table, one with the oldest epochs, and return its name."""
    found = sorted(active_files(by_hand.tables.open(table)), key=lambda file: file["min.epoch"])[number]["path"]
    file = Path(by_hand.tables.path(table), found)
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)
    return str(found)


def test_a_damaged_file_of_which_nothing_stays_does_not_keep_anything_from_a_restore(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10, 11)
    rot(by_hand, "results", -1)
    back_to(by_hand, "2")
    hours(by_hand, 10, 11)
    assert sessions(by_hand) == [8, 9, 10]


def test_a_start_from_scratch_does_not_read_what_it_replaces(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10)
    compact(by_hand.tables, "results")
    rot(by_hand, "results")
    head = by_hand.head()
    planned = by_hand.planned([("ann", at("08:00"), 8), ("ann", at("09:00"), 9)], at("09:00"))
    anew = planned.plan.replacing(head)
    by_hand.committed(type(planned)(anew, planned.rows))
    recover(by_hand.tables)
    assert by_hand.rows("epochs")["epoch"].to_pylist() == [4]


@pytest.mark.first(1)
@pytest.mark.parametrize("table", ["results", "epochs"])
def test_a_file_that_can_not_be_rewritten_is_refused_before_anything_is_committed(by_hand: ByHand, table: str) -> None:
    hours(by_hand, 8, 9, 10, 11)
    compact(by_hand.tables, table)
    file = rot(by_hand, table)
    version = by_hand.head().version
    with pytest.raises(Refused, match=rf"nothing was committed: {file}") as refused:
        back_to(by_hand, "2")
    assert remedy_of(refused, Act.RESTART)
    assert by_hand.head().version == version
    hours(by_hand, 12)


def test_a_commit_before_the_look_at_what_it_rewrites_locks_the_pipeline(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: the state is committed first, and then every start meets the damaged file."""
    hours(by_hand, 8, 9, 10, 11)
    compact(by_hand.tables, "results")
    rot(by_hand, "results")
    monkeypatch.setattr(commit_step, "check_removable", lambda *ignored: None)
    for _ in range(2):
        with pytest.raises(Refused, match="can't be read"):
            back_to(by_hand, "2")
        with pytest.raises(Refused, match="can't be read"):
            recover(by_hand.tables)


def test_a_forgetting_that_can_not_look_into_a_file_erases_nothing(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10)
    rot(by_hand, "results")
    version = by_hand.head().version
    with pytest.raises(Refused, match="can't be read"):
        forget(by_hand.tables, by_hand.pipeline, [["ann"]], NOW)
    assert by_hand.head().version == version


@pytest.mark.long
def test_a_savepoint_of_an_abandoned_lineage_whose_results_are_no_longer_retained_is_refused(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10)
    create_savepoint(by_hand.tables, by_hand.head(), "before-release", NOW)
    back_to(by_hand, "1")
    hours(by_hand, 11)
    keep(by_hand, 1)
    version = by_hand.head().version
    with pytest.raises(Refused, match=r"abandoned at epoch 1, and the rows that its epoch 2 .*restart=True"):
        back_to(by_hand, "savepoint:before-release")
    assert by_hand.head().version == version


@pytest.mark.long
def test_every_listed_snapshot_says_if_it_can_be_restored(by_hand: ByHand) -> None:
    hours(by_hand, *range(8, 15))
    back_to(by_hand, "1")
    keep(by_hand, 3)
    whole = restorable(by_hand.tables, list_snapshots(by_hand.tables))
    assert whole == {8: True, 7: False, 6: False}
    for target in ("6", "7"):
        with pytest.raises(Refused, match="Compute everything again") as refused:
            back_to(by_hand, target)
        assert "restore sessions 1`" not in str(refused.value)


def test_a_refusal_names_a_snapshot_only_if_it_is_there(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    hours(by_hand, 8, 9, 10)
    create_savepoint(by_hand.tables, by_hand.head(), "third", NOW)
    back_to(by_hand, "1")
    hours(by_hand, 12)
    real = snapshots_by_epoch
    monkeypatch.setattr(
        "tidegate.pipelines.ledger.snapshots.lineages.snapshots_by_epoch",
        lambda tables: {epoch: entry for epoch, entry in real(tables).items() if epoch != 2},
    )
    with pytest.raises(Refused, match="Go back to epoch 1"):
        back_to(by_hand, "savepoint:third")


@pytest.mark.long
def test_a_savepoint_made_in_a_copy_of_the_warehouse_is_not_taken_for_one_of_this_line(
    by_hand: ByHand, tmp_path: Path
) -> None:
    hours(by_hand, 8, 9)
    shutil.copytree(by_hand.folder, tmp_path / "copy")
    copy = ByHand(tmp_path / "copy")
    hours(by_hand, 10, 11)
    for number in (20, 21):
        copy.epoch(("ann", at(f"{number:02d}:00"), number), watermark=at(f"{number:02d}:00"))
    create_savepoint(copy.tables, copy.head(), "theirs", NOW)
    path = "sessions/savepoints/theirs"
    shutil.copytree(copy.warehouse.path(path), by_hand.warehouse.path(path))
    with pytest.raises(Refused, match=r"abandoned at epoch 2.*restore sessions 2` loses nothing"):
        back_to(by_hand, "savepoint:theirs")
    back_to(by_hand, "2")
    hours(by_hand, 10)
    assert sessions(by_hand) == [8, 9]


def test_a_file_goes_unread_only_if_all_its_epochs_go() -> None:
    work = publish_step.Publish(remove_epochs=(3, 4, 6))
    spans = {(3, 4): True, (3, 3): True, (3, 5): False, (3, 6): False, (2, 3): False, (None, None): False}
    for (first, last), whole in spans.items():
        file = {"path": "a", "min.epoch": first, "max.epoch": last}
        assert publish_step._is_deleted_whole(file, work) is whole
