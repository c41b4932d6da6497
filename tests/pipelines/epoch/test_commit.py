"""The commit of an epoch: what is checked before it, and that it stops if anybody else committed since the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.epoch.commit import commit
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.head import read_snapshot


def versions(by_hand: ByHand) -> dict[str, int]:
    tables = ("state", "results", "late", "rejects", "epochs")
    return {table: by_hand.tables.open(table).version() for table in tables}


def one_epoch(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:05"), 2), watermark=at("10:00"))


def test_the_snapshot_holds_the_open_windows_and_where_event_time_stands(by_hand: ByHand) -> None:
    one_epoch(by_hand)
    manifest = by_hand.head().manifest
    assert manifest.counters["open_windows"] == 2
    assert sum(shard.rows for shard in manifest.shards) == 2
    assert [(shard.first, shard.last) for shard in manifest.shards] == [(0, 63), (64, 127)]


@pytest.mark.parametrize(
    "interfere",
    [
        lambda table: table.optimize.compact(),
        lambda table: table.alter.set_table_description("somebody"),
        lambda table: table.delete("user = 'ann'"),
    ],
    ids=["optimize", "alter", "delete"],
)
def test_any_commit_of_somebody_else_since_the_plan_stops_the_epoch(by_hand: ByHand, interfere: object) -> None:
    """deltalake would not notice a concurrent OPTIMIZE, so rows would be doubled."""
    one_epoch(by_hand)
    by_hand.epoch(("ann", at("10:06"), 1), watermark=at("10:05"))
    planned = by_hand.planned([("ann", at("10:10"), 3)], at("10:10"))
    before = versions(by_hand)
    with pytest.raises(Refused, match=r"epoch 3 .* another driver committed .* run it again"):
        by_hand.committed(planned, step=lambda: interfere(by_hand.tables.open("state")) and None)  # type: ignore[operator]
    after = versions(by_hand)
    assert {**before, "state": 0} == {**after, "state": 0}, "something of the refused epoch was published"


def test_of_two_drivers_that_both_make_the_first_snapshot_the_second_fails(by_hand: ByHand) -> None:
    first = by_hand.planned([("ann", at("10:10"), 3)], at("10:10"))
    second = by_hand.planned([("ann", at("10:10"), 3)], at("10:10"))
    by_hand.committed(first)
    with pytest.raises(Refused, match="another driver committed"):
        by_hand.committed(second)
    assert by_hand.head().manifest.run_id == first.plan.run_id


@pytest.mark.parametrize("table", ["results", "state"])
def test_a_file_that_a_task_did_not_leave_where_the_driver_looks_stops_the_epoch(by_hand: ByHand, table: str) -> None:
    one_epoch(by_hand)
    planned = by_hand.planned([("ann", at("11:30"), 3)], at("11:00"))
    outcomes = planned.operate()
    written = [outcome.files[table].path for outcome in outcomes if table in outcome.files]
    Path(by_hand.tables.path(table), written[0]).unlink()
    with pytest.raises(Refused, match=rf"file {written[0]} of table .*{table} is missing"):
        commit(planned.plan, outcomes, {})
    assert by_hand.head().manifest.epoch == 1


def test_a_file_that_was_cut_short_stops_the_epoch(by_hand: ByHand) -> None:
    one_epoch(by_hand)
    planned = by_hand.planned([("ann", at("11:30"), 3)], at("11:00"))
    outcomes = planned.operate()
    file = Path(by_hand.tables.path("results"), next(o.files["results"].path for o in outcomes if "results" in o.files))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Refused, match=r"bytes, not"):
        commit(planned.plan, outcomes, {})
    assert by_hand.head().manifest.epoch == 1


def test_files_of_a_repeated_attempt_belong_to_nothing(by_hand: ByHand) -> None:
    """A speculative or failed attempt leaves files that no outcome names; they are never committed."""
    one_epoch(by_hand)
    planned = by_hand.planned([("ann", at("11:30"), 3)], at("11:00"))
    planned.operate()
    by_hand.committed(planned)
    snapshot = by_hand.head()
    assert sum(file["num_records"] for file in snapshot.files) == 1
    assert len(list(Path(by_hand.tables.path("state")).glob("state-000002-*.parquet"))) == 2


def test_statistics_of_a_state_file_bound_its_key_groups(by_hand: ByHand) -> None:
    one_epoch(by_hand)
    snapshot = by_hand.head()
    for file in (*snapshot.files, *snapshot.manifest_files):
        rows = by_hand.warehouse.read_files(by_hand.tables.path("state"), [file["path"]], by_hand.rows("state").schema)
        groups = rows["key_group"].to_pylist()
        assert (file["min.key_group"], file["max.key_group"]) == (min(groups), max(groups))
        assert file["null_count.key_group"] == 0


def test_nothing_is_left_half_done_when_the_first_commit_never_came(by_hand: ByHand) -> None:
    planned = by_hand.planned([("ann", at("10:10"), 3)], at("10:10"))
    planned.operate()
    assert read_snapshot(by_hand.tables) is None
    one_epoch(by_hand)
    assert by_hand.head().manifest.epoch == 1
    log = Path(by_hand.tables.path("state"), "_delta_log", f"{1:020d}.json").read_text()
    assert [json.loads(line)["txn"]["version"] for line in log.splitlines() if "txn" in json.loads(line)] == [1]
