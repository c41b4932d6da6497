"""Tables that the product itself writes break no suite: late rows, merges, rescaling and restores are no errors."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import CommitProperties, write_deltalake

from tests.expectations.broken import broken_in
from tests.lake import at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand, Row
from tidegate.expectations.pinned import pin
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition import results, state
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.keys import key_groups
from tidegate.windowing import Count, SlidingEventTimeWindows, WatermarkStrategy, Windows

NOW = 1_800_000_000_000
USERS = ("ann", "bob", "eve")


def sliding_pipeline() -> Pipeline:
    windows = Windows(
        SlidingEventTimeWindows.of(timedelta(hours=1), timedelta(minutes=20)),
        allowed_lateness=timedelta(minutes=30),
        aggregate={"events": Count()},
    )
    return hourly_pipeline("sliding", compute=windows, watermark=WatermarkStrategy.for_monotonous_timestamps())


PIPELINES: dict[str, Any] = {
    "sessions": lambda: session_pipeline(),
    "sessions that wait": lambda: session_pipeline(allowed_lateness=timedelta(hours=1)),
    "hours": lambda: hourly_pipeline(),
    "hours that wait": lambda: hourly_pipeline(allowed_lateness=timedelta(hours=2)),
    "sliding": sliding_pipeline,
}


def out_of_order(by_hand: ByHand, seed: int, epochs: int = 6) -> None:
    """Epochs of rows up to five hours and a half behind the watermark, at one parallelism after the other."""
    draw = random.Random(seed)
    for number in range(1, epochs + 1):
        by_hand.parallelism = draw.choice((1, 2, 3))
        rows: list[Row] = [
            (draw.choice(USERS), at(f"{number + 2:02d}:00") + timedelta(minutes=draw.randint(-300, 59)), 1)
            for _ in range(12)
        ]
        by_hand.epoch(*rows, watermark=at(f"{number + 2:02d}:30"))


@pytest.mark.first(2)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", PIPELINES)
def test_rows_out_of_order_and_late_break_nothing(name: str, seed: int, tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, PIPELINES[name]())
    out_of_order(by_hand, seed)
    assert len(by_hand.rows("late")), "the rows reach as far back as they should"
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()


@pytest.mark.first(1)
@pytest.mark.parametrize("keep_stale", [False, True])
def test_a_restore_breaks_nothing_and_gives_back_what_was_kept(keep_stale: bool, tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    out_of_order(by_hand, 3)
    restore(by_hand.tables, find_snapshot(by_hand.tables, "4"), NOW, keep_stale)
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()
    by_hand.epoch(("ann", at("09:00"), 1), watermark=at("09:00"))
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()


def test_a_restore_that_lost_state_is_caught_by_its_checksums(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    out_of_order(by_hand, 3)
    restore(by_hand.tables, find_snapshot(by_hand.tables, "4"), NOW)
    rows = by_hand.rows(state.NAME)
    lost = pc.and_(pc.greater_equal(rows["key_group"], 0), pc.equal(rows["user"], "ann"))
    metadata = by_hand.tables.open(state.NAME).history(1)[0]["tidegate"]
    write_deltalake(
        by_hand.tables.path(state.NAME),
        rows.filter(pc.invert(pc.fill_null(lost, False))),
        mode="overwrite",
        commit_properties=CommitProperties(custom_metadata={"tidegate": metadata}),
    )
    assert ("restored state", "expect_state_to_match_checksums") in broken_in(by_hand.tables, by_hand.pipeline)


def test_a_pane_that_changed_its_range_of_key_groups_is_caught_though_all_totals_agree(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    by_hand.epoch(*((user, at("10:00"), 1) for user in USERS), watermark=at("12:00"))
    ranges = [(shard.first, shard.last) for shard in by_hand.head().manifest.shards]
    rows = by_hand.rows(results.NAME)
    groups = key_groups(rows, ("user",), by_hand.pipeline.max_parallelism).to_pylist()
    owners = [next(number for number, (first, last) in enumerate(ranges) if first <= group <= last) for group in groups]
    assert set(owners) == {0, 1}, "users of both ranges"
    moved = rows["user"].to_pylist()
    moved[owners.index(0)] = moved[owners.index(1)]
    panes = rows.set_column(rows.schema.get_field_index("user"), rows.schema.field("user"), pa.array(moved))
    write_deltalake(by_hand.tables.path(results.NAME), panes, mode="overwrite")

    found = pin(by_hand.tables, by_hand.pipeline).ledger
    assert found["counted"].sum() == found["found"].sum()
    wrong = found[found["counted"] != found["found"]]
    assert set(zip(wrong["first_key_group"], wrong["last_key_group"], strict=True)) == set(ranges)
    assert ("ledger", "expect_column_pair_values_to_be_equal") in broken_in(by_hand.tables, by_hand.pipeline)
