"""The fence on an object store: one of several drivers wins, and a store that can't tell them apart is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError

from tests.lake import LOCAL, at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.recovery import arrivals
from tests.recovery.arrivals import PIPELINE, differences, outcome, source_of
from tests.store.lives import upload
from tests.store.proxy import Fault, Plan, Proxy
from tests.store.server import S3Server, options_of
from tidegate.pipelines.definition import state
from tidegate.pipelines.definition.config import RESERVED
from tidegate.pipelines.errors import LeaseHeld, Refused, TidegateError
from tidegate.pipelines.failures import is_system_failure
from tidegate.pipelines.ledger.conditional_writes import check_conditional_writes
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.storage.object_files import ObjectFiles
from tidegate.pipelines.storage.warehouse import Warehouse


@pytest.fixture
def warehouse(proxy: Proxy, bucket: str) -> Warehouse:
    """A warehouse behind the proxy."""
    return Warehouse(f"s3://{bucket}/wh", options_of(proxy.endpoint))


def test_a_store_is_probed_once_for_each_warehouse_and_nothing_of_the_probe_stays(
    warehouse: Warehouse, proxy: Proxy, server: S3Server, bucket: str
) -> None:
    check_conditional_writes(warehouse)
    assert server.keys(bucket) == [f"wh/{RESERVED}/store.json"]
    proxy.requests()
    check_conditional_writes(warehouse)
    assert proxy.counted() == {"GET": 1}
    directly = replace(warehouse, options=options_of(server.endpoint))
    check_conditional_writes(directly)
    assert len(server.keys(bucket)) == 1
    proxy.requests()
    check_conditional_writes(warehouse)
    assert proxy.counted()["PUT"] > 0, "the note is of another address: a copy of a warehouse is probed"


def test_a_store_that_ignores_the_condition_is_refused_and_nothing_changes(
    warehouse: Warehouse, proxy: Proxy, server: S3Server, bucket: str, tmp_path: Path
) -> None:
    proxy.set(Plan(ignores_conditions=True))
    with pytest.raises(Refused, match="ignores If-None-Match: it overwrote an object") as caught:
        check_conditional_writes(warehouse)
    assert caught.value.exit_code == 3
    disk = source_of(tmp_path / "disk", commits=1)
    lake = arrivals.in_bucket(disk, tmp_path / "store", warehouse.uri, warehouse.options)
    with pytest.raises(Refused, match="ignores If-None-Match"):
        arrivals.run(LOCAL, lake)
    assert server.keys(bucket) == []


def test_a_store_that_refuses_the_first_of_both_requests_keeps_the_condition(
    warehouse: Warehouse, proxy: Proxy
) -> None:
    proxy.set(Plan(fault=Fault.PRECONDITION_FAILED, kind="PUT", pattern="probe-"))
    check_conditional_writes(warehouse)
    proxy.requests()
    assert len(proxy.failed) == 1


def test_a_store_that_looks_and_then_writes_is_refused(
    warehouse: Warehouse, server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It enforces the condition for consecutive writers, but not for concurrent ones."""
    create, main = ObjectFiles.create, threading.current_thread()

    def racy(files: ObjectFiles, path: str, content: bytes) -> bool:
        return create(files, path, content) or threading.current_thread() is not main

    monkeypatch.setattr(ObjectFiles, "create", racy)
    with pytest.raises(Refused, match="let several of 4 concurrent writers create the same object") as caught:
        check_conditional_writes(warehouse)
    assert caught.value.exit_code == 3
    assert server.keys(bucket) == []


def test_the_probe_in_its_full_size_passes_on_a_store_that_keeps_the_condition(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    check_conditional_writes(Warehouse(f"s3://{bucket}/wh", options_of(server.endpoint)))
    assert server.keys(bucket) == [f"wh/{RESERVED}/store.json"]


def test_a_store_that_lists_more_than_it_was_asked_for_is_refused(
    proxy: Proxy, warehouse: Warehouse, server: S3Server, bucket: str
) -> None:
    proxy.set(Plan(ignores_offsets=True))
    with pytest.raises(Refused, match="ignores the name from which a list of objects should begin") as caught:
        check_conditional_writes(warehouse)
    assert caught.value.exit_code == 3
    assert server.keys(bucket) == []


def test_an_option_that_turns_the_condition_off_is_refused(warehouse: Warehouse) -> None:
    unsafe = replace(warehouse, options={**warehouse.options, "AWS_S3_ALLOW_UNSAFE_RENAME": "true"})
    with pytest.raises(Refused, match="storage option allow_unsafe_rename is on"):
        check_conditional_writes(unsafe)


def by_hand(warehouse: Warehouse, folder: Path) -> ByHand:
    return ByHand(folder, session_pipeline(), elsewhere=warehouse)


@pytest.mark.first(1)
@pytest.mark.parametrize("round_", range(3))
def test_of_four_drivers_that_start_from_one_snapshot_one_commits(
    warehouse: Warehouse, tmp_path: Path, round_: int
) -> None:
    hand = by_hand(warehouse, tmp_path)
    hand.epoch(("ann", at("08:00"), 1), watermark=at("08:00"))
    plans = [hand.planned([("ann", at("09:00"), number)], at("09:00")) for number in range(4)]
    together = threading.Barrier(4)

    def drive(number: int) -> str:
        try:
            manifest = hand.committed(plans[number], together.wait)
        except Refused as refused:
            return str(refused)
        publish(hand.tables, manifest)
        return "committed"

    with ThreadPoolExecutor(4) as pool:
        ended = sorted(pool.map(drive, range(4)))
    assert ended.count("committed") == 1
    assert all("another driver committed" in text for text in ended if text != "committed")
    assert hand.tables.open(state.NAME).version() == 2
    assert hand.head().manifest.epoch == 2


@pytest.mark.first(2)
@pytest.mark.parametrize("fault", [Fault.INTERNAL_ERROR_AFTER, Fault.CUT_WITHIN, Fault.CUT_AFTER, Fault.TIME_OUT_AFTER])
def test_a_commit_that_the_store_did_and_did_not_answer_counts_once(
    warehouse: Warehouse, proxy: Proxy, tmp_path: Path, fault: Fault
) -> None:
    """The client repeats the request or reports an error; either way the next run continues from the commit."""
    hand = by_hand(replace(warehouse, options={**warehouse.options, "timeout": "1s"}), tmp_path)
    hand.epoch(("ann", at("08:00"), 1), watermark=at("08:00"))
    plan = hand.planned([("ann", at("09:00"), 1)], at("09:00"))
    proxy.set(Plan(fault=fault, kind="PUT", pattern=r"state/_delta_log/\d+\.json$", hold=1.5))
    refused = False
    try:
        publish(hand.tables, hand.committed(plan))
    except (TidegateError, OSError, DeltaError) as error:
        refused = isinstance(error, Refused)
    proxy.requests()
    assert not refused, "a refusal would not be tried again"
    assert proxy.failed, "the commit was disturbed"
    assert (hand.head().manifest.epoch, hand.tables.open(state.NAME).version()) == (2, 2)


def run_until_done(start: Callable[[], None], tries: int = 60) -> int:
    """Run again after each error, as Airflow would, and return the number of runs."""
    for number in range(tries):
        try:
            start()
        except LeaseHeld:
            # What this process could not release must not keep it from its next run.
            raise
        except Refused as refused:
            if "another driver committed" not in str(refused):
                raise
        except Exception as error:
            # A command then ends with exit code 1, and Airflow retries it.
            if not (isinstance(error, TidegateError) or is_system_failure(error)):
                raise
        else:
            return number + 1
    raise AssertionError(f"not done after {tries} runs")


@pytest.mark.parametrize(
    ("seed", "share"), [(1, 0.02), *(pytest.param(seed, 0.05, marks=pytest.mark.long) for seed in range(2, 22))]
)
def test_a_store_that_fails_at_random_loses_and_doubles_nothing(
    server: S3Server, proxy: Proxy, bucket: str, tmp_path: Path, seed: int, share: float
) -> None:
    disk = source_of(tmp_path / "disk", commits=2 if share < 0.05 else 6)
    upload(server, Path(disk.path("events")), bucket, "wh/events")
    quick = {"timeout": "1s", "max_retries": "3", "retry_timeout": "10s", "backoff_config.init_backoff": "10ms"}
    options = {**options_of(proxy.endpoint), **quick}
    lake = arrivals.in_bucket(disk, tmp_path / "store", f"s3://{bucket}/wh", options)
    proxy.set(Plan(seed=seed, share=share, hold=1.2))
    run_until_done(lambda: arrivals.run(LOCAL, lake))
    proxy.set(Plan())
    assert proxy.failed, "nothing was disturbed"
    arrivals.run(LOCAL, disk)
    assert differences(outcome(lake, PIPELINE), outcome(disk, PIPELINE)) == {}, f"seed {seed}"
