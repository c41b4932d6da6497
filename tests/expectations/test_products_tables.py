"""What the product itself writes breaks no suite: late rows, merges, rescaling and restores are no errors."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import CommitProperties, write_deltalake

from pipelines import Pipeline
from pipelines.lease import Lease
from pipelines.snapshots.find import find_snapshot
from pipelines.snapshots.forget import forget
from pipelines.snapshots.prune import prune
from pipelines.snapshots.restore import restore
from pipelines.tables import state
from tests.expectations.broken import broken_in
from tests.lake import at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand, Row
from windowing import Count, SlidingEventTimeWindows, WatermarkStrategy, Windows

NOW = 1_800_000_000_000
USERS = ("ann", "bob", "eve")


def sliding_pipeline() -> Pipeline:
    windows = Windows(
        SlidingEventTimeWindows.of(timedelta(hours=1), timedelta(minutes=20)),
        allowed_lateness=timedelta(minutes=30),
        aggregate={"events": Count()},
    )
    hours = hourly_pipeline()
    return Pipeline(
        name="sliding",
        source=hours.source,
        key=hours.key,
        compute=windows,
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
    )


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


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", PIPELINES)
def test_rows_out_of_order_and_late_break_nothing(name: str, seed: int, tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, PIPELINES[name]())
    out_of_order(by_hand, seed)
    assert len(by_hand.rows("late")), "the rows reach as far back as they should"
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()


@pytest.mark.parametrize("keep_stale", [False, True])
def test_a_restore_breaks_nothing_and_gives_back_what_was_kept(keep_stale: bool, tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    out_of_order(by_hand, 3)
    restore(by_hand.tables, find_snapshot(by_hand.tables, "4"), NOW, keep_stale)
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()
    by_hand.epoch(("ann", at("09:00"), 1), watermark=at("09:00"))
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()


def test_what_was_pruned_or_forgotten_is_no_loss(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    out_of_order(by_hand, 3)
    assert prune(by_hand.tables, NOW, NOW)["late"] > 0
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()
    with Lease(by_hand.tables, "forget", lambda: NOW):
        assert forget(by_hand.tables, by_hand.pipeline, ["ann"], NOW).rows["results"] > 0
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()
    by_hand.epoch(("bob", at("12:00"), 1), watermark=at("12:00"))
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
