"""Published tables that somebody set back with Delta's own RESTORE: they are refused until they are as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.copies import copy_all
from tests.expectations.broken import broken_by_rules
from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tests.recovery.hourly import NOW, contents, hours
from tidegate.expectations.pinned import pin
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, prune, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.storage.delta_log import FOLDER, entry_name

pytestmark = pytest.mark.recovery

REFUSED = r"changed rows of table .* did not make its version .* \(RESTORE by .*restart=True"


def set_back(by_hand: ByHand, table: str, versions: int = 2) -> None:
    handle = by_hand.tables.open(table)
    handle.restore(handle.version() - versions)


def broken(by_hand: ByHand) -> set[tuple[str, str]]:
    """Return the rules of `tidegate quality check` that fail."""
    return broken_by_rules(pin(by_hand.tables, by_hand.pipeline))


@pytest.mark.first(1)
@pytest.mark.parametrize("table", ["results", "late", "epochs"])
def test_a_published_table_that_was_set_back_is_refused_until_it_is_as_before(by_hand: ByHand, table: str) -> None:
    hours(by_hand, 8, 9, 10, 11)
    before, version = contents(by_hand), by_hand.tables.open(table).version()
    set_back(by_hand, table)
    assert contents(by_hand) != before
    tables = by_hand.tables
    commands: list[Callable[[], object]] = [
        lambda: recover(tables),
        lambda: prune(tables, NOW, NOW),
        lambda: vacuum(tables, Retention(1, 0), NOW),
        lambda: vacuum(tables, Retention(1, 0), NOW, dry_run=True),
        lambda: copy_all(tables, tables, "copy", NOW),
        lambda: forget(tables, by_hand.pipeline, [["ann"]], NOW),
        lambda: restore(tables, find_snapshot(tables, "3"), NOW),
    ]
    for command in commands:
        with pytest.raises(Refused, match=REFUSED):
            command()
    by_hand.tables.open(table).restore(version)
    assert contents(by_hand) == before
    hours(by_hand, 12)
    assert broken(by_hand) == set()


@pytest.mark.first(1)
@pytest.mark.parametrize("by_us", [True, False])
def test_a_restore_that_only_undoes_a_compaction_is_no_fault(by_hand: ByHand, by_us: bool) -> None:
    hours(by_hand, 8, 9, 10, 11)
    if by_us:
        compact(by_hand.tables, "results")
    else:
        by_hand.tables.open("results").optimize.compact()
    before = contents(by_hand)
    set_back(by_hand, "results", 1)
    recover(by_hand.tables)
    assert (contents(by_hand), broken(by_hand)) == (before, set())
    hours(by_hand, 12)
    compact(by_hand.tables, "results")
    assert broken(by_hand) == set()


def test_a_compaction_on_top_does_not_hide_it(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10, 11)
    before, version = contents(by_hand), by_hand.tables.open("results").version()
    set_back(by_hand, "results", 1)
    compact(by_hand.tables, "results")
    with pytest.raises(Refused, match=REFUSED):
        recover(by_hand.tables)
    by_hand.tables.open("results").restore(version)
    assert contents(by_hand) == before
    assert broken(by_hand) == set()


@pytest.mark.long
def test_a_table_that_was_set_back_to_a_compaction_is_refused(by_hand: ByHand) -> None:
    """Found by a walk: files named like those of a compaction made the RESTORE that added them look like a
    compaction.
    """
    hours(by_hand, 8, 9, 10)
    compact(by_hand.tables, "results")
    hours(by_hand, 11)
    compact(by_hand.tables, "results")
    hours(by_hand, 12)
    set_back(by_hand, "results", versions=3)
    with pytest.raises(Refused, match=REFUSED):
        recover(by_hand.tables)


def test_any_number_of_commits_on_top_does_not_hide_it(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10, 11)
    set_back(by_hand, "results", 1)
    version = by_hand.tables.open("results").version()
    for number in range(version + 1, version + 251):
        entry = Path(by_hand.tables.path("results"), FOLDER, entry_name(number))
        entry.write_text('{"commitInfo": {"operation": "SET TBLPROPERTIES"}}\n')
    with pytest.raises(Refused, match=REFUSED):
        recover(by_hand.tables)


def test_an_epoch_is_not_published_on_top_of_it(by_hand: ByHand) -> None:
    """A running stream checks before each commit, not only at its start."""
    hours(by_hand, 8, 9, 10)
    before, version = contents(by_hand), by_hand.tables.open("results").version()
    set_back(by_hand, "results")
    with pytest.raises(Refused, match=REFUSED):
        by_hand.epoch(("ann", at("11:00"), 11), watermark=at("11:00"))
    by_hand.tables.open("results").restore(version)
    recover(by_hand.tables)
    after = contents(by_hand)
    assert all(set(before[table]) <= set(after[table]) for table in PUBLISHED)
    assert len(after["results"]) == len(before["results"]) + 1
    assert broken(by_hand) == set()


def test_what_somebody_put_back_himself_is_gone_on_from(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10)
    before, good = contents(by_hand), by_hand.tables.open("results").version()
    set_back(by_hand, "results")
    by_hand.tables.open("results").restore(good)
    recover(by_hand.tables)
    by_hand.tables.open("results").delete("epoch = 1")
    by_hand.tables.open("results").restore(good)
    recover(by_hand.tables)
    assert contents(by_hand) == before


def test_what_somebody_put_back_to_a_compaction_is_not_a_damaged_log(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10)
    compact(by_hand.tables, "results")
    before, good = contents(by_hand), by_hand.tables.open("results").version()
    by_hand.tables.open("results").delete("epoch = 1")
    by_hand.tables.open("results").restore(good)
    recover(by_hand.tables)
    assert contents(by_hand) == before


def test_a_stray_restore_of_a_quiet_table_is_no_fault(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9)
    handle = by_hand.tables.open("rejects")
    handle.alter.set_table_description("somebody was here")
    handle.restore(0)
    recover(by_hand.tables)


def test_without_the_look_rows_vanish(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: only the newest epoch of a table is checked."""
    hours(by_hand, 8, 9, 10, 11)
    set_back(by_hand, "results")

    def nothing(tables: PipelineTables, table: str, newest: int | None = None) -> None:
        pass

    for module in ("ledger.snapshots.recovery", "ledger.snapshots.publish"):
        monkeypatch.setattr(f"tidegate.pipelines.{module}.check_unchanged", nothing)
    hours(by_hand, 12)
    assert sorted(row["total"] for row in by_hand.rows("results").to_pylist() if row["user"] == "ann") == [8, 11]
