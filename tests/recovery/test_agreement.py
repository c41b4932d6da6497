"""State behind what is published, missing tables, logs that lost their end: refused with a remedy, which works. Each
fault is made by hand between two epochs; the same epochs without it give the expected outcome.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.recovery.hourly import NOW, back_to, contents, hours, sessions
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots import recovery
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, prune, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, find_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED
from tidegate.pipelines.storage.warehouse import Warehouse

pytestmark = pytest.mark.recovery


def numbers(by_hand: ByHand) -> list[int]:
    return sorted(by_hand.rows("epochs")["epoch"].to_pylist())


def entries(by_hand: ByHand, table: str) -> list[Path]:
    """Return the entries of a table's log, in order."""
    return sorted(Path(by_hand.tables.path(table), "_delta_log").glob("*.json"))


def emptied(by_hand: ByHand, table: str, number: int = -1) -> None:
    entries(by_hand, table)[number].write_bytes(b"")


def set_back(by_hand: ByHand, table: str) -> None:
    handle = by_hand.tables.open(table)
    handle.restore(handle.version() - 2)


def gone(by_hand: ByHand, table: str) -> None:
    shutil.rmtree(by_hand.tables.path(table))


@pytest.mark.first(1)
@pytest.mark.parametrize(("fault", "back", "lost"), [(emptied, "3", 11), (set_back, "4", None)])
def test_state_that_is_behind_what_is_published_is_refused_and_a_restore_goes_on(
    by_hand: ByHand, fault: Callable[[ByHand, str], None], back: str, lost: int | None
) -> None:
    hours(by_hand, 8, 9, 10, 11)
    fault(by_hand, "state")
    told = f"ends at epoch.*Go back to epoch {back}"
    for goes_on in (
        lambda: recover(by_hand.tables),
        lambda: prune(by_hand.tables, NOW, NOW),
        lambda: vacuum(by_hand.tables, Retention(1, 0), NOW),
        lambda: vacuum(by_hand.tables, Retention(1, 0), NOW, dry_run=True),
        lambda: forget(by_hand.tables, by_hand.pipeline, [["ann"]], NOW),
    ):
        with pytest.raises(Refused, match=told):
            goes_on()
    back_to(by_hand, back)
    # The rows of the lost epoch are read again, because the position went back with the state.
    hours(by_hand, *([] if lost is None else [lost]), 12, 13)
    assert sessions(by_hand) == [8, 9, 10, 11, 12]
    assert len(set(numbers(by_hand))) == len(numbers(by_hand))


@pytest.mark.first(1)
@pytest.mark.parametrize("table", ["results", "late", "epochs"])
def test_a_published_table_whose_log_lost_epochs_gets_them_again(by_hand: ByHand, table: str) -> None:
    hours(by_hand, 8, 9, 10, 11)
    before = contents(by_hand, without=("stale",))
    # Two epochs; no manifest at the head lists the older one any more.
    emptied(by_hand, table, -2)
    emptied(by_hand, table)
    recover(by_hand.tables)
    assert contents(by_hand, without=("stale",)) == before
    hours(by_hand, 12)
    assert sessions(by_hand) == [8, 9, 10, 11]


def test_table_state_that_is_gone_is_refused_and_a_savepoint_brings_it_back_with_its_results(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10)
    create_savepoint(by_hand.tables, by_hand.head(), "good", NOW)
    hours(by_hand, 11)
    gone(by_hand, "state")
    with pytest.raises(Refused, match=r"state is gone.*up to epoch 4.*Go back to savepoint good"):
        recover(by_hand.tables)
    assert not Path(by_hand.tables.path("state")).exists()
    back_to(by_hand, "savepoint:good")
    assert by_hand.head().manifest.epoch == 5
    hours(by_hand, 11, 12)
    assert sessions(by_hand) == [8, 9, 10, 11]
    assert numbers(by_hand) == [1, 2, 3, 5, 6, 7]


def test_a_crash_while_the_tables_are_made_is_no_loss(by_hand: ByHand) -> None:
    planned = by_hand.planned([("ann", at("08:00"), 8)], at("08:00"))
    by_hand.tables.create({"state": planned.plan.bound.table_schemas["state"]})
    assert recover(by_hand.tables) is None
    hours(by_hand, 8, 9)
    assert sessions(by_hand) == [8]


def test_a_folder_that_was_renamed_is_refused_with_both_names(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9)
    Path(by_hand.tables.path("state")).parent.rename(by_hand.folder / "warehouse" / "others")
    renamed = ByHand(by_hand.folder, session_pipeline(name="others"))
    with pytest.raises(Refused, match=r"pipeline 'sessions', not to 'others'.*renamed"):
        recover(renamed.tables)
    with pytest.raises(Refused, match="not to 'others'"):
        restore(renamed.tables, find_snapshot(renamed.tables, "1"), NOW)


def test_a_state_commit_says_what_each_table_holds_then(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9)
    by_hand.tables.open("state").alter.set_table_description("somebody was here")
    told = recovery.published_by(by_hand.warehouse, by_hand.head().handle)
    assert told is not None
    assert told.before == {"results": 1, "late": 0, "rejects": 0, "epochs": 1}
    assert told.after == {"results": 2, "late": 2, "rejects": 0, "epochs": 2}
    assert {
        table: by_hand.tables.open(table).transaction_version("tidegate/sessions") or 0 for table in PUBLISHED
    } == told.after


def cleaned(by_hand: ByHand) -> None:
    with Lease(by_hand.tables, "vacuum", lambda: NOW):
        vacuum(by_hand.tables, Retention(9, timedelta(9)), NOW)


@pytest.mark.long
def test_no_number_of_clean_ups_hides_what_each_table_holds(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9)
    log = Path(by_hand.tables.path("results"), "_delta_log")
    shutil.copytree(log, by_hand.folder / "before")
    hours(by_hand, 10)
    for _ in range(7):
        cleaned(by_hand)
    told = recovery.published_by(by_hand.warehouse, by_hand.head().handle)
    assert told is not None
    assert told.after["results"] == 3
    shutil.rmtree(log)
    shutil.copytree(by_hand.folder / "before", log)
    hours(by_hand, 11)
    assert sessions(by_hand) == [8, 9, 10]


def test_an_idle_table_gets_no_commit_from_clean_ups(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9)
    before = {table: by_hand.tables.open(table).version() for table in PUBLISHED}
    cleaned(by_hand)
    assert {table: by_hand.tables.open(table).version() for table in PUBLISHED} == before


def test_what_readers_see_was_made_to_last_before(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order on disk: the files of every table, the entry of state, and then those of the published tables."""
    hours(by_hand, 8)
    synced: list[str] = []
    real = Warehouse.make_durable

    def make_durable(self: Warehouse, path: str, names: Sequence[str] = (), folder: bool = True) -> None:
        real(self, path, names, folder)
        synced.extend([f"{Path(path).parent.name} log"] if path.endswith("_delta_log") else [])
        synced.extend([f"{Path(path).name} file" for _ in names])

    monkeypatch.setattr(Warehouse, "make_durable", make_durable)
    hours(by_hand, 9)
    assert [name for name in synced if name.endswith("log")] == ["state log", "results log", "late log", "epochs log"]
    at_commit = synced.index("state log")
    assert {"state file", "results file", "late file"} <= set(synced[:at_commit])
    assert "results file" not in synced[at_commit:]


def cut_after(by_hand: ByHand, table: str, kept: int) -> None:
    """Truncate the newest entry of a log at the end of a line, so that the remainder can still be read."""
    entry = entries(by_hand, table)[-1]
    lines = entry.read_text().splitlines(keepends=True)
    assert '"txn"' in lines[-1]
    entry.write_text("".join(lines[:kept]))


CUTS = {"nothing added": 1, "a part": 2, "all but the transaction": -1}


@pytest.mark.parametrize(
    ("table", "kept"),
    [
        # Every run truncates one entry in table state, and one in a published table.
        pytest.param(
            table,
            kept,
            id=f"{table}-{cut}",
            marks=() if kept == 2 and table in ("state", "results") else pytest.mark.long,
        )
        for table in ("state", "results", "late", "epochs")
        for cut, kept in CUTS.items()
    ],
)
def test_an_entry_that_is_cut_between_two_actions_is_not_taken_for_a_commit(
    by_hand: ByHand, table: str, kept: int
) -> None:
    hours(by_hand, 8, 9, 10, 11)
    cut_after(by_hand, table, kept)
    with pytest.raises(Refused, match=r"is truncated: it lacks the end of its commit. .*restart=True"):
        recover(by_hand.tables)
    with pytest.raises(Refused, match="restart=True"):
        back_to(by_hand, "2")
