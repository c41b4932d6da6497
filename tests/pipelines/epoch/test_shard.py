"""The work of a task on its shard: none if nothing is due. Firings that wait for the end of a commit are emitted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand, HandPlan, Row
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition.event_columns import COMMIT, KEY_PREFIX, TIME, VALUE_PREFIX
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch import shard
from tidegate.pipelines.epoch.commit import commit
from tidegate.pipelines.epoch.event_times import CommitStep
from tidegate.pipelines.epoch.operate import job_of, markers_of
from tidegate.pipelines.epoch.shard import run_shard
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.windowing import Max, TumblingEventTimeWindows, Windows
from tidegate.windowing.columnar import OperatorChoice
from tidegate.windowing.time import to_millis


def of_shards(by_hand: ByHand, minute: str, value: int = 1) -> tuple[Row, Row]:
    """A row for each of the two shards."""
    names: dict[int, str] = {}
    for number in range(100):
        name = f"user{number}"
        group = by_hand.planned([], at("00:00")).plan.bound.key.key_group_of(name, 128)
        names.setdefault(group * 2 // 128, name)
    return (names[0], at(minute), value), (names[1], at(minute), value)


def test_the_state_of_a_shard_without_events_or_due_timers_is_not_even_read(by_hand: ByHand) -> None:
    first, second = of_shards(by_hand, "10:00")
    by_hand.epoch(first, second, watermark=at("10:00"))
    before = by_hand.head()
    (untouched,) = [file for file in before.files if file["min.key_group"] >= 64]
    place = Path(by_hand.tables.path("state"), untouched["path"])
    content = place.read_bytes()
    place.unlink()
    again = (first[0], at("10:10"), 5)
    manifest = by_hand.epoch(again, watermark=at("10:05"))
    assert untouched["path"] in {file["path"] for file in by_hand.head().files}
    quiet = manifest.shards[1]
    assert (quiet.rows, quiet.counters["open_windows"], quiet.counters["on_time"]) == (1, 1, 0)
    assert quiet.next_event_time_timer == before.manifest.shards[1].next_event_time_timer
    place.write_bytes(content)
    by_hand.epoch(watermark=at("12:00"))
    fired = by_hand.rows("results").to_pylist()
    assert {(row["user"], row["total"]) for row in fired} == {(first[0], 6), (second[0], 1)}


def test_a_due_timer_wakes_a_shard_without_events(by_hand: ByHand) -> None:
    first, second = of_shards(by_hand, "10:00")
    by_hand.epoch(first, second, watermark=at("10:00"))
    by_hand.epoch((first[0], at("10:10"), 5), watermark=at("10:35"))
    assert [row["user"] for row in by_hand.rows("results").to_pylist()] == [second[0]]


def test_a_late_pane_goes_out_at_the_end_of_its_commit_though_no_further_row_of_its_shard_came(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline(allowed_lateness=timedelta(hours=5)))
    first, second = of_shards(by_hand, "10:00")
    by_hand.epoch(first, second, watermark=at("11:30"))

    def part_of_a_commit(row: Row, complete: bool) -> None:
        planned = by_hand.planned([row], at("11:40"))
        (step,) = planned.plan.steps
        position = Position(version=2, files=0 if complete else 1)
        plan = replace(
            planned.plan,
            steps=(CommitStep(step.clock, to_millis(at("11:40")), complete),),
            positions={by_hand.pipeline.source.table: position},
        )
        publish(by_hand.tables, commit(plan, HandPlan(plan, planned.rows).operate(), {}))

    part_of_a_commit((first[0], at("10:30"), 7), complete=False)
    part_of_a_commit((second[0], at("11:35"), 9), complete=True)
    late = [row for row in by_hand.rows("results").to_pylist() if row["timing"] == "late"]
    assert [(row["user"], row["total"]) for row in late] == [(first[0], 8)]


def test_a_column_that_no_array_holds_is_refused_with_the_way_out(tmp_path: Path) -> None:
    windows = Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"last": Max("user")})
    by_hand = ByHand(tmp_path, hourly_pipeline(compute=windows), parallelism=1)
    plan = by_hand.planned([], at("10:00")).plan
    rows = 2**31 // 2**26 + 1
    text = pa.array(["x" * 2**26])  # one buffer, which every row has
    events = pa.table(
        {
            TIME: pa.array([to_millis(at("10:00"))] * rows),
            COMMIT: pa.array([0] * rows, pa.int32()),
            f"{KEY_PREFIX}user": pa.array(["ann"] * rows),
            f"{VALUE_PREFIX}user": pa.chunked_array([text] * rows),
        }
    )
    with pytest.raises(Refused, match=r"key groups 0 to 127: .* larger than 2 GiB.* larger parallelism"):
        run_shard(job_of(plan), markers_of(plan)[0], lambda: iter([events]))


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


@pytest.mark.first(2)
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
