"""A check goes on from the last one that passed: it reads what came since, and finds as much as one over all rows."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from tests.expectations.broken import broken_by_rules
from tests.expectations.test_products_tables import PIPELINES, USERS
from tests.lake import at, hourly_pipeline
from tests.pipelines.by_hand import ByHand, Row
from tidegate.expectations.pinned import Pinned, pin
from tidegate.pipelines.definition import late, results
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.foreign_changes import put_back
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.prune import prune
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.compaction import COMPACTION, compact
from tidegate.pipelines.storage.warehouse import Warehouse

NOW = 1_800_000_000_000


def checked(by_hand: ByHand) -> tuple[Pinned, str]:
    """Check the newest epoch; what was looked at, and how it went. Table quality keeps it as after a real check."""
    pinned = pin(by_hand.tables, by_hand.pipeline, rows_at_a_time=20)
    failed = broken_by_rules(pinned)
    proof, timeline = None if failed else pinned.proves.to_json(), pinned.manifest.timeline
    about = (uuid.uuid4().hex, datetime.now(UTC), timeline, pinned.manifest.epoch, "all", "all", "", "critical")
    row = quality.QualityRow(*about, not failed, "", 0, 0, 0, proof=proof)
    quality.append(by_hand.tables, [row])
    return pinned, ", ".join(sorted(f"{expectation} ({suite})" for suite, expectation in failed)) or "passed"


def epoch(by_hand: ByHand, number: int, draw: random.Random) -> None:
    """Rows up to five and a half hours behind the watermark."""
    rows: list[Row] = [
        (draw.choice(USERS), at("00:00") + timedelta(hours=number + 2, minutes=draw.randint(-300, 59)), 1)
        for _ in range(12)
    ]
    by_hand.epoch(*rows, watermark=at("00:30") + timedelta(hours=number + 2))


def looked_at(pinned: Pinned) -> int:
    return sum(len(rows) for rows in pinned.panes())


@pytest.mark.first(2)
@pytest.mark.parametrize("epochs", [5, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", PIPELINES)
def test_right_tables_pass_from_each_check_to_the_next(name: str, epochs: int, tmp_path: Path) -> None:
    by_hand, draw = ByHand(tmp_path, PIPELINES[name]()), random.Random(name)
    for number in range(1, epochs + 1):
        epoch(by_hand, number, draw)
        pinned, state = checked(by_hand)
        assert state == "passed"
        assert pinned.scope.since == (number - 1 or None)
        assert (pinned.scope.proof is None) == (number == 1)
        if number == epochs - 3:
            compact(by_hand.tables, results.NAME)


def test_what_a_check_proved_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    read: list[str] = []
    batches = Warehouse.read_batches

    def read_batches(warehouse: Warehouse, path: str, names: Any, *given: Any, **more: Any) -> Any:
        read.extend(name for name in names if path.endswith("results"))
        return batches(warehouse, path, names, *given, **more)

    monkeypatch.setattr(Warehouse, "read_batches", read_batches)
    files = []
    for number in range(1, 9):
        by_hand.epoch(*((user, at(f"{number + 5}:10"), 1) for user in USERS), watermark=at(f"{number + 6}:30"))
        read.clear()
        pinned, state = checked(by_hand)
        assert state == "passed"
        files.append(len(read))
    assert max(files[2:]) <= 2 * files[1], "however many epochs there were before"
    assert looked_at(pinned) == len(USERS)


@pytest.mark.long
@pytest.mark.first(1)
@pytest.mark.parametrize("kept", [0, 40, -1], ids=["empty", "cut within a line", "cut between two lines"])
def test_after_damage_to_the_newest_entry_of_checks_the_next_one_goes_on_from_the_check_before(
    tmp_path: Path, kept: int
) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    for number in (1, 2, 3):
        by_hand.epoch(("ann", at(f"{number + 5}:10"), 1), watermark=at(f"{number + 6}:30"))
        assert checked(by_hand)[1] == "passed"
    entry = max(Path(by_hand.tables.path(quality.NAME), "_delta_log").glob("*.json"))
    content = entry.read_bytes()
    entry.write_bytes(content[:kept] if kept >= 0 else b"".join(content.splitlines(keepends=True)[:kept]))
    by_hand.epoch(("ann", at("09:10"), 1), watermark=at("10:30"))
    pinned, state = checked(by_hand)
    assert (state, pinned.scope.since) == ("passed", 2)
    assert quality.newest_passed(by_hand.tables, range(9)) == 4
    assert sorted(quality.read(by_hand.tables)["epoch"].to_pylist()) == [1, 2, 4]


def a_restore(by_hand: ByHand) -> None:
    restore(by_hand.tables, find_snapshot(by_hand.tables, "3"), NOW)


def a_restore_that_keeps_stale_rows(by_hand: ByHand) -> None:
    restore(by_hand.tables, find_snapshot(by_hand.tables, "3"), NOW, keep_stale=True)


def a_forgotten_key(by_hand: ByHand) -> None:
    with Lease(by_hand.tables, "forget", lambda: NOW):
        forget(by_hand.tables, by_hand.pipeline, ["ann"], NOW)


def pruned_late_rows(by_hand: ByHand) -> None:
    prune(by_hand.tables, NOW, NOW)


def a_vacuum(by_hand: ByHand) -> None:
    compact(by_hand.tables, results.NAME)
    with Lease(by_hand.tables, "vacuum", lambda: NOW):
        vacuum(by_hand.tables, Retention(snapshots=1, age=0), NOW)


TAKES_AWAY = (a_restore, a_restore_that_keeps_stale_rows, a_forgotten_key, pruned_late_rows, a_vacuum)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("happens", "name"),
    [
        # Each act and each pipeline once; all of them together in the long form.
        pytest.param(happens, name, marks=() if first == second else pytest.mark.long)
        for first, happens in enumerate(TAKES_AWAY)
        for second, name in enumerate(PIPELINES)
    ],
)
def test_after_rows_were_taken_away_all_are_looked_at_and_then_only_new_ones_again(
    happens: Callable[[ByHand], None], name: str, tmp_path: Path
) -> None:
    by_hand, draw = ByHand(tmp_path, PIPELINES[name]()), random.Random(name)
    for number in range(1, 5):
        epoch(by_hand, number, draw)
        assert checked(by_hand)[1] == "passed"
    happens(by_hand)
    for number in range(5, 7):
        pinned, state = checked(by_hand)
        assert state == "passed"
        if number == 5:
            assert pinned.scope.proof is None
        epoch(by_hand, number, draw)
    assert checked(by_hand)[0].scope.proof is not None


def test_changed_code_is_looked_at_as_a_whole(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    by_hand.epoch(("ann", at("10:10"), 1), watermark=at("12:00"))
    checked(by_hand)
    by_hand.pipeline = hourly_pipeline(allowed_lateness=timedelta(hours=1))
    by_hand.epoch(("ann", at("13:10"), 1), watermark=at("16:00"))
    assert checked(by_hand)[1] == "passed", "windows of older epochs waited less"
    by_hand.epoch(("ann", at("15:10"), 1), ("ann", at("17:10"), 1), watermark=at("19:00"))
    pinned, state = checked(by_hand)
    assert state == "passed"
    assert pinned.scope.proof is not None
    assert pinned.proves.lateness == 3_600_000


def a_late_pane_twice(by_hand: ByHand) -> None:
    rows = by_hand.rows(results.NAME)
    newest = next(row for row in rows.to_pylist() if row["epoch"] == 4)
    again = pa.Table.from_pylist([newest], schema=rows.schema)
    # A fault of ours: what others add is refused before the next epoch.
    ours = CommitProperties(custom_metadata={COMPACTION: results.NAME})
    write_deltalake(by_hand.tables.path(results.NAME), again, mode="append", commit_properties=ours)


@pytest.mark.long
def test_an_error_in_what_is_new_is_found_and_held_against_every_later_check(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline(allowed_lateness=timedelta(hours=3)))
    for number in range(4):
        rows = [("ann", at(f"{10 + number}:10"), 1), ("ann", at(f"{max(10, 9 + number)}:20"), 1)]
        by_hand.epoch(*rows, watermark=at(f"{11 + number}:30"))
        if number < 3:
            assert checked(by_hand)[1] == "passed"
    a_late_pane_twice(by_hand)
    for _ in range(2):
        pinned, told = checked(by_hand)
        assert pinned.scope.proof is not None
        assert pinned.scope.proof.epoch == 3
        for found in ("expect_compound_columns_to_be_unique (panes)", "expect_column_pair_values_to_be_equal (ledger)"):
            assert found in told
        by_hand.epoch(("ann", at("15:10"), 1), watermark=at("16:30"))


def test_an_older_row_that_is_lost_is_found_by_its_commit(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    for hour in (10, 12):
        by_hand.epoch(("ann", at(f"{hour}:10"), 1), watermark=at(f"{hour + 1}:30"))
        assert checked(by_hand)[1] == "passed"
    by_hand.tables.open(results.NAME).delete("epoch = 1")
    pinned, told = checked(by_hand)
    assert pinned.scope.proof is not None
    assert "expect_files_to_be_of_our_commits (files)" in told
    (undone,) = put_back(by_hand.tables)
    assert "was put back" in undone
    assert checked(by_hand)[1] == "passed", "alarms.md: `tidegate restore NAME latest` undoes it"


def test_a_quality_table_of_an_older_tidegate_gets_the_column(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    by_hand.epoch(("ann", at("10:10"), 1), watermark=at("12:00"))
    _, state = checked(by_hand)
    rows = quality.read(by_hand.tables).drop_columns(["proof"])
    path = by_hand.tables.path(quality.NAME)
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")
    assert "proof" not in quality.read(by_hand.tables).column_names
    by_hand.epoch(("ann", at("13:10"), 1), watermark=at("15:00"))
    pinned, state = checked(by_hand)
    assert (pinned.scope.since, pinned.scope.proof, state) == (1, None, "passed"), "nothing vouches for what it saw"
    by_hand.epoch(("ann", at("16:10"), 1), watermark=at("18:00"))
    assert checked(by_hand)[0].scope.proof is not None
    assert len(by_hand.rows(late.NAME)) == 0
