"""Savepoints with tables within a bucket, between buckets, and between a bucket and a folder. Views of a pipeline in a
bucket, and a query that follows them: each task reads the bucket itself. Checking a table in a bucket without new
commits takes one request, however many entries its log has.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.copies import bring_back, copy_all
from tests.lake import LOCAL, Lake
from tests.recovery import arrivals
from tests.recovery.arrivals import PIPELINE, differences, rows_of, source_of
from tests.store.lives import upload
from tests.store.proxy import Plan, Proxy
from tests.store.server import S3Server, options_of
from tests.store.test_commits import run_until_done
from tidegate.pipelines.ledger.snapshots.savepoint import list_savepoints
from tidegate.pipelines.ledger.tables.newest import newest
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.delta_log import FOLDER, entry_name
from tidegate.pipelines.storage.warehouse import Warehouse


@pytest.mark.long
def test_tables_in_a_bucket_are_copied_by_the_store_and_come_back(
    server: S3Server, proxy: Proxy, bucket: str, tmp_path: Path
) -> None:
    disk = source_of(tmp_path / "disk", commits=0)
    lake = begun(server, proxy, bucket, disk, tmp_path, epoch=1)
    tables = lake.tables(PIPELINE)
    place = PipelineTables(Warehouse(f"s3://{bucket}/elsewhere", tables.warehouse.options), PIPELINE.name)
    before = rows_of(lake)
    proxy.requests()
    made = copy_all(tables, place, "first", lake.clock())
    copied = [name for name in objects(server, bucket) if "elsewhere" in name and name.endswith(".parquet")]
    assert proxy.counted()["COPY"] == len(copied), "the store copies within a bucket by itself"
    assert made.with_tables
    tables.warehouse.delete_folder(tables.warehouse.path(PIPELINE.name))
    assert not tables.exist
    bring_back(tables, place, "first", lake.clock())
    assert differences(rows_of(lake), before) == {}


@pytest.mark.long
@pytest.mark.parametrize("to", ["bucket", "folder"])
def test_a_stream_over_a_bucket_goes_on_from_a_savepoint_elsewhere(
    server: S3Server, proxy: Proxy, bucket: str, tmp_path: Path, to: str
) -> None:
    disk = source_of(tmp_path / "disk", commits=1)
    lake = begun(server, proxy, bucket, disk, tmp_path, epoch=2)
    tables = lake.tables(PIPELINE)
    server.make_bucket(f"{bucket}-backups")
    uri = f"s3://{bucket}-backups/here" if to == "bucket" else str(tmp_path / "elsewhere")
    place = PipelineTables(Warehouse(uri, tables.warehouse.options), PIPELINE.name)
    copy_all(tables, place, "first", lake.clock())
    arrivals.run(LOCAL, lake)
    tables.warehouse.delete_folder(tables.warehouse.path(PIPELINE.name))
    bring_back(tables, place, "first", lake.clock())
    arrivals.run(LOCAL, lake)
    arrivals.run(LOCAL, disk)
    assert differences(rows_of(lake), rows_of(disk)) == {}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 6))
def test_over_a_store_that_fails_at_random_commands_are_repeated_until_they_succeed(
    server: S3Server, proxy: Proxy, bucket: str, tmp_path: Path, seed: int
) -> None:
    disk = source_of(tmp_path / "disk", commits=1)
    quick = {"timeout": "1s", "max_retries": "3", "retry_timeout": "10s", "backoff_config.init_backoff": "10ms"}
    lake = begun(server, proxy, bucket, disk, tmp_path, epoch=2)
    lake.options |= quick
    tables = lake.tables(PIPELINE)
    place = PipelineTables(Warehouse(f"s3://{bucket}/elsewhere", tables.warehouse.options), PIPELINE.name)
    before = rows_of(lake)
    names = (f"try-{number}" for number in range(100))
    proxy.set(Plan(seed=seed, share=0.1, hold=1.2))
    run_until_done(lambda: copy_all(tables, place, next(names), lake.clock()))
    proxy.set(Plan())
    newest = list_savepoints(place)[0].name
    tables.warehouse.delete_folder(tables.warehouse.path(PIPELINE.name))
    proxy.set(Plan(seed=seed, share=0.1, hold=1.2))
    run_until_done(lambda: bring_back(tables, place, newest, lake.clock()))
    proxy.set(Plan())
    proxy.requests()
    assert proxy.failed
    assert differences(rows_of(lake), before) == {}


def begun(server: S3Server, proxy: Proxy, bucket: str, disk: Lake, folder: Path, epoch: int) -> Lake:
    """A lake in a bucket whose stream ended after some epochs."""
    upload(server, Path(disk.path("events")), bucket, "wh/events")
    lake = arrivals.in_bucket(disk, folder / "store", f"s3://{bucket}/wh", options_of(proxy.endpoint))
    arrivals.crash_after(LOCAL, lake, "published epochs", epoch=epoch)
    return lake


def objects(server: S3Server, bucket: str) -> dict[str, bytes]:
    """Return the pipeline's objects, without the lease, which nobody holds after a loss."""
    keys = server.keys(bucket, f"wh/{PIPELINE.name}/")
    return {key: server.read(bucket, key) for key in keys if "/lease/" not in key}


ROWS = pa.table({"n": pa.array([1], pa.int64())})
VERSIONS = 8


@pytest.fixture
def warehouse(proxy: Proxy, bucket: str) -> Warehouse:
    """A warehouse with a table of some versions."""
    warehouse = Warehouse(f"s3://{bucket}/wh", options_of(proxy.endpoint))
    for _ in range(VERSIONS):
        a_commit(warehouse)
    return warehouse


def a_commit(warehouse: Warehouse) -> None:
    path = warehouse.path("t")
    write_deltalake(path, ROWS, mode="append", storage_options=warehouse.options_of(path))


def a_checkpoint(warehouse: Warehouse) -> None:
    warehouse.open(warehouse.path("t")).create_checkpoint()


def an_entry_in_the_place_of_another(warehouse: Warehouse) -> None:
    files, log = warehouse.objects(f"{warehouse.path('t')}/{FOLDER}")
    entry = f"{log}/{entry_name(VERSIONS - 1)}"
    version = files.version(entry)
    assert version is not None
    files.put(entry, version.content.replace(b'"WRITE"', b'"OTHER"'))


def the_newest_entry_removed(warehouse: Warehouse) -> None:
    files, log = warehouse.objects(f"{warehouse.path('t')}/{FOLDER}")
    files.remove(f"{log}/{entry_name(VERSIONS - 1)}")


def a_reader_that_moved_it(warehouse: Warehouse) -> None:
    newest(warehouse, warehouse.path("t")).load_as_version(1)


def test_a_second_look_is_one_request(warehouse: Warehouse, proxy: Proxy) -> None:
    first = newest(warehouse, warehouse.path("t"))
    proxy.requests()
    assert newest(warehouse, warehouse.path("t")) is first
    assert proxy.counted() == {"LIST": 1}


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "change",
    [a_commit, a_checkpoint, an_entry_in_the_place_of_another, the_newest_entry_removed, a_reader_that_moved_it],
)
def test_after_a_change_it_is_opened_again(warehouse: Warehouse, change: Callable[[Warehouse], None]) -> None:
    path = warehouse.path("t")
    before = newest(warehouse, path)
    change(warehouse)
    after = newest(warehouse, path)
    assert after is not before
    assert after.version() == DeltaTable(path, storage_options=warehouse.options_of(path)).version()


def test_tables_of_one_name_in_two_buckets_are_not_mixed_up(warehouse: Warehouse, proxy: Proxy) -> None:
    elsewhere = Warehouse(f"{warehouse.uri}/other", warehouse.options)
    a_commit(elsewhere)
    assert newest(warehouse, warehouse.path("t")).version() == VERSIONS - 1
    assert newest(elsewhere, elsewhere.path("t")).version() == 0
