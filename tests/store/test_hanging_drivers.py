"""Drivers over a bucket that hang while another host continues, and hosts whose clocks differ."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.lake import LOCAL, Clock, Lake
from tests.recovery import arrivals
from tests.recovery.arrivals import STEPS, differences, outcome, rows_of, source_of
from tests.recovery.test_concurrent_writers import hang_over_a_restore
from tests.store.lives import upload
from tests.store.server import S3Server, options_of
from tests.waiting import wait_until
from tidegate.pipelines.errors import LEASE_HELD, REFUSED, LeaseHeld, TidegateError
from tidegate.pipelines.ledger.lease import TIME_TO_LIVE, Holder

pytestmark = [pytest.mark.recovery, pytest.mark.long]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return source_of(tmp_path_factory.mktemp("source") / "lake", commits=2)


@pytest.fixture(scope="module")
def undisturbed(source: Lake, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = arrivals.copy_of(source, tmp_path_factory.mktemp("undisturbed") / "lake")
    arrivals.run(LOCAL, lake)
    return lake


@pytest.fixture
def lake(source: Lake, server: S3Server, bucket: str, tmp_path: Path) -> Lake:
    """The source and the warehouse in a bucket, seen from one host."""
    upload(server, Path(source.path("events")), bucket, "wh/events")
    return arrivals.in_bucket(source, tmp_path / "here", f"s3://{bucket}/wh", options_of(server.endpoint))


@pytest.mark.parametrize("step", STEPS[1:-1])
def test_one_that_hung_while_another_restored_changes_nothing_when_it_wakes(
    lake: Lake, undisturbed: Lake, step: str
) -> None:
    assert isinstance(hang_over_a_restore(lake, step), TidegateError)
    assert differences(rows_of(lake), rows_of(undisturbed)) == {}


def other_host(lake: Lake, folder: Path, ahead: int) -> Lake:
    """The same lake on a host whose clock is this many milliseconds ahead."""
    folder.mkdir()
    return Lake(folder, Clock(lake.clock.now + ahead), lake.warehouse, lake.options)


@pytest.mark.parametrize("ahead", [TIME_TO_LIVE + 1, -TIME_TO_LIVE])
def test_hosts_whose_clocks_differ_by_more_than_a_lease_lasts_lose_and_double_nothing(
    lake: Lake, undisturbed: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """A host whose clock is ahead takes over the lease of a running driver, which ends with 4; a host that is behind
    waits.
    """
    monkeypatch.setattr(Holder, "is_running_here", property(lambda row: True))
    other = other_host(lake, tmp_path / "there", ahead)
    refusals: list[TidegateError] = []

    def tell(step: str) -> None:
        if step == "operated":
            attempt(lambda: arrivals.run(LOCAL, other), refusals)

    attempt(lambda: arrivals.run(LOCAL, lake, tell), refusals)
    assert [type(each) for each in refusals][:1] == [LeaseHeld]
    arrivals.run(LOCAL, other)
    assert differences(outcome(other), outcome(undisturbed)) == {}


def attempt(work: Callable[[], object], refusals: list[TidegateError]) -> None:
    try:
        work()
    except TidegateError as error:
        refusals.append(error)


@pytest.mark.parametrize("step", STEPS[:-1])
def test_a_process_that_was_stopped_and_continued_after_another_one_worked_ends_by_itself(
    lake: Lake, undisturbed: Lake, tmp_path: Path, step: str
) -> None:
    """By SIGSTOP and SIGCONT, so none of its threads renews the lease meanwhile."""
    given = [str(lake.folder), lake.warehouse, lake.options, lake.clock.now, step]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.store.test_hanging_drivers", json.dumps(given)], cwd=ROOT, stderr=subprocess.PIPE
    )
    try:
        stopped = psutil.Process(process.pid)
        wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED or process.poll() is not None, "its stop")
        assert process.poll() is None, process.communicate()[1].decode()
        arrivals.run(LOCAL, other_host(lake, tmp_path / "there", TIME_TO_LIVE + 1))
        process.send_signal(signal.SIGCONT)
        # After its commit it may find that everything is done.
        assert process.wait(60) in (0, LEASE_HELD, REFUSED)
    finally:
        process.kill()
        process.communicate()
    assert differences(outcome(lake), outcome(undisturbed)) == {}


def main(folder: str, warehouse: str, options: dict[str, str], clock: int, step: str) -> None:
    """Stream, and stop this process once, after a step of the second epoch; it may publish the epoch again later."""
    planned, stopped = list[str](), list[str]()

    def tell(done: str) -> None:
        if done == "planned":
            planned.append(done)
        if done == step and len(planned) == 2 and not stopped:
            stopped.append(done)
            os.kill(os.getpid(), signal.SIGSTOP)

    try:
        arrivals.run(LOCAL, Lake(Path(folder), Clock(clock), warehouse, options), tell)
    except TidegateError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
