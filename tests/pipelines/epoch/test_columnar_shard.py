"""A shard's tables are the same whichever operator it goes through."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.lake import at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines import Pipeline
from tidegate.pipelines.epoch import shard
from tidegate.windowing.columnar import OperatorChoice


def epochs_of(folder: Path, pipeline: Pipeline) -> ByHand:
    """On-time, late and too late elements, over three epochs."""
    by_hand = ByHand(folder, pipeline)
    by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:05"), 2), ("ann", at("10:20"), 4), watermark=at("10:10"))
    by_hand.epoch(("ann", at("11:50"), 8), ("cyd", at("09:00"), 5), ("bob", at("10:15"), 3), watermark=at("11:40"))
    by_hand.epoch(("ann", at("10:40"), 16), ("bob", at("07:00"), 7), ("dan", at("12:00"), 9), watermark=at("13:30"))
    return by_hand


def tables_of(by_hand: ByHand) -> dict[str, list[str]]:
    return {table: sorted(map(repr, by_hand.rows(table).to_pylist())) for table in ("results", "late")}


def state_of(by_hand: ByHand) -> list[dict[str, Any]]:
    rows = [row | {"manifest": None} for row in by_hand.rows("state").to_pylist() if row["key_group"] >= 0]
    return sorted(rows, key=repr)


@pytest.mark.parametrize("lateness", [timedelta(0), timedelta(minutes=45)], ids=["no lateness", "45 minutes"])
@pytest.mark.parametrize("make", [session_pipeline, hourly_pipeline], ids=["sessions", "hours"])
def test_both_operators_write_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, lateness: timedelta
) -> None:
    columnar = epochs_of(tmp_path / "columnar", make(allowed_lateness=lateness))
    assert columnar.rows("late").num_rows
    monkeypatch.setattr(shard, "choose_operator", lambda windows: OperatorChoice(False, "to compare"))
    by_row = epochs_of(tmp_path / "row", make(allowed_lateness=lateness))
    assert tables_of(columnar) == tables_of(by_row)
    assert state_of(columnar) == state_of(by_row)
    assert columnar.head().manifest.counters == by_row.head().manifest.counters
    assert [part.next_event_time_timer for part in columnar.head().manifest.shards] == [
        part.next_event_time_timer for part in by_row.head().manifest.shards
    ]
