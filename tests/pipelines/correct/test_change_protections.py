"""Protections of a correction: forgotten keys stay forgotten, a second driver is fenced, and bugs are noticed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.expectations.broken import broken_in
from tests.lake import LOCAL, Clock, Lake, at, session_pipeline
from tests.pipelines.correct.lakes import (
    CORRECTING,
    HOURS,
    SESSIONS,
    crashed_after,
    newest,
    overwritten,
    panes,
    two_users,
)
from tidegate.pipelines import Pipeline
from tidegate.pipelines.correct import spans
from tidegate.pipelines.correct.spans import NearPanes
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.errors import LeaseHeld, Refused
from tidegate.pipelines.ledger.lease import TIME_TO_LIVE, Lease
from tidegate.pipelines.ledger.snapshots import publish as publish_step
from tidegate.pipelines.ledger.snapshots.forget import Forgotten, forget
from tidegate.pipelines.ledger.snapshots.head import read_snapshot, state_rows
from tidegate.pipelines.project.forget import check_read_before_forgetting
from tidegate.pipelines.run.stream import Stream

NOW = 2_000_000_000_000
WAITING = session_pipeline(source=CORRECTING, name="waiting", allowed_lateness=9 * 3_600_000)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return two_users(tmp_path)


# --- keys to forget ------------------------------------------------------------------------------


def erased(lake: Lake, pipeline: Pipeline, user: str) -> Forgotten:
    with Lease(lake.tables(pipeline), "forget", lake.clock):
        return forget(lake.tables(pipeline), pipeline, [(user,)], NOW)


def bytes_of(lake: Lake, pipeline: Pipeline) -> bytes:
    """Return every byte of the pipeline's tables: the statistics of Parquet files contain short strings unchanged."""
    folder = Path(lake.path(pipeline.name))
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.first(1)
@pytest.mark.parametrize("pipeline", [HOURS, SESSIONS, WAITING], ids=lambda pipeline: pipeline.name)
def test_a_key_that_is_deleted_in_the_source_and_forgotten_is_nowhere_and_the_stream_goes_on(
    lake: Lake, pipeline: Pipeline
) -> None:
    lake.stream(LOCAL, pipeline)
    lake.append(("bob", at("10:31"), 9))
    lake.append(("bob", at("01:00"), 9))
    lake.stream(LOCAL, pipeline)
    DeltaTable(lake.path("events")).delete("user = 'bob'")
    lake.stream(LOCAL, pipeline)
    assert b"bob" in bytes_of(lake, pipeline)
    erased(lake, pipeline, "bob")
    assert b"bob" not in bytes_of(lake, pipeline)
    lake.append(("ann", at("21:00"), 1))
    DeltaTable(lake.path("events")).delete("value = 3")
    lake.stream(LOCAL, pipeline)
    assert b"bob" not in bytes_of(lake, pipeline)
    assert {(row["user"], row["total"]) for row in lake.latest(pipeline).to_pylist()} == {("ann", 3), ("cem", 11)}
    assert broken_in(lake.tables(pipeline), pipeline) == set()


@pytest.mark.first(1)
@pytest.mark.parametrize("pipeline", [HOURS, SESSIONS, WAITING], ids=lambda pipeline: pipeline.name)
def test_a_key_that_is_forgotten_before_its_deletion_is_read_does_not_come_back(lake: Lake, pipeline: Pipeline) -> None:
    lake.stream(LOCAL, pipeline)
    DeltaTable(lake.path("events")).delete("user = 'bob'")
    erased(lake, pipeline, "bob")
    lake.stream(LOCAL, pipeline)
    assert b"bob" not in bytes_of(lake, pipeline)
    lake.append(("ann", at("21:00"), 1))
    lake.stream(LOCAL, pipeline)
    assert b"bob" not in bytes_of(lake, pipeline)
    assert {row["user"] for row in lake.latest(pipeline).to_pylist()} == {"ann", "cem"}


def test_forget_refuses_unread_versions_that_could_bring_the_key_back_with_a_way_on_that_works(lake: Lake) -> None:
    tables, events = lake.tables(HOURS), DeltaTable(lake.path("events"))
    check_read_before_forgetting(tables, HOURS)
    lake.stream(LOCAL, HOURS)
    lake.append(("ann", at("21:00"), 1))
    lake.append(("bob", at("22:00"), 1))
    check_read_before_forgetting(tables, HOURS)
    events.update_incremental()
    events.update({"value": "40"}, predicate="user = 'bob'")
    events.delete("user = 'bob'")
    with pytest.raises(Refused, match=r"not read versions 2 to 5 of source events yet.*project.stream\(\"hours\"\)"):
        check_read_before_forgetting(tables, HOURS)
    lake.stream(LOCAL, HOURS)
    events.delete("user = 'cem'")
    check_read_before_forgetting(tables, HOURS)
    erased(lake, HOURS, "bob")
    lake.stream(LOCAL, HOURS)
    assert b"bob" not in bytes_of(lake, HOURS)


def test_forget_does_not_ask_for_a_source_that_is_gone_or_for_more_than_the_watermark(lake: Lake) -> None:
    lake.stream(LOCAL, HOURS)
    overwritten(lake, ("ann", at("10:40"), 8), ("cem", at("18:00"), 7))
    DeltaTable(lake.path("events")).delete("user = 'cem'")
    with pytest.raises(Refused):
        check_read_before_forgetting(lake.tables(HOURS), HOURS)
    crashed_after(lake, HOURS, "published epochs")
    assert lake.snapshot(HOURS).manifest.position_in("events").files
    check_read_before_forgetting(lake.tables(HOURS), HOURS)
    DeltaTable(lake.path("events")).delete("user = 'ann'")
    with pytest.raises(Refused):
        check_read_before_forgetting(lake.tables(HOURS), HOURS)
    shutil.rmtree(lake.path("events"))
    check_read_before_forgetting(lake.tables(HOURS), HOURS)


# --- two drivers ---------------------------------------------------------------------------------


def while_it_hangs(lake: Lake, step: str) -> None:
    """Run a stream that hangs after a step of its correction, while another driver takes the lease and continues."""
    is_planned = False

    def tell(name: str) -> None:
        nonlocal is_planned
        is_planned = is_planned or name == "planned"
        if is_planned and name == step:
            lake.clock.now += TIME_TO_LIVE + 1
            lake.stream(LOCAL, HOURS)

    with lake.driver(LOCAL, HOURS, tell) as driver:
        Stream(driver, lambda manifest: None).run_available()


@pytest.fixture
def correcting(lake: Lake) -> Lake:
    """A stream that has to make a correction."""
    lake.clock = Clock()
    lake.stream(LOCAL, HOURS)
    overwritten(lake, ("ann", at("10:40"), 8), ("bob", at("10:30"), 4), ("cem", at("18:00"), 7))
    return lake


def totals(lake: Lake) -> dict[str, int]:
    return {row["user"]: row["total"] for row in lake.final(HOURS).to_pylist()}


@pytest.mark.first(1)
@pytest.mark.parametrize("step", ["planned", "operated", "committed"])
def test_a_driver_that_hangs_in_a_correction_loses_it_to_the_one_that_goes_on(correcting: Lake, step: str) -> None:
    with pytest.raises(LeaseHeld):
        while_it_hangs(correcting, step)
    assert totals(correcting) == {"ann": 8, "bob": 4}
    rows = [row for row in correcting.rows(HOURS, "results").to_pylist() if row["user"] == "ann"]
    assert sorted((row["pane"], row["op"]) for row in rows) == [(0, "+"), (0, "-"), (1, "+")]
    assert broken_in(correcting.tables(HOURS), HOURS) == set()


def test_a_correction_is_fenced_by_the_log_where_no_lease_helps(
    correcting: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lease, "check", lambda self: None)
    with pytest.raises(LeaseHeld) as lost:
        while_it_hangs(correcting, "operated")
    assert isinstance(lost.value.__cause__, Refused)
    assert "another driver committed to table state" in str(lost.value.__cause__)
    assert totals(correcting) == {"ann": 8, "bob": 4}


# --- planted bugs --------------------------------------------------------------------------------


def test_a_correction_that_recovery_does_not_roll_forward_is_noticed(
    correcting: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = newest(correcting, HOURS)
    crashed_after(correcting, HOURS, "committed")
    monkeypatch.setattr(Driver, "recover", lambda self: read_snapshot(self.tables))
    correcting.stream(LOCAL, HOURS)
    assert ("ann", "10:00", 0, "-", 6) not in panes(correcting, HOURS, before)


def test_a_correction_that_is_published_twice_is_noticed(correcting: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    crashed_after(correcting, HOURS, "published epochs")
    monkeypatch.setattr(publish_step, "is_published", lambda *ignored: False)
    correcting.stream(LOCAL, HOURS)
    kinds = [row["epoch"] for row in correcting.rows(HOURS, "epochs").to_pylist() if row["kind"] == "change"]
    assert len(kinds) > len(set(kinds))


# --- rows that are read --------------------------------------------------------------------------


@pytest.mark.first(1)
@pytest.mark.parametrize("pipeline", [HOURS, SESSIONS], ids=lambda pipeline: pipeline.name)
def test_a_correction_reads_the_published_panes_near_the_rows_that_changed(
    lake: Lake, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hour in range(15, 21):
        lake.append(("ann", at(f"{hour}:30"), 1), ("bob", at(f"{hour}:31"), 1))
    lake.stream(LOCAL, pipeline)
    DeltaTable(lake.path("events")).delete("user = 'ann' and value = 3")
    lengths, read = list[int](), NearPanes.read

    def noted(self: NearPanes, *arguments: Any, **named: Any) -> Any:
        rows = read(self, *arguments, **named)
        lengths.append(len(rows))
        return rows

    monkeypatch.setattr(NearPanes, "read", noted)
    lake.stream(LOCAL, pipeline)
    assert len(lake.rows(pipeline, "results")) > 8
    assert max(lengths) <= 2
    assert {row["total"] for row in lake.final(pipeline).to_pylist() if row["window_start"].hour == 10} == {3, 4}


def test_a_correction_reads_the_open_sessions_of_the_keys_that_changed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append(*((f"user {number}", at("14:05"), 1) for number in range(60)))
    lake.stream(LOCAL, SESSIONS)
    DeltaTable(lake.path("events")).delete("value = 6")
    rows = list[int]()

    def noted(*arguments: Any) -> Any:
        rows.append(len(read := state_rows(*arguments)))
        return read

    monkeypatch.setattr(spans, "state_rows", noted)
    lake.stream(LOCAL, SESSIONS)
    assert 0 < max(rows) <= 6
    lake.append(("ann", at("21:00"), 1))
    lake.stream(LOCAL, SESSIONS)
    assert ("cem", 5) in {(row["user"], row["total"]) for row in lake.final(SESSIONS).to_pylist()}
