"""State behind what is published, missing tables, logs that lost their end: refused with a remedy, which works. Each
fault is made by hand between two epochs; the same epochs without it give the expected outcome.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import at, session_pipeline
from tests.pipelines.by_hand import ByHand, shorten_log
from tests.recovery.hourly import NOW, back_to, contents, hours, sessions
from tidegate.expectations.commits import follow
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots import commit as commit_step
from tidegate.pipelines.ledger.snapshots import recovery
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, require_snapshot
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, prune, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, find_snapshot
from tidegate.pipelines.ledger.tables.damaged_log import set_aside_damaged
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PUBLISHED
from tidegate.pipelines.storage.delta_log import LAST_CHECKPOINT, checkpoint_name
from tidegate.pipelines.storage.warehouse import Warehouse

pytestmark = pytest.mark.recovery


def numbers(by_hand: ByHand) -> list[int]:
    return sorted(by_hand.rows("epochs")["epoch"].to_pylist())


def entries(by_hand: ByHand, table: str) -> list[Path]:
    """Return the entries of a table's log, in order."""
    return sorted(Path(by_hand.tables.path(table), "_delta_log").glob("*.json"))


def emptied(by_hand: ByHand, table: str, number: int = -1) -> None:
    entries(by_hand, table)[number].write_bytes(b"")


def cut(by_hand: ByHand, table: str, number: int = -1) -> None:
    entry = entries(by_hand, table)[number]
    entry.write_bytes(entry.read_bytes()[:-200])


def set_back(by_hand: ByHand, table: str) -> None:
    handle = by_hand.tables.open(table)
    handle.restore(handle.version() - 2)


def gone(by_hand: ByHand, table: str) -> None:
    shutil.rmtree(by_hand.tables.path(table))


@pytest.mark.first(1)
@pytest.mark.parametrize(("fault", "back", "lost"), [(emptied, "3", 11), (set_back, "4", None), (cut, "latest", 11)])
def test_state_that_is_behind_what_is_published_is_refused_and_a_restore_goes_on(
    by_hand: ByHand, fault: Callable[[ByHand, str], None], back: str, lost: int | None
) -> None:
    hours(by_hand, 8, 9, 10, 11)
    fault(by_hand, "state")
    told = "can't be opened.*restore sessions latest" if fault is cut else f"ends at epoch.*restore sessions {back}`"
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


@pytest.mark.parametrize("table", ["results", "state"])
def test_statistics_in_which_a_bit_flipped_are_a_damaged_entry(by_hand: ByHand, table: str) -> None:
    hours(by_hand, 8, 9, 10, 11)
    entry = entries(by_hand, table)[-1]
    entry.write_bytes(entry.read_bytes().replace(rb"\"numRecords\":", rb"\"numRecords\"o"))
    with pytest.raises(Refused, match=r"can't be opened.*tidegate restore sessions latest"):
        recover(by_hand.tables)
    back_to(by_hand, "latest")
    hours(by_hand, *([11] if table == "state" else []), 12)
    assert sessions(by_hand) == [8, 9, 10, 11]


@pytest.mark.first(1)
@pytest.mark.parametrize("fault", [emptied, cut])
@pytest.mark.parametrize("table", ["results", "late", "epochs"])
def test_a_published_table_whose_log_lost_epochs_gets_them_again(
    by_hand: ByHand, fault: Callable[[ByHand, str, int], None], table: str
) -> None:
    hours(by_hand, 8, 9, 10, 11)
    before = contents(by_hand, without=("stale",))
    # Two epochs; no manifest at the head lists the older one any more.
    fault(by_hand, table, -2)
    if fault is emptied:
        emptied(by_hand, table)
    else:
        with pytest.raises(Refused, match="tidegate restore sessions latest"):
            recover(by_hand.tables)
        back_to(by_hand, "latest")
    recover(by_hand.tables)
    assert contents(by_hand, without=("stale",)) == before
    hours(by_hand, 12)
    assert sessions(by_hand) == [8, 9, 10, 11]


@pytest.mark.long
def test_epochs_that_a_log_lost_and_nothing_retains_are_told_and_given_up_on_request(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10, 11)
    shorten_log(by_hand.tables, "state", by_hand.head().version)
    for entry in entries(by_hand, "results")[-2:]:
        entry.write_bytes(b"")
    with pytest.raises(Refused, match=r"results ends at epoch.*no longer retained.*latest --give-up-results"):
        recover(by_hand.tables)
    lost: list[str] = []
    back_to(by_hand, "latest", lost)
    assert len(lost) == 1
    hours(by_hand, 12)
    assert set(sessions(by_hand)) < {8, 9, 10, 11}
    assert 11 in sessions(by_hand)


def test_a_table_that_never_held_a_row_is_made_anew_where_its_log_is_lost(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9)
    emptied(by_hand, "rejects")
    with pytest.raises(Refused, match=r"rejects can't be opened.*tidegate restore sessions latest"):
        recover(by_hand.tables)
    back_to(by_hand, "latest")
    hours(by_hand, 10)
    assert sessions(by_hand) == [8, 9]


@pytest.mark.first(1)
@pytest.mark.parametrize("table", ["results", "late", "epochs"])
def test_a_published_table_that_is_gone_is_refused_until_it_is_put_back_or_given_up(
    by_hand: ByHand, table: str
) -> None:
    hours(by_hand, 8, 9, 10)
    away = Path(by_hand.tables.path(table)).rename(by_hand.folder / "away")
    for _ in range(2):
        with pytest.raises(Refused, match=f"{table} is gone. Put its folder back.*latest --give-up-results"):
            hours(by_hand, 11)
    with pytest.raises(Refused, match=f"{table} is gone, with all its rows.*restore sessions 2 --give-up-results"):
        back_to(by_hand, "2")
    assert not Path(by_hand.tables.path(table)).exists()
    away.rename(by_hand.tables.path(table))
    hours(by_hand, 11)
    assert sessions(by_hand) == [8, 9, 10]
    gone(by_hand, table)
    lost: list[str] = []
    back_to(by_hand, "latest", lost)
    assert f"{table} is gone" in lost[0]
    hours(by_hand, 12)
    assert sessions(by_hand) == ([11] if table == "results" else [8, 9, 10, 11])


def test_table_state_that_is_gone_is_refused_and_a_savepoint_brings_it_back_with_its_results(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10)
    create_savepoint(by_hand.tables, by_hand.head(), "good", NOW)
    hours(by_hand, 11)
    gone(by_hand, "state")
    with pytest.raises(Refused, match=r"state is gone.*up to epoch 4.*restore a savepoint"):
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


def test_only_logs_that_can_not_be_read_are_touched(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9)
    assert set_aside_damaged(by_hand.tables) == []
    cut(by_hand, "epochs")
    (told,) = set_aside_damaged(by_hand.tables)
    assert "epochs/_delta_log/damaged: 00000000000000000002.json" in told


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


@pytest.mark.first(2)
@pytest.mark.parametrize("table", ["results", "state", "late", "epochs"])
def test_an_entry_that_was_emptied_below_others_is_set_aside_by_a_restore(by_hand: ByHand, table: str) -> None:
    """Delta treats it as a commit without actions, so the table still opens, but lacks an epoch."""
    hours(by_hand, 8, 9, 10, 11)
    emptied(by_hand, table, -2)
    back_to(by_hand, "latest")
    # The rows of the epochs that table state lost are read again.
    hours(by_hand, *([10, 11] if table == "state" else []), 12)
    assert sessions(by_hand) == [8, 9, 10, 11]
    assert len(set(numbers(by_hand))) == len(numbers(by_hand)) >= 5


def garbled(entry: Path) -> None:
    entry.write_bytes(b"\xff" * len(entry.read_bytes()))


@pytest.mark.first(2)
@pytest.mark.parametrize("table", ["results", "state", "epochs", "late"])
@pytest.mark.parametrize("fault", [garbled, Path.unlink])
def test_the_entry_of_the_newest_checkpoint_is_not_needed(
    by_hand: ByHand, table: str, fault: Callable[[Path], None]
) -> None:
    """Delta reads the checkpoint instead of the entry, but commits only after one."""
    hours(by_hand, 8, 9, 10)
    shorten_log(by_hand.tables, table, by_hand.tables.open(table).version())
    fault(entries(by_hand, table)[-1])
    back_to(by_hand, "latest")
    hours(by_hand, 11, 12)
    assert sessions(by_hand) == [8, 9, 10, 11]
    cleaned(by_hand)
    hours(by_hand, 13)
    assert sessions(by_hand) == [8, 9, 10, 11, 12]


@pytest.mark.first(1)
@pytest.mark.parametrize("table", ["state", "epochs"])
def test_a_damaged_checkpoint_is_set_aside_for_the_entries_that_it_sums_up(by_hand: ByHand, table: str) -> None:
    hours(by_hand, *range(8, 19))
    (checkpoint,) = Path(by_hand.tables.path(table), "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    with pytest.raises(Refused, match=r"can't be opened.*tidegate restore sessions latest"):
        recover(by_hand.tables)
    back_to(by_hand, "latest")
    hours(by_hand, 19)
    assert sessions(by_hand) == [*range(8, 19)]


@pytest.mark.first(2)
@pytest.mark.parametrize("table", ["state", "results", "epochs"])
@pytest.mark.parametrize("damage", [b"", b'{"add":'])
def test_what_can_not_be_opened_without_an_entry_below_a_checkpoint_is_set_aside_with_it(
    by_hand: ByHand, table: str, damage: bytes
) -> None:
    hours(by_hand, *range(8, 19))
    entries(by_hand, table)[5].write_bytes(damage)
    back_to(by_hand, "latest")
    listed = [
        require_snapshot(by_hand.tables, entry.version).manifest.epoch for entry in list_snapshots(by_hand.tables)
    ]
    assert listed == ([11, 10, 9, 4, 3, 2, 1] if table == "state" else [*range(11, 0, -1)])
    files = follow(by_hand.tables, table, by_hand.tables.open(table), 5).files
    assert {file.fault for file in files} == {""}
    hours(by_hand, 19)
    assert sessions(by_hand) == [*range(8, 19)]


@pytest.mark.first(1)
@pytest.mark.parametrize("table", ["state", "epochs"])
@pytest.mark.parametrize("is_needed", [False, True], ids=["the only one", "an older one is needed"])
def test_a_note_of_a_checkpoint_that_is_gone_is_set_aside(by_hand: ByHand, table: str, is_needed: bool) -> None:
    log = Path(by_hand.tables.path(table), "_delta_log")
    if is_needed:
        hours(by_hand, *range(8, 15))
        shorten_log(by_hand.tables, table, by_hand.tables.open(table).version())
        hours(by_hand, *range(15, 19))
    else:
        hours(by_hand, *range(8, 19))
    assert json.loads((log / LAST_CHECKPOINT).read_text())["version"] == 9
    (log / checkpoint_name(9)).unlink()
    with pytest.raises(Refused, match=r"can't be opened.*tidegate restore sessions latest"):
        recover(by_hand.tables)
    (told,) = set_aside_damaged(by_hand.tables)
    assert told.endswith(f"damaged: {LAST_CHECKPOINT}")
    hours(by_hand, 19)
    assert sessions(by_hand) == [*range(8, 19)]


@pytest.mark.first(4)
@pytest.mark.parametrize("table", ALL)
@pytest.mark.parametrize("kept", [1, 2])
def test_a_table_whose_first_entry_is_cut_is_made_anew(by_hand: ByHand, table: str, kept: int) -> None:
    planned = by_hand.planned([("ann", at("08:00"), 8)], at("08:00"))
    by_hand.tables.create(planned.plan.bound.table_schemas)
    entry = entries(by_hand, table)[0]
    entry.write_bytes(b"".join(entry.read_bytes().splitlines(keepends=True)[:kept]))
    with pytest.raises(Refused, match=r"is truncated.*`tidegate restore sessions latest` sets it aside"):
        recover(by_hand.tables)
    assert len(set_aside_damaged(by_hand.tables)) == 1
    hours(by_hand, 8, 9)
    assert sessions(by_hand) == [8]


def test_who_hangs_while_it_sets_entries_aside_takes_none_that_another_command_wrote_since(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours(by_hand, 8, 9, 10)
    cut(by_hand, "results")
    known, hung = Warehouse.move_file, list[bool]()

    def move_file(self: Warehouse, *names: str) -> bool:
        if not hung:
            hung.append(True)
            back_to(by_hand, "latest")
            hours(by_hand, 11)
        return known(self, *names)

    monkeypatch.setattr(Warehouse, "move_file", move_file)
    with pytest.raises(Refused, match=r"another command wrote entry 0+3\.json .* run it again"):
        set_aside_damaged(by_hand.tables)
    assert set_aside_damaged(by_hand.tables) == []
    hours(by_hand, 12)
    assert sessions(by_hand) == [8, 9, 10, 11]


@pytest.mark.long
def test_a_log_that_nothing_can_mend_counts_as_gone_once_it_is_moved_away(by_hand: ByHand) -> None:
    hours(by_hand, *range(8, 19))
    shorten_log(by_hand.tables, "results", by_hand.tables.open("results").version())
    (checkpoint,) = Path(by_hand.tables.path("results"), "_delta_log").glob(f"{11:020d}.checkpoint.parquet")
    checkpoint.write_bytes(b"")
    with pytest.raises(Refused, match="move the folder away: then the table counts as missing"):
        set_aside_damaged(by_hand.tables)
    gone(by_hand, "results")
    back_to(by_hand, "latest", [])
    hours(by_hand, 19)
    assert sessions(by_hand)[-1] == 18


def test_tables_of_a_tidegate_that_did_not_say_what_they_hold_are_gone_on_from(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand.templates = None
    with monkeypatch.context() as older:
        older.setattr(commit_step, "PUBLISHED_BY", "what_nobody_reads")
        hours(by_hand, 8, 9)
    assert recovery.published_by(by_hand.warehouse, by_hand.head().handle) is None
    hours(by_hand, 10)
    told = recovery.published_by(by_hand.warehouse, by_hand.head().handle)
    assert told is not None
    assert told.before == {"results": 2, "late": 2, "rejects": 0, "epochs": 2}
    assert sessions(by_hand) == [8, 9]


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
    before = contents(by_hand, without=("stale",))
    cut_after(by_hand, table, kept)
    with pytest.raises(Refused, match=r"is truncated: it lacks the end of its commit. `tidegate restore"):
        recover(by_hand.tables)
    back_to(by_hand, "latest")
    recover(by_hand.tables)
    if table == "state":
        hours(by_hand, 11)
    else:
        assert contents(by_hand, without=("stale",)) == before
    hours(by_hand, 12)
    assert sessions(by_hand) == [8, 9, 10, 11]
    assert len(set(numbers(by_hand))) == len(numbers(by_hand))
