from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.lake import Clock
from tests.remedies import remedy_of
from tidegate.pipelines.errors import LeaseHeld, Refused, StoreFailed
from tidegate.pipelines.ledger.host import after_boot, this_host
from tidegate.pipelines.ledger.lease import TIME_TO_LIVE, Holder, Lease, read_lease, request_stop, unlock
from tidegate.pipelines.ledger.tables.pipeline_tables import LEASE, PipelineTables
from tidegate.pipelines.remedy import Act
from tidegate.pipelines.storage import shared_folder
from tidegate.pipelines.storage.artifacts import ArtifactsInFolder
from tidegate.pipelines.storage.warehouse import Warehouse


@pytest.fixture
def tables(tmp_path: Path) -> PipelineTables:
    return PipelineTables(Warehouse(str(tmp_path)), "duty")


@pytest.fixture
def clock() -> Clock:
    """The clock of the drivers."""
    return Clock()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Another process on this host."""
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.communicate()


def folder_of(tables: PipelineTables) -> Path:
    return Path(tables.path(LEASE))


def held_by(tables: PipelineTables, clock: Clock, **differing: object) -> Holder:
    """Let another driver hold the lease."""
    other = Lease(tables, "stream", clock)
    other.holder = replace(other.holder, **differing)  # type: ignore[arg-type]
    other.renew()
    return other.holder


def is_refused(tables: PipelineTables, clock: Clock, words: str) -> None:
    with pytest.raises(LeaseHeld, match=words), Lease(tables, "backfill", clock):
        pytest.fail("both hold it")


def is_free(tables: PipelineTables, clock: Clock) -> None:
    with Lease(tables, "backfill", clock) as lease:
        lease.check()


def test_a_second_driver_is_refused_and_told_who_the_first_is(tables: PipelineTables, clock: Clock) -> None:
    with Lease(tables, "backfill", clock), pytest.raises(LeaseHeld) as refused, Lease(tables, "stream", clock):
        pytest.fail("both hold it")
    for part in ("duty", str(os.getpid()), socket.gethostname(), "backfill"):
        assert part in str(refused.value)


def test_a_lease_that_was_given_back_is_free_for_a_host_whose_clock_is_behind(
    tables: PipelineTables, clock: Clock
) -> None:
    with Lease(tables, "backfill", Clock(clock.now + 30_000)) as ahead:
        ahead.holder = replace(ahead.holder, host="elsewhere")
    with Lease(tables, "stream", clock):
        pass


def test_it_is_given_back_after_an_error_too(tables: PipelineTables, clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError), Lease(tables, "backfill", clock):
        raise ZeroDivisionError
    row = read_lease(tables)
    assert not row.is_alive(clock.now)


def test_what_a_process_could_not_give_back_is_free_for_its_next_run(
    tables: PipelineTables, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook's process survives a run that failed because of a store."""

    def fail(*_: object) -> None:
        raise StoreFailed("the store does not answer")

    with monkeypatch.context() as patch, Lease(tables, "backfill", clock):
        patch.setattr(ArtifactsInFolder, "change", fail)
    row = read_lease(tables)
    assert row.expires_at > clock.now, "it was not given back"
    is_free(tables, clock)


def test_a_live_process_of_this_host_keeps_it(
    tables: PipelineTables, clock: Clock, process: subprocess.Popen[bytes]
) -> None:
    started = after_boot(psutil.Process(process.pid))
    held_by(tables, clock, process=process.pid, process_started=started)
    is_refused(tables, clock, str(process.pid))


def test_a_driver_lives_on_when_the_clock_is_set(tables: PipelineTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system derives its boot time from the clock, and psutil derives the start of a process from that."""
    clock, booted = Clock(), psutil.boot_time()
    with Lease(tables, "stream", clock):
        monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: booted + 30)
        is_refused(tables, clock, "process")


def test_a_process_of_this_host_that_was_killed_is_taken_over_at_once(
    tables: PipelineTables, clock: Clock, process: subprocess.Popen[bytes]
) -> None:
    """Even before its parent has collected it: until then it is a zombie, which still has its id."""
    started = after_boot(psutil.Process(process.pid))
    row = held_by(tables, clock, process=process.pid, process_started=started)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not row.is_alive(clock.now)
    process.wait()
    assert not row.is_alive(clock.now)
    is_free(tables, clock)


def test_a_process_number_that_was_used_again_is_not_the_driver(
    tables: PipelineTables, clock: Clock, process: subprocess.Popen[bytes]
) -> None:
    started = after_boot(psutil.Process(process.pid))
    held_by(tables, clock, process=process.pid, process_started=started - 100)
    is_free(tables, clock)


def test_a_driver_of_another_host_keeps_it_until_it_runs_out(tables: PipelineTables, clock: Clock) -> None:
    held_by(tables, clock, host="elsewhere", process=1)
    clock.now += TIME_TO_LIVE - 1
    is_refused(tables, clock, "elsewhere")
    clock.now += 1
    is_free(tables, clock)


def test_a_driver_that_slept_past_its_lease_stops_before_it_commits(tables: PipelineTables, clock: Clock) -> None:
    with Lease(tables, "stream", clock) as sleeper:
        clock.now += TIME_TO_LIVE
        taken = held_by(tables, clock, host="elsewhere")
        sleeper.renew()
        with pytest.raises(LeaseHeld, match=r"lost the lease to process .* on elsewhere"):
            sleeper.check()
    row = read_lease(tables)
    assert row.run == taken.run, "its end gave back a lease that was no longer its own"


def test_a_lease_that_ran_out_unnoticed_is_found_out_before_a_commit(tables: PipelineTables, clock: Clock) -> None:
    """As if the storage had not answered a renewal for a minute."""
    with Lease(tables, "stream", clock) as lease:
        clock.now += TIME_TO_LIVE
        lease.check()
        row = read_lease(tables)
        assert row.expires_at == clock.now + TIME_TO_LIVE
        clock.now += TIME_TO_LIVE
        held_by(tables, clock, host="elsewhere")
        with pytest.raises(LeaseHeld, match="elsewhere"):
            lease.check()


def test_a_renewal_that_fails_is_tried_again(tables: PipelineTables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.pipelines.ledger.lease.TIME_TO_LIVE", 30)
    again, tries = threading.Event(), []

    def renew() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("the storage does not answer")
        again.set()

    lease = Lease(tables, "stream", Clock())
    monkeypatch.setattr(lease, "renew", renew)
    with lease:
        assert again.wait(30)


def test_a_stop_reaches_the_driver_and_outlives_a_renewal(tables: PipelineTables, clock: Clock) -> None:
    with Lease(tables, "stream", clock) as lease:
        assert not lease.stop_requested
        asked = request_stop(tables, clock.now)
        assert asked.run == lease.holder.run
        lease.renew()
        assert lease.stop_requested
    with Lease(tables, "stream", clock) as after:
        assert not after.stop_requested, "the next driver was not asked to stop"


def test_without_a_driver_there_is_nobody_to_stop(tables: PipelineTables, clock: Clock) -> None:
    assert request_stop(tables, clock.now) is None
    held_by(tables, clock, host="elsewhere")
    clock.now += TIME_TO_LIVE
    assert request_stop(tables, clock.now) is None


def test_the_lease_is_one_document_and_its_lock(tables: PipelineTables, clock: Clock) -> None:
    with Lease(tables, "stream", clock) as lease:
        for _ in range(3):
            lease.renew()
    assert {file.name for file in folder_of(tables).iterdir()} == {"holder.json", "lock"}


def who_holds_it(tables: PipelineTables, clock: Clock, drivers: int) -> list[bool]:
    """Start drivers at the same moment, and return whether each got the lease, those that did last."""
    together, entered = threading.Barrier(drivers), threading.Barrier(drivers)

    def drive(number: int) -> bool:
        together.wait(60)
        try:
            with Lease(tables, f"stream {number}", clock):
                entered.wait(60)
        except LeaseHeld:
            entered.wait(60)
            return False
        return True

    with ThreadPoolExecutor(drivers) as threads:
        return sorted(threads.map(drive, range(drivers)))


def test_of_drivers_that_start_at_the_same_moment_one_holds_it(tables: PipelineTables, clock: Clock) -> None:
    assert who_holds_it(tables, clock, 6) == [False] * 5 + [True]


def test_a_driver_that_was_stopped_while_it_changed_the_lease_is_taken_over(
    tables: PipelineTables, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the lock of the folder, and finds out about the next driver when it continues."""
    monkeypatch.setattr(shared_folder, "LOCK_SECONDS", 0.05)
    stopped = Lease(tables, "stream", clock)
    stopped.renew()
    with ArtifactsInFolder(folder_of(tables)).files.locked(""):
        clock.now += TIME_TO_LIVE
        stopped_holder = replace(stopped.holder, host="elsewhere")
        assert not stopped_holder.is_alive(clock.now)
        with Lease(tables, "backfill", clock) as other:
            other.renew()
            other.check()
    with pytest.raises(LeaseHeld, match="lost the lease"):
        stopped.check()


def test_without_a_lease_a_stop_and_an_unlock_leave_nothing_behind(tables: PipelineTables, clock: Clock) -> None:
    assert request_stop(tables, clock.now) is unlock(tables, clock.now) is read_lease(tables) is None
    assert not folder_of(tables).parent.exists()


def test_a_lease_of_a_clock_that_was_ahead_is_taken_away_by_name(tables: PipelineTables, clock: Clock) -> None:
    ahead = Clock(clock.now + 86_400_000)
    held_by(tables, ahead, host="elsewhere", process=7, expires_at=ahead.now)
    is_refused(tables, clock, "process 7 on elsewhere.*remove the lease")
    assert "process 7 on elsewhere" in str(unlock(tables, clock.now))
    is_free(tables, clock)
    assert unlock(tables, clock.now) is None


@pytest.mark.parametrize("name", ["holder.json", "lock"])
@pytest.mark.parametrize("make", [Path.mkdir, lambda place: place.symlink_to("/nowhere/x")])
def test_what_stands_in_the_place_of_a_file_of_the_lease_is_named(
    tables: PipelineTables, clock: Clock, make: Callable[[Path], object], name: str
) -> None:
    with Lease(tables, "stream", clock):
        pass
    place = folder_of(tables) / name
    place.unlink()
    make(place)
    with pytest.raises(Refused, match=r"Remove (it|the link)") as refused, Lease(tables, "stream", clock):
        pytest.fail("it is held")
    assert str(place) in str(refused.value)
    place.rmdir() if place.is_dir() else place.unlink()
    is_free(tables, clock)


def test_a_driver_at_work_on_this_host_keeps_its_lease_from_an_unlock(tables: PipelineTables, clock: Clock) -> None:
    with Lease(tables, "stream", clock) as lease:
        with pytest.raises(Refused, match="that process is alive") as refused:
            unlock(tables, clock.now)
        assert remedy_of(refused, Act.STOP)
        lease.check()


def test_an_unlocked_driver_that_lives_takes_its_lease_back_unless_another_has_it(
    tables: PipelineTables, clock: Clock
) -> None:
    driver = Lease(tables, "stream", clock)
    driver.holder = replace(driver.holder, host="elsewhere")
    driver.renew()
    assert unlock(tables, clock.now) is not None
    driver.renew()
    driver.check()
    assert unlock(tables, clock.now) is not None
    with Lease(tables, "restore", clock):
        driver.renew()
        with pytest.raises(LeaseHeld, match="lost the lease to process"):
            driver.check()


def test_a_driver_that_slept_over_another_one_stops_also_where_that_has_ended(
    tables: PipelineTables, clock: Clock
) -> None:
    with Lease(tables, "stream", clock) as sleeper:
        clock.now += TIME_TO_LIVE
        held_by(tables, clock, host="elsewhere")
        clock.now += TIME_TO_LIVE
        with pytest.raises(LeaseHeld, match="elsewhere"):
            sleeper.check()


def test_a_process_of_another_namespace_is_not_looked_for_here(
    tables: PipelineTables, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers that share their host's network have its name, and their process ids mean nothing here."""
    monkeypatch.setattr("tidegate.pipelines.ledger.host.os.readlink", lambda path: "pid:[4026532201]")
    held_by(tables, clock, process=2**22 - 7)
    monkeypatch.setattr("tidegate.pipelines.ledger.host.os.readlink", lambda path: "pid:[4026532202]")
    is_refused(tables, clock, r"4026532201")


def test_a_host_without_containers_goes_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.pipelines.ledger.host.os.readlink", lambda path: "pid:[4026531836]")
    assert this_host() == socket.gethostname()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff", b"\x00" * 200])
def test_a_lease_that_can_not_be_read_is_removed_by_an_unlock(
    tables: PipelineTables, clock: Clock, content: bytes
) -> None:
    with Lease(tables, "stream", clock):
        pass
    document = folder_of(tables) / "holder.json"
    document.write_bytes(content)
    is_told = rf"the lease of pipeline 'duty', {document}, can't be read"
    with pytest.raises(Refused, match=is_told) as refused, Lease(tables, "stream", clock):
        pytest.fail("held")
    assert remedy_of(refused, Act.UNLOCK)
    assert "was unreadable" in str(unlock(tables, clock.now))
    is_free(tables, clock)


def test_what_a_later_version_adds_to_the_lease_is_left_alone(tables: PipelineTables, clock: Clock) -> None:
    held_by(tables, clock, host="elsewhere")
    document = folder_of(tables) / "holder.json"
    document.write_text(json.dumps({**json.loads(document.read_bytes()), "later": 1}))
    is_refused(tables, clock, "elsewhere")
