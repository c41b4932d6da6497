"""Snapshots thinned to one an hour: the log has gaps, and everything that can be done with a snapshot works.
Checkpoints contain nothing about removed files, however many epochs there were.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.lake import Clock, at
from tests.pipelines.by_hand import ByHand
from tidegate.expectations.commits import follow
from tidegate.pipelines.ask.contents import compare
from tidegate.pipelines.errors import LeaseHeld, Refused, UsageError
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots import retention
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, require_snapshot
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Clearing, Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, find_snapshot, read_savepoint
from tidegate.pipelines.ledger.tables.commits import Outrun
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PipelineTables
from tidegate.pipelines.ledger.tables.table_log import TableLog
from tidegate.pipelines.storage.warehouse import Warehouse, active_files, read_table
from tidegate.windowing.time import to_millis

NIGHT = datetime(2026, 3, 1, tzinfo=UTC)
AN_HOUR_EACH = Retention(2, timedelta(days=7))
"""The two newest, and one an hour for a week."""


def epochs(by_hand: ByHand, first: int, last: int, minutes: int = 20) -> None:
    """Run epochs of a stream, this many minutes apart; each has one row and fires the window of the one before."""
    for number in range(first, last + 1):
        start = at("00:00") + timedelta(hours=number)
        by_hand.epoch((f"user{number % 5}", start, number), watermark=start)
        by_hand.dated(NIGHT + timedelta(minutes=minutes * number))


def clean(by_hand: ByHand, kept: Retention = AN_HOUR_EACH, days: float = 1) -> Clearing:
    with Lease(by_hand.tables, "vacuum", Clock()):
        return vacuum(by_hand.tables, kept, to_millis(NIGHT + timedelta(days=days)))


def listed(by_hand: ByHand) -> list[int]:
    return [entry.epoch for entry in list_snapshots(by_hand.tables)]


@pytest.fixture(scope="module")
def thinned_once(tmp_path_factory: pytest.TempPathFactory) -> ByHand:
    by_hand = ByHand(tmp_path_factory.mktemp("thinned"))
    epochs(by_hand, 1, 12)
    clean(by_hand)
    return by_hand


@pytest.fixture
def thinned(thinned_once: ByHand, tmp_path: Path) -> ByHand:
    """Twelve epochs, of which those at 0:40, 1:40, 2:40 and 3:40 are retained, and the two newest at 3:40 and 4:00."""
    shutil.copytree(thinned_once.folder, tmp_path / "thinned")
    return replace(thinned_once, folder=tmp_path / "thinned")


def test_the_list_has_the_newest_and_one_an_hour_and_each_can_be_read(thinned: ByHand) -> None:
    assert listed(thinned) == [12, 11, 8, 5, 2]
    for entry in list_snapshots(thinned.tables):
        snapshot = require_snapshot(thinned.tables, entry.version)
        assert snapshot.manifest.epoch == entry.epoch
        assert len(read_table(thinned.warehouse, snapshot.handle)) == 2
    assert [entry.epoch for entry in list_snapshots(thinned.tables, newest=2)] == [12, 11]


def test_what_lies_between_them_is_gone(thinned: ByHand) -> None:
    with pytest.raises(UsageError, match=r"'7' is not a snapshot .*one of the epochs 2, 5, 8, 11, 12"):
        find_snapshot(thinned.tables, "7")
    kept = {
        file["path"]
        for entry in list_snapshots(thinned.tables)
        for file in active_files(require_snapshot(thinned.tables, entry.version).handle)
    }
    assert {path.name for path in Path(thinned.tables.path("state")).glob("*.parquet")} == kept


def test_an_old_one_is_restored_and_the_line_goes_on(thinned: ByHand) -> None:
    restore(thinned.tables, find_snapshot(thinned.tables, "5"), 0)
    assert sorted(thinned.rows("results")["total"].to_pylist()) == [1, 2, 3, 4]
    assert sorted(thinned.rows("epochs")["epoch"].to_pylist()) == [1, 2, 3, 4, 5, 13]
    start = at("00:00") + timedelta(hours=6)
    thinned.epoch(("user1", start, 60), watermark=start)
    assert sorted(thinned.rows("results")["total"].to_pylist()) == [1, 2, 3, 4, 5]


def test_an_old_one_is_compared_and_copied(thinned: ByHand) -> None:
    before, after = find_snapshot(thinned.tables, "2"), find_snapshot(thinned.tables, "latest")
    assert [row["acc_total"] for row in compare(thinned.warehouse, before, after).removed] == [2]
    create_savepoint(thinned.tables, before, "of-old", 0)
    clean(thinned, Retention(1, timedelta(0)))
    assert listed(thinned) == [12]
    assert read_savepoint(thinned.tables, "of-old").manifest.epoch == 2
    restore(thinned.tables, find_snapshot(thinned.tables, "savepoint:of-old"), 0)
    assert thinned.rows("results")["total"].to_pylist() == [1]


def test_they_go_when_they_are_too_old(thinned: ByHand) -> None:
    assert clean(thinned, days=7 + 2 / 24).snapshots == (5, 2)
    assert listed(thinned) == [12, 11, 8]


def test_delta_reads_the_table_as_ever(thinned: ByHand) -> None:
    path = thinned.tables.path("state")
    assert len(DeltaTable(path).to_pyarrow_dataset().to_table()) == 2
    Path(path, "_delta_log", "_last_checkpoint").unlink()
    assert len(DeltaTable(path).to_pyarrow_dataset().to_table()) == 2
    assert thinned.tables.open("state").transaction_version(thinned.tables.application) == 12


def test_vacuum_of_somebody_else_takes_nothing(thinned: ByHand) -> None:
    """No tombstone names these files any more, and none is as old as the property requires."""
    epochs(thinned, 13, 15)
    before = {table: sorted(Path(thinned.tables.path(table)).glob("*.parquet")) for table in ALL}
    for table in ALL:
        for full in (False, True):
            assert thinned.tables.open(table).vacuum(dry_run=False, full=full) == []
    assert {table: sorted(Path(thinned.tables.path(table)).glob("*.parquet")) for table in ALL} == before


def newest_checkpoint(by_hand: ByHand, table: str) -> Path:
    return max(Path(by_hand.tables.path(table), "_delta_log").glob("*.checkpoint.parquet"))


@pytest.mark.long
@pytest.mark.parametrize("epochs", [60, 120])
def test_checkpoints_hold_what_is_retained_and_not_what_there_was(by_hand: ByHand, epochs: int) -> None:
    rows = []
    for number in range(1, epochs + 1):
        start = at("00:00") + timedelta(hours=number)
        by_hand.epoch((f"user{number % 5}", start, number), watermark=start)
        if number % 20 == 0:
            clean(by_hand, Retention(2, timedelta(0)))
        if number >= 20:
            rows.append(pq.read_metadata(newest_checkpoint(by_hand, "state")).num_rows)
    assert max(rows) <= 3 * 20 + 10, "tombstones of the epochs since the newest cleanup, and what there is"
    assert max(rows[-epochs // 3 :]) <= max(rows[: epochs // 2])
    log = Path(by_hand.tables.path("state"), "_delta_log")
    assert len(list(log.glob("*.checkpoint.parquet"))) <= 4


def test_a_checkpoint_of_ours_has_no_tombstones_and_is_noted_with_its_size(thinned: ByHand) -> None:
    for table in ALL:
        file = newest_checkpoint(thinned, table)
        rows = pq.read_table(file)
        assert pc.struct_field(rows["remove"].combine_chunks(), "path").null_count == len(rows)
        noted = json.loads((file.parent / "_last_checkpoint").read_text())
        assert noted["version"] == int(file.name[:20])
        assert (noted["size"], noted["sizeInBytes"]) == (len(rows), file.stat().st_size)


def test_a_clean_up_that_hangs_before_its_fence_over_a_restore_is_refused(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host slept for longer than its lease, and meanwhile another host restored a snapshot that it was about to
    remove.
    """
    epochs(by_hand, 1, 6)
    kept, given_up = Retention(2, timedelta(0)), find_snapshot(by_hand.tables, "3")
    with monkeypatch.context() as planted:
        _once(planted, "before the fence", lambda: restore(by_hand.tables, given_up, 0) and None)
        with pytest.raises(Outrun, match=r"another process committed to .*/state after version"):
            clean(by_hand, kept)
    assert by_hand.head().manifest.kind == "restore"
    assert sorted(by_hand.rows("results")["total"].to_pylist()) == [1, 2]
    assert len(by_hand.rows("state")) == 2
    clean(by_hand, kept)
    assert sorted(by_hand.rows("results")["total"].to_pylist()) == [1, 2]


@pytest.mark.first(1)
@pytest.mark.parametrize("where", ["in the log", "before the files"])
def test_nobody_goes_back_to_what_a_clean_up_that_hangs_gave_up(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    epochs(by_hand, 1, 6)
    kept, given_up = Retention(2, timedelta(0)), find_snapshot(by_hand.tables, "3")

    def restored() -> None:
        assert listed(by_hand) == [6, 5]
        with pytest.raises(Refused, match="epoch 3 of sessions can't be restored: a cleanup is removing its snapshot"):
            restore(by_hand.tables, given_up, 0)

    with monkeypatch.context() as planted:
        _once(planted, where, restored)
        clean(by_hand, kept)
    assert by_hand.head().manifest.epoch == 6
    assert sorted(by_hand.rows("results")["total"].to_pylist()) == [1, 2, 3, 4, 5]


def test_a_checkpoint_that_a_later_clean_up_needs_outlives_one_that_hung(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that hung had listed an unneeded checkpoint, of a version that is kept."""
    epochs(by_hand, 1, 12)

    def later() -> None:
        epochs(by_hand, 13, 13)
        vacuum(by_hand.tables, Retention(4, timedelta(0)), to_millis(NIGHT + timedelta(days=1)))

    with monkeypatch.context() as planted:
        _once(planted, "at a deletion", later)
        with pytest.raises(Refused, match="can't be opened"):
            clean(by_hand, Retention(6, timedelta(0)))
    assert listed(by_hand) == [13, 12, 11, 10]
    for entry in list_snapshots(by_hand.tables):
        snapshot = require_snapshot(by_hand.tables, entry.version)
        assert len(read_table(by_hand.warehouse, snapshot.handle)) == 2


def _once(planted: pytest.MonkeyPatch, where: str, act: Callable[[], None]) -> None:
    acts = [act]

    def hang(name: str, owner: type | object, before: bool) -> None:
        known = getattr(owner, name)

        def hung(*arguments: object, **named: object) -> object:
            if before and acts:
                acts.pop()()
            answer = known(*arguments, **named)
            if not before and acts:
                acts.pop()()
            return answer

        planted.setattr(owner, name, hung)

    if where == "before the fence":
        hang("_decide", retention, before=False)
    elif where == "at a deletion":
        hang("delete_file", Warehouse, before=True)
    else:
        hang("keep", TableLog, before=where == "in the log")


def test_a_clean_up_whose_lease_went_away_ends_before_it_removes_anything(by_hand: ByHand) -> None:
    epochs(by_hand, 1, 6)

    def lost() -> None:
        raise LeaseHeld("the lease went to another")

    with Lease(by_hand.tables, "vacuum", Clock()), pytest.raises(LeaseHeld):
        vacuum(by_hand.tables, Retention(1, timedelta(0)), to_millis(NIGHT + timedelta(days=1)), check_lease=lost)
    assert listed(by_hand) == [6, 5, 4, 3, 2, 1]


def test_readers_of_the_results_have_as_long_as_they_are_given(by_hand: ByHand) -> None:
    epochs(by_hand, 1, 12)
    opened = by_hand.tables.open("results", version=6)
    rows = read_table(by_hand.warehouse, opened)
    by_hand.tables.open("results").optimize.compact()
    by_hand.dated(NIGHT + timedelta(hours=4, minutes=10))
    clean(by_hand, Retention(1, timedelta(days=7), readers=timedelta(hours=22, minutes=30)))
    assert read_table(by_hand.warehouse, opened) == rows
    clean(by_hand, Retention(1, timedelta(days=7), readers=timedelta(hours=19)))
    with pytest.raises(Refused, match="can't be read"):
        read_table(by_hand.warehouse, opened)
    assert sorted(by_hand.rows("results")["total"].to_pylist()) == list(range(1, 12))


def test_a_damaged_entry_of_the_log_is_named(thinned: ByHand) -> None:
    (entry, *_) = (one for one in list_snapshots(thinned.tables) if one.epoch == 5)
    Path(thinned.tables.path("state"), "_delta_log", f"{entry.version:020d}.json").write_text("{")
    with pytest.raises(Refused, match=rf"entry {entry.version:020d}\.json in the log of table .*state is damaged"):
        list_snapshots(PipelineTables(thinned.warehouse, thinned.pipeline.name))


def test_checks_follow_the_files_from_where_the_log_is_whole(thinned: ByHand) -> None:
    oldest = list_snapshots(thinned.tables)[-1].version
    for since in (None, oldest):
        followed = follow(thinned.tables, "state", thinned.tables.open("state"), since)
        assert followed.since is None
        assert [file.fault for file in followed.files] == [""] * 2
