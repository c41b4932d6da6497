"""A driver: how it ends with its Spark, what it records about its epochs, and whom it waits for."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.by_hand import START_OF_DRIVER, ByHand
from tidegate.pipelines.engine.spark import session
from tidegate.pipelines.epoch.driver import StepTimes
from tidegate.pipelines.errors import LEASE_HELD, OTHER, LeaseHeld, Refused, TidegateError
from tidegate.pipelines.ledger.lease import TIME_TO_LIVE, Lease
from tidegate.pipelines.run.drive import Patience, drive
from tidegate.pipelines.run.epoch_log import EpochLog
from tidegate.windowing.time import to_millis


class Process:
    """A JVM that has ended with a code, or is running."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def wait(self, timeout: float) -> int:
        if self.code is None:
            raise subprocess.TimeoutExpired("java", timeout)
        return self.code


class Session:
    """The parts of a Spark session that a driver uses."""

    def __init__(self, code: int | None) -> None:
        self.process = Process(code)
        self.sparkContext = SimpleNamespace(defaultParallelism=2)
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


def drive_into(error: Exception, code: int | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    started = Session(code)
    monkeypatch.setattr(session, "start_session", lambda *arguments: started)
    monkeypatch.setattr(session.jvm, "process", lambda: started.process)
    config: Any = Lake(folder).config
    with drive(config, hourly_pipeline(), "test") as driver:
        driver.engine.start()
        raise error
    return started


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (-9, "was ended by SIGKILL: it was killed, or the system ran out of memory"),
        (137, "was ended by SIGKILL"),
        (3, "ran out of memory (exit code 3)"),
        (3, '"spark.driver.memory" under [spark] in tidegate.toml'),
        (56, "was not scheduled for minutes and ended itself (exit code 56)"),
        (
            1,
            (
                "ended with exit code 1: it may have run out of memory or been killed. Give it more memory with "
                '"spark.driver.memory"'
            ),
        ),
    ],
)
def test_an_end_of_sparks_process_is_told_by_its_cause(
    code: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TidegateError) as ended:
        drive_into(ConnectionRefusedError(111, "Connection refused"), code, tmp_path, monkeypatch)
    assert told in str(ended.value)
    assert ended.value.exit_code == OTHER
    assert str(ended.value).endswith("run again")


@pytest.mark.parametrize(
    ("error", "code"),
    [(ZeroDivisionError("a bug"), None), (Refused("not append-only"), None), (Refused("not append-only"), 3)],
    ids=["a bug", "refused", "refused before Spark ended"],
)
def test_other_errors_stay_what_they_are(
    error: Exception, code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(type(error), match=f"^{error}$"):
        drive_into(error, code, tmp_path, monkeypatch)


@pytest.mark.parametrize(("code", "stopped"), [(None, True), (-9, False)], ids=["running", "killed"])
def test_a_session_is_ended_where_it_still_runs(
    code: int | None, stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = Session(code)
    monkeypatch.setattr(session.jvm, "process", lambda: made.process)
    session.stop_session(made)
    assert made.stopped == stopped


def test_what_another_driver_took_away_meanwhile_is_told_as_a_lost_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hung; another driver took the lease, removed its files and ended."""
    started = Session(None)
    monkeypatch.setattr(session, "start_session", lambda *arguments: started)
    monkeypatch.setattr(session.jvm, "process", lambda: started.process)
    lake = Lake(tmp_path)
    with pytest.raises(LeaseHeld, match=r"lost the lease to process .* on elsewhere \(restore\)") as stopped:  # noqa: PT012, SIM117
        with drive(lake.config, hourly_pipeline(), "stream", clock=lake.clock) as driver:
            driver.engine.start()
            other = Lease(driver.tables, "restore", lake.clock)
            lake.clock.now += TIME_TO_LIVE
            other.holder = replace(other.holder, host="elsewhere")
            other.renew()
            lake.clock.now += 2 * TIME_TO_LIVE
            raise FileNotFoundError("checkpoints/hours-0123/offsets/2")
    assert stopped.value.exit_code == LEASE_HELD
    assert started.stopped


def test_a_line_has_what_became_of_the_events_and_the_seconds_of_each_phase(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    now = iter([9.0, 9.875, 10.0, 10.5, 10.75, 11.0, 11.25, 11.5, 11.75, 12.0])
    times = StepTimes(lambda: next(now))
    times.begin()
    for step in ("planned", "operated", "committed", *(f"published {name}" for name in "abcd")):
        times.note(step)
    times.end()
    log = EpochLog(tmp_path / "logs" / "epochs.jsonl", lambda: datetime(2024, 3, 2, tzinfo=UTC))
    manifest = by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("08:00"), 1), watermark=at("09:30"))
    log.write(manifest, times.newest)
    log.close()
    (line,) = (tmp_path / "logs" / "epochs.jsonl").read_text().splitlines()
    told = json.loads(line)
    assert told["phases"] == {"plan": 0.125, "operate": 0.5, "commit": 0.25, "publish": 1.0}
    assert told["seconds"] == 1.875
    assert (told["events"], told["on_time"], told["fired"], told["open_windows"]) == (2, 2, 1, 1)
    assert told["watermark"] == "2024-03-01T09:30:00.000+00:00"
    assert told["watermark_lag_ms"] == START_OF_DRIVER + 60_000 - to_millis(at("09:30"))
    assert told["at"] == "2024-03-02T00:00:00.000+00:00"


@pytest.mark.parametrize(
    "make", [Path.mkdir, lambda file: file.symlink_to("/dev/full"), os.mkfifo], ids=["a folder", "a link", "a pipe"]
)
def test_a_line_that_can_not_be_written_is_a_warning_without_a_traceback(
    tmp_path: Path, make: Callable[[Path], object], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "logs" / "epochs.jsonl"
    file.parent.mkdir()
    make(file)
    log, manifest = EpochLog(file), ByHand(tmp_path).epoch(("ann", at("10:00"), 1), watermark=at("09:30"))
    for _ in range(2):
        log.write(manifest, {})
    log.close()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"epoch 1 can't be added to {file}"
    ] * 2
    assert capsys.readouterr().err == ""


def test_the_seconds_of_an_epoch_are_its_own() -> None:
    now = iter(range(100))
    times = StepTimes(lambda: float(next(now)))
    ended = []
    for planned in (1, 2):
        for step in (*["planned"] * planned, "operated", "committed"):
            times.note(step)
        ended.append(times.end())
    # Windows may be planned twice, with a larger margin.
    assert ended == [{"plan": 1, "operate": 1, "commit": 1}, {"plan": 2, "operate": 1, "commit": 1}]
    assert times.newest is ended[1]


def test_table_epochs_has_the_lag_of_the_watermark(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    manifest = by_hand.epoch(("ann", at("10:00"), 1), watermark=at("09:30"))
    (row,) = by_hand.rows("epochs").to_pylist()
    assert row["watermark_lag_ms"] == manifest.watermark_lag == manifest.processing_time - to_millis(at("09:30"))


def waited(lake: Lake, holder: str, seconds: float, ends_after: int) -> tuple[bool, int, list[str]]:
    """Drive next to a holder that ends after this many sleeps: whether it drove, the sleeps, and the output."""
    held = Lease(lake.tables(hourly_pipeline()), holder, lake.clock)
    held.__enter__()
    slept: list[float] = []
    told: list[str] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == ends_after:
            held.__exit__(None, None, None)

    wait = Patience(seconds, "backfill", told.append, timer=lambda: float(len(slept)), sleep=sleep)
    try:
        with drive(lake.config, hourly_pipeline(), "backfill", LOCAL, lake.clock, wait=wait):
            return True, len(slept), told
    except LeaseHeld:
        held.__exit__(None, None, None)
        return False, len(slept), told


def test_a_backfill_waits_for_another_one_and_says_so_once(lake: Lake) -> None:
    drove, slept, told = waited(lake, "backfill", 60, ends_after=3)
    assert (drove, slept, len(told)) == (True, 3, 1)
    assert told[0].startswith("waiting for process")


@pytest.mark.parametrize(
    ("holder", "seconds", "sleeps"), [("stream", 60, 0), ("backfill", 5, 5), ("backfill", 0, 0)], ids=str
)
def test_it_waits_for_nothing_else_and_not_for_longer(lake: Lake, holder: str, seconds: float, sleeps: int) -> None:
    assert waited(lake, holder, seconds, ends_after=99)[:2] == (False, sleeps)
