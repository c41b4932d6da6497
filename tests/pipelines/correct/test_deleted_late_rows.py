"""Late and rejected rows that were deleted from the source are removed from their tables; restoring an earlier snapshot
brings them back.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deltalake import DeltaTable

from tests.expectations.broken import broken_by_rules
from tests.lake import LOCAL, Clock, Lake, at
from tests.pipelines.correct.lakes import HOURS, SESSIONS, crashed_after, newest, two_users
from tests.recovery.arrivals import STEPS
from tidegate.expectations.pinned import pin
from tidegate.pipelines import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, prune, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, find_snapshot, read_savepoint
from tidegate.pipelines.ledger.tables.late_rows import Deletions

PIPELINES = pytest.mark.parametrize(
    "pipeline", [HOURS, pytest.param(SESSIONS, marks=pytest.mark.long)], ids=lambda pipeline: pipeline.name
)
DAY = 86_400_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A source with late rows and a row without a user."""
    lake = two_users(tmp_path)
    lake.clock = Clock()
    return lake


def with_late_rows(lake: Lake, pipeline: Pipeline) -> Lake:
    """Stream over it: two equal late rows of bob, one of ann, and a rejected row."""
    lake.stream(LOCAL, pipeline)
    lake.append(("bob", at("10:45"), 7), ("bob", at("10:45"), 7), ("ann", at("10:50"), 8), (None, at("10:00"), 9))
    lake.stream(LOCAL, pipeline)
    return lake


def deleted(lake: Lake, pipeline: Pipeline, what: str) -> None:
    DeltaTable(lake.path("events")).delete(what)
    lake.stream(LOCAL, pipeline)


def held(lake: Lake, pipeline: Pipeline) -> list[tuple[str | None, int]]:
    """Return user and value of the rows in tables late and rejects."""
    rows = [row for table in ("late", "rejects") for row in lake.rows(pipeline, table).to_pylist()]
    return sorted(((row["user"], row["value"]) for row in rows), key=str)


def broken(lake: Lake, pipeline: Pipeline) -> set[tuple[str, str]]:
    return broken_by_rules(pin(lake.tables(pipeline), pipeline))


ALL = [("ann", 8), ("bob", 7), ("bob", 7), (None, 9)]


@PIPELINES
def test_late_and_rejected_rows_that_were_deleted_leave_their_tables(lake: Lake, pipeline: Pipeline) -> None:
    before = with_late_rows(lake, pipeline).rows(pipeline, "results").to_pylist()
    assert held(lake, pipeline) == ALL
    deleted(lake, pipeline, "value in (7, 9)")
    assert held(lake, pipeline) == [("ann", 8)]
    assert lake.rows(pipeline, "results").to_pylist() == before, "which never held a late row"
    row = max(lake.rows(pipeline, "epochs").to_pylist(), key=lambda row: row["epoch"])
    assert (row["kind"], row["rows_deleted"], row["deleted_in_windows"], row["reopened"]) == ("change", 3, 0, 0)
    assert row["deleted"] == [{"epoch": row["epoch"] - 1, "late": 2, "reopened": 0, "rejected": 1}]
    assert broken(lake, pipeline) == set()


@PIPELINES
def test_a_reopened_row_that_was_deleted_leaves_table_late_and_its_window(lake: Lake, pipeline: Pipeline) -> None:
    with_late_rows(lake, pipeline)
    lake.reopen(LOCAL, pipeline)
    deleted(lake, pipeline, "value = 7")
    assert held(lake, pipeline) == [("ann", 8), (None, 9)]
    assert {row["user"]: row["total"] for row in lake.final(pipeline).to_pylist()} == {"ann": 14, "bob": 4}
    assert broken(lake, pipeline) == set()


def test_a_row_that_was_ahead_leaves_table_rejects_and_is_accepted_when_it_comes_again(lake: Lake) -> None:
    pipeline = replace(HOURS, max_ahead=timedelta(hours=1))
    lake.stream(LOCAL, pipeline)
    ahead = at("00:30", day=20_000)
    lake.append(("dan", ahead, 5))
    lake.stream(LOCAL, pipeline)
    assert held(lake, pipeline) == [("dan", 5)]
    deleted(lake, pipeline, "value = 5 and user = 'dan'")
    assert held(lake, pipeline) == []
    later = replace(pipeline, max_ahead=timedelta(days=30_000))
    lake.append(("dan", ahead, 5))
    lake.stream(LOCAL, later)
    deleted(lake, later, "user = 'cem'")
    assert held(lake, later) == []
    assert broken(lake, later) == set()


def test_rejected_rows_for_times_after_the_end_of_a_backfill_come_and_leave_too(lake: Lake) -> None:
    lake.backfill(LOCAL, HOURS, at("10:00"), at("11:00"))
    lake.append((None, at("15:00"), 9), ("ann", at("15:00"), 1))
    DeltaTable(lake.path("events")).update({"value": "40"}, predicate="user = 'bob'")
    lake.backfill(LOCAL, HOURS, at("11:00"), at("12:00"))
    assert held(lake, HOURS) == [(None, 9)]
    DeltaTable(lake.path("events")).delete("value = 9")
    lake.backfill(LOCAL, HOURS, at("12:00"), at("13:00"))
    assert held(lake, HOURS) == []
    assert broken(lake, HOURS) == set()


@pytest.mark.first(1)
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_after_any_step_of_their_leaving_does_no_harm(lake: Lake, step: str) -> None:
    with_late_rows(lake, HOURS)
    DeltaTable(lake.path("events")).delete("value in (7, 9)")
    crashed_after(lake, HOURS, step)
    lake.stream(LOCAL, HOURS)
    assert held(lake, HOURS) == [("ann", 8)]
    assert broken(lake, HOURS) == set()


# --- restores ------------------------------------------------------------------------------------


def back_to(lake: Lake, epoch: int, keep_stale: bool = False) -> None:
    tables = lake.tables(HOURS)
    restore(tables, find_snapshot(tables, str(epoch)), lake.clock(), keep_stale)


@pytest.mark.long
@pytest.mark.parametrize("keep_stale", [False, True])
def test_a_restore_brings_them_back_and_a_restore_on_again_takes_them_away(lake: Lake, keep_stale: bool) -> None:
    before = newest(with_late_rows(lake, HOURS), HOURS)
    deleted(lake, HOURS, "value in (7, 9)")
    after = newest(lake, HOURS)
    vacuum(lake.tables(HOURS), Retention(snapshots=99, age=0), lake.clock() + DAY)
    for _ in range(2):
        back_to(lake, before, keep_stale)
        assert held(lake, HOURS) == ALL
        assert broken(lake, HOURS) == set()
        back_to(lake, after)
        assert held(lake, HOURS) == [("ann", 8)]
        assert broken(lake, HOURS) == set()
    back_to(lake, before)
    lake.stream(LOCAL, HOURS)
    assert held(lake, HOURS) == [("ann", 8)]
    back_to(lake, after)
    back_to(lake, before)
    assert held(lake, HOURS) == ALL
    lake.stream(LOCAL, HOURS)
    assert held(lake, HOURS) == [("ann", 8)]
    assert broken(lake, HOURS) == set()


@pytest.mark.long
def test_a_row_that_comes_back_is_marked_only_if_the_restored_line_reopened_it(lake: Lake) -> None:
    before = newest(with_late_rows(lake, HOURS), HOURS)
    lake.reopen(LOCAL, HOURS)
    reopened = newest(lake, HOURS)
    deleted(lake, HOURS, "value = 7")
    for epoch, mark in ((reopened, reopened), (before, None), (reopened, reopened)):
        back_to(lake, epoch)
        assert [row["reopened"] for row in lake.rows(HOURS, "late").to_pylist()] == [mark] * 3
        assert broken(lake, HOURS) == set()


def test_rows_that_were_pruned_meanwhile_do_not_come_back(lake: Lake) -> None:
    before = newest(with_late_rows(lake, HOURS), HOURS)
    deleted(lake, HOURS, "value = 7")
    prune(lake.tables(HOURS), lake.clock() + DAY, lake.clock() + DAY)
    back_to(lake, before)
    assert held(lake, HOURS) == []
    assert broken(lake, HOURS) == set()


def test_a_restore_refuses_to_lose_rows_that_left_after_a_savepoint_and_are_not_retained(lake: Lake) -> None:
    with_late_rows(lake, HOURS)
    tables = lake.tables(HOURS)
    create_savepoint(tables, find_snapshot(tables, "latest"), "kept", 1)
    deleted(lake, HOURS, "value = 7")
    lake.append(("ann", at("20:00"), 1))
    lake.stream(LOCAL, HOURS)
    vacuum(tables, Retention(snapshots=1, age=0), lake.clock() + DAY)
    with pytest.raises(Refused, match=r"epoch 3 removed from tables late and rejects of hours.*restart=True"):
        restore(tables, read_savepoint(tables, "kept"), lake.clock())


def test_a_key_leaves_the_files_with_rows_that_left_when_it_is_forgotten(lake: Lake) -> None:
    with_late_rows(lake, HOURS)
    deleted(lake, HOURS, "user = 'bob'")
    folder = Path(lake.path(HOURS.name), "late")
    assert any(b"bob" in path.read_bytes() for path in folder.glob("*deleted*.parquet"))
    with Lease(lake.tables(HOURS), "forget", lake.clock):
        forget(lake.tables(HOURS), HOURS, [("bob",)], lake.clock() + DAY)
    assert not any(b"bob" in path.read_bytes() for path in Path(lake.path(HOURS.name)).rglob("*.parquet"))


# --- planted bugs and old tables -----------------------------------------------------------------


def test_the_suites_notice_rows_that_leave_without_being_counted_and_rows_that_stay(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_late_rows(lake, HOURS)
    beside = Lake(tmp_path / "beside", lake.clock)
    shutil.copytree(lake.folder, beside.folder)
    monkeypatch.setattr(Deletions, "stay", lambda self, rows: np.ones(len(rows), np.bool_))
    deleted(lake, HOURS, "value = 7")
    assert broken(lake, HOURS)
    stay: Any = lambda self, rows: np.zeros(len(rows), np.bool_)  # noqa: E731
    monkeypatch.setattr(Deletions, "stay", stay)
    deleted(beside, HOURS, "value = 7")
    assert broken(beside, HOURS)
