from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from tests.lake import Clock, at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, list_savepoints
from tidegate.pipelines.ledger.tables.commits import COMMIT, Outrun, commit
from tidegate.pipelines.ledger.tables.compaction import compact, drop_old_epochs
from tidegate.pipelines.ledger.tables.damage import truncated_entry
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL
from tidegate.pipelines.storage.delta_log import entry_name

NOW = 2_000_000_000_000


def hours(by_hand: ByHand, *numbers: int) -> None:
    with Lease(by_hand.tables, "a test", Clock()):
        pass
    by_hand.hours(*numbers)


def entries(by_hand: ByHand, table: str) -> list[Path]:
    return sorted(Path(by_hand.tables.path(table), "_delta_log").glob("*.json"))


def widened(by_hand: ByHand) -> None:
    by_hand.tables.widen({"results": pa.schema([("more", pa.string())])})


KINDS: dict[str, Callable[[ByHand], object]] = {
    "epoch": lambda by_hand: None,
    "compaction": lambda by_hand: [compact(by_hand.tables, table) for table in ALL[1:]],
    "old epochs": lambda by_hand: drop_old_epochs(by_hand.tables, NOW, 3, NOW),
    "cleanup": lambda by_hand: vacuum(by_hand.tables, Retention(1, timedelta(0)), NOW),
    "forget": lambda by_hand: forget(by_hand.tables, by_hand.pipeline, [["ann"]], NOW),
    "columns": widened,
}


@pytest.mark.first(3)
@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_of_any_commit_of_ours_that_is_cut_at_the_end_of_a_line_is_found(by_hand: ByHand, kind: str) -> None:
    hours(by_hand, 8, 9, 10, 11)
    before = {table: entries(by_hand, table)[-1] for table in ALL}
    KINDS[kind](by_hand)
    tried = 0
    for table in ALL:
        assert truncated_entry(by_hand.tables, table) is None
        entry = entries(by_hand, table)[-1]
        if (entry == before[table] and kind != "epoch") or entry.name == entry_name(0):
            continue
        whole = entry.read_text().splitlines(keepends=True)
        for kept in range(1, len(whole)):
            entry.write_text("".join(whole[:kept]))
            assert truncated_entry(by_hand.tables, table) == entry.name, whole[:kept]
            tried += 1
        entry.write_text("".join(whole))
    # The fences of a cleanup, and so of `forget`, each belong to one lineage.
    assert tried or kind in ("cleanup", "forget")


LOST: dict[str, Callable[[ByHand], object]] = {
    **KINDS,
    "epoch": lambda by_hand: by_hand.epoch(("ann", at("12:00"), 12), watermark=at("12:00")),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("kind", [kind for kind in LOST if kind != "columns"])
def test_a_commit_whose_answer_is_lost_is_recognised_as_ours(
    by_hand: ByHand, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store executed the request, but its answer was lost, and the repetition was refused."""
    hours(by_hand, 8, 9, 10, 11)
    create_savepoint(by_hand.tables, by_hand.head(), "kept", NOW)
    write, lost = DeltaTable.create_write_transaction, list[str]()

    def lose(handle: DeltaTable, *arguments: Any, **named: Any) -> None:
        write(handle, *arguments, **named)
        lost.append(handle.table_uri)
        raise CommitFailedError("Failed to commit transaction: 0")

    with monkeypatch.context() as planted:
        planted.setattr(DeltaTable, "create_write_transaction", lose)
        LOST[kind](by_hand)
    assert lost
    assert by_hand.head().manifest.epoch in (4, 5)
    assert [entry.name for entry in list_savepoints(by_hand.tables)] == ["kept"]


def test_a_commit_of_somebody_else_at_that_version_is_not_taken_for_ours(by_hand: ByHand) -> None:
    hours(by_hand, 8)
    handle = by_hand.tables.open("results")
    commit(by_hand.warehouse, by_hand.tables.open("results"), [], {"tidegate_fence": "another"})
    with pytest.raises(Outrun, match=r"another process committed to .*results after version 0 was read.*try again"):
        commit(by_hand.warehouse, handle, [], {})


def test_a_commit_that_nobody_did_says_why(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    hours(by_hand, 8)

    def refused(handle: DeltaTable, *arguments: Any, **named: Any) -> None:
        raise DeltaError("No space left on device (os error 28)")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", refused)
    with pytest.raises(DeltaError, match="No space left"):
        commit(by_hand.warehouse, by_hand.tables.open("results"), [], {})


def test_entries_of_older_versions_are_whole_without_a_count(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9)
    compact(by_hand.tables, "results")
    for table in ALL:
        without_counts(by_hand, table)
        assert truncated_entry(by_hand.tables, table) is None


def without_counts(by_hand: ByHand, table: str) -> None:
    entry = entries(by_hand, table)[-1]
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    actions[0]["commitInfo"].pop(COMMIT, None)
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))
