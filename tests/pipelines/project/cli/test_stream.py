"""`tidegate stream` as a command: where it starts, and what it prints about each epoch. Its engine is Python here."""

from __future__ import annotations

import json
import os
import shutil
import signal
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable, Schema

from tests.lake import EVENTS, LOCAL, Lake, at, session_pipeline
from tests.pipelines.project.cli.project import CORRECTING, Project
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease, read_lease
from tidegate.pipelines.run import work_folder
from tidegate.pipelines.run.epoch_log import rate

NOW = ("stream", "sessions", "--available-now")


def with_hours(folder: Path) -> Lake:
    lake = Lake(folder)
    for hour in (8, 9, 10):
        lake.append(("ann", at(f"{hour:02d}:00"), hour))
    return lake


@pytest.fixture
def hourly(tmp_path: Path) -> Lake:
    """The project's source: a session at each full hour."""
    return with_hours(tmp_path)


@pytest.fixture
def streaming(project_without_jvm: Project, hourly: Lake) -> Project:
    """The project, whose streams run without a JVM, and its source."""
    return project_without_jvm


@pytest.fixture(scope="module")
def epochs(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The source of the project, read by a stream in an epoch for each file."""
    lake = with_hours(tmp_path_factory.mktemp("epochs") / "lake")
    lake.stream(LOCAL, session_pipeline(), files=1)
    return lake


@pytest.fixture
def streamed(project_without_jvm: Project, epochs: Lake) -> Project:
    """The project with a copy of them."""
    shutil.copytree(epochs.folder, project_without_jvm.folder, dirs_exist_ok=True)
    return project_without_jvm


def totals(project: Project) -> list[int]:
    return sorted(row["total"] for row in project.data("results", "sessions"))


def test_each_epoch_has_a_line_that_says_what_came_and_where_time_is(streaming: Project) -> None:
    code, told = streaming.tidegate(*NOW, "--max-files-per-epoch", "1")
    assert code == 0
    first, second, third, *_, last = [line for line in told.splitlines() if line]
    assert first.startswith("epoch 1: 1 in, 0 late, 0 fired, 1 open, watermark before 2024-03-01T07:00:00Z, lag ")
    assert first.endswith(" rows/s")
    assert second.startswith("epoch 2: 1 in, 0 late, 0 fired, 2 open, watermark before 2024-03-01T08:00:00Z, lag ")
    assert third.startswith("epoch 3: 1 in, 0 late, 1 fired, 2 open, watermark before 2024-03-01T09:00:00Z, lag ")
    assert last == "sessions: ended after a whole epoch"


def test_a_source_without_rows_and_rejected_rows_are_told(project_without_jvm: Project, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    DeltaTable.create(lake.path("events"), Schema.from_arrow(EVENTS))
    assert "sessions: its source has no rows yet: run it again" in project_without_jvm.says(0, "", *NOW)
    lake.append(("ann", None, 1))
    project_without_jvm.says(0, "epoch 1: 1 in, 0 late, 1 rejected, 0 fired", *NOW)
    project_without_jvm.says(0, "rejected rows 1, in table rejects with their reasons", "why", "sessions")
    lake.append(("ann", None, 1), ("bob", at("08:00"), 2))
    said = project_without_jvm.says(0, "epoch 2: 2 in, 0 late, 1 rejected, 0 fired", *NOW)
    assert said.endswith("sessions: ended after a whole epoch")
    assert project_without_jvm.says(0, "sessions: ended after a whole epoch", *NOW)


def test_a_correction_says_which_rows_went_and_what_it_retracted(streaming: Project, hourly: Lake) -> None:
    streaming.rewrite(CORRECTING)
    assert " deleted " not in streaming.tidegate(*NOW)[1] + streaming.tidegate("runs", "sessions")[1]
    DeltaTable(hourly.path("events")).delete("value = 8")
    _, told = streaming.tidegate(*NOW)
    corrected = next(line for line in told.splitlines() if "deleted" in line)
    assert "1 deleted (1 from windows), 0 added (0 filtered), 1 retracted, 0 fired, 2 open, " in corrected
    _, told = streaming.tidegate("runs", "sessions")
    assert " deleted " in told.splitlines()[1]
    log = (streaming.folder / "work" / "logs" / "sessions.epochs.jsonl").read_text()
    assert [json.loads(line)["rows_deleted"] for line in log.splitlines()].count(1) == 1


def test_a_restored_stream_goes_on_from_the_snapshot_that_is_named(streamed: Project) -> None:
    found = totals(streamed)
    told = streamed.data(*NOW, "--restore", "1")
    assert [epoch["events"] for epoch in told["epochs"]][:1] == [2]
    assert totals(streamed) == found
    assert {run["timeline"] for run in streamed.data("runs", "sessions")} == {1, 2}


def test_a_restored_stream_goes_on_from_a_savepoint(streaming: Project, hourly: Lake) -> None:
    streaming.data(*NOW)
    found = totals(streaming)
    streaming.data("savepoints", "create", "sessions", "release")
    hourly.append(("bob", at("08:59"), 1), ("ann", at("12:00"), 12))
    streaming.data(*NOW)
    more = totals(streaming)
    assert set(more) > set(found)
    told = streaming.data(*NOW, "--restore", "savepoint:release")
    assert [epoch["events"] for epoch in told["epochs"]][:1] == [2]
    assert totals(streaming) == more


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("pipeline", "refused"),
    [
        ("session_pipeline(key=('value',))", "key column 'user'"),
        ("session_pipeline(max_parallelism=64)", "max_parallelism is 128 in the snapshot and 64 in the code"),
    ],
)
def test_nothing_is_removed_before_it_is_sure_that_the_code_can_go_on_from_the_snapshot(
    streamed: Project, pipeline: str, refused: str
) -> None:
    found, runs = totals(streamed), streamed.data("runs", "sessions")
    streamed.rewrite(pipeline)
    code, told = streamed.tidegate(*NOW, "--restore", "1")
    assert (code, refused in told) == (3, True), told
    assert (totals(streamed), streamed.data("runs", "sessions")) == (found, runs)


def test_nothing_is_removed_where_the_source_can_not_be_read_from_the_snapshot_on(streamed: Project) -> None:
    lake = Lake(streamed.folder)
    found = totals(streamed)
    shutil.rmtree(lake.path("events"))
    lake.append(("ann", at("08:00"), 8))
    streamed.says(3, "was replaced", *NOW, "--restore", "1")
    assert totals(streamed) == found


@pytest.mark.first(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_engine_starts_ends_it_before_its_first_epoch_and_gives_the_lease_back(
    streaming: Project, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def start(engine: LocalEngine) -> None:
        signal.raise_signal(number)

    streaming.data(*NOW)
    monkeypatch.setattr(LocalEngine, "start", start)
    told = streaming.data(*NOW, "--restore", "none")
    assert told["epochs"] == []
    assert {run["timeline"] for run in streaming.data("runs", "sessions")} == {1}
    lease = read_lease(streaming.by_hand.tables)
    assert not lease.is_alive(system_clock())


def test_a_stream_with_patience_waits_for_one_that_ends_by_itself_and_then_restores(
    streamed: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduled run that unpausing started gets the lease first."""
    scheduled = Lease(streamed.by_hand.tables, "stream --available-now", system_clock)
    scheduled.__enter__()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            scheduled.__exit__(None, None, None)

    monkeypatch.setattr(
        "tidegate.pipelines.project.stream.time", SimpleNamespace(sleep=sleep, monotonic=lambda: float(len(slept)))
    )
    code, told = streamed.tidegate(*NOW, "--restore", "1", "--patience", "60")
    assert (code, told.count("waiting for process"), len(slept)) == (0, 1, 3), told
    assert {run["timeline"] for run in streamed.data("runs", "sessions")} == {1, 2}


def test_a_stream_that_lasts_removes_old_logs_between_its_epochs(
    streaming: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(config: Config, now: int) -> int:
        assert config.work_folder == tmp_path / "work"
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    monkeypatch.setattr(work_folder, "clean", end)
    streaming.says(0, "epoch 1:", "stream", "sessions", "--interval", "100ms")


def lines(project: Project, *arguments: str) -> list[dict[str, Any]]:
    code, told = project.tidegate(*arguments, "--log", "json")
    assert code == 0, told
    return [json.loads(line) for line in told.splitlines()]


def test_a_stream_prints_its_epochs(project: Project, lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1), ("bob", at("00:20"), 2))
    lake.append(("ann", at("06:00"), 4))
    first, second = lines(project, "stream", "sessions", "--available-now", "--max-commits-per-epoch", "1")
    assert [(line["epoch"], line["events"], line["kind"]) for line in (first, second)] == [
        (1, 2, "stream"),
        (2, 1, "stream"),
    ]
    assert first["rows_per_second"] == rate(2, first["seconds"])
    assert abs(datetime.fromisoformat(second["at"]) - datetime.now(UTC)).total_seconds() < 600


def test_a_backfill_prints_its_intervals(project: Project, lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1), ("ann", at("03:00", day=1), 2))
    command = ("backfill", "sessions", "--start", "2024-03-01", "--end", "2024-03-03", "--slice", "1d")
    done = lines(project, *command)
    assert [(line["interval"], line["state"], line["events"]) for line in done] == [
        ("2024-03-01", "done", 1),
        ("2024-03-02", "done", 1),
    ]
    assert all({"at", "pipeline", "seconds", "rows_per_second", "watermark"} <= line.keys() for line in done)
    assert [line["state"] for line in lines(project, *command)] == ["unchanged", "unchanged"]


def test_with_json_the_answer_follows_as_the_last_line(project: Project, lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1))
    epoch, answer = lines(project, "stream", "sessions", "--available-now", "--json")
    assert epoch["events"] == 1
    assert answer["epochs"][0]["epoch"] == epoch["epoch"]


def test_a_message_that_is_no_epoch_is_a_line_too(project: Project, lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1))
    interval, end = lines(
        project, "backfill", "sessions", "--start", "2024-03-01", "--end", "2024-03-02", "--end-of-input"
    )
    assert interval["state"] == "done"
    assert end["message"].startswith("end of input  done  epoch 2")
    assert end.keys() == {"at", "pipeline", "message"}


@pytest.mark.parametrize(("rows", "seconds", "expected"), [(10, 2.0, 5), (1, 0.0, None), (0, 1.0, 0)])
def test_the_rate_is_rows_by_seconds(rows: int, seconds: float, expected: int | None) -> None:
    assert rate(rows, seconds) == expected
