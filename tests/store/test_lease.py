"""The lease in a bucket: it changes by compare-and-set, so of several drivers one holds it, whatever the store answers.

`tests/pipelines/test_lease.py` has the rules, on a disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.lake import Clock
from tests.pipelines.test_lease import who_holds_it
from tests.store.proxy import Fault, Plan, Proxy
from tests.store.server import options_of
from tidegate.pipelines.errors import LeaseHeld, StoreFailed
from tidegate.pipelines.ledger.lease import TIME_TO_LIVE, Lease, read_lease, request_stop, unlock
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import Warehouse

LOST = [Fault.CUT_AFTER, Fault.INTERNAL_ERROR_AFTER]
"""The store does what a request says, and its answer is lost."""


@pytest.fixture
def tables(proxy: Proxy, bucket: str) -> PipelineTables:
    return PipelineTables(Warehouse(f"s3://{bucket}/wh", options_of(proxy.endpoint)), "duty")


def elsewhere(tables: PipelineTables, clock: Clock) -> Lease:
    """A lease of a driver on another host, which holds it."""
    lease = Lease(tables, "stream", clock)
    lease.holder = replace(lease.holder, host="elsewhere")
    lease.renew()
    return lease


def test_of_drivers_that_start_at_the_same_moment_one_holds_it(tables: PipelineTables) -> None:
    assert who_holds_it(tables, Clock(), 4) == [False] * 3 + [True]


def test_a_driver_that_expired_is_taken_over_and_finds_out(tables: PipelineTables) -> None:
    clock = Clock()
    sleeper = elsewhere(tables, clock)
    with pytest.raises(LeaseHeld, match="elsewhere"), Lease(tables, "backfill", clock):
        pytest.fail("both hold it")
    clock.now += TIME_TO_LIVE
    with Lease(tables, "backfill", clock) as next_one:
        with pytest.raises(LeaseHeld, match="lost the lease to process"):
            sleeper.check()
        next_one.check()


@pytest.mark.parametrize("fault", LOST)
def test_a_change_whose_answer_is_lost_is_recognised(proxy: Proxy, tables: PipelineTables, fault: Fault) -> None:
    clock = Clock()

    def lose(act: Callable[[], object]) -> object:
        proxy.set(Plan(fault=fault, kind="PUT", pattern="holder.json"))
        answer = act()
        proxy.set(Plan())
        assert proxy.failed, "the request was disturbed"
        return answer

    other = Lease(tables, "stream", clock)
    other.holder = replace(other.holder, host="elsewhere", process=7)
    lose(other.renew)
    other.check()
    asked = lose(lambda: request_stop(tables, clock.now))
    assert (asked, other.stop_requested) == (replace(other.holder, expires_at=clock.now + TIME_TO_LIVE), True)
    assert "process 7 on elsewhere" in str(lose(lambda: unlock(tables, clock.now)))
    assert unlock(tables, clock.now) is None
    with Lease(tables, "backfill", clock):
        pass


def test_a_driver_whose_store_was_away_keeps_its_lease_if_nobody_took_it(proxy: Proxy, bucket: str) -> None:
    options = {**options_of(proxy.endpoint), "max_retries": "0"}
    tables, clock = PipelineTables(Warehouse(f"s3://{bucket}/wh", options), "duty"), Clock()
    with Lease(tables, "stream", clock) as lease:
        clock.now += TIME_TO_LIVE
        proxy.set(Plan(fault=Fault.SLOW_DOWN, times=1000))
        with pytest.raises(StoreFailed):
            lease.check()
        proxy.set(Plan())
        lease.check()
        assert read_lease(tables) == replace(lease.holder, expires_at=clock.now + TIME_TO_LIVE)


def test_a_renewal_is_a_read_and_a_write(proxy: Proxy, tables: PipelineTables) -> None:
    lease = elsewhere(tables, Clock())
    proxy.requests()
    lease.renew()
    assert [request.method for request in proxy.requests()] == ["GET", "PUT"]
