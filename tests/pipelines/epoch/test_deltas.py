"""State with deltas: an epoch reads and writes only the rows of keys that it may change, and nothing else differs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.lake import LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate import Project
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition import state
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.epoch import shard, shard_state
from tidegate.pipelines.ledger.snapshots.head import state_rows
from tidegate.windowing.columnar import OperatorChoice
from tidegate.windowing.errors import IllegalArgument


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let shards of a few rows have deltas, which are merged when they have a third of the rows of their base."""
    monkeypatch.setattr(shard_state, "SMALLEST", 4)
    monkeypatch.setattr(shard_state, "SHARE", 3)


def small_from(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only shards with this many rows have deltas."""
    monkeypatch.setattr(shard_state, "SMALLEST", number)


NEVER = 2**62


def state_of(by_hand: ByHand) -> list[str]:
    return sorted(map(repr, state_rows(by_hand.warehouse, by_hand.head()).to_pylist()))


def content_of(by_hand: ByHand) -> dict[str, Any]:
    manifest = by_hand.head().manifest
    shards = [
        (each.first, each.rows, each.counters, each.next_event_time_timer, each.next_processing_time_timer)
        for each in manifest.shards
    ]
    tables = {table: sorted(map(repr, by_hand.rows(table).to_pylist())) for table in ("results", "late")}
    return {"state": state_of(by_hand), "counters": manifest.counters, "shards": shards, **tables}


def layers(by_hand: ByHand) -> list[str]:
    """Return, for each file of the snapshot, whether it is a delta, a base that is read in part, or any other base."""
    kinds = []
    for file in by_hand.head().files:
        is_delta, in_order = (file.get(f"min.{column.name}") is not None for column in (state.MARK, state.HASH))
        kinds.append("delta" if is_delta else "base in order" if in_order else "base")
    return sorted(kinds)


@pytest.mark.long
@pytest.mark.first(1)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("by_row", [False, True], ids=["arrays", "by row"])
@pytest.mark.parametrize("make", [session_pipeline, hourly_pipeline], ids=["sessions", "hours"])
def test_a_drawn_life_is_the_same_with_deltas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, by_row: bool, seed: int
) -> None:
    if by_row:
        monkeypatch.setattr(shard, "choose_operator", lambda windows: OperatorChoice(False, "to compare"))
    draw = random.Random(seed)
    pipeline: Pipeline = make(allowed_lateness=timedelta(minutes=draw.choice([0, 90])))
    plain, deltas = ByHand(tmp_path / "plain", pipeline), ByHand(tmp_path / "deltas", pipeline)
    users = [f"user {number}" for number in range(60)]
    clock, seen = at("10:00"), set[str]()
    for number in range(12):
        count = 50 if number in (0, 6) else draw.choice([0, 1, 2, 3])
        rows = [
            (draw.choice(users), clock + timedelta(minutes=draw.randint(-150, 60)), draw.randint(1, 9))
            for _ in range(count)
        ]
        clock += timedelta(minutes=draw.choice([0, 1, 5, 20]))
        for life, smallest in ((plain, NEVER), (deltas, 4)):
            small_from(smallest, monkeypatch)
            life.parallelism = 2 if number < 10 else 3
            life.epoch(*rows, watermark=clock)
        assert content_of(deltas) == content_of(plain)
        seen |= set(layers(deltas))
    assert "delta" in seen


QUERY = """
SELECT * FROM state s
WHERE s.key_group >= 0 AND (s.delta_mark = 1 OR s.delta_mark IS NULL AND NOT EXISTS (
    SELECT 1 FROM state d WHERE d.delta_mark IS NOT NULL AND d.delta_hash = s.delta_hash))
"""
"""The query of docs/guide/state-and-snapshots.md."""


def project(lake: Lake, pipeline: Pipeline) -> Project:
    return Project(warehouse=lake.folder / "warehouse", work=lake.folder, pipelines=[pipeline], engine="local")


def step(lake: Lake, pipeline: Pipeline, *rows: tuple[str, str]) -> None:
    lake.append(*[(user, at(time), 1) for user, time in rows])
    lake.stream(LOCAL, pipeline)


@pytest.mark.long
def test_commands_and_readers_see_the_newest_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = session_pipeline(timedelta(hours=3), parallelism=1)
    lakes = Lake(tmp_path / "plain"), Lake(tmp_path / "deltas")
    plain, deltas = (project(lake, pipeline) for lake in lakes)

    def each_lake() -> Iterator[tuple[Lake, Project]]:
        for lake, of_lake, smallest in zip(lakes, (plain, deltas), (NEVER, 4), strict=True):
            small_from(smallest, monkeypatch)
            yield lake, of_lake

    users = [f"user {number}" for number in range(20)]

    def agree() -> None:
        states = [state_rows(warehouse_of(lake.config), lake.snapshot(pipeline)) for lake in lakes]
        assert same(states[0]) == same(states[1])
        rows = duckdb.from_arrow(lakes[1].rows(pipeline, state.NAME)).query("state", QUERY).to_arrow_table()
        assert same(rows.select(states[0].column_names).cast(states[0].schema)) == same(states[0])
        shown = [sorted(map(repr, each.snapshots.show("sessions").to_dict()["windows"])) for each in (plain, deltas)]
        assert shown[0] == shown[1]

    for lake, _ in each_lake():
        step(lake, pipeline, *[(user, "10:00") for user in users])
    for lake, _ in each_lake():
        step(lake, pipeline, (users[1], "10:05"))
        step(lake, pipeline, (users[2], "10:06"), (users[3], "10:04"))
    assert {file.get("min.delta_mark") for file in lakes[1].snapshot(pipeline).files} == {None, 1}
    agree()
    before = len(lakes[1].snapshot(pipeline).files)
    for each in (plain, deltas):
        each.savepoints.create("sessions", "kept")
        erased = each.forget("sessions", (users[2],)), each.forget("sessions", (users[5],))
        assert [once.rows["state"] for once in erased] == [1, 1]
    agree()
    assert len(lakes[1].snapshot(pipeline).files) == before
    for lake, _ in each_lake():
        step(lake, pipeline, (users[2], "10:07"), (users[3], "10:08"))
    agree()
    for each in (plain, deltas):
        each.restore("sessions", "savepoint:kept")
    agree()
    for lake, each in each_lake():
        step(lake, pipeline, (users[4], "10:10"))
        each.tables.vacuum("sessions", snapshots=1, days=0)
        step(lake, pipeline, (users[4], "10:11"))
    agree()
    assert len(lakes[1].snapshot(pipeline).files) == before


def same(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


def test_a_key_with_the_name_of_a_column_of_deltas_in_other_case_is_refused_by_name(lake: Lake) -> None:
    lake.write(pa.table({"Delta_Hash": ["ann"], "at": [at("10:00")], "value": [1]}))
    with pytest.raises(IllegalArgument, match="Delta_Hash"):
        lake.project(hourly_pipeline(key=("Delta_Hash",))).stream("hours")
